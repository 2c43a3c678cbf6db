"""Where shards are served, in the meta database: epochs go with the server that they are taken for."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sqlalchemy import Connection, and_, func, update
from sqlalchemy.dialects.mysql import insert

from foqs.model.cluster import ShardRow
from foqs.model.shard_place import EpochAsk, EpochGiven, refusal, refusal_without_row
from foqs.shard.port import ElsewhereError
from foqs.storage.meta_tables import SHARD


def take_epoch(
    connection: Connection,
    shard_id: int,
    owner: str,
    now_ms: int,
    ask: EpochAsk,
    before: ShardRow | None,
    is_dead: Callable[[str, int], bool],
) -> EpochGiven | None:
    """Make `owner` the owner of the shard if its row is still the one `before`; None if it is another one by now.

    The statement that writes checks what was decided by, so that no lock is held between two statements. Raises
    ElsewhereError.
    """
    check_place(shard_id, owner, ask, before, is_dead)
    found = ask.found
    epoch = max(ask.at_least, before.epoch if before is not None else 0) + 1
    values = {
        "epoch": epoch, "owner": owner.encode(), "owned_since": now_ms, "moving_to": b"",
        "server": found.server.encode(), "first_number": found.transaction_number,
        "last_number": found.transaction_number,
    }  # fmt: skip
    if before is None:
        written = connection.execute(insert(SHARD).prefix_with("IGNORE").values(shard_id=shard_id, **values))
    else:
        is_as_read = and_(
            SHARD.c.shard_id == shard_id, SHARD.c.epoch == before.epoch, SHARD.c.owner == before.owner.encode(),
            SHARD.c.server == before.server.encode(),
        )  # fmt: skip
        written = connection.execute(update(SHARD).where(is_as_read).values(**values))
    return EpochGiven(epoch, before) if written.rowcount else None


def check_place(
    shard_id: int, owner: str, ask: EpochAsk, before: ShardRow | None, is_dead: Callable[[str, int], bool]
) -> None:
    """Raise ElsewhereError when the process must not take the shard where it has its lock."""
    if before is None:
        problem = refusal_without_row(shard_id, owner, ask.found, is_dead)
    else:
        problem = refusal(before, owner, ask, is_dead)
    if problem:
        raise ElsewhereError(problem, before)


def leave_servers(connection: Connection, owner: str, left: Mapping[int, tuple[int, int]]) -> list[int]:
    """Note that the owner has no session with the servers of these shards, which may be taken elsewhere.

    `left` has the epoch of each, and the number of the last transaction that the owner saw committed. Returns those
    that are the owner's under these epochs.
    """
    return _note(connection, owner, left, server=b"")


def note_numbers(connection: Connection, owner: str, numbers: Mapping[int, tuple[int, int]]) -> list[int]:
    """Note the number of the last transaction of shards, with the epoch of each. Returns those that are the owner's."""
    return _note(connection, owner, numbers)


def _note(connection: Connection, owner: str, numbers: Mapping[int, tuple[int, int]], **values: bytes) -> list[int]:
    noted = []
    for shard_id, (epoch, number) in sorted(numbers.items()):
        is_mine = and_(SHARD.c.shard_id == shard_id, SHARD.c.owner == owner.encode(), SHARD.c.epoch == epoch)
        last_number = func.greatest(SHARD.c.last_number, number)
        if connection.execute(update(SHARD).where(is_mine).values(last_number=last_number, **values)).rowcount:
            noted.append(shard_id)
    return noted


def raise_epochs(
    connection: Connection, owner: str, epochs: Mapping[int, int], servers: Mapping[int, str], now_ms: int
) -> None:
    """Tell a database of these epochs, where it knows no later ones, and of the servers that they are served on."""
    for shard_id, epoch in sorted(epochs.items()):
        server = servers.get(shard_id, "") if epoch else ""
        values = {"owner": owner.encode() if epoch else b"", "owned_since": now_ms, "server": server.encode()}
        statement = insert(SHARD).values(shard_id=shard_id, epoch=epoch, **values)
        given, kept = statement.inserted, SHARD.c
        is_later = given.epoch > kept.epoch
        # In this order: the epoch that is compared with must be the old one.
        changes = [
            *((name, func.if_(is_later, given[name], kept[name])) for name in values),
            ("epoch", func.greatest(kept.epoch, given.epoch)),
        ]
        connection.execute(statement.on_duplicate_key_update(changes))

"""The serving places of shards in the meta database, where each epoch is bound to the server it was taken for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import Connection, func
from sqlalchemy.dialects.mysql import insert

from foqs.model.cluster import ShardRow, ShardUse
from foqs.model.shard_place import EpochAsk, EpochGiven, refusal, refusal_without_row
from foqs.shard.port import ElsewhereError
from foqs.storage.meta import meta_statements as sql
from foqs.storage.meta.meta_scripts import RunScript, Statement
from foqs.storage.meta.meta_tables import SHARD


def take_epoch(
    run: RunScript, shard_id: int, owner: str, now_ms: int, ask: EpochAsk, is_dead: Callable[[str, int], bool]
) -> EpochGiven | None:
    """Make `owner` the owner of the shard; None if another host took it meanwhile.

    The writing statement checks the values that the decision is based on, and commits by itself, so a host that dies
    anywhere in here holds no lock. Raises ElsewhereError.
    """
    (rows,) = run((sql.READ_SHARD, (shard_id,)))
    before = shard_of(rows[0]) if rows else None
    check_place(shard_id, owner, ask, before, is_dead)
    number = ask.found.transaction_number
    take: Statement
    epoch = max(ask.at_least, before.epoch if before is not None else 0) + 1
    if before is None:
        server = ask.found.server.encode()
        take = (sql.TAKE_NEW_SHARD, (shard_id, epoch, owner.encode(), now_ms, server, number, number))
    else:
        values = (epoch, owner.encode(), now_ms, ask.found.server.encode(), number, number)
        as_read = (shard_id, before.epoch, before.owner.encode(), before.server.encode())
        take = (sql.TAKE_SHARD, (*values, *as_read))
    _, ((written_count,),) = run(take, (sql.WRITTEN_COUNT, ()))
    return EpochGiven(epoch, before) if written_count else None


def shard_of(row: Any) -> ShardRow:
    """Convert a row with the columns of sql.READ_SHARD, which are all columns of the table."""
    shard_id, epoch, owner, owned_since, place, state, tier, pinned_to, moving_to, changed_at, *served = row
    server, first_number, last_number = served
    return ShardRow(
        shard_id, epoch, owner.decode(), owned_since, place.decode(), ShardUse(state), tier.decode(),
        pinned_to.decode(), moving_to.decode(), changed_at, server.decode(), first_number, last_number,
    )  # fmt: skip


def check_place(
    shard_id: int, owner: str, ask: EpochAsk, before: ShardRow | None, is_dead: Callable[[str, int], bool]
) -> None:
    """Raise ElsewhereError if the process must not take the shard on the server where it holds the lock."""
    if before is None:
        problem = refusal_without_row(shard_id, owner, ask.found, is_dead)
    else:
        problem = refusal(before, owner, ask, is_dead)
    if problem:
        raise ElsewhereError(problem, before)


def leave_servers(run: RunScript, owner: str, left: Mapping[int, tuple[int, int]]) -> list[int]:
    """Note that the owner has no session with the servers of these shards any more, so that any server can serve them.

    `left` has the epoch of each shard, and the number of the last transaction that the owner saw committed. Returns the
    shards that the owner still has under these epochs.
    """
    return _note(run, sql.LEAVE_SERVER, owner, left)


def note_numbers(run: RunScript, owner: str, numbers: Mapping[int, tuple[int, int]]) -> list[int]:
    """Note the number of the last transaction of shards, with the epoch of each. Returns the shards still owned."""
    return _note(run, sql.NOTE_NUMBER, owner, numbers)


def _note(run: RunScript, statement: str, owner: str, numbers: Mapping[int, tuple[int, int]]) -> list[int]:
    """Write each row by itself: a locked row fails the rest of the script, which is then sent again."""
    shard_ids, statements = sorted(numbers), []
    for shard_id in shard_ids:
        epoch, number = numbers[shard_id]
        statements += [(statement, (number, shard_id, owner.encode(), epoch)), (sql.WRITTEN_COUNT, ())]
    counts = [rows[0][0] for rows in run(*statements)[1::2]] if statements else []
    return [shard_id for shard_id, count in zip(shard_ids, counts, strict=True) if count]


def raise_epochs(
    connection: Connection, owner: str, epochs: Mapping[int, int], servers: Mapping[int, str], now_ms: int
) -> None:
    """Bring these epochs, and the servers they are served on, to a database that has no later epochs."""
    for shard_id, epoch in sorted(epochs.items()):
        server = servers.get(shard_id, "") if epoch else ""
        values = {"owner": owner.encode() if epoch else b"", "owned_since": now_ms, "server": server.encode()}
        statement = insert(SHARD).values(shard_id=shard_id, epoch=epoch, **values)
        given, kept = statement.inserted, SHARD.c
        is_later = given.epoch > kept.epoch
        # The order matters, because the comparison needs the old epoch.
        changes = [
            *((name, func.if_(is_later, given[name], kept[name])) for name in values),
            ("epoch", func.greatest(kept.epoch, given.epoch)),
        ]
        connection.execute(statement.on_duplicate_key_update(changes))

"""The shards in the meta database: their places, their owners and their next owners.

Each epoch of a shard is bound to the server that it was taken for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from sqlalchemy import Connection, and_, func, or_, select, update
from sqlalchemy.dialects.mysql import insert

from foqs.model import limits
from foqs.model.cluster import ShardRow, ShardUse, check_id_is_free
from foqs.model.errors import InvalidArgumentError, NotFoundError, UnavailableError
from foqs.model.shard_place import (
    FOUND_NOTHING,
    EpochAsk,
    EpochGiven,
    FoundShard,
    nobody_is_dead,
    refusal,
    refusal_without_row,
)
from foqs.shard.port import ElsewhereError
from foqs.storage.meta import meta_statements as sql
from foqs.storage.meta.meta_scripts import RunScript, Statement
from foqs.storage.meta.meta_sessions import MetaSessions, in_transaction
from foqs.storage.meta.meta_tables import SERVER_NOW_MS, SHARD, SLOT_GATE, SLOT_MOVE

_TAKE_TRIES_MAX = 100
"""Number of tries to take an epoch; a try fails if another host takes one between the read and the write."""


class MetaShards:
    """The table of shards."""

    def __init__(self, sessions: MetaSessions) -> None:
        self._sessions = sessions

    # --- owners of shards ---

    def take_epoch(
        self,
        shard_id: int,
        owner: str,
        now_ms: int,
        at_least: int,
        found: FoundShard = FOUND_NOTHING,
        *,
        is_renewal: bool = False,
        place: str = "",
        is_dead: Callable[[str, int], bool] = nobody_is_dead,
    ) -> EpochGiven:
        """Make `owner` the owner of the shard, with an epoch above all earlier ones and above `at_least`.

        `at_least` protects against a database that lost its own epochs. No epoch is given twice; an epoch whose answer
        was lost is never used. `found` describes the shard as read under its lock, and the server. With `is_renewal`
        the owner has served the shard there before. `place` is the known place of the database. `is_dead(owner, epoch)`
        judges the last owner. Raises ElsewhereError if the last owner could still serve the shard on another server, if
        it is parked, or if it was relocated to another place.
        """
        ask = EpochAsk(found, at_least, is_renewal, place)

        for _ in range(_TAKE_TRIES_MAX):
            given = self._sessions.script(lambda run: _take_epoch(run, shard_id, owner, now_ms, ask, is_dead))
            if given is not None:
                return given
        raise UnavailableError(f"shard {shard_id} went from owner to owner {_TAKE_TRIES_MAX} times meanwhile")

    def leave_servers(self, owner: str, left: Mapping[int, tuple[int, int]]) -> list[int]:
        """Note that the owner has left the servers of these shards, so that any server can serve them.

        `left` has the epoch of each shard, and the number of the last transaction that the owner saw committed. Returns
        the shards that the owner still has under these epochs.
        """
        return self._sessions.script(lambda run: _note(run, sql.LEAVE_SERVER, owner, left))

    def note_numbers(self, owner: str, numbers: Mapping[int, tuple[int, int]]) -> list[int]:
        """Note the number of the last transaction of shards, with the epoch of each, so that a later loss is noticed.

        Returns the shards that the owner still has under these epochs.
        """
        return self._sessions.script(lambda run: _note(run, sql.NOTE_NUMBER, owner, numbers))

    @in_transaction
    def owner(self, connection: Connection, shard_id: int) -> str | None:
        """Return the process that took the last epoch of the shard, alive or not; None if no process ever did."""
        owner: bytes | None = connection.execute(select(SHARD.c.owner).where(SHARD.c.shard_id == shard_id)).scalar()
        return None if owner is None else owner.decode()

    @in_transaction
    def ask_for(self, connection: Connection, by_owner: Mapping[int, str], heir: str) -> None:
        """Ask the owners of shards to hand over to `heir`, which is ready; `by_owner` has the owner of each shard.

        Does nothing for a shard that has another owner meanwhile.
        """
        for shard_id, owner in sorted(by_owner.items()):
            mine = and_(SHARD.c.shard_id == shard_id, SHARD.c.owner == owner.encode())
            connection.execute(update(SHARD).where(mine).values(moving_to=heir.encode()))

    @in_transaction
    def decline(self, connection: Connection, by_heir: Mapping[int, str], owner: str) -> None:
        """Refuse to hand over shards of `owner`; `by_heir` has the host that asked for each shard.

        Does nothing for a shard that has another owner meanwhile, or that another host has asked for.
        """
        for shard_id, heir in sorted(by_heir.items()):
            is_so = and_(
                SHARD.c.shard_id == shard_id, SHARD.c.owner == owner.encode(), SHARD.c.moving_to == heir.encode()
            )
            connection.execute(update(SHARD).where(is_so).values(moving_to=b""))

    @in_transaction
    def raise_epochs(
        self,
        connection: Connection,
        owner: str,
        epochs: Mapping[int, int],
        now_ms: int,
        servers: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        """Restore the shards and their owners in a database that is new, or was restored from an older state.

        `servers` are the servers on which the owner serves them. Shards with later epochs stay as they are.
        """
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

    # --- existing shards ---

    @in_transaction
    def read_all(self, connection: Connection) -> list[ShardRow]:
        """Read all present and former shards, by id."""
        return _read_shards(connection)

    @in_transaction
    def adopt(self, connection: Connection, places: Mapping[int, str], tier: str) -> dict[int, int]:
        """Add the places of shards from the configuration of a host of this tier, if the database lacks them.

        Returns the shards whose places another shard already has, each with that other shard.
        """
        shards = _read_shards(connection)
        there = {row.place: row.shard_id for row in shards if row.place and row.use is not ShardUse.REMOVED}
        taken: dict[int, int] = {}
        for shard_id, place in sorted(places.items()):
            if there.setdefault(place, shard_id) != shard_id:
                taken[shard_id] = there[place]
                continue
            values = {"epoch": 0, "owner": b"", "owned_since": 0, "tier": tier.encode()}
            statement = insert(SHARD).values(
                shard_id=shard_id, place=place.encode(), changed_at=SERVER_NOW_MS, **values
            )
            kept = SHARD.c.place
            # The order matters, because the comparison needs the old place.
            changes = [
                ("tier", func.if_(kept == b"", statement.inserted.tier, SHARD.c.tier)),
                ("changed_at", func.if_(kept == b"", SERVER_NOW_MS, SHARD.c.changed_at)),
                ("place", func.if_(kept == b"", statement.inserted.place, kept)),
            ]
            connection.execute(statement.on_duplicate_key_update(changes))
        return taken

    @in_transaction
    def add(self, connection: Connection, shard_id: int, place: str, tier: str) -> ShardRow:
        """Add a shard, which hosts of the tier serve from now on.

        Raises AlreadyExistsError if the id is in use, or was used with another place, and InvalidArgumentError if
        another shard has the place.
        """
        others = {row.place: row.shard_id for row in _read_shards(connection) if row.use is not ShardUse.REMOVED}
        if others.get(place, shard_id) != shard_id:
            raise InvalidArgumentError(f"shard {others[place]} is at {place}: two shards need two databases")
        found = _lock_shard(connection, shard_id)
        check_id_is_free(found, place)
        values = {
            "place": place.encode(), "tier": tier.encode(), "state": int(ShardUse.SERVING), "pinned_to": b"",
            "changed_at": SERVER_NOW_MS,
        }  # fmt: skip
        statement = insert(SHARD).values(shard_id=shard_id, epoch=0, owner=b"", owned_since=0, **values)
        connection.execute(statement.on_duplicate_key_update(**values))
        return _read_shard(connection, shard_id)

    @in_transaction
    def update(
        self, connection: Connection, shard_id: int, use: ShardUse | None, pinned_to: str | None, tier: str | None
    ) -> ShardRow:
        """Change the values that are not None. Raises NotFoundError for a missing or removed shard."""
        assert use is not ShardUse.REMOVED, "see `remove`"
        found = _lock_shard(connection, shard_id)
        if found is None or found.use is ShardUse.REMOVED:
            raise not_known(shard_id)
        check_unparked(found, use)
        given = {
            "state": None if use is None else int(use),
            "pinned_to": None if pinned_to is None else pinned_to.encode(),
            "tier": None if tier is None else tier.encode(),
            "moving_to": b"" if use is ShardUse.PARKED else None,
        }
        changes = {name: value for name, value in given.items() if value is not None}
        if changes:
            mine = SHARD.c.shard_id == shard_id
            connection.execute(update(SHARD).where(mine).values(**changes, changed_at=SERVER_NOW_MS))
        return _read_shard(connection, shard_id)

    @in_transaction
    def relocate(self, connection: Connection, shard_id: int, place: str, relocation: Relocation) -> ShardRow:
        """Change the place of a parked shard. Raises the errors of `Relocation.check`."""
        others = {row.place: row.shard_id for row in _read_shards(connection) if row.use is not ShardUse.REMOVED}
        relocation.check(_lock_shard(connection, shard_id), shard_id, place, others)
        values = {"place": place.encode(), "is_relocated": 1, "changed_at": SERVER_NOW_MS}
        connection.execute(update(SHARD).where(SHARD.c.shard_id == shard_id).values(**values))
        return _read_shard(connection, shard_id)

    @in_transaction
    def remove(self, connection: Connection, shard_id: int, epoch: int) -> None:
        """Remove a draining shard that its owner of this epoch has found empty; no host serves it from now on.

        Raises UnavailableError if it has another owner meanwhile or no longer drains, and InvalidArgumentError if a
        move of slots to or from it is under way, or a gate of it stands.
        """
        found = _lock_shard(connection, shard_id)
        if found is None or found.use is not ShardUse.DRAINING or found.epoch != epoch:
            raise UnavailableError(
                f"shard {shard_id} has another owner now, or takes items again: nothing was done, try again",
                retry_after_ms=limits.META_CALLS_RETRY_MS,
                nothing_done=True,
            )
        # Until a move has ended, one shard reads from the other, so neither must be removed.
        is_of_shard = or_(SLOT_MOVE.c.from_shard == shard_id, SLOT_MOVE.c.to_shard == shard_id)
        if (move := connection.execute(select(SLOT_MOVE).where(is_of_shard)).first()) is not None:
            raise InvalidArgumentError(
                f"slots of shard {move.from_shard} are on their way to shard {move.to_shard}: wait until they have "
                f"come, and have left shard {shard_id}"
            )
        has_gate = or_(SLOT_GATE.c.from_shard == shard_id, SLOT_GATE.c.to_shard == shard_id)
        if (gate := connection.execute(select(SLOT_GATE).where(has_gate)).first()) is not None:
            raise gated(shard_id, gate.slot, gate.from_shard, gate.to_shard)
        values = {"state": int(ShardUse.REMOVED), "moving_to": b"", "pinned_to": b"", "changed_at": SERVER_NOW_MS}
        connection.execute(update(SHARD).where(SHARD.c.shard_id == shard_id).values(**values))


def gated(shard_id: int, slot: int, from_shard: int, to_shard: int) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"shard {shard_id} has a gate of slot {slot}, behind which shard {to_shard} waits for items of serial topics "
        f"of shard {from_shard}: wait until these are consumed; or, if shard {from_shard} is gone for good, see foqs "
        "shard ungate"
    )


def check_unparked(found: ShardRow, use: ShardUse | None) -> None:
    """Raise InvalidArgumentError if a parked shard were to drain, because hosts would then open its database."""
    if found.use is ShardUse.PARKED and use is ShardUse.DRAINING:
        raise InvalidArgumentError(
            f"shard {found.shard_id} is parked: unpark it first (SERVING, foqs shard unpark {found.shard_id})"
        )


class Relocation(NamedTuple):
    """A wish to give a parked shard another place."""

    is_dead: Callable[[str, int], bool]
    """Judges the last owner."""
    allow_older: bool
    """True if the operator accepts the loss of transactions that the database at the new place lacks."""
    checked: ShardRow | None = None
    """The row that the database was checked against; None before."""

    def check(self, found: ShardRow | None, shard_id: int, place: str, by_place: Mapping[str, int]) -> None:
        """Raise an error unless the shard can be given this place; `by_place` has the shards of the cluster.

        Raises InvalidArgumentError if it is not parked, if another shard has the place, or if its last owner died
        without a report of its last transaction, UnavailableError if that owner has not left it yet or the row has
        changed since the check, and NotFoundError.
        """
        if found is None or found.use is ShardUse.REMOVED:
            raise not_known(shard_id)
        if found.use is not ShardUse.PARKED:
            state = found.use.name.lower()
            raise InvalidArgumentError(
                f"shard {shard_id} is {state}, and only a parked one can be relocated: see foqs shard park"
            )
        if by_place.get(place, shard_id) != shard_id:
            raise InvalidArgumentError(f"shard {by_place[place]} is at {place}: two shards need two databases")
        if is_kept(found) and not self.is_dead(found.owner, found.epoch):
            raise _retried(
                f"the last owner of shard {shard_id}, {found.owner}, has not left its database yet; try again, or end "
                "that host if it does not answer"
            )
        if is_kept(found) and not self.allow_older:
            raise InvalidArgumentError(
                f"the last owner of shard {shard_id}, {found.owner}, counts as dead and has not reported its last "
                "transaction: make sure that its process has ended, and that the database at the new place is as new "
                "as the former one; then give allow_older (foqs shard relocate --lose)"
            )
        checked = self.checked
        if checked is not None and (found.epoch, found.last_number) != (checked.epoch, checked.last_number):
            raise _retried(f"shard {shard_id} has changed while the database at {place} was checked")


def is_kept(shard: ShardRow) -> bool:
    """True unless the shard never had an owner, or its last owner has reported that it left the shard's server."""
    return bool(shard.owner and shard.server)


def _retried(reason: str) -> UnavailableError:
    return UnavailableError(f"{reason}: nothing was done", retry_after_ms=limits.META_CALLS_RETRY_MS, nothing_done=True)


def not_known(shard_id: int) -> NotFoundError:
    return NotFoundError(f"there is no shard {shard_id}: see foqs shard list")


def shard_of(row: Any) -> ShardRow:
    """Convert a row with the columns of sql.READ_SHARD, which are all columns of the table."""
    shard_id, epoch, owner, owned_since, place, state, tier, pinned_to, moving_to, changed_at, *served = row
    server, first_number, last_number, is_relocated = served
    return ShardRow(
        shard_id, epoch, owner.decode(), owned_since, place.decode(), ShardUse(state), tier.decode(),
        pinned_to.decode(), moving_to.decode(), changed_at, server.decode(), first_number, last_number,
        bool(is_relocated),
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


def _take_epoch(
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
        as_read = (
            shard_id, before.epoch, before.owner.encode(), before.server.encode(), int(before.use),
            before.place.encode(),
        )  # fmt: skip
        take = (sql.TAKE_SHARD, (*values, *as_read))
    _, ((written_count,),) = run(take, (sql.WRITTEN_COUNT, ()))
    return EpochGiven(epoch, before) if written_count else None


def _note(run: RunScript, statement: str, owner: str, numbers: Mapping[int, tuple[int, int]]) -> list[int]:
    """Write each row by itself: a locked row fails the rest of the script, which is then sent again."""
    shard_ids, statements = sorted(numbers), []
    for shard_id in shard_ids:
        epoch, number = numbers[shard_id]
        statements += [(statement, (number, shard_id, owner.encode(), epoch)), (sql.WRITTEN_COUNT, ())]
    counts = [rows[0][0] for rows in run(*statements)[1::2]] if statements else []
    return [shard_id for shard_id, count in zip(shard_ids, counts, strict=True) if count]


def _read_shards(connection: Connection) -> list[ShardRow]:
    return [shard_of(row) for row in connection.execute(select(SHARD).order_by(SHARD.c.shard_id))]


def _read_shard(connection: Connection, shard_id: int) -> ShardRow:
    return shard_of(connection.execute(select(SHARD).where(SHARD.c.shard_id == shard_id)).one())


def _lock_shard(connection: Connection, shard_id: int) -> ShardRow | None:
    row = connection.execute(select(SHARD).where(SHARD.c.shard_id == shard_id).with_for_update()).one_or_none()
    return None if row is None else shard_of(row)

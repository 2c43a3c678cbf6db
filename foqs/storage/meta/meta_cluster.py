"""Hosts and shards in the meta database: the live hosts, the shards, their owners and their next owners."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TypeVar

from sqlalchemy import Connection, and_, delete, func, or_, select, update
from sqlalchemy.dialects.mysql import insert

from foqs.model import limits
from foqs.model.cluster import PROCESS_MARK, HostRow, ShardRow, ShardUse, check_id_is_free
from foqs.model.errors import InvalidArgumentError, NotFoundError, UnavailableError
from foqs.model.meta_bounds import HOST_ROW_MS, HOST_ROW_READ_MS, HOSTS_SWEPT_MAX
from foqs.model.shard_place import FOUND_NOTHING, EpochAsk, EpochGiven, FoundShard, nobody_is_dead
from foqs.storage.meta import meta_statements as sql
from foqs.storage.meta.meta_places import leave_servers, note_numbers, shard_of, take_epoch
from foqs.storage.meta.meta_scripts import RunScript
from foqs.storage.meta.meta_tables import (
    CLUSTER_ID,
    CLUSTER_NAME,
    CLUSTER_SECRET,
    HOST,
    SERVER_NOW_MS,
    SHARD,
    SLOT_MOVE,
)

BEATING_MS = 10 * limits.SECOND_MS
"""A host with a heartbeat in this time counts as running when another host starts with another membership."""
NAMESAKE_ROW_MS = limits.MINUTE_MS
"""A starting host deletes the rows of earlier processes of its name that are older than this."""

_ELSEWHERE = 2
"""The state of a host with another membership than this database. Hosts that beat here count it as having no shards."""

_CLUSTER_ID_BYTES = 16
_TAKE_TRIES_MAX = 100
"""Number of tries to take an epoch; a try fails if another host takes one between the read and the write."""

T = TypeVar("T")


class MetaCluster(ABC):
    """The part of MetaStore by which hosts find each other."""

    @abstractmethod
    def _transaction(self) -> AbstractContextManager[Connection]: ...

    @abstractmethod
    def _retry_deadlocks(self, work: Callable[[Connection], T]) -> T: ...

    @abstractmethod
    def _run_scripts(self, work: Callable[[RunScript], T]) -> T: ...

    # --- hosts ---

    def beat(self, host: HostRow) -> list[HostRow]:
        """Record that this host is alive, with a new `beat_number`. Returns all rows of the last minute.

        It takes one round trip, and waits for no lock but one on its own row. Hosts ignore a row without new
        heartbeats. Raises UnavailableError, after the heartbeat is written, if there are more than limits.HOSTS_MAX
        hosts.

        Hosts of earlier versions do not count their beats, so the time of the last one serves as their `beat_number`.
        """
        beat = (sql.BEAT, _host_values(host, int(host.is_leaving)))
        read = (sql.READ_HOSTS, (HOST_ROW_READ_MS, HOST_ROW_READ_MS, limits.HOSTS_MAX + 1))
        _, rows = self._run_scripts(lambda run: run(beat, read))
        if len(rows) > limits.HOSTS_MAX:
            # The hosts left out of the result would look dead.
            raise UnavailableError(
                f"more than {limits.HOSTS_MAX} hosts have beaten in the meta database within a minute, which is the "
                "limit: stop those that are not needed"
            )
        return [
            HostRow(
                name.decode(),
                address.decode(),
                started,
                number or at_ms,
                bool(state),
                tier.decode(),
                proof,
                bool(starts),
            )
            for name, address, started, at_ms, number, state, tier, proof, starts in rows
        ]

    def hosts_beating(self, *, elsewhere: bool) -> list[str]:
        """Return the hosts with a recent heartbeat that find others by this table, or not by it if `elsewhere`."""
        is_fresh = HOST.c.heartbeat_at > SERVER_NOW_MS - BEATING_MS
        is_of_kind = HOST.c.state == _ELSEWHERE if elsewhere else HOST.c.state != _ELSEWHERE
        with self._transaction() as connection:
            rows = connection.execute(select(HOST.c.name).where(is_fresh, is_of_kind).order_by(HOST.c.name)).all()
        return [row.name.decode() for row in rows]

    def note_elsewhere(self, host: HostRow) -> None:
        """Record a host that does not use this table, so that hosts which look for it here can notice that."""
        self._run_scripts(lambda run: run((sql.BEAT, _host_values(host, _ELSEWHERE))))

    def forget_hosts(self, name: str) -> None:
        """Delete the rows of earlier processes of a starting host, which otherwise stay for long after a crash.

        A live process whose row looked old after a clock step writes it again with its next heartbeat.
        """
        first = (name + PROCESS_MARK).encode()
        found = (sql.FIND_NAMESAKES, (first, first + b"\xff", NAMESAKE_ROW_MS, HOSTS_SWEPT_MAX))
        self._run_scripts(lambda run: _delete_hosts(run, found, NAMESAKE_ROW_MS))

    def sweep_hosts(self) -> int:
        """Delete up to HOSTS_SWEPT_MAX rows without a heartbeat for HOST_ROW_MS, and return their number."""
        found = (sql.FIND_OLD_HOSTS, (HOST_ROW_MS, HOST_ROW_MS, HOSTS_SWEPT_MAX))
        return self._run_scripts(lambda run: _delete_hosts(run, found, HOST_ROW_MS))

    def agree_on_name(self, cluster: str) -> None:
        """Agree with all hosts on the name of the cluster. Raises InvalidArgumentError for another name.

        A new name replaces the one in the database only if no host runs or ran a moment ago. Hosts of two names would
        use two locks for each shard, and take all shards from each other repeatedly.
        """

        def agree(connection: Connection) -> None:
            values = {"name": cluster.encode(), "taken_at": SERVER_NOW_MS}
            connection.execute(insert(CLUSTER_NAME).prefix_with("IGNORE").values(one=1, **values))
            # The row stays locked to the end, so the second of two starting hosts sees the first one's name.
            is_fresh = CLUSTER_NAME.c.taken_at > SERVER_NOW_MS - BEATING_MS
            statement = select(CLUSTER_NAME.c.name, is_fresh.label("is_fresh")).with_for_update()
            found = connection.execute(statement).one()
            if found.name != cluster.encode():
                is_beating = HOST.c.heartbeat_at > SERVER_NOW_MS - BEATING_MS
                running = connection.execute(
                    select(HOST.c.name).where(is_beating).order_by(HOST.c.name).limit(1)
                ).scalar()
                if running is not None or found.is_fresh:
                    raise _another_cluster(cluster, found.name.decode(), running)
            connection.execute(update(CLUSTER_NAME).values(**values))

        self._retry_deadlocks(agree)

    def cluster_secret(self, proposed: bytes) -> bytes:
        """Return the secret that the hosts of the cluster show each other; the first host proposes it."""
        with self._transaction() as connection:
            connection.execute(insert(CLUSTER_SECRET).prefix_with("IGNORE").values(one=1, secret=proposed))
            secret: bytes = connection.execute(select(CLUSTER_SECRET.c.secret)).scalar_one()
        return secret

    def cluster_id(self, found: bytes) -> bytes:
        """Return the id of the cluster, storing `found` if this database has none; empty if both are empty."""
        with self._transaction() as connection:
            if found:
                connection.execute(insert(CLUSTER_ID).prefix_with("IGNORE").values(one=1, id=found))
            kept: bytes = connection.execute(select(CLUSTER_ID.c.id)).scalar() or b""
        return kept

    def make_cluster_id(self) -> bytes:
        """Return the id of the cluster, making a new one if it has none."""
        return self.cluster_id(secrets.token_bytes(_CLUSTER_ID_BYTES))

    def remove_host(self, host_id: str) -> None:
        """Delete the row of a host that ended in order. Does nothing if the row does not exist."""
        with self._transaction() as connection:
            connection.execute(delete(HOST).where(HOST.c.name == host_id.encode()))

    # --- owners of shards ---

    def take_shard_epoch(
        self,
        shard_id: int,
        owner: str,
        now_ms: int,
        at_least: int,
        found: FoundShard = FOUND_NOTHING,
        *,
        is_renewal: bool = False,
        is_dead: Callable[[str, int], bool] = nobody_is_dead,
    ) -> EpochGiven:
        """Make `owner` the owner of the shard, with an epoch above all earlier ones and above `at_least`.

        `at_least` protects against a database that lost its own epochs. No epoch is given twice; an epoch whose answer
        was lost is never used. `found` describes the shard as read under its lock, and the server. With `is_renewal`
        the owner has served the shard there before. `is_dead(owner, epoch)` judges the last owner. Raises
        ElsewhereError if the last owner could still serve the shard on another server.
        """
        ask = EpochAsk(found, at_least, is_renewal)

        for _ in range(_TAKE_TRIES_MAX):
            given = self._run_scripts(lambda run: take_epoch(run, shard_id, owner, now_ms, ask, is_dead))
            if given is not None:
                return given
        raise UnavailableError(f"shard {shard_id} went from owner to owner {_TAKE_TRIES_MAX} times meanwhile")

    def leave_servers(self, owner: str, left: Mapping[int, tuple[int, int]]) -> list[int]:
        """Note that the owner has left the servers of these shards, so that any server can serve them.

        `left` has the epoch of each shard, and the number of the last transaction that the owner saw committed. Returns
        the shards that the owner still has under these epochs.
        """
        return self._run_scripts(lambda run: leave_servers(run, owner, left))

    def note_numbers(self, owner: str, numbers: Mapping[int, tuple[int, int]]) -> list[int]:
        """Note the number of the last transaction of shards, with the epoch of each, so that a later loss is noticed.

        Returns the shards that the owner still has under these epochs.
        """
        return self._run_scripts(lambda run: note_numbers(run, owner, numbers))

    def shard_owner(self, shard_id: int) -> str | None:
        """Return the process that took the last epoch of the shard, alive or not; None if no process ever did."""
        with self._transaction() as connection:
            owner = connection.execute(select(SHARD.c.owner).where(SHARD.c.shard_id == shard_id)).scalar()
        return None if owner is None else owner.decode()

    def ask_for_shards(self, by_owner: Mapping[int, str], heir: str) -> None:
        """Ask the owners of shards to hand over to `heir`, which is ready; `by_owner` has the owner of each shard.

        Does nothing for a shard that has another owner meanwhile.
        """

        def ask(connection: Connection) -> None:
            for shard_id, owner in sorted(by_owner.items()):
                mine = and_(SHARD.c.shard_id == shard_id, SHARD.c.owner == owner.encode())
                connection.execute(update(SHARD).where(mine).values(moving_to=heir.encode()))

        self._retry_deadlocks(ask)

    def decline_shards(self, by_heir: Mapping[int, str], owner: str) -> None:
        """Refuse to hand over shards of `owner`; `by_heir` has the host that asked for each shard.

        Does nothing for a shard that has another owner meanwhile, or that another host has asked for.
        """

        def decline(connection: Connection) -> None:
            for shard_id, heir in sorted(by_heir.items()):
                is_so = and_(
                    SHARD.c.shard_id == shard_id, SHARD.c.owner == owner.encode(), SHARD.c.moving_to == heir.encode()
                )
                connection.execute(update(SHARD).where(is_so).values(moving_to=b""))

        self._retry_deadlocks(decline)

    # --- existing shards ---

    def list_shards(self) -> list[ShardRow]:
        """Read all present and former shards, by id."""
        with self._transaction() as connection:
            return _read_shards(connection)

    def adopt_shards(self, places: Mapping[int, str], tier: str) -> dict[int, int]:
        """Add the places of shards from the configuration of a host of this tier, if the database lacks them.

        Returns the shards whose places another shard already has, each with that other shard.
        """

        def adopt(connection: Connection) -> dict[int, int]:
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

        return self._retry_deadlocks(adopt)

    def add_shard(self, shard_id: int, place: str, tier: str) -> ShardRow:
        """Add a shard, which hosts of the tier serve from now on.

        Raises AlreadyExistsError if the id is in use, or was used with another place, and InvalidArgumentError if
        another shard has the place.
        """

        def add(connection: Connection) -> ShardRow:
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

        return self._retry_deadlocks(add)

    def update_shard(self, shard_id: int, use: ShardUse | None, pinned_to: str | None, tier: str | None) -> ShardRow:
        """Change the values that are not None. Raises NotFoundError for a missing or removed shard."""
        assert use is not ShardUse.REMOVED, "see remove_shard"

        def change(connection: Connection) -> ShardRow:
            found = _lock_shard(connection, shard_id)
            if found is None or found.use is ShardUse.REMOVED:
                raise not_known(shard_id)
            given = {
                "state": None if use is None else int(use),
                "pinned_to": None if pinned_to is None else pinned_to.encode(),
                "tier": None if tier is None else tier.encode(),
            }
            changes = {name: value for name, value in given.items() if value is not None}
            if changes:
                mine = SHARD.c.shard_id == shard_id
                connection.execute(update(SHARD).where(mine).values(**changes, changed_at=SERVER_NOW_MS))
            return _read_shard(connection, shard_id)

        return self._retry_deadlocks(change)

    def remove_shard(self, shard_id: int, epoch: int) -> None:
        """Remove a draining shard that its owner of this epoch has found empty; no host serves it from now on.

        Raises UnavailableError if it has another owner meanwhile or no longer drains, and InvalidArgumentError if a
        move of slots to or from it is under way.
        """

        def remove(connection: Connection) -> None:
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
            values = {"state": int(ShardUse.REMOVED), "moving_to": b"", "pinned_to": b"", "changed_at": SERVER_NOW_MS}
            connection.execute(update(SHARD).where(SHARD.c.shard_id == shard_id).values(**values))

        self._retry_deadlocks(remove)


def _another_cluster(mine: str, other: str, running: bytes | None) -> InvalidArgumentError:
    who = "a host that started a moment ago" if running is None else f"host {running.decode()}"
    return InvalidArgumentError(
        f"cluster is {mine!r} here, and {other!r} on {who}, with the same meta database: all hosts of one need the "
        "same name, so correct cluster or meta_url here; or, to change the name, stop those hosts and start this one "
        "10 s later"
    )


def not_known(shard_id: int) -> NotFoundError:
    return NotFoundError(f"there is no shard {shard_id}: see foqs shard list")


def _host_values(host: HostRow, state: int) -> tuple[object, ...]:
    """Return the arguments of sql.BEAT."""
    return (
        host.id.encode(), host.address.encode(), host.started_at_ms, host.beat_number, state,
        host.tier.encode(), host.proof, int(host.is_starting),
    )  # fmt: skip


def _delete_hosts(run: RunScript, found: tuple[str, tuple[object, ...]], age_ms: int) -> int:
    (rows,) = run(found)
    if rows:
        run(*[(sql.DELETE_OLD_HOST, (name, age_ms, age_ms)) for (name,) in rows])
    return len(rows)


def _read_shards(connection: Connection) -> list[ShardRow]:
    return [shard_of(row) for row in connection.execute(select(SHARD).order_by(SHARD.c.shard_id))]


def _read_shard(connection: Connection, shard_id: int) -> ShardRow:
    return shard_of(connection.execute(select(SHARD).where(SHARD.c.shard_id == shard_id)).one())


def _lock_shard(connection: Connection, shard_id: int) -> ShardRow | None:
    row = connection.execute(select(SHARD).where(SHARD.c.shard_id == shard_id).with_for_update()).one_or_none()
    return None if row is None else shard_of(row)

"""The namespaces in the meta database, whose creation and deletion need the answers of all shards.

Why a creation and a deletion ask every shard, and why the answers suffice: docs/decisions/0022-deleting-namespaces.md.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import fields, replace
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from sqlalchemy import Connection, RowMapping, delete, func, select, update
from sqlalchemy.dialects.mysql import insert
from sqlalchemy.exc import IntegrityError

from foqs.model import limits
from foqs.model.census import Census, CensusAnswer, unanswered
from foqs.model.cluster import ShardUse
from foqs.model.errors import (
    AlreadyExistsError,
    FoqsError,
    InvalidArgumentError,
    OverloadedError,
    UnavailableError,
    UnknownNamespaceError,
)
from foqs.model.namespace import (
    SETTING_RATES,
    SETTING_TEXTS,
    Namespace,
    NamespaceSettings,
    check_namespace_name,
    updated,
)
from foqs.model.policies import Policies
from foqs.model.slots import SlotMove, SlotTable
from foqs.storage.meta.meta_blocks import NamespaceBlocks
from foqs.storage.meta.meta_jobs import delete_jobs_of
from foqs.storage.meta.meta_places import raise_epochs
from foqs.storage.meta.meta_policies import delete_policies_of, prefix_policy_blocks, topic_policy_blocks
from foqs.storage.meta.meta_quotas import delete_quota_of
from foqs.storage.meta.meta_slots import (
    SlotRows,
    begin_move,
    make_slots,
    read_move,
    restore_move,
    restore_slots,
    set_phase,
)
from foqs.storage.meta.meta_tables import CENSUS, CENSUS_ANSWER, NAMESPACE, NAMESPACE_NUMBER, SERVER_NOW_MS, SHARD

T = TypeVar("T")

_REMOVED = int(ShardUse.REMOVED)
"""A shard in this state has no owner to ask."""

_ID_BITS = 63
_SETTING_TYPES = {field.name: type(getattr(NamespaceSettings(), field.name)) for field in fields(NamespaceSettings)}
"""The type of each setting, to convert the number in the table."""


class NamespaceList(NamedTuple):
    namespaces: list[Namespace]
    """The namespaces in order of their names."""
    censuses: list[Census]
    epochs: dict[int, int]
    """The last epoch by shard, including removed shards, because a host can still own one for a moment."""
    slots: SlotTable
    slot_move: SlotMove | None
    policies: Policies
    """Policies of topics. The same object as the last time if unchanged."""
    prefix_policies: Policies
    """Policies of topic prefixes, likewise."""


class MetaNamespaces(ABC):
    """A part of foqs.storage.meta.meta_store.MetaStore, which documents the common errors of these methods."""

    def __init__(self) -> None:
        self._blocks = NamespaceBlocks(_namespace_of)
        self._slots = SlotRows()
        self._policies = topic_policy_blocks()
        self._prefix_policies = prefix_policy_blocks()

    @abstractmethod
    def _transaction(self) -> AbstractContextManager[Connection]: ...

    @abstractmethod
    def _retry_deadlocks(self, work: Callable[[Connection], T]) -> T: ...

    def list_namespaces(self) -> list[Namespace]:
        """Read all namespaces, by name."""
        return self.read_namespaces().namespaces

    def page_namespaces(self, prefix: str, after: str, limit: int) -> list[Namespace]:
        """Return the first `limit` namespaces, by name, whose names begin with `prefix` and come after `after`."""
        name, first = NAMESPACE.c.name, prefix.encode()
        # Names are ASCII, so a byte above ASCII comes after every name with this prefix.
        mine = select(NAMESPACE).where(name > after.encode(), name >= first, name < first + b"\xff")
        with self._transaction() as connection:
            closing = set(connection.execute(select(CENSUS.c.namespace)).scalars())
            rows = connection.execute(mine.order_by(name).limit(limit)).mappings().all()
        return [_namespace_of(row, closing=row["number"] in closing) for row in rows]

    def read_namespaces(self) -> NamespaceList:
        """Read all namespaces, and the open questions to shards. Ends expired censuses.

        The list of namespaces is the same object as the last time if unchanged.
        """
        with self._transaction() as connection:
            # Read before the namespaces: otherwise a deletion that ends in between would leave its namespace here, and
            # open.
            found = connection.execute(select(CENSUS.c.id, CENSUS.c.namespace, CENSUS.c.expires_at < SERVER_NOW_MS))
            censuses = found.all()
            namespaces = self._blocks.read(connection)
            found = connection.execute(select(SHARD.c.shard_id, SHARD.c.epoch))
            epochs = {row.shard_id: row.epoch for row in found}
            # Read before the table: a move that ends in between has already written its table.
            slot_move = read_move(connection)
            slots = self._slots.read(connection)
            policies = self._policies.read(connection, namespaces)
            prefix_policies = self._prefix_policies.read(connection, namespaces)
        if any(is_over for _, _, is_over in censuses):
            self._retry_deadlocks(_end_expired)  # It counts as open up to here: clocks can step.
        closing = {namespace for _, namespace, _ in censuses if namespace}
        if closing:
            namespaces = [replace(one, closing=True) if one.number in closing else one for one in namespaces]
        open_ = [Census(census_id, namespace) for census_id, namespace, _ in censuses]
        return NamespaceList(namespaces, open_, epochs, slots, slot_move, policies, prefix_policies)

    def update_namespace(self, name: str, changes: object) -> Namespace:
        """Change the settings that are not None in `changes` (see namespace.updated), all or none.

        Raises UnknownNamespaceError and InvalidArgumentError.
        """
        with self._transaction() as connection:
            before = _lock_namespace(connection, name)
            after = replace(before, settings=updated(before.settings, changes))
            mine = NAMESPACE.c.number == before.number
            connection.execute(update(NAMESPACE).where(mine).values(_columns_of(after.settings)))
        return after

    def insert_namespace(self, name: str, settings: NamespaceSettings, now_ms: int) -> Namespace:
        """Create a namespace without asking the shards, which is only allowed before any shard has been served.

        Raises the errors of begin_creation.
        """
        check_namespace_name(name)
        with self._transaction() as connection:
            _check_room_for(connection, name)
            return _insert(connection, Namespace(_next_number(connection, 0), name, settings, now_ms))

    def recover_namespace(
        self, number: int, name: str, former_name: str, settings: NamespaceSettings, now_ms: int
    ) -> Namespace:
        """Restore the namespace of a number that shards hold and this database lacks.

        `former_name` is its name in the shards. Raises AlreadyExistsError if the number or the name is in use.
        """
        check_namespace_name(name)
        namespace = Namespace(number, name, settings, now_ms, former_name=former_name)
        with self._transaction() as connection:
            last = func.greatest(NAMESPACE_NUMBER.c.last, number)
            connection.execute(update(NAMESPACE_NUMBER).values(last=last))
            return _insert(connection, namespace)

    # --- censuses ---

    def begin_creation(self, name: str) -> Census:
        """Ask every shard for the greatest number it has seen.

        Raises AlreadyExistsError, InvalidArgumentError (a bad name, or NAMESPACES_MAX namespaces already) and
        OverloadedError.
        """
        check_namespace_name(name)
        with self._transaction() as connection:
            _check_room_for(connection, name)
            return _insert_census(connection, 0)

    def begin_deletion(self, name: str) -> Census:
        """Close the namespace and ask every shard for the number of its items there.

        Raises UnknownNamespaceError and OverloadedError. Raises UnavailableError while another call deletes the
        namespace, because answers to that call can come from a state before a restore of the database.
        """
        with self._transaction() as connection:
            namespace = _lock_namespace(connection, name)
            mine = CENSUS.c.namespace == namespace.number
            if connection.execute(select(CENSUS.c.id).where(mine)).first() is not None:
                raise UnavailableError(
                    f"namespace {name!r} is being deleted by another call, which is given up after "
                    f"{limits.CENSUS_EXPIRY_MS} ms at the latest: nothing was done, try again",
                    retry_after_ms=limits.META_CALLS_RETRY_MS,
                    nothing_done=True,
                )
            return _insert_census(connection, namespace.number)

    def answer_census(self, census: Census, answers: Sequence[CensusAnswer]) -> None:
        """Write answers to a census, keeping those of later owners. Does nothing after the census is over."""

        def write(connection: Connection) -> None:
            if not _lock_census(connection, census):
                return
            for answer in answers:
                statement = insert(CENSUS_ANSWER).values(census=census.id, **answer._asdict())
                given, kept = statement.inserted, CENSUS_ANSWER.c
                is_later = given.epoch >= kept.epoch
                # The order matters, because the comparison needs the old epoch.
                columns = ("items_count", "number_max", "slots_version", "epoch")
                changes = [(name, func.if_(is_later, given[name], kept[name])) for name in columns]
                connection.execute(statement.on_duplicate_key_update(changes))

        self._retry_deadlocks(write)

    def finish_creation(
        self, census: Census, name: str, settings: NamespaceSettings, now_ms: int
    ) -> Namespace | list[int]:
        """Return the new namespace, or the shards that have not answered yet.

        Raises AlreadyExistsError, and UnavailableError if the census is over.
        """

        def finish(connection: Connection) -> Namespace | list[int]:
            answers, missing = _counted(connection, census)
            if missing:
                return missing
            number = _next_number(connection, max([answer.number_max for answer in answers], default=0))
            make_slots(connection, answers)
            created = _insert(connection, Namespace(number, name, settings, now_ms))
            _delete_census(connection, census)
            return created

        return self._retry_deadlocks(finish)

    def begin_slots(self) -> Census:
        """Ask every shard for its version of the slot table. Raises OverloadedError."""
        with self._transaction() as connection:
            return _insert_census(connection, 0)

    def finish_slots(self, census: Census) -> list[int]:
        """Make the first slot table over all shards, unless one exists, or return the shards without an answer.

        Raises the UnavailableError of make_slots, also if the census is over.
        """

        def finish(connection: Connection) -> list[int]:
            answers, missing = _counted(connection, census)
            if not missing:
                connection.execute(select(NAMESPACE_NUMBER.c.last).with_for_update())
                make_slots(connection, answers)
                _delete_census(connection, census)
            return missing

        return self._retry_deadlocks(finish)

    def begin_slot_move(self, census: Census, move: SlotMove) -> list[int]:
        """Note a move for the table that all shards know, or return the shards that have not answered yet.

        Raises the UnavailableError of begin_move, also if the census is over.
        """

        def begin(connection: Connection) -> list[int]:
            answers, missing = _counted(connection, census)
            if not missing:
                connection.execute(select(NAMESPACE_NUMBER.c.last).with_for_update())
                begin_move(connection, move, answers)
                _delete_census(connection, census)
            return missing

        return self._retry_deadlocks(begin)

    def restore_slot_move(self, move: SlotMove) -> None:
        """Restore a move that this database has lost."""
        self._retry_deadlocks(lambda connection: restore_move(connection, move))

    def set_slot_move(self, move: SlotMove) -> bool:
        """Write the phase of the move. Returns False if this move is not the one under way."""
        return self._retry_deadlocks(lambda connection: set_phase(connection, move))

    def restore_slots(self, table: SlotTable) -> None:
        """Write the slot table to a database that is new or restored from an older state, or at the end of a move."""
        self._retry_deadlocks(lambda connection: restore_slots(connection, table))

    def finish_deletion(self, census: Census, name: str) -> list[int]:
        """Delete the closed namespace; if some shards have not answered yet, return them and change nothing.

        Raises InvalidArgumentError if it holds items, and UnavailableError if the census is over.
        """

        def finish(connection: Connection) -> list[int]:
            answers, missing = _counted(connection, census)
            held = sum([answer.items_count for answer in answers])
            if held:
                count = f"at least {held}" if missing else str(held)
                raise InvalidArgumentError(
                    f"namespace {name!r} still holds {count} items, dead letters included: consume or delete them first"
                )
            if missing:
                return missing
            delete_jobs_of(connection, census.namespace)
            delete_quota_of(connection, census.namespace)
            delete_policies_of(connection, census.namespace)
            connection.execute(delete(NAMESPACE).where(NAMESPACE.c.number == census.namespace))
            _delete_census(connection, census)
            return []

        return self._retry_deadlocks(finish)

    def end_census(self, census: Census) -> None:
        """Abandon the census, which reopens its namespace. Does nothing if it is over."""
        self._retry_deadlocks(lambda connection: _delete_census(connection, census))

    def raise_epochs(
        self, owner: str, epochs: Mapping[int, int], now_ms: int, servers: Mapping[int, str] = MappingProxyType({})
    ) -> None:
        """Restore the shards and their owners in a database that is new, or was restored from an older state.

        `servers` are the servers on which the owner serves them.
        """
        self._retry_deadlocks(lambda connection: raise_epochs(connection, owner, epochs, servers, now_ms))


def _lock_namespace(connection: Connection, name: str) -> Namespace:
    mine = select(NAMESPACE).where(NAMESPACE.c.name == name.encode()).with_for_update()
    row = connection.execute(mine).mappings().one_or_none()
    if row is None:
        raise UnknownNamespaceError(f"namespace {name!r:.80} does not exist: create it first")
    return _namespace_of(row)


def _check_room_for(connection: Connection, name: str) -> None:
    if connection.execute(select(NAMESPACE.c.number).where(NAMESPACE.c.name == name.encode())).first() is not None:
        raise _exists(name)
    count: int = connection.execute(select(func.count()).select_from(NAMESPACE)).scalar_one()
    if count >= limits.NAMESPACES_MAX:
        raise InvalidArgumentError(
            f"there are {count} namespaces, and the limit is {limits.NAMESPACES_MAX}: delete some, or use topics"
        )


def _next_number(connection: Connection, above: int) -> int:
    """Take a number above all that this database ever gave, and above `above`."""
    last: int = connection.execute(select(NAMESPACE_NUMBER.c.last).with_for_update()).scalar_one()
    number = max(last, above) + 1
    if number > limits.NAMESPACE_NUMBER_MAX:
        raise InvalidArgumentError(f"all {limits.NAMESPACE_NUMBER_MAX} numbers of namespaces have been used")
    connection.execute(update(NAMESPACE_NUMBER).values(last=number))
    return number


def _insert(connection: Connection, namespace: Namespace) -> Namespace:
    values = {
        "number": namespace.number,
        "name": namespace.name.encode(),
        "former_name": namespace.former_name.encode(),
        "created_at": namespace.created_at_ms,
        "policies_version": namespace.policies_version,
    }
    try:
        connection.execute(NAMESPACE.insert().values(values | _columns_of(namespace.settings)))
    except IntegrityError as error:
        raise _exists(namespace.name) from error
    return namespace


def _exists(name: str) -> FoqsError:
    return AlreadyExistsError(f"namespace {name} exists already")


def _expires_at() -> object:
    return SERVER_NOW_MS + limits.CENSUS_EXPIRY_MS


def _insert_census(connection: Connection, namespace: int) -> Census:
    count: int = connection.execute(select(func.count()).select_from(CENSUS)).scalar_one()
    if count >= limits.CENSUSES_MAX:
        raise OverloadedError(
            f"{count} namespaces are being created or deleted, and the limit is {limits.CENSUSES_MAX}: try again",
            retry_after_ms=limits.META_CALLS_RETRY_MS,
        )
    census = Census(secrets.randbits(_ID_BITS), namespace)
    connection.execute(CENSUS.insert().values(id=census.id, namespace=namespace, expires_at=_expires_at()))
    return census


def _lock_census(connection: Connection, census: Census) -> bool:
    """Lock the census. False if it is over."""
    mine = select(CENSUS.c.id).where(CENSUS.c.id == census.id).with_for_update()
    return connection.execute(mine).first() is not None


def _counted(connection: Connection, census: Census) -> tuple[list[CensusAnswer], list[int]]:
    """Return the answers, and the shards that have not answered."""
    if not _lock_census(connection, census):
        raise UnavailableError(
            "this took too long or was given up by another call, or the meta database was restored meanwhile: "
            "nothing was done, try again",
            retry_after_ms=limits.META_CALLS_RETRY_MS,
            nothing_done=True,
        )
    columns = [CENSUS_ANSWER.c[name] for name in CensusAnswer._fields]
    found = connection.execute(select(*columns).where(CENSUS_ANSWER.c.census == census.id)).all()
    answers = [CensusAnswer(*row) for row in found]
    return answers, unanswered(_epochs(connection), answers)


def _epochs(connection: Connection) -> dict[int, int]:
    """Read the last epoch of every shard that was not removed."""
    known = select(SHARD.c.shard_id, SHARD.c.epoch).where(SHARD.c.state != _REMOVED)
    return {row.shard_id: row.epoch for row in connection.execute(known)}


def _delete_census(connection: Connection, census: Census) -> None:
    connection.execute(delete(CENSUS).where(CENSUS.c.id == census.id))
    connection.execute(delete(CENSUS_ANSWER).where(CENSUS_ANSWER.c.census == census.id))


def _end_expired(connection: Connection) -> None:
    connection.execute(delete(CENSUS).where(CENSUS.c.expires_at < SERVER_NOW_MS))
    connection.execute(delete(CENSUS_ANSWER).where(CENSUS_ANSWER.c.census.not_in(select(CENSUS.c.id))))


def _columns_of(settings: NamespaceSettings) -> dict[str, int | float | bytes]:
    values: dict[str, int | float | bytes] = {}
    for field in fields(settings):
        value = getattr(settings, field.name)
        if field.name in SETTING_TEXTS:
            values[field.name] = value.encode()
        else:
            values[field.name] = float(value) if field.name in SETTING_RATES else int(value)
    return values


def _namespace_of(row: RowMapping, *, closing: bool = False) -> Namespace:
    settings = {name: row[name].decode() if kind is str else kind(row[name]) for name, kind in _SETTING_TYPES.items()}
    return Namespace(
        row["number"],
        row["name"].decode(),
        NamespaceSettings(**settings),
        row["created_at"],
        closing,
        row["former_name"].decode(),
        row["policies_version"],
    )

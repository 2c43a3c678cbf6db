"""The namespaces in the meta database, whose creation and deletion need the answers of all shards.

Why a creation and a deletion ask every shard, and why the answers suffice: docs/decisions/0022-deleting-namespaces.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from types import MappingProxyType
from typing import NamedTuple

from sqlalchemy import Connection, RowMapping, delete, func, select, update
from sqlalchemy.exc import IntegrityError

from foqs.model import limits
from foqs.model.census import Census
from foqs.model.errors import (
    AlreadyExistsError,
    FoqsError,
    InvalidArgumentError,
    UnavailableError,
    UnknownNamespaceError,
)
from foqs.model.groups import Groups
from foqs.model.namespace import (
    SETTING_RATES,
    SETTING_TEXTS,
    Namespace,
    NamespaceSettings,
    check_namespace_name,
    check_room_under,
    updated,
)
from foqs.model.policies import Policies
from foqs.model.slot_gates import NO_GATES, SlotGate
from foqs.model.slots import SlotMove, SlotTable
from foqs.storage.meta.meta_access import delete_grants_of
from foqs.storage.meta.meta_blocks import NamespaceBlocks
from foqs.storage.meta.meta_bulk import running_blocks
from foqs.storage.meta.meta_censuses import counted, delete_census, end_expired, insert_census, open_censuses
from foqs.storage.meta.meta_groups import delete_groups_of, group_blocks
from foqs.storage.meta.meta_jobs import delete_jobs_of
from foqs.storage.meta.meta_permits import delete_permits_of
from foqs.storage.meta.meta_policies import delete_policies_of, prefix_policy_blocks, topic_policy_blocks
from foqs.storage.meta.meta_quotas import delete_quota_of
from foqs.storage.meta.meta_sessions import MetaSessions, in_transaction
from foqs.storage.meta.meta_slots import SlotRows, make_slots, read_gates, read_move
from foqs.storage.meta.meta_tables import CENSUS, NAMESPACE, NAMESPACE_NUMBER, SHARD

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
    groups: Groups
    """Consumer groups of topics, likewise."""
    gates: tuple[SlotGate, ...] = NO_GATES
    """The gates behind which slots of serial topics wait."""
    bulk_running: Mapping[int, Mapping[str, bool]] = MappingProxyType({})
    """The bulk jobs that run, by namespace and id."""


class MetaNamespaces:
    """The table of namespaces. Repeated reads of it include all records that hosts read with them."""

    def __init__(self, sessions: MetaSessions) -> None:
        self._sessions = sessions
        self._blocks = NamespaceBlocks(_namespace_of)
        self._slots = SlotRows()
        self._policies = topic_policy_blocks()
        self._prefix_policies = prefix_policy_blocks()
        self._groups = group_blocks()
        self._bulk = running_blocks()

    @in_transaction
    def page(self, connection: Connection, prefix: str, after: str, limit: int) -> list[Namespace]:
        """Return the first `limit` namespaces, by name, whose names begin with `prefix` and come after `after`."""
        name, first = NAMESPACE.c.name, prefix.encode()
        # Names are ASCII, so a byte above ASCII comes after every name with this prefix.
        mine = select(NAMESPACE).where(name > after.encode(), name >= first, name < first + b"\xff")
        closing = set(connection.execute(select(CENSUS.c.namespace)).scalars())
        rows = connection.execute(mine.order_by(name).limit(limit)).mappings().all()
        return [_namespace_of(row, closing=row["number"] in closing) for row in rows]

    def read(self) -> NamespaceList:
        """Read all namespaces, and the open questions to shards. Ends expired censuses.

        The list of namespaces is the same object as the last time if unchanged.
        """
        with self._sessions.transaction() as connection:
            # Read before the namespaces: otherwise a deletion that ends in between would leave its namespace here, and
            # open.
            censuses = open_censuses(connection)
            namespaces = self._blocks.read(connection)
            found = connection.execute(select(SHARD.c.shard_id, SHARD.c.epoch))
            epochs = {row.shard_id: row.epoch for row in found}
            # Read before the table: a move that ends in between has already written its table.
            slot_move = read_move(connection)
            slots = self._slots.read(connection)
            policies = self._policies.read(connection, namespaces)
            prefix_policies = self._prefix_policies.read(connection, namespaces)
            groups = self._groups.read(connection, namespaces)
            gates = read_gates(connection)
            bulk_running = self._bulk.read(connection, namespaces)
        if any(is_over for _, is_over in censuses):
            self._sessions.run(end_expired)  # It counts as open up to here: clocks can step.
        open_ = [census for census, _ in censuses]
        closing = {census.namespace for census in open_ if census.namespace}
        if closing:
            namespaces = [replace(one, closing=True) if one.number in closing else one for one in namespaces]
        return NamespaceList(
            namespaces, open_, epochs, slots, slot_move, policies, prefix_policies, groups, gates, bulk_running
        )

    @in_transaction
    def update(self, connection: Connection, name: str, changes: object) -> Namespace:
        """Change the settings that are not None in `changes` (see namespace.updated), all or none.

        Raises UnknownNamespaceError and InvalidArgumentError.
        """
        before = _lock_namespace(connection, name)
        after = replace(before, settings=updated(before.settings, changes))
        mine = NAMESPACE.c.number == before.number
        connection.execute(update(NAMESPACE).where(mine).values(_columns_of(after.settings)))
        return after

    @in_transaction
    def insert(self, connection: Connection, name: str, settings: NamespaceSettings, now_ms: int) -> Namespace:
        """Create a namespace without asking the shards, which is only allowed before any shard has been served.

        Raises the errors of begin_creation.
        """
        check_namespace_name(name)
        _check_room_for(connection, name)
        return _insert(connection, Namespace(_next_number(connection, 0), name, settings, now_ms))

    @in_transaction
    def recover(
        self, connection: Connection, number: int, name: str, former_name: str, settings: NamespaceSettings, now_ms: int
    ) -> Namespace:
        """Restore the namespace of a number that shards hold and this database lacks.

        `former_name` is its name in the shards. Raises AlreadyExistsError if the number or the name is in use.
        """
        check_namespace_name(name)
        namespace = Namespace(number, name, settings, now_ms, former_name=former_name)
        last = func.greatest(NAMESPACE_NUMBER.c.last, number)
        connection.execute(update(NAMESPACE_NUMBER).values(last=last))
        return _insert(connection, namespace)

    @in_transaction
    def begin_creation(self, connection: Connection, name: str, prefixes: Sequence[str] = ()) -> Census:
        """Ask every shard for the greatest number it has seen.

        Raises AlreadyExistsError, InvalidArgumentError (a bad name, NAMESPACES_MAX namespaces already, or
        NAMESPACES_PER_PREFIX_MAX with each of `prefixes` if any is given) and OverloadedError.
        """
        check_namespace_name(name)
        _check_room_for(connection, name)
        check_room_under(prefixes, lambda prefix: _count_under(connection, prefix))
        return insert_census(connection, 0)

    @in_transaction
    def begin_deletion(self, connection: Connection, name: str) -> Census:
        """Close the namespace and ask every shard for the number of its items there.

        Raises UnknownNamespaceError and OverloadedError. Raises UnavailableError while another call deletes the
        namespace, because answers to that call can come from a state before a restore of the database.
        """
        namespace = _lock_namespace(connection, name)
        mine = CENSUS.c.namespace == namespace.number
        if connection.execute(select(CENSUS.c.id).where(mine)).first() is not None:
            raise UnavailableError(
                f"namespace {name!r} is being deleted by another call, which is given up after "
                f"{limits.CENSUS_EXPIRY_MS} ms at the latest: nothing was done, try again",
                retry_after_ms=limits.META_CALLS_RETRY_MS,
                nothing_done=True,
            )
        return insert_census(connection, namespace.number)

    @in_transaction
    def finish_creation(
        self, connection: Connection, census: Census, name: str, settings: NamespaceSettings, now_ms: int
    ) -> Namespace | list[int]:
        """Return the new namespace, or the shards that have not answered yet.

        Raises AlreadyExistsError, and UnavailableError if the census is over.
        """
        answers, missing = counted(connection, census)
        if missing:
            return missing
        number = _next_number(connection, max([answer.number_max for answer in answers], default=0))
        make_slots(connection, answers)
        created = _insert(connection, Namespace(number, name, settings, now_ms))
        delete_census(connection, census)
        return created

    @in_transaction
    def finish_deletion(self, connection: Connection, census: Census, name: str) -> list[int]:
        """Delete the closed namespace; if some shards have not answered yet, return them and change nothing.

        Raises InvalidArgumentError if it holds items, and UnavailableError if the census is over.
        """
        answers, missing = counted(connection, census)
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
        delete_permits_of(connection, census.namespace)
        delete_policies_of(connection, census.namespace)
        delete_groups_of(connection, census.namespace)
        delete_grants_of(connection, census.namespace)
        connection.execute(delete(NAMESPACE).where(NAMESPACE.c.number == census.namespace))
        delete_census(connection, census)
        return []


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


def _count_under(connection: Connection, prefix: str) -> int:
    """The number of namespaces whose names begin with a prefix. It reads a range of the index of names."""
    name, first = NAMESPACE.c.name, prefix.encode()
    mine = select(func.count()).select_from(NAMESPACE).where(name >= first, name < first + b"\xff")
    count: int = connection.execute(mine).scalar_one()
    return count


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

"""The namespaces known to this host: read from the meta database, and served from memory during its outages."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

import structlog

from foqs.background.lane import Lane
from foqs.background.outage_log import OutageLog
from foqs.background.service import Service
from foqs.host.registry.known_slots import Slots
from foqs.host.registry.meta_calls import MetaCalls
from foqs.model import limits
from foqs.model.census import Census, ClosedKind
from foqs.model.errors import FoqsError, PausedError, UnavailableError, UnknownNamespaceError, shown
from foqs.model.namespace import Namespace, NamespaceSettings, SettingsTable
from foqs.model.pace import Pace
from foqs.model.serial import NONE_CLOSED, ClosedTopics
from foqs.model.slots import SlotMove
from foqs.shard.state.engine import ShardState
from foqs.storage.meta.meta_namespaces import NamespaceList
from foqs.storage.meta.meta_store import MetaStore

SLOW_MS = 2 * limits.SECOND_MS
"""A read of the namespaces that takes this much longer than usual counts as an outage of the meta database."""

_log = structlog.get_logger(__name__)
T = TypeVar("T")


class NamespaceView:
    """All namespaces at one time. Immutable, so that every thread can read it."""

    def __init__(self, namespaces: Sequence[Namespace] = ()) -> None:
        self.by_name = {namespace.name: namespace for namespace in namespaces}
        self.by_number = {namespace.number: namespace for namespace in namespaces}
        self.number_by_name = {namespace.name.encode(): namespace.number for namespace in namespaces}


class OwnedShards(Protocol):
    """The namespaces that this host's shards know; foqs.host.registry.censuses.Censuses is the real one."""

    def conflicts(self, view: NamespaceView) -> dict[str, FoqsError]:
        """Return errors, by name, of namespaces whose numbers the shards know by other names. Thread-safe."""

    def conflicts_of(self, shard: ShardState, view: NamespaceView) -> dict[str, FoqsError]:
        """Return the conflicts of one shard."""

    def check_owns_any(self) -> None:
        """Raise UnavailableError while this host owns no shard."""

    def servers(self) -> dict[int, str]:
        """Return the server of each shard that this host serves."""

    def epochs(self) -> dict[int, int]:
        """Return the epoch of each known shard of the cluster; 0 for a shard that this host does not own now."""

    def answer(self, censuses: Sequence[Census], namespaces: Namespaces) -> None:
        """Begin to answer the new ones, to the meta database of these namespaces. On the event loop."""


class Namespaces(Service):
    """Knows all namespaces, and reads them again every limits.HEARTBEAT_MS.

    Every call gets its namespace here, and each takeover of a shard reads them. It owns the connection to the meta
    database, with a thread for work that calls of operators must not delay.
    """

    def __init__(
        self,
        meta: MetaStore,
        host_id: str,
        wall_ms: Callable[[], int],
        shards: OwnedShards,
        slots: Slots,
        *,
        allow_undurable: bool,
        on_slot_move: Callable[[SlotMove | None], None] = lambda move: None,
        restore_id: Callable[[], None] = lambda: None,
    ) -> None:
        """`wall_ms` is the time of day.

        `on_slot_move` gets the move of slots that the meta database has under way, on the event loop.

        `restore_id` writes the id of the cluster to a meta database that has lost it. It blocks.
        """
        super().__init__("namespaces")
        self.calls = MetaCalls(meta)
        self.access_calls = MetaCalls(meta, "access-call", 1)
        """Calls about access. They do not wait for calls that tenants can make, so a token can always be revoked."""
        self.bulk_calls = MetaCalls(meta, "bulk-call")
        """The reads and reports of this host's parts of bulk jobs, for which no other call is to be refused."""
        self._shards = shards
        self._slots = slots
        self._on_slot_move = on_slot_move
        self._restore_id = restore_id
        self.settings = SettingsTable()
        """The settings of namespaces, for shards and the dispatcher."""
        self.bulk_running: Mapping[int, Mapping[str, bool]] = {}
        """The bulk jobs that run, by namespace and id."""
        self.number_max = 0
        """The highest number of a namespace that this process has ever seen."""
        self._meta = meta
        self._host_id = host_id
        self.wall_ms = wall_ms
        """The time of day."""
        self._allow_undurable = allow_undurable
        self._lane = Lane(self.name)
        self._reading = threading.Lock()
        self._view = self._read_view = NamespaceView()
        self.number_by_name = self._view.number_by_name
        """The numbers of the namespaces, by their names as bytes."""
        self._listed: list[Namespace] = []
        """The records of the last view."""
        self._conflicts: dict[str, FoqsError] = {}
        self._conflicts_opened: dict[str, FoqsError] = {}
        """Conflicts of shards that were opened since the last read began."""
        self._problems: list[str] = []
        """The reasons why the meta database's server can lose acknowledged changes."""
        self.missed_s = -math.inf
        """The last time at which the meta database did not answer, or was very slow."""
        self._pace = Pace()
        """The times of reads of the namespaces, in seconds."""
        self._checked_s = 0.0

    def get(self, name: str) -> Namespace:
        """Return a namespace. Raises UnknownNamespaceError, and UnavailableError if shards know its number by another
        name.
        """
        namespace = self._view.by_name.get(name)
        if namespace is None:
            raise UnknownNamespaceError(f"namespace {shown(name)} does not exist: create it first")
        conflict = self._conflicts.get(name) or self._conflicts_opened.get(name)
        if conflict is not None:
            raise conflict
        return namespace

    def serving(self, name: str) -> Namespace:
        """Return the namespace that a verb of the queue names. Raises the errors of `get`.

        A host that owns no shard raises UnavailableError for an unknown namespace, because other hosts can know a new
        one.
        """
        try:
            return self.get(name)
        except UnknownNamespaceError:
            self._shards.check_owns_any()
            raise

    def check_open(self, number: int) -> None:
        """Check that the namespace takes items. Raises PausedError while it is being deleted.

        The caller can try again, because soon the namespace is unknown, or takes items again if it was not empty.
        """
        namespace = self._view.by_number.get(number)
        if namespace is None:
            raise UnknownNamespaceError("the namespace was deleted meanwhile: nothing was enqueued")
        if namespace.closing:
            raise PausedError(
                f"namespace {namespace.name!r} is being deleted: nothing was enqueued",
                retry_after_ms=limits.HEARTBEAT_MS,
            )

    @property
    def view(self) -> NamespaceView:
        return self._view

    def number_of(self, name: str) -> int | None:
        return self._view.number_by_name.get(name.encode())

    def name_of(self, number: int) -> str | None:
        namespace = self._view.by_number.get(number)
        return namespace.name if namespace else None

    def settings_named(self, name: str) -> NamespaceSettings | None:
        """Return the settings of the namespace with this name, as far as this host knows."""
        namespace = self._view.by_number.get(self._view.number_by_name.get(name.encode(), -1))
        return namespace.settings if namespace else None

    @property
    def numbers(self) -> set[int]:
        return set(self._view.by_number)

    def require_durable(self) -> None:
        """Raise UnavailableError while the server of the meta database can lose acknowledged changes."""
        if self._problems:
            raise UnavailableError(
                f"the server of the meta database can lose what it acknowledged: {'; '.join(self._problems)}",
                nothing_done=True,
            )

    async def refresh(self) -> None:
        """Read all of it anew. Raises UnavailableError."""
        before = self._conflicts_opened
        # A shard that is opened meanwhile has an epoch for which the reading can be too early.
        owned = self._shards.epochs()
        listed = await self.run_in_lane(self.read)
        if self._conflicts_opened is before:
            self._conflicts_opened = {}
        self._shards.answer(listed.censuses, self)
        self._slots.refresh()
        self._on_slot_move(listed.slot_move)
        table, move = self._slots.table, listed.slot_move
        # The table that a move leads to is known before the move ends. It has ended if the next one is under way.
        if table.version > listed.slots.version and (move is None or move.version < self._slots.version_max):
            _log.error("meta_lost_slots", version=listed.slots.version, known_version=table.version)
            await self.run_in_lane(lambda meta: meta.slots.restore(table))
        known = listed.epochs
        lost = {shard_id: epoch for shard_id, epoch in owned.items() if known.get(shard_id, -1) < epoch}
        # A shard without an owner is included, so that its next owner asks for its epoch.
        if lost:
            if any(lost.values()):
                _log.error("meta_went_back", lost_epochs={shard: epoch for shard, epoch in lost.items() if epoch})
            servers = self._shards.servers()
            await self.run_in_lane(lambda meta: self._restore(meta, lost, servers))

    def _restore(self, meta: MetaStore, epochs: dict[int, int], servers: dict[int, str]) -> None:
        """Write missing records to the meta database. The id comes first: with the epochs it seems to have all."""
        self._restore_id()
        meta.shards.raise_epochs(self._host_id, epochs, self.wall_ms(), servers)

    def read(self, meta: MetaStore) -> NamespaceList:
        """Read the namespaces, on a worker thread, and serve them from now on.

        A takeover of a shard calls it after it has the epoch, so that the owner knows every namespace that was closed
        or deleted before. Two threads read one after the other, so that no older state replaces a newer one.
        """
        with self._reading:
            listed = meta.namespaces.read()
            if listed.namespaces is not self._listed:
                self._listed, self._read_view = listed.namespaces, NamespaceView(listed.namespaces)
            self._slots.note(listed.slots, "the meta database")
            self._slots.gates = listed.gates
            view = self._read_view
            self.number_max = max(self.number_max, max(view.by_number, default=0))
            self._conflicts = self._shards.conflicts(view)
            self.bulk_running = listed.bulk_running
            known = self.settings
            if listed.policies is not known.policies or listed.prefix_policies is not known.prefix_policies:
                known.replace_policies(listed.policies, listed.prefix_policies)
            if listed.groups is not known.declared_groups:
                known.replace_groups(listed.groups)
            if view is not self._view:  # After the policies, whose versions it has.
                self._view = view
                self.number_by_name = view.number_by_name
                known.replace(view.by_number)
            # Last, because a census that is over can have made its topics serial.
            self._close(listed)
            return listed

    def _close(self, listed: NamespaceList) -> None:
        """Take no items of topics, and no serial items of slots, of which a census is open, or whose slot moves."""
        topics: dict[int, ClosedTopics] = {}
        slots = set(() if listed.slot_move is None else listed.slot_move.slots)
        for census in listed.censuses:
            if census.closes:
                slots |= set(map(int, census.closed(ClosedKind.SLOT)))
                topics[census.topic_namespace] = ClosedTopics(
                    [*census.closed(ClosedKind.TOPIC), *topics.get(census.topic_namespace, NONE_CLOSED).names],
                    [*census.closed(ClosedKind.PREFIX), *topics.get(census.topic_namespace, NONE_CLOSED).prefixes],
                )
        topics.pop(0, None)
        self._slots.closed = frozenset(slots)
        if topics or self.settings.closed_topics:
            self.settings.close_topics(topics)

    def shard_opened(self, shard: ShardState) -> None:
        """Compare the names of a shard's namespaces with those in the meta database."""
        self._conflicts_opened = self._conflicts_opened | self._shards.conflicts_of(shard, self._view)
        self._slots.opened(shard)

    async def run_in_lane(self, work: Callable[[MetaStore], T]) -> T:
        """Run `work` in the lane for the meta database, where no admin call delays it."""
        return await self._lane.run(lambda: work(self._meta))

    async def _start(self) -> None:
        await self._check_durable()
        self.require_durable()
        await self.refresh()
        loop = asyncio.get_running_loop()
        self._tasks.repeat(
            lambda: asyncio.sleep(limits.HEARTBEAT_MS / 1000),
            self._refresh_in_time,
            outage=OutageLog(loop.time, "meta_away", "meta_back"),
        )

    async def _stop(self) -> None:
        # Each can wait for a database that hangs.
        await self.calls.stop()
        await self.access_calls.stop()
        await self.bulk_calls.stop()
        await self._lane.stop()
        self._meta.close()

    async def _refresh_in_time(self) -> None:
        """Refresh, and note how long that takes."""
        loop = asyncio.get_running_loop()
        try:
            if loop.time() - self._checked_s > limits.DURABILITY_CHECK_MS / 1000:
                await self._check_durable()
            began_s = loop.time()
            await self.refresh()
        except FoqsError:
            self.missed_s = loop.time()
            raise
        took_s = loop.time() - began_s
        if took_s > self._pace.usual + SLOW_MS / 1000:
            self.missed_s = loop.time()
        self._pace.note(took_s)

    async def _check_durable(self) -> None:
        if self._allow_undurable:
            return
        self._problems = await self.run_in_lane(lambda meta: meta.check_durable())
        self._checked_s = asyncio.get_running_loop().time()
        if self._problems:
            _log.error("meta_undurable", problems=self._problems)

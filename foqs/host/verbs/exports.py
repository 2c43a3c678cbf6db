"""Exports: all stored items of a namespace, read by key ranges without disturbing deliveries.

A plan cuts the keys of each shard into splits. A page continues after a key, and the host keeps no state between two
pages. So pages can be repeated, be read in parallel, and continue after a takeover. Keys grow and stay with their
items, so an item that exists from the plan to the last page comes exactly once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from itertools import islice, takewhile
from typing import NamedTuple, TypeVar

from foqs.contract import requests as of
from foqs.host import arguments
from foqs.host.registry.namespaces import Namespaces
from foqs.host.shards.shards import OwnedShard, Shards
from foqs.host.verbs.page_reads import PageBudget, Slices, lost, read_parts, stored_item
from foqs.model import limits
from foqs.model.bulk_work import BulkWork
from foqs.model.calls import NO_CONTENT, CallContext, ExportPage, ExportPlan, ExportSplit, ItemState, StoredItem
from foqs.model.copy_steps import CopyKey, CopyPlace
from foqs.model.errors import InvalidArgumentError, OverloadedError, UnavailableError, shown
from foqs.model.item import Phase
from foqs.model.namespace import Namespace
from foqs.model.topic import ShardTopic
from foqs.shard.mysql_server import CommitScheduler
from foqs.shard.port import ItemRow
from foqs.shard.state.engine import ShardState
from foqs.storage.shard.export_pages import ExportCriteria, even_bounds

LANE_TOPICS_MAX = 100
"""The most topics whose lanes one page reads."""
LANE_ROWS_MAX = 20_000
"""The most rows of lanes that one page reads."""
LANE_GAIN_MIN = 4
"""The factor by which the lanes must have fewer rows than a walk through all keys would read."""
PAUSE_RATIO = 1.0
"""The pause after a page, in which no page of any shard of the server is read, as a multiple of that page's time."""
PAUSE_S_MAX = 1.0
"""The longest pause, also after a page that hung."""
PAGE_RETRY_MS = 500
"""The retry_after_ms of a call that finds too many calls waiting for the shard."""
LEASES_PER_SLICE = 2_000
"""Leases that one slice of the event loop's time checks."""
LEASE_COST_RATIO = 0.2
"""The cost of a check of a lease, which is in memory, relative to the read of a row."""
T = TypeVar("T")
_ALL_STATES = frozenset(ItemState)
_UNFINISHED = frozenset([ItemState.READY, ItemState.DELAYED, ItemState.LEASED])
_LEASED = frozenset([ItemState.LEASED])
_HELD = frozenset([Phase.LEASED, Phase.SETTLING])


class _Wanted(NamedTuple):
    """The content of a page, after all checks of its query."""

    after_key: int
    to_key: int
    limit: int
    topics: frozenset[str]
    prefix: str
    states: frozenset[ItemState]
    with_payload: bool
    with_metadata: bool


class MatchingRows(NamedTuple):
    """Items that a filter matches, among those of the wanted topics and lanes up to a key."""

    rows: list[ItemRow]
    """The rows have neither contents nor errors."""
    examined_keys: list[int]
    up_to: int


class Exports:
    """The verbs planExport and exportItems.

    One page of a server is read at a time, on a thread and a session for exports only, with pauses. The calls
    of all shards share the memory for pages with those of `Inspection`.
    """

    def __init__(
        self, namespaces: Namespaces, shards: Shards, budget: PageBudget, slices: Slices, wall_ms: Callable[[], int]
    ) -> None:
        """`budget` bounds the memory for the pages of the host."""
        self._namespaces = namespaces
        self._shards = shards
        self._budget = budget
        self._slices = slices
        self._wall_ms = wall_ms
        self._turns: dict[int, _Turns] = {}
        """The turns of readers, by shard."""
        self._paces: dict[CommitScheduler, _Pace] = {}
        """The pace of each server, by its scheduler."""

    async def plan_export(self, context: CallContext, request: of.PlanExportRequest) -> ExportPlan:
        """Return splits with all items of the namespace on the wanted shards.

        Raises UnavailableError for a shard that is not owned now, unless `is_partial`: then the plan names that shard.
        """
        namespace, wanted = self._namespaces.get(request.namespace_name), context.shards
        splits_per_shard = arguments.check_range(
            "splits_per_shard", request.splits_per_shard, 1, limits.EXPORT_SPLITS_MAX
        )
        is_partial = bool(request.partial)
        if wanted is None:
            self._shards.check_owns_any()
        # All last keys are taken at one moment. Items that are enqueued later have greater keys.
        as_of_ms = self._wall_ms()
        if not is_partial:
            self._shards.asked(wanted)
        missing: list[str] = []
        last_keys: list[tuple[int, ShardState]] = []
        for shard_id in sorted(self._shards.here if wanted is None else wanted):
            try:
                last_keys.append((shard_id, self._serving(shard_id)[1]))
            except UnavailableError as error:
                if not is_partial:
                    raise
                missing.append(error.message)
        parts = [
            (shard_id, shard.index.last_key, shard.items_of(namespace.number))
            for shard_id, shard in last_keys
            if namespace.number in shard.index.namespaces
        ]
        splits: list[ExportSplit] = []
        for shard_id, to_key, count in parts:
            if splits_per_shard == 1:
                splits.append(ExportSplit(shard_id, 0, to_key, max(0, count)))
                continue
            try:
                owned, shard = self._serving(shard_id)
                async with self._turn(shard_id):
                    cells = await self._read(owned, shard, partial(owned.exporter.sample_keys, to_key))
            except UnavailableError as error:
                if not is_partial:
                    raise
                missing.append(error.message)
                continue
            bounds = even_bounds(cells, to_key, splits_per_shard)
            splits += [ExportSplit(shard_id, low, high, max(0, round(share * count))) for low, high, share in bounds]
        return ExportPlan(splits, as_of_ms, missing)

    async def export_items(self, context: CallContext, request: of.ExportItemsRequest) -> ExportPage:
        """Return the next items of a split. Raises UnavailableError for a shard that is not owned here now."""
        namespace, wanted = self._namespaces.get(request.namespace_name), checked_query(request)
        shard_id = arguments.check_range("split.shard_id", request.split.shard_id, 0, limits.SHARD_ID_MAX)
        self._serving(shard_id)  # Who waits in vain need not wait.
        async with self._turn(shard_id), self._budget.hold(2 * limits.PAGE_BYTES_MAX + limits.CONTENT_BYTES_MAX):
            owned, shard = self._serving(shard_id)
            criteria = self._criteria(shard, namespace, wanted)
            is_of_namespace = partial(_is_wanted, shard, namespace.number, wanted)
            if wanted.states == _LEASED and _pays_by_lease(shard, namespace.number, criteria):
                criteria = criteria._replace(keys=await self._leased_keys(shard, criteria, is_of_namespace))
            rows, up_to = await self._read(owned, shard, lambda: owned.exporter.export_page(criteria, is_of_namespace))
            rows = _rows_wanted(rows, criteria, is_of_namespace)
            items = await self._slices.each(partial(self._shown, owned, shard, wanted.states), rows)
            return ExportPage(items, up_to if up_to < wanted.to_key else 0)

    async def keys_of_topic(
        self, shard_id: int, namespace: Namespace, name: str, after_key: int
    ) -> tuple[list[int], int]:
        """Return the next keys of a topic's items on a shard, in all states, and where to continue; 0 at the end.

        Raises UnavailableError for a shard that is not owned here now, and OverloadedError if too many calls read it.
        """
        _, shard = self._serving(shard_id)
        to_key = shard.index.last_key
        wanted = _Wanted(after_key, to_key, limits.PAGE_ITEMS_MAX, frozenset([name]), "", _ALL_STATES, False, False)
        async with self._turn(shard_id), self._budget.hold(2 * limits.PAGE_BYTES_MAX):
            owned, shard = self._serving(shard_id)
            criteria = self._criteria(shard, namespace, wanted)
            is_wanted = partial(_is_wanted, shard, namespace.number, wanted)
            rows, up_to = await self._read(owned, shard, lambda: owned.exporter.export_page(criteria, is_wanted))
            rows = _rows_wanted(rows, criteria, is_wanted)
            return [row.key for row in rows], up_to if up_to < to_key else 0

    async def copy_place(self, shard_id: int, copy: CopyKey) -> CopyPlace | None:
        """Read the state of a copy for a new consumer group; None if its beginning is not committed yet.

        Raises the errors of `keys_of_topic`.
        """
        async with self._turn(shard_id):
            owned, shard = self._serving(shard_id)
            return await self._read(owned, shard, lambda: partial(owned.exporter.read_copy, copy))

    async def rows_to_copy(
        self,
        shard: ShardState,
        namespace: Namespace,
        name: str,
        after_key: int,
        to_key: int,
        limit: int,
        bytes_max: int,
    ) -> tuple[list[ItemRow], int]:
        """Return the next items of a topic that are no dead letters, and the key up to which these are complete.

        Raises UnavailableError if this host has lost the shard, and OverloadedError if too many calls read it.
        """
        wanted = _Wanted(after_key, to_key, limit, frozenset([name]), "", _UNFINISHED, True, True)
        async with self._turn(shard.shard_id), self._budget.hold(limits.PAGE_BYTES_MAX + limits.CONTENT_BYTES_MAX):
            owned, now = self._serving(shard.shard_id)
            if now is not shard:
                raise lost(shard.shard_id)
            criteria = self._criteria(shard, namespace, wanted)._replace(bytes_max=bytes_max)
            is_wanted = partial(_is_wanted, shard, namespace.number, wanted)
            rows, up_to = await self._read(owned, shard, lambda: owned.exporter.export_page(criteria, is_wanted))
            return _rows_wanted(rows, criteria, is_wanted), up_to

    async def rows_matching(
        self,
        shard: ShardState,
        namespace: Namespace,
        work: BulkWork,
        after_key: int,
        to_key: int,
        limit: int,
        keys: Sequence[int] = (),
    ) -> MatchingRows:
        """Return the next items that the filter of a bulk job matches, in the order of their keys, of `keys` if given.

        Raises the errors of `rows_to_copy`.
        """
        chosen, states = work.filter, work.states
        with_payload, with_metadata = bool(chosen.payload_contains), bool(chosen.metadata_contains)
        wanted = _Wanted(
            after_key, to_key, limit, frozenset(chosen.topics), chosen.topic_prefix, states, with_payload, with_metadata
        )
        async with self._turn(shard.shard_id), self._budget.hold(2 * limits.PAGE_BYTES_MAX + limits.CONTENT_BYTES_MAX):
            owned, now = self._serving(shard.shard_id)
            if now is not shard:
                raise lost(shard.shard_id)
            criteria = self._criteria(shard, namespace, wanted)
            is_wanted = partial(_is_wanted, shard, namespace.number, wanted)
            if chosen.ids or keys:
                named = keys or chosen.keys_on(shard.shard_id)
                found = [key for key in named if after_key < key <= to_key][:limit]
                criteria = criteria._replace(keys=(found, found[-1] if len(found) == limit else to_key), by_lane=False)
            rows, up_to = await self._read(owned, shard, lambda: owned.exporter.export_page(criteria, is_wanted))
            if criteria.keys is not None:
                criteria = criteria._replace(topics=None)  # Ids can be those of other topics.
            rows = _rows_wanted(rows, criteria, is_wanted)
            examined = [row.key for row in rows]
            matching = await self._slices.drawn(_matching(shard, work, rows))
            return MatchingRows(matching, examined, up_to)

    def _serving(self, shard_id: int) -> tuple[OwnedShard, ShardState]:
        _, shard = self._shards.serving(shard_id)
        self._shards.check_healthy(shard_id)
        return self._shards.by_id[shard_id], shard

    def _criteria(self, shard: ShardState, namespace: Namespace, wanted: _Wanted) -> ExportCriteria:
        numbers = _topics_of(shard, namespace.number, wanted)
        return ExportCriteria(
            wanted.after_key,
            wanted.to_key,
            wanted.limit,
            limits.PAGE_BYTES_MAX,
            wanted.states,
            numbers,
            namespace.number,
            _prefix_of(wanted).encode(),
            numbers is not None and _pays_by_lane(shard, numbers, wanted),
            wanted.with_payload,
            wanted.with_metadata,
        )

    async def _leased_keys(
        self, shard: ShardState, criteria: ExportCriteria, is_of_namespace: Callable[[int], bool]
    ) -> tuple[list[int], int]:
        """Return the next keys of leased items, in order, and the key up to which they are complete.

        An item that is leased the whole time is included, because the list of leases is copied at one moment and then
        checked.
        """
        topics = criteria.topics
        is_wanted = topics.__contains__ if topics is not None else is_of_namespace
        leases = list(shard.index.leases.items())

        def add(first: int) -> list[int]:
            some = leases[first : first + LEASES_PER_SLICE]
            in_range = [(key, item) for key, item in some if criteria.after_key < key <= criteria.to_key]
            new = [key for key, item in in_range if item.phase in _HELD and is_wanted(item.topic.number)]
            return sorted(keys + new)[: criteria.limit]

        keys: list[int] = []
        for first in range(0, len(leases), LEASES_PER_SLICE):
            keys = await self._slices.run(partial(add, first))
        return keys, keys[-1] if len(keys) == criteria.limit else criteria.to_key

    async def _read(self, owned: OwnedShard, shard: ShardState, plan: Callable[[], Callable[[], T]]) -> T:
        """Read by the exporter of the shard. Raises UnavailableError for a lost or sick shard, and at the timeout."""
        (found,) = await read_parts(self._shards, {owned.shard_id: partial(owned.export, plan())})
        if owned.writer.shard is not shard:
            raise lost(owned.shard_id)
        return found

    def _shown(
        self, owned: OwnedShard, shard: ShardState, states: frozenset[ItemState], rows: Sequence[ItemRow]
    ) -> list[StoredItem]:
        """Return the items of rows in one of the wanted states."""
        now, items = owned.writer.now(), []
        for row in rows:
            topic = shard.index.by_number.get(row.topic)
            if topic is not None and shard.state_of(row) in states:  # A missing topic has lost its last item meanwhile.
                items.append(stored_item(shard, row, topic.name, now))
        return items

    def _turn(self, shard_id: int) -> AbstractAsyncContextManager[None]:
        """Take the only turn that reads the shard's server for an export.

        Raises OverloadedError if too many calls wait for the shard.
        """
        pace = self._paces.setdefault(self._shards.writers[shard_id].scheduler, _Pace())
        return self._turns.setdefault(shard_id, _Turns()).take(shard_id, pace)


class _Pace:
    """Reads pages of exports of one server one after the other, with a pause after each.

    So any number of parallel splits leaves the server and this host time for more urgent work.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._paused_until_s = 0.0

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        async with self._lock:
            pause_s = self._paused_until_s - loop.time()
            if pause_s > 0:
                await asyncio.sleep(pause_s)
            began_s = loop.time()
            try:
                yield
            finally:
                ended_s = loop.time()
                self._paused_until_s = ended_s + min(PAUSE_RATIO * (ended_s - began_s), PAUSE_S_MAX)


class _Turns:
    """The calls that read one shard for exports. The shards of a server take turns in order."""

    def __init__(self) -> None:
        self.waiting_count = 0
        """Calls that wait or read."""
        self._lock = asyncio.Lock()

    @asynccontextmanager
    async def take(self, shard_id: int, pace: _Pace) -> AsyncIterator[None]:
        if self.waiting_count > limits.EXPORT_PAGES_WAITING_MAX:
            raise OverloadedError(
                f"{self.waiting_count - 1} pages of exports wait for shard {shard_id}, which is the limit: "
                "nothing was done",
                retry_after_ms=PAGE_RETRY_MS,
            )
        self.waiting_count += 1
        try:
            async with self._lock, pace.kept():
                yield
        finally:
            self.waiting_count -= 1


def checked_query(query: of.ExportItemsRequest) -> _Wanted:
    """Return the checked content of a page. Raises InvalidArgumentError for an invalid query."""
    split = query.split
    from_key = arguments.check_range("split.from_key", split.from_key, 0, limits.KEY_MAX)
    to_key = arguments.check_range("split.to_key", split.to_key, 0, limits.KEY_MAX)
    if from_key > to_key:
        raise InvalidArgumentError(f"split.from_key {from_key} is beyond split.to_key {to_key}: use a split of a plan")
    after_key = arguments.check_range("after_key", query.after_key, 0, limits.KEY_MAX)
    if after_key and not from_key <= after_key <= to_key:
        raise InvalidArgumentError(f"after_key {after_key} is not within its split, {from_key}..{to_key}")
    limit = arguments.check_range("limit", query.limit, 1, limits.PAGE_ITEMS_MAX)
    topics = query.topics or ()
    arguments.check_batch("topics", len(topics), limits.EXPORT_TOPICS_MAX)
    for topic in topics:
        arguments.check_topic(topic)
    prefix = query.topic_prefix or ""
    if prefix and topics:
        raise InvalidArgumentError("topics and topic_prefix exclude each other: name the topics, or how they begin")
    if prefix:
        arguments.check_topic(prefix)
    return _Wanted(
        max(from_key, after_key), to_key, limit, frozenset(topics), prefix, _states_of(query.states or ()),
        query.with_payload is not False, query.with_metadata is not False,
    )  # fmt: skip


def _states_of(states: Sequence[int]) -> frozenset[ItemState]:
    arguments.check_batch("states", len(states), len(ItemState) * len(ItemState))
    for state in states:
        if state not in _ALL_STATES:
            named = ", ".join(f"{known.name}={known.value}" for known in ItemState)
            raise InvalidArgumentError(f"state {shown(state)} is none of {named}")
    return frozenset(map(ItemState, states)) or _ALL_STATES


def _topics_of(shard: ShardState, namespace: int, wanted: _Wanted) -> frozenset[int] | None:
    """Return the numbers of the wanted topics that exist, or None for more than a statement can name."""
    index = shard.index
    if wanted.topics:
        bases: Iterable[ShardTopic | None] = [index.topics.get((namespace, name)) for name in wanted.topics]
    else:
        of_namespace = index.namespaces.get(namespace)
        bases = () if of_namespace is None else of_namespace.after("", wanted.prefix)
    # A few more than the bound: the named topics, and one of many.
    some = islice(_with_keyed(bases), 2 * limits.EXPORT_TOPICS_MAX)
    numbers = frozenset([topic.number for topic in some])
    is_many = len(numbers) > limits.EXPORT_TOPICS_MAX
    return None if is_many else numbers


def _with_keyed(bases: Iterable[ShardTopic | None]) -> Iterator[ShardTopic]:
    """Yield topics, each with its keyed topics behind it."""
    for base in bases:
        if base is not None:
            yield base
            if base.keyed is not None:
                yield from base.keyed.by_name.values()


def _prefix_of(wanted: _Wanted) -> str:
    """Return the text with which the names of all wanted topics begin."""
    if not wanted.topics:
        return wanted.prefix
    first, last = min(wanted.topics), max(wanted.topics)
    same = takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))
    return "".join([char for char, _ in same])


def _is_wanted(shard: ShardState, namespace: int, wanted: _Wanted, topic_number: int) -> bool:
    topic = shard.index.by_number.get(topic_number)
    if topic is None or topic.namespace != namespace:
        return False
    return topic.base_name in wanted.topics if wanted.topics else topic.name.startswith(wanted.prefix)


def _rows_wanted(rows: list[ItemRow], criteria: ExportCriteria, is_wanted: Callable[[int], bool]) -> list[ItemRow]:
    """Return the rows of wanted topics: a statement cannot name very many, and reads those of others, too."""
    if criteria.topics is not None:
        return rows
    known = {number: is_wanted(number) for number in {row.topic for row in rows}}
    return [row for row in rows if known[row.topic]]


def _matching(shard: ShardState, work: BulkWork, rows: Sequence[ItemRow]) -> Generator[ItemRow | None, None, None]:
    """Yield the rows that match, without their contents, and None after each other short step."""
    states, chosen = work.states, work.filter
    for row in rows:
        state = shard.state_of(row)
        if state not in states or not chosen.has_numbers(row, state):
            yield None
            continue
        is_match = yield from chosen.text_steps(row, state)
        yield row._replace(content=NO_CONTENT, errors=b"") if is_match else None


def _pays_by_lane(shard: ShardState, numbers: frozenset[int], wanted: _Wanted) -> bool:
    """True if these topics' lanes hold few enough rows that reading all their rows for each page is cheaper.

    A walk by key reads all rows of the shard once. Delayed rows of all topics share a lane, so their cost depends on
    the other topics too. While the shard is not counted, the answer is False.
    """
    index = shard.index
    if not index.counted or len(numbers) > LANE_TOPICS_MAX:
        return False
    topics = [index.by_number[number] for number in numbers]
    wanted_count = sum(topic.total for topic in topics)
    scanned_count = sum(topic.rows + topic.dead for topic in topics)
    if ItemState.DELAYED in wanted.states:
        scanned_count += index.counts.delayed
    pages_count = wanted_count // wanted.limit + 1
    return scanned_count <= LANE_ROWS_MAX and pages_count * scanned_count * LANE_GAIN_MIN <= index.counts.total


def _pays_by_lease(shard: ShardState, namespace: int, criteria: ExportCriteria) -> bool:
    """True if checking all leases of the shard for each page of leased items is cheaper than walking all keys once."""
    index = shard.index
    if criteria.topics is not None:
        leased_count = sum([index.by_number[number].leased for number in criteria.topics])
    else:
        leased_count = len(index.leases)
    pages_count = leased_count // criteria.limit + 1
    rows_count = index.counts.total if index.counted else 0
    return pages_count * len(index.leases) * LEASE_COST_RATIO <= max(rows_count, LANE_ROWS_MAX)

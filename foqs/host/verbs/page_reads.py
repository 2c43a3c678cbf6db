"""The common parts of verbs that return pages: memory, turns of the event loop, reads of shards, and stored items.

No page holds the event loop or the memory of the host, and none waits for a sick shard.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from time import perf_counter
from typing import TypeVar

from foqs.background.tasks import Tasks
from foqs.host.shards.shards import Shards
from foqs.host.verbs.keyed_pages import Place
from foqs.model import ids, limits
from foqs.model.calls import DeliveryPolicy, ItemState, StoredItem
from foqs.model.clock import Now
from foqs.model.errors import OverloadedError, UnavailableError
from foqs.model.failures import failures_of
from foqs.model.holder import holder_name
from foqs.model.serial import shown_due_at
from foqs.model.topic_name import bucket_of, fairness_key_of, ordering_key_of, parts
from foqs.shard import mysql_server
from foqs.shard.port import ItemRow
from foqs.shard.state.engine import ShardState

PAGE_RETRY_MS = 500
"""The retry_after_ms of a call that is refused because other pages take all the memory."""
SLICE_MS_MAX = 1.0
"""The time after which a slice of steps ends, in milliseconds."""
SLICE_DEBT_MS_MAX = 2
"""The time by which sliced work can exceed its half of the event loop's time, in milliseconds."""

R = TypeVar("R")
T = TypeVar("T")


class PageBudget:
    """Bounds the memory of all pages that operators read at a time. `Inspection` owns it.

    Pages wait for their bytes in the order of their arrival, and hold none meanwhile.
    """

    def __init__(self) -> None:
        self.held_bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def hold(self, size_bytes: int) -> AsyncIterator[None]:
        """Hold `size_bytes`; a page above the budget must be the only one. Raises OverloadedError for too many waiting
        pages, or after limits.CALL_MS_MAX.
        """
        if len(self._waiting) >= limits.PAGES_WAITING_MAX:
            raise self._overloaded(f"{len(self._waiting)} pages of items wait to be read, which is the limit")
        if self._waiting or not self._fits(size_bytes):
            await self._wait(size_bytes)
        else:
            self.held_bytes += size_bytes
        try:
            yield
        finally:
            self._free(size_bytes)

    async def _wait(self, size_bytes: int) -> None:
        its_turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size_bytes, its_turn))
        try:
            async with asyncio.timeout(limits.CALL_MS_MAX / 1000):
                await its_turn
        except BaseException as error:
            if its_turn.done() and not its_turn.cancelled():
                self._free(size_bytes)
            if isinstance(error, TimeoutError):
                raise self._overloaded(f"pages of items were read for others for {limits.CALL_MS_MAX} ms") from None
            raise

    def _fits(self, size_bytes: int) -> bool:
        return not self.held_bytes or self.held_bytes + size_bytes <= limits.PAGES_BYTES_MAX

    def _free(self, size_bytes: int) -> None:
        self.held_bytes -= size_bytes
        while self._waiting and (self._waiting[0][1].done() or self._fits(self._waiting[0][0])):
            next_bytes, its_turn = self._waiting.popleft()
            if not its_turn.done():  # Otherwise its call has left.
                self.held_bytes += next_bytes
                its_turn.set_result(None)

    def _overloaded(self, why: str) -> OverloadedError:
        return OverloadedError(f"{why}: nothing was done", retry_after_ms=PAGE_RETRY_MS)


class Slices:
    """Runs long reads of memory in slices of about a millisecond, one at a time on the whole host.

    After a slice, no slice runs for as long as that one took. So all slices together leave half of the loop's time to
    the queue, and no two slices run in the same turn of the loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._one_at_a_time = asyncio.Lock()
        self._paused_until_s = 0.0
        """The time at which the queue has had as much of the loop as all slices, in the loop's seconds."""

    async def run(self, work: Callable[[], T]) -> T:
        """Run one slice of work in its turn. The slice must be short by itself."""
        async with self._one_at_a_time:
            pause_s = self._paused_until_s - self._loop.time()
            if pause_s > SLICE_DEBT_MS_MAX / 1000:
                await asyncio.sleep(pause_s)
            began_s = perf_counter()
            try:
                return work()
            finally:
                took_s = perf_counter() - began_s
                self._paused_until_s = max(self._paused_until_s, self._loop.time()) + took_s
                await asyncio.sleep(0)

    async def each(self, work: Callable[[Sequence[R]], list[T]], rows: Sequence[R]) -> list[T]:
        """Return the results of `work` for all rows, limits.SLICE_ITEMS_MAX rows at a time."""
        made: list[T] = []
        for first in range(0, len(rows), limits.SLICE_ITEMS_MAX):
            made += await self.run(partial(work, rows[first : first + limits.SLICE_ITEMS_MAX]))
        return made

    async def drawn(self, steps: Iterator[T | None]) -> list[T]:
        """Return all that the steps yield but None. A slice ends with the first step after SLICE_MS_MAX.

        So a slice of any rows has a bound, if each step is short by itself.
        """
        made: list[T] = []
        is_over = False

        def draw() -> bool:
            until_s = perf_counter() + SLICE_MS_MAX / 1000
            for one in steps:
                if one is not None:
                    made.append(one)
                if perf_counter() >= until_s:
                    return False
            return True

        while not is_over:
            is_over = await self.run(draw)
        return made


async def read_parts(shards: Shards, reads: Mapping[int, Callable[[], Awaitable[T]]]) -> list[T]:
    """Return the results of reads of shards, by the ids of the shards.

    Raises the error of the first read that fails. Raises UnavailableError as soon as a shard that is still read becomes
    sick, and after limits.CALL_MS_MAX. Waits for no other read then.
    """
    tasks = Tasks("page")
    parts = {shard_id: tasks.lend(_in_time(shard_id, read)) for shard_id, read in reads.items()}
    try:
        pending = set(parts.values())
        while pending:
            _, pending = await asyncio.wait(
                pending, timeout=mysql_server.PULSE_MS / 1000, return_when=asyncio.FIRST_EXCEPTION
            )
            for shard_id, part in parts.items():
                if part.done():
                    part.result()
                elif shard_id in shards.writers:
                    shards.check_healthy(shard_id)
        return [part.result() for part in parts.values()]
    finally:
        await tasks.stop()


async def _in_time(shard_id: int, read: Callable[[], Awaitable[T]]) -> T:
    try:
        async with asyncio.timeout(limits.CALL_MS_MAX / 1000):  # Earlier reads can wait for a hanging server.
            return await read()
    except TimeoutError:
        raise UnavailableError(
            f"shard {shard_id} was not read within {limits.CALL_MS_MAX} ms: nothing was done, try again",
            nothing_done=True,
        ) from None


def merged(
    pages: Sequence[tuple[Sequence[tuple[Place, T]], bool]], limit: int, bytes_of: Callable[[T], int]
) -> tuple[list[tuple[Place, T]], str]:
    """Return the first items of ordered pages, each with its place, and the token of the next page.

    A page is (pairs of a place and an item, True if more items can follow). The result has up to `limit` items and
    limits.PAGE_BYTES_MAX, but at least one.
    """
    # After the last item of a page with more items, items of other pages are not necessarily the next ones.
    known_up_to = min([page[-1][0] for page, more in pages if more], default=None)
    chosen: list[tuple[Place, T]] = []
    size_bytes = 0
    for place, item in heapq.merge(*[page for page, _ in pages], key=lambda pair: pair[0]):
        size_bytes += bytes_of(item)
        is_unknown = known_up_to is not None and place > known_up_to
        if len(chosen) == limit or is_unknown or (chosen and size_bytes > limits.PAGE_BYTES_MAX):
            break
        chosen.append((place, item))
    more = any(more for _, more in pages) or sum(len(page) for page, _ in pages) > len(chosen)
    return chosen, chosen[-1][0].token if chosen and more else ""


def lost(shard_id: int) -> UnavailableError:
    """Return the error of a read of a shard that was lost meanwhile."""
    return UnavailableError(f"shard {shard_id} was lost: try again", nothing_done=True)


def stored_item(
    shard: ShardState, row: ItemRow, topic_name: str, now: Now, *, failures_count_max: int = 1
) -> StoredItem:
    """Return an item for operators, from its row and the shard's present state, with its newest failures.

    The topic's name is passed in, because the topic has possibly ended with its last item since the row was read.
    """
    state = shard.state_of(row)
    name, group = parts(topic_name)
    is_dead = state is ItemState.DEAD
    item = shard.index.leases.get(row.key) if state is ItemState.LEASED else None
    return StoredItem(
        ids.item_id(shard.shard_id, row.key),
        name,
        state,
        row.priority,
        shown_due_at(row.due_at, row.enqueued_at) if not is_dead else row.enqueued_at,
        row.enqueued_at,
        row.expires_at,
        row.failed_attempts,
        DeliveryPolicy(row.at_most_once),
        *row.content.fields(),
        lease_ms=row.lease_ms or None,
        lease_expires_at_ms=now.on_server(item.lease_due_at) if item is not None else None,
        died_at_ms=row.due_at if is_dead else None,
        death_reason=(row.death_reason or b"").decode(errors="replace") if is_dead else None,
        group=group or None,
        ordering_key=ordering_key_of(topic_name),
        key_bucket=bucket_of(topic_name),
        fairness_key=fairness_key_of(topic_name),
        urgency=row.urgency if row.place is not None and row.lane > 0 else None,
        errors=failures_of(row.errors, failures_count_max),
        leased_by=(holder_name(item, shard.opened_at_ms) or None) if item is not None else None,
        leased_since_ms=(item.delivered_at or None) if item is not None else None,
    )

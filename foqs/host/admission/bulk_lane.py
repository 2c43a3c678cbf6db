"""The bulk lane, which passes non-urgent enqueues through the host in slices, beside interactive calls.

An interactive call waits for the current turn of the event loop and the current transaction of the shard. So a bulk
call is split into slices, and all unwritten slices have a bounded number of items: few beside interactive calls, and
otherwise enough to keep the shards busy.

Beside interactive calls, a pause as long as the slice follows each slice. So bulk calls have half of the host's time at
most, and no interactive call waits for two successive slices. A pause ends independently of other calls, so that bulk
calls continue beside any load.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from math import inf
from typing import ParamSpec, TypeVar

from foqs.contract.requests import EnqueueRequest, NewItem, changed
from foqs.host import arguments
from foqs.host.registry.namespaces import Namespaces
from foqs.model import limits
from foqs.model.calls import CallContext, EnqueueResult
from foqs.model.errors import FoqsError, OverloadedError

P = ParamSpec("P")
R = TypeVar("R")

SHARED_MS = 2 * limits.SECOND_MS
"""The host counts as shared for this long after an interactive call."""
SHARED_SLICE_ITEMS_MAX = 100
"""The most items of a slice while the host is shared."""
SHARED_SLICE_BYTES_MAX = 64 * limits.KIB
"""The most payload of such a slice without its last item."""
SHARED_PAUSE_FACTOR = 1.0
"""The pause after each slice while the host is shared, as a multiple of the time of the slice."""
SHARED_PAUSE_MS_MAX = 50
"""The longest such pause."""
SLICE_ITEMS_MAX = 1_000
"""The most items of a slice while the host is not shared."""
SLICE_BYTES_MAX = 1 * limits.MIB
"""The most payload of such a slice without its last item."""
SLICE_MS_MAX = 500
"""A slice that takes longer stops counting, because its shard is possibly sick and other shards take the next ones."""


class Slice:
    """A slice of a bulk call. It counts as in progress from its turn until it leaves the lane, up to SLICE_MS_MAX."""

    __slots__ = ("_lane", "_timer", "count", "granted", "is_under_way", "size_bytes")

    def __init__(self, lane: BulkLane, count: int, size_bytes: int, granted: asyncio.Future[None]) -> None:
        self._lane = lane
        self._timer: asyncio.TimerHandle | None = None
        self.count = count
        self.size_bytes = size_bytes
        self.granted = granted
        self.is_under_way = False

    def begin(self, timer: asyncio.TimerHandle) -> None:
        """Count it as in progress, until `timer` at the latest."""
        self.is_under_way = True
        self._timer = timer

    def leave(self) -> None:
        """Leave the lane, because the call has ended in any way, or takes too long on a possibly sick shard."""
        if self.is_under_way:
            self.is_under_way = False
            if self._timer is not None:
                self._timer.cancel()
            self._lane.left(self)


class BulkLane:
    """Admits slices of bulk calls in the order of their requests, one in a turn of the event loop.

    The verbs report each interactive call. `BulkEnqueues` requests its slices, and reports their ends.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.items_total = 0
        """Items of all slices that were ever admitted."""
        self.refused_total = 0
        """Slices that did not have their turn in time."""
        self.items_count = 0
        """Items of slices in progress."""
        self.size_bytes = 0
        self._loop = loop
        self._interactive_s = -inf
        self._waiting: deque[Slice] = deque()
        self._is_scheduled = False
        self._began_s = 0.0
        """The time of the last admission of a slice."""
        self._resume_s = 0.0
        """The earliest time of the next admission."""

    @property
    def waiting_count(self) -> int:
        """Slices that wait for their turn."""
        return len(self._waiting)

    @property
    def is_shared(self) -> bool:
        """True if the host had interactive calls within SHARED_MS."""
        return self._loop.time() - self._interactive_s < SHARED_MS / 1000

    def note_interactive(self) -> None:
        """Note an interactive call."""
        self._interactive_s = self._loop.time()

    def beside(self, verb: Callable[P, R]) -> Callable[P, R]:
        """Return the same verb, with its calls noted as interactive."""

        def noted(*arguments: P.args, **named: P.kwargs) -> R:
            self._interactive_s = self._loop.time()
            return verb(*arguments, **named)

        return noted

    async def enter(self, count: int, size_bytes: int) -> Slice:
        """Wait until a slice is admitted, and return it; the caller must call its `leave`.

        Raises OverloadedError after limits.BULK_WAIT_MS_MAX.
        """
        one = Slice(self, count, size_bytes, self._loop.create_future())
        if not self._waiting and not self.is_shared and self._has_room(one):
            self._let_in(one)
            return one
        self._waiting.append(one)
        self._schedule()
        try:
            async with asyncio.timeout(limits.BULK_WAIT_MS_MAX / 1000):
                await one.granted
        except BaseException as error:
            one.leave()
            if one in self._waiting:
                self._waiting.remove(one)
            self._schedule()
            if isinstance(error, TimeoutError):
                self.refused_total += 1
                raise OverloadedError(
                    f"{self.items_count} bulk items are being written, and others wait: these have not had their turn "
                    f"for {limits.BULK_WAIT_MS_MAX} ms, nothing was done with them",
                    retry_after_ms=limits.BULK_WAIT_MS_MAX,
                ) from None
            raise
        return one

    def left(self, one: Slice) -> None:
        """Stop counting a slice. The slice calls it."""
        self.items_count -= one.count
        self.size_bytes -= one.size_bytes
        if self.is_shared:
            now_s = self._loop.time()
            self._resume_s = now_s + min(SHARED_PAUSE_FACTOR * (now_s - self._began_s), SHARED_PAUSE_MS_MAX / 1000)
        self._schedule()

    def _has_room(self, one: Slice) -> bool:
        """True if the slice fits into the bounds; a single slice always does."""
        if not self.items_count:
            return True
        if self.is_shared:
            items_max, bytes_max = limits.BULK_SHARED_ITEMS_MAX, limits.BULK_SHARED_BYTES_MAX
        else:
            items_max, bytes_max = limits.BULK_ITEMS_MAX, limits.BULK_BYTES_MAX
        return self.items_count + one.count <= items_max and self.size_bytes + one.size_bytes <= bytes_max

    def _let_in(self, one: Slice) -> None:
        self.items_total += one.count
        self.items_count += one.count
        self.size_bytes += one.size_bytes
        self._began_s = self._loop.time()
        one.begin(self._loop.call_later(SLICE_MS_MAX / 1000, one.leave))

    def _schedule(self) -> None:
        if self._waiting and not self._is_scheduled:
            self._is_scheduled = True
            pause_s = self._resume_s - self._loop.time()
            if pause_s > 0:
                self._loop.call_later(pause_s, self._resume)
            else:
                self._loop.call_soon(self._grant)

    def _resume(self) -> None:
        self._is_scheduled = False
        self._schedule()

    def _grant(self) -> None:
        """Admit the next slice, if it has room."""
        self._is_scheduled = False
        if self._resume_s > self._loop.time():  # Another slice left in this turn of the loop.
            self._schedule()
            return
        while self._waiting:
            one = self._waiting[0]
            if not one.granted.done():
                if not self._has_room(one):
                    return
                self._waiting.popleft()
                self._let_in(one)
                one.granted.set_result(None)
                break
            self._waiting.popleft()  # Its caller has left.
        self._schedule()


Enqueue = Callable[[CallContext, EnqueueRequest], Awaitable[EnqueueResult]]


class BulkEnqueues:
    """The verb enqueue for interactive and bulk calls. Bulk calls use the lane."""

    def __init__(self, namespaces: Namespaces, lane: BulkLane, enqueue: Enqueue) -> None:
        """`enqueue` is the verb that does the work."""
        self._namespaces = namespaces
        self._lane = lane
        self._enqueue = enqueue

    def enqueue(self, context: CallContext, request: EnqueueRequest) -> Awaitable[EnqueueResult]:
        """Enqueue as foqs.host.verbs.enqueues does, a bulk call slice by slice."""
        if request.bulk:
            return self._enqueue_slices(context, request)
        self._lane.note_interactive()
        return self._enqueue(context, request)

    async def _enqueue_slices(self, context: CallContext, request: EnqueueRequest) -> EnqueueResult:
        """Enqueue slice by slice. From a failed slice on, all positions get errors; the first slice fails the call."""
        settings, items = self._namespaces.serving(request.namespace_name).settings, request.items
        arguments.check_batch("items", len(items), settings.batch_items_max)
        result = EnqueueResult([])
        while True:
            first = len(result.ids)
            part, size_bytes = self._slice_from(items, first)
            try:
                done = await self._enqueue_slice(context, request, part, size_bytes)
            except FoqsError as error:
                if not first:
                    raise
                _refuse_rest(result, len(items), len(part), error)
                return result
            if len(part) == len(items):
                return done
            result.ids += done.ids
            result.errors.update({first + position: error for position, error in done.errors.items()})
            result.duplicates += [first + position for position in done.duplicates]
            if len(result.ids) >= len(items):
                return result

    async def _enqueue_slice(
        self, context: CallContext, request: EnqueueRequest, part: Sequence[NewItem], size_bytes: int
    ) -> EnqueueResult:
        entered = await self._lane.enter(len(part), size_bytes)
        try:
            return await self._enqueue(context, changed(request, items=part))
        finally:
            entered.leave()

    def _slice_from(self, items: Sequence[NewItem], first: int) -> tuple[Sequence[NewItem], int]:
        """Return the items of the next slice, and the bytes of their payloads."""
        items_max, bytes_max = SLICE_ITEMS_MAX, SLICE_BYTES_MAX
        if self._lane.is_shared:
            items_max, bytes_max = SHARED_SLICE_ITEMS_MAX, SHARED_SLICE_BYTES_MAX
        size_bytes, end = 0, first
        for item in islice(items, first, first + items_max):
            if size_bytes >= bytes_max:
                break
            size_bytes += len(item.payload or b"")
            end += 1
        return (items if end - first == len(items) else items[first:end]), size_bytes


def _refuse_rest(result: EnqueueResult, total: int, part_count: int, error: FoqsError) -> None:
    """Set the error of a slice that failed as a whole at its positions, and an error at the untried ones behind it."""
    first = len(result.ids)
    behind: FoqsError = error
    if not (error.nothing_done and error.retryable):
        behind = OverloadedError(
            f"not tried, because items before these failed: {error.message}", retry_after_ms=limits.META_CALLS_RETRY_MS
        )
    result.errors.update(dict.fromkeys(range(first, first + part_count), error.with_traceback(None)))
    result.errors.update(dict.fromkeys(range(first + part_count, total), behind))
    result.ids += [""] * (total - first)

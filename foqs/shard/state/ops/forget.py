"""Dedup ids beyond the bounds of number or age are forgotten: in memory at once, in the log a few per transaction."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from heapq import heapify, heappop, heappush

from foqs.model import limits
from foqs.model.clock import Now
from foqs.model.errors import FoqsError
from foqs.model.seen import BLOCK_IDS, SeenWindow
from foqs.model.seen_shrink import TableShrink, least_loss
from foqs.shard.port import Transaction, TransactionResult
from foqs.shard.state.index import ShardIndex
from foqs.shard.state.ops.image import Images
from foqs.shard.state.ops.operation import Operation

FORGET_IDS = 1_024
"""Ids whose rows one transaction deletes, besides twice as many as it adds, so that a log does not keep growing."""
WINDOWS_PER_TICK = 50
"""Windows of a shard whose ages are checked in one tick."""
ID_BYTES = 8
"""Memory for an id in a table that is nearly full, at most."""
SHRINK_BUCKETS_MAX = 512
"""Buckets converted in one step when a table is made smaller: about 3 ms, if they are full."""
SHRINK_BUCKETS_PER_TICK = 128
SHRINK_IDS_PER_BUCKET = 4
"""New ids for each bucket that is converted. A bucket has 50 ids, and half are dropped."""
UNKNOWN_NAMESPACE_MS = limits.HOUR_MS
"""The ids of a deleted namespace are kept for this long, because it can be missing after a restore of the meta
database.
"""


class Forgetfulness:
    """Moves the edges of windows by number, age and memory, and knows whose log has rows before its edge."""

    def __init__(
        self, index: ShardIndex, windows: dict[int, SeenWindow], loading: Mapping[int, object], images: Images
    ) -> None:
        """`windows` and `loading` are those of `Dedup`. Nothing is forgotten of a log that is being read."""
        self.waiting: dict[int, None] = {}
        """The namespaces whose logs have rows to delete."""
        self.filters_bytes = 0
        """The memory of all windows. A table that is being made smaller counts until it is done."""
        self._bytes_of: dict[int, int] = {}
        self._largest: list[tuple[int, int]] = []
        """A heap of windows by their memory, negated. A window that can free nothing is out until its memory changes.
        Outdated entries stay in the heap, and are ignored.
        """
        self._shrink: TableShrink | None = None
        """The table that is being made smaller."""
        self._shrink_buckets = float(SHRINK_BUCKETS_MAX)
        """The number of its buckets that can be converted now."""
        self._index = index
        self._windows = windows
        self._loading = loading
        self._images = images
        self._round: deque[int] = deque()
        """The namespaces whose ages are still to be checked in this round."""
        self._unknown_since_ms: dict[int, int] = {}

    def tick(self, now: Now) -> bool:
        """Check some windows. Returns True if rows are to be deleted."""
        if not self._round:
            self._round.extend(self._windows)
        for _ in range(min(len(self._round), WINDOWS_PER_TICK)):
            namespace = self._round.popleft()
            window = self._windows.get(namespace)
            if window is not None and namespace not in self._loading:
                self._check_for_deleted(window, now.steady_ms)
                if namespace in self._windows:
                    self.age(window, now.steady_ms)
                    self._images.check(window)
        self._make_room(SHRINK_BUCKETS_PER_TICK)
        return bool(self.waiting)

    def age(self, window: SeenWindow, steady_ms: int) -> None:
        """Forget ids beyond the present bounds of the window's namespace."""
        settings, namespace = self._index.settings, window.namespace
        window.age(steady_ms, settings.dedup_ids(namespace), settings.dedup_ms(namespace))
        self._note(window)

    def table_ids_max(self, window: SeenWindow) -> int:
        """Return the most ids for which the next table of a window needs room.

        That is half of its namespace's bound. If memory is short, it is half of the window's ids, or an eighth of its
        share, so that the window loses no more ids than necessary when others need memory.
        """
        half = self._index.settings.dedup_ids(window.namespace) // 2
        free_ids = (limits.DEDUP_FILTERS_OF_SHARD_BYTES_MAX - self.filters_bytes) // ID_BYTES
        if half <= free_ids:
            return half
        share_ids = limits.DEDUP_FILTERS_OF_SHARD_BYTES_MAX // ID_BYTES // max(1, len(self._windows))
        return min(half, max(free_ids, window.ids_count // 2, share_ids // 8))

    def added(self, window: SeenWindow, steady_ms: int, ids_count: int) -> None:
        """Note new ids of the window. If memory is short, the largest window frees some."""
        self._unknown_since_ms.pop(window.namespace, None)
        window.is_doomed = False
        self.age(window, steady_ms)
        self._make_room(ids_count / SHRINK_IDS_PER_BUCKET)

    def read(self, window: SeenWindow, ids_count: int) -> None:
        """Note a window whose log is being read, and make room; the age of its ids is known only at the end."""
        self._note(window)
        self._make_room(ids_count / SHRINK_IDS_PER_BUCKET)

    def _make_room(self, buckets: float) -> None:
        """Free memory up to the bound. Costly steps are limited to `buckets` more buckets now, and continue later."""
        self._shrink_buckets = min(self._shrink_buckets + buckets, SHRINK_BUCKETS_MAX)
        while self._shrink_buckets >= 1:
            if self._shrink is not None:
                self._go_on(self._shrink)
            elif self.filters_bytes <= limits.DEDUP_FILTERS_OF_SHARD_BYTES_MAX or not self._give_up():
                break

    def _go_on(self, shrink: TableShrink) -> None:
        if not shrink.is_over:
            self._shrink_buckets -= shrink.go_on(int(self._shrink_buckets))
        if shrink.is_over:
            shrink.end()
            self._shrink = None
            if self._windows.get(shrink.window.namespace) is shrink.window:
                self._note(shrink.window)

    def _give_up(self) -> bool:
        """Let the largest window that can free memory do so, or begin to."""
        while self._largest and self._shrink_buckets >= 1:
            self._shrink_buckets -= 1
            size_bytes, namespace = self._largest[0]
            step = None
            if -size_bytes == self._bytes_of.get(namespace):
                window = self._windows[namespace]
                step = least_loss(window, limits.DEDUP_IDS_KEPT)
                if isinstance(step, int):
                    window.move_edge(step)
                    self._note(window)
                else:
                    self._shrink = step
            heappop(self._largest)
            if step is not None:
                return True
        return False

    def _note(self, window: SeenWindow) -> None:
        namespace, size_bytes = window.namespace, window.size_bytes
        before_bytes = self._bytes_of.get(namespace, 0)
        if size_bytes != before_bytes:
            self.filters_bytes += size_bytes - before_bytes
            self._bytes_of[namespace] = size_bytes
            heappush(self._largest, (-size_bytes, namespace))
            if len(self._largest) > 2 * len(self._bytes_of) + 64:
                self._largest = [one for one in set(self._largest) if self._bytes_of.get(one[1]) == -one[0]]
                heapify(self._largest)
        if window.droppable_to > window.dropped_to and namespace not in self._loading:
            self.waiting[namespace] = None

    def _check_for_deleted(self, window: SeenWindow, steady_ms: int) -> None:
        """Doom the window of a namespace that has been missing for a while, once it holds no items."""
        namespace, index = window.namespace, self._index
        if namespace in index.settings.by_number or namespace in index.namespaces or not index.settings.by_number:
            self._unknown_since_ms.pop(namespace, None)
        elif steady_ms - self._unknown_since_ms.setdefault(namespace, steady_ms) >= UNKNOWN_NAMESPACE_MS:
            window.is_doomed = True
            window.move_edge(window.end)
            if window.dropped_to == window.end:
                self.done([(namespace, window.end, window.end)])

    def begin(self, transaction: Transaction, now: Now) -> Forgetting:
        """Take as many ids as this transaction can delete."""
        left = FORGET_IDS + 2 * sum([len(row.digests) for row in transaction.seen_new])
        spans: list[tuple[int, int, int]] = []
        over: list[int] = []
        for namespace in list(self.waiting):
            window = self._windows[namespace]
            if window.droppable_to <= window.dropped_to:
                del self.waiting[namespace]  # Its namespace was recovered.
                continue
            end = min(window.droppable_to, (window.dropped_to + left) // BLOCK_IDS * BLOCK_IDS)
            if window.is_doomed and window.end - window.dropped_to <= left:
                end = window.end
                over.append(namespace)
            if end > window.dropped_to:
                spans.append((namespace, window.dropped_to, end))
                left -= end - window.dropped_to
            if left < BLOCK_IDS:
                break
        operation = Forgetting(self, spans, over)
        operation.write(transaction, now)
        return operation

    def done(self, spans: list[tuple[int, int, int]]) -> None:
        """Note that the rows of these spans are deleted."""
        for namespace, _, end in spans:
            window = self._windows[namespace]
            window.dropped_to = end
            self.waiting.pop(namespace, None)
            if window.is_doomed and end == window.end:
                del self._windows[namespace]
                self.filters_bytes -= self._bytes_of.pop(namespace)
                self._unknown_since_ms.pop(namespace, None)
                self._images.forget(namespace)
            elif window.droppable_to > end:
                self.waiting[namespace] = None  # Behind the others, so that each has its turn.


class Forgetting(Operation):
    """Rows of the log that one transaction deletes."""

    __slots__ = ("_over", "_source", "_spans")

    def __init__(self, source: Forgetfulness, spans: list[tuple[int, int, int]], over: list[int]) -> None:
        """`spans`: namespace, first number and end number. `over`: namespaces whose log is deleted as a whole."""
        self._source = source
        self._spans = spans
        self._over = over

    def write(self, transaction: Transaction, now: Now) -> None:
        transaction.seen_gone = self._spans
        transaction.seen_over = self._over

    def committed(self, result: TransactionResult, now: Now) -> None:
        self._source.done(self._spans)

    def rolled_back(self, error: FoqsError) -> None:
        """Do nothing: the rows are still waiting."""

    def lost(self, unknown: FoqsError, undone: FoqsError) -> None:
        """Do nothing: the next owner finds the remaining rows."""

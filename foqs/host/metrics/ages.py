"""Waiting times of items, found in small steps because a scrape must not walk through all topics."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from foqs.host.shards.shards import Shards
from foqs.model import limits

AGES_ROUND_MS = 1 * limits.SECOND_MS
"""The shortest time between two rounds through all topics for the oldest ready items."""
AGES_TOPICS_PER_TICK = 50
"""Topics that are checked in one tick: 2,500 a second, which take about a millisecond of it."""


class Ages:
    """Finds the waiting times of items for metrics. The host ticks it, and gauges read the two dictionaries.

    By shard id, `oldest_due_at` has the due time of the shard's oldest ready item, and `delay_lag_ms` the lag of its
    delayed items, at most AGES_ROUND_MS ago. Both have the shards that were owned at the last check and have such
    items.
    """

    def __init__(self, shards: Shards, now_s: Callable[[], float]) -> None:
        self._shards = shards
        self._now_s = now_s
        self.oldest_due_at: dict[int, int] = {}
        """The result of the last round; a round takes AGES_ROUND_MS, and longer with many topics."""
        self.delay_lag_ms: dict[int, int] = {}
        self._round: Iterator[None] = iter(())
        self._began_s = self._lags_s = float("-inf")

    def tick(self) -> None:
        """Check some more topics. The host calls it every limits.TICK_MS, on the event loop."""
        now_s = self._now_s()
        if now_s - self._lags_s >= AGES_ROUND_MS / 1000:
            self._lags_s = now_s
            owned = self._shards.owned()
            self.delay_lag_ms = {writer.shard_id: shard.sweep_lag_ms(writer.now_ms()) for writer, shard in owned}
        if next(self._round, self) is self and now_s - self._began_s >= AGES_ROUND_MS / 1000:
            self._began_s = now_s
            self._round = self._scan()
            next(self._round, None)

    def _scan(self) -> Iterator[None]:
        """Check AGES_TOPICS_PER_TICK topics in each step."""
        found: dict[int, int] = {}
        scanned_count = 0
        for writer, shard in list(self._shards.owned()):
            for topic in list(shard.index.topics.values()):
                due_at = topic.oldest_due_at()
                if due_at is not None and due_at < found.get(writer.shard_id, limits.NEVER_MS):
                    found[writer.shard_id] = due_at
                scanned_count += 1
                if scanned_count % AGES_TOPICS_PER_TICK == 0:
                    yield
        self.oldest_due_at = found

"""How long items have waited, looked up a little at a time: no scrape may walk through all topics."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from foqs.host.shards.shards import Shards
from foqs.model import limits

AGES_ROUND_MS = 1 * limits.SECOND_MS
"""The shortest pause between two looks at all topics for the oldest ready item."""
AGES_TOPICS_PER_TICK = 50
"""Topics that are looked at in one tick: 2,500 a second, which take about a millisecond of it."""


class Ages:
    """Looks up how long items have waited, for metrics: the host ticks it, and gauges read the two dictionaries.

    `oldest_due_at` says by shard id since when the shard's oldest ready item may be delivered, and `delay_lag_ms` how
    late its delayed items are. Both have the shards that were owned at the last look and have such items.
    """

    def __init__(self, shards: Shards, now_s: Callable[[], float]) -> None:
        self._shards = shards
        self._now_s = now_s
        self.oldest_due_at: dict[int, int] = {}
        """The result of the last round; a round takes AGES_ROUND_MS, and longer with many topics."""
        self.delay_lag_ms: dict[int, int] = {}
        self._round: Iterator[None] = iter(())
        self._began_s = float("-inf")

    def tick(self) -> None:
        """Look a little further. The host calls it every limits.TICK_MS, on the event loop."""
        self.delay_lag_ms = {
            writer.shard_id: shard.sweep_lag_ms(writer.now_ms()) for writer, shard in self._shards.owned()
        }
        now_s = self._now_s()
        if next(self._round, self) is self and now_s - self._began_s >= AGES_ROUND_MS / 1000:
            self._began_s = now_s
            self._round = self._look()
            next(self._round, None)

    def _look(self) -> Iterator[None]:
        """Look at AGES_TOPICS_PER_TICK topics each time."""
        found: dict[int, int] = {}
        looks_count = 0
        for writer, shard in list(self._shards.owned()):
            for topic in list(shard.index.topics.values()):
                due_at = topic.window.oldest_due_at()
                if due_at is not None and due_at < found.get(writer.shard_id, limits.NEVER_MS):
                    found[writer.shard_id] = due_at
                looks_count += 1
                if looks_count % AGES_TOPICS_PER_TICK == 0:
                    yield
        self.oldest_due_at = found

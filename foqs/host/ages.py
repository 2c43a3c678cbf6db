"""How long items have waited, looked up a little at a time: no scrape may walk through all topics."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from foqs.host.shards import Shards
from foqs.model import limits

AGES_ROUND_MS = 1 * limits.SECOND_MS
"""The shortest pause between two looks at all topics for the oldest ready item."""
AGES_TOPICS_PER_TICK = 100
"""Topics that are looked at in one tick."""


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
        for _ in range(AGES_TOPICS_PER_TICK):
            if next(self._round, self) is self:
                now_s = self._now_s()
                if now_s - self._began_s < AGES_ROUND_MS / 1000:
                    return
                self._began_s = now_s
                self._round = self._look()

    def _look(self) -> Iterator[None]:
        """Past one topic that holds ready items at a time."""
        found: dict[int, int] = {}
        for writer, shard in list(self._shards.owned()):
            for topic in list(shard.index.topics.values()):
                due_at = topic.window.oldest_due_at()
                if due_at is not None:
                    found[writer.shard_id] = min(found.get(writer.shard_id, due_at), due_at)
                yield
        self.oldest_due_at = found

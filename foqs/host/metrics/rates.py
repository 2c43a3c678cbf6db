"""The sampler of rates: it takes the counts of all topics in rounds, in steps that are short by themselves.

It knows the tables of foqs/host/metrics/rate_table.py and the counts of topics, and no verb. Begin with `tick`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from foqs.host.metrics.rate_table import Key, Measured, RateTable
from foqs.host.shards.shards import Shards
from foqs.model.topic import ShardTopic
from foqs.model.topic_name import parts
from foqs.model.topic_rates import KINDS_COUNT, RATE_NAMES, SERIES_NAMES, SLOT_MS, UNKNOWN, TopicRates

ROUND_MS = SLOT_MS
"""The shortest time between the begins of two rounds, in milliseconds."""
TOPICS_RATED_MAX = 100_000
"""Topics of a host with rates: a fair share for each namespace. Further ones count for their namespace alone."""
TOPICS_IN_SERIES_MAX = 5_000
"""Topics of a host with series: a fair share for each namespace, which has those of its busiest topics."""
NAMESPACES_RATED_MAX = 1_000
"""Namespaces of a host with rates and series."""
STEP_TOPICS = 100
"""Topics that one step takes or folds, which takes about a third of a millisecond if all are active."""
STEP_MS_MAX = 1.0
"""The time after which a tick takes no further step, in milliseconds."""
REST_RATIO = 19
"""The rest after a tick, as a multiple of the time that it took, which makes 5 % of a core for any number of topics."""


class Rates:
    """The rates of the topics and namespaces on one host, which the host ticks and its verbs read."""

    def __init__(
        self,
        shards: Shards,
        now_s: Callable[[], float],
        wall_ms: Callable[[], int],
        cost_s: Callable[[], float],
    ) -> None:
        """`now_s` is the time of the event loop; `cost_s` is monotonic, and advances even while the loop is blocked."""
        self.due_s = now_s()
        """The time of the next tick that has work."""
        self.topics = RateTable(TOPICS_RATED_MAX, TOPICS_IN_SERIES_MAX)
        self.namespaces = RateTable(NAMESPACES_RATED_MAX, NAMESPACES_RATED_MAX)
        self._shards = shards
        self._now_s = now_s
        self._wall_ms = wall_ms
        self._cost_s = cost_s
        self._round: Iterator[None] | None = None
        self._began_s = now_s()

    def tick(self) -> None:
        """Do some steps of the round. The host calls it on the event loop from `due_s` on."""
        began_cost_s = self._cost_s()
        if self._round is None:
            self._began_s = self._now_s()
            self._round = self._steps()
        took_s = 0.0
        for _ in self._round:
            took_s = self._cost_s() - began_cost_s
            if took_s * 1000 >= STEP_MS_MAX:
                self.due_s = self._now_s() + took_s * REST_RATIO
                return
        took_s = self._cost_s() - began_cost_s
        self._round = None
        self.due_s = max(self._began_s + ROUND_MS / 1000, self._now_s() + took_s * REST_RATIO)

    def _steps(self) -> Iterator[None]:
        """Take the counts of all topics, and then fold them, STEP_TOPICS in each step."""
        wall_ms = self._wall_ms()
        self.topics.begin(wall_ms, self._began_s)
        self.namespaces.begin(wall_ms, self._began_s)
        for _, shard in self._shards.owned():
            topics = list(shard.index.topics.values())
            for start in range(0, len(topics), STEP_TOPICS):
                self._take(topics[start : start + STEP_TOPICS])
                yield
            namespaces = list(shard.index.namespaces.items())
            for start in range(0, len(namespaces), STEP_TOPICS):
                for number, of_namespace in namespaces[start : start + STEP_TOPICS]:
                    self.namespaces.add((number, ""), None, of_namespace.ready)
                yield
        yield from self.topics.fold(STEP_TOPICS)
        yield from self.namespaces.fold(STEP_TOPICS)

    def _take(self, topics: list[ShardTopic]) -> None:
        by_namespace: dict[int, list[int]] = {}
        for topic in topics:
            counts = topic.take_counts()
            if topic.base is None:  # Otherwise its base counts for it, and has its ready items.
                self.topics.add((topic.namespace, topic.base_name), counts, topic.ready_with_keyed)
            elif counts is not None:
                self.topics.add((topic.namespace, topic.base_name), counts, 0)
            if counts is not None:
                sums = by_namespace.setdefault(topic.namespace, [0] * KINDS_COUNT)
                for kind, count in enumerate(counts):
                    sums[kind] += count
        for namespace, sums in by_namespace.items():
            self.namespaces.add((namespace, ""), sums, 0)

    # ---- reading ----

    def of_topic(self, namespace: int, name: str) -> TopicRates | None:
        """Return the rates of a topic, by its hidden name; None if it has none."""
        measured = self.topics.measured((namespace, name))
        if measured is None:
            return None
        topic, group = parts(name)
        return _row(measured, topic, group or None)

    def of_namespace(self, namespace: int) -> TopicRates:
        """Return the rates of a whole namespace."""
        measured = self.namespaces.measured((namespace, ""))
        return TopicRates("") if measured is None else _row(measured, "", None)


def _row(measured: Measured, topic: str, group: str | None) -> TopicRates:
    row = TopicRates(topic, group=group, ready=measured.ready)
    for name, rate in zip(RATE_NAMES, measured.rates, strict=True):
        setattr(row, name, rate)
    return row


def add_series(table: RateTable, key: Key, row: TopicRates, first: int, last: int) -> None:
    """Add the series of a topic over these slots to its row; a topic without series has no slot that it knows."""
    series = table.series(key, first, last) or [[UNKNOWN] * (last - first + 1)] * len(SERIES_NAMES)
    for name, values in zip(SERIES_NAMES, series, strict=True):
        setattr(row, name, values)


assert len(RATE_NAMES) == 2 * KINDS_COUNT, "the names of the averages and the columns of the table have one order"

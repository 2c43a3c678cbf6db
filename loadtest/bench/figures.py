"""What the clients saw and the servers used in one phase, as figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from loadtest.bench.clients import Outcome
from loadtest.bench.scenario import Phase
from loadtest.bench.stamp import TopicDelay, histogram
from loadtest.bench.usage import Usage


class RunError(Exception):
    """A run that gave no figures: the queue or a client failed, or lost an item."""


@dataclass
class Measured:
    """Of one phase. Histograms are encoded as HdrHistograms are, in base64."""

    figures: dict[str, float]
    histograms: dict[str, str] = field(default_factory=dict)


class Ledger:
    """What must be in the queue: how many items, and the sum of their numbers."""

    def __init__(self) -> None:
        self.held = 0
        self._check = 0

    def add(self, items: int, check: int) -> None:
        """Negative when they left it. A sum that is wrong shows when the queue is empty, so call it for all at once."""
        self.held += items
        self._check += check
        if self.held < 0 or (self.held == 0 and self._check != 0):
            raise RunError("items were lost or acked twice: the numbers of those acked are not those enqueued")

    def settle(self, outcomes: list[Outcome]) -> None:
        """RunError when something is missing or was acked twice."""
        signs = [1 if outcome.kind == "producer" else -1 for outcome in outcomes]
        pairs = list(zip(signs, outcomes, strict=True))
        self.add(sum(sign * of.items for sign, of in pairs), sum(sign * of.check for sign, of in pairs))


def measured(phase: Phase, outcomes: list[Outcome], begin_ns: int, servers: Mapping[str, Usage]) -> Measured:
    """Rates until the last ack, or the last answer to an enqueue where nobody consumes; costs by item."""
    producers = [outcome for outcome in outcomes if outcome.kind == "producer"]
    consumers = [outcome for outcome in outcomes if outcome.kind == "consumer"]
    ends = consumers or producers
    items = sum(outcome.items for outcome in ends)
    if items == 0:
        raise RunError("no item was done in this phase: it is too short")
    seconds = (max(outcome.last_ns for outcome in ends) - begin_ns) / 1e9
    figures = {"items": items, "items_per_s": items / seconds}
    if producers and consumers:
        last_ns = max(outcome.last_ns for outcome in producers)
        figures["enqueues_per_s"] = sum(outcome.items for outcome in producers) / (last_ns - begin_ns) * 1e9
    if phase.producers is not None and phase.producers.items_per_s is not None:
        figures["of_offered"] = figures["items_per_s"] / phase.producers.items_per_s
    figures |= {f"{name}_us": used.cpu_s / items * 1e6 for name, used in servers.items()}
    figures["servers_us"] = sum(used.cpu_s for used in servers.values()) / items * 1e6
    figures["clients_us"] = sum(outcome.cpu_s for outcome in outcomes) / items * 1e6
    figures["cpu_us"] = figures["servers_us"] + figures["clients_us"]
    figures["written_bytes"] = sum(used.written_bytes for used in servers.values()) / items
    found = Measured(figures)
    for kind in ("enqueue", "claim", "ack", "ready", "backlog"):
        merged = histogram()
        for outcome in outcomes:
            if kind in outcome.histograms:
                merged.decode_and_add(outcome.histograms[kind])
        if merged.get_total_count():
            found.histograms[kind] = merged.encode().decode()
            for name, percentile in (("p50", 50), ("p99", 99), ("max", 100)):
                figures[f"{kind}_{name}_ms"] = merged.get_value_at_percentile(percentile) / 1_000
    figures |= _of_topics(consumers)
    return found


def _of_topics(consumers: list[Outcome]) -> dict[str, float]:
    topics: dict[int, TopicDelay] = {}
    for outcome in consumers:
        for topic, delay in outcome.topics.items():
            topics.setdefault(topic, TopicDelay()).add(delay)
    if len(topics) < 2:
        return {}
    return {
        "topics_served": len(topics),
        "worst_topic_mean_ms": max(delay.total_ns / delay.count for delay in topics.values()) / 1e6,
    }

"""The turns of hosts when a call takes items of any topic of a namespace that several hosts have.

Each host's part follows the weights of the topics with items there, so that topics are served by their weights although
each host only knows its own topics (smooth weighted round robin, counted in items).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from foqs.model.stocks import Pointer, Topic

NAMESPACES_KEPT_MAX = 10_000
CREDIT_ITEMS_MAX = 1_000.0
"""The most credit of a host that gave less than its part, so that it does not have all later turns for long."""


class Turn(NamedTuple):
    """A call for any topic, and the host whose turn it is."""

    topic: Topic
    """The one that stands for all topics of the namespace, or for one group of all."""
    host_id: str
    pointer: Pointer | None
    """None if it is the turn of this host."""
    weights: Mapping[str, int]
    """The weight of the topics with items on each host."""
    items_max: int
    """The most items that the call can take."""


class HostTurns:
    """Pure. A call begins by counting the most items it can take, and ends by returning the items it did not get."""

    def __init__(self) -> None:
        self._credits: dict[Topic, dict[str, float]] = {}
        """The items that hosts have given less than their part, by the topic that stands for all."""

    def begin(self, topic: Topic, weights: Mapping[str, int], count: int) -> str:
        """Return the host from which a call for `count` items takes them. `weights` must not be empty."""
        known = self._credits.pop(topic, {})
        credits = self._credits[topic] = {host_id: known.get(host_id, 0.0) for host_id in sorted(weights)}
        if len(self._credits) > NAMESPACES_KEPT_MAX:
            del self._credits[next(iter(self._credits))]
        chosen = max(credits, key=lambda host_id: credits[host_id] + weights[host_id] * count / sum(weights.values()))
        _count(credits, weights, chosen, count)
        return chosen

    def end(self, topic: Topic, weights: Mapping[str, int], chosen: str, missing_count: int) -> None:
        """End a turn in which the call got this number of items less than its most."""
        credits = self._credits.get(topic)
        if credits is not None and missing_count:
            _count(credits, weights, chosen, -missing_count)


def _count(credits: dict[str, float], weights: Mapping[str, int], chosen: str, count: int) -> None:
    total = sum(weights.values())
    for host_id, weight in weights.items():
        if host_id in credits:
            part = count * weight / total - (count if host_id == chosen else 0)
            credits[host_id] = max(-CREDIT_ITEMS_MAX, min(CREDIT_ITEMS_MAX, credits[host_id] + part))

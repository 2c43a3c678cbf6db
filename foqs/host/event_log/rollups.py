"""Minute roll-ups: counts and times by namespace, topic, priority, outcome and minute. Pure: times are arguments."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any

from foqs.host.event_log.lines import Line
from foqs.model import limits
from foqs.model.event_log import BOUNDS_MS, FORMAT, SERIES_ENQUEUED, SERIES_LOST, SERIES_RATE_LIMITED
from foqs.model.item import Outcome
from foqs.model.topic_name import parts
from foqs.shard.state.events import Ends, Enqueued

CLOSE_AFTER_MS = 5_000
"""A minute is written this long after its end, if no event was added for as long, because the server's clock, which
sets the minute of an event, can be behind the host's. Later events make a second row, and reports add the rows up.
"""
IDLE_MS_MAX = limits.MINUTE_MS + CLOSE_AFTER_MS
"""A minute without new events for this long is written even if it has not ended by the host's clock."""
MINUTES_OPEN_MAX = 10
"""The most minutes in memory, even if the clocks of servers are further apart."""

OUTCOMES = tuple(outcome.name.lower() for outcome in Outcome)
"""The names of the outcomes, by number."""

_facts = attrgetter("priority", "due_at", "delivered_at", "deliveries", "lease_due_at")
_Key = tuple[int | None, str | None, int | None, str]
"""The number of a namespace, topic, priority and outcome. None stands for all values without a row of their own."""


class Times:
    """A distribution of times, in the buckets of BOUNDS_MS."""

    __slots__ = ("counts", "sum_ms")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_MS) + 1)
        self.sum_ms = 0

    def add(self, elapsed_ms: int, count: int) -> None:
        elapsed_ms = max(0, elapsed_ms)  # The server's clock possibly stepped back meanwhile.
        self.counts[bisect_left(BOUNDS_MS, elapsed_ms)] += count
        self.sum_ms += elapsed_ms * count


class Series:
    """One row of a minute, while it grows."""

    __slots__ = ("attempts", "count", "processing", "redeliveries", "wait")

    def __init__(self) -> None:
        self.count = 0
        self.attempts = 0
        """Deliveries in the lives of the items, the last one included."""
        self.redeliveries = 0
        """The number of the items that had been delivered before."""
        self.wait: Times | None = None
        """Times from ready to the first delivery, of first deliveries only."""
        self.processing: Times | None = None
        """Times from the delivery to its end."""

    def row(self) -> dict[str, Any]:
        found: dict[str, Any] = {"count": self.count, "attempts": self.attempts, "redeliveries": self.redeliveries}
        for name, times in (("wait", self.wait), ("processing", self.processing)):
            found[name] = times.counts if times is not None else []
            found[f"{name}_ms_sum"] = times.sum_ms if times is not None else 0
        return found


class _Minute:
    """The rows of a minute."""

    __slots__ = ("added_to_ms", "is_added_to", "series")

    def __init__(self) -> None:
        self.series: dict[_Key, Series] = {}
        self.is_added_to = True
        """True if events were added since the last `idle_ms`."""
        self.added_to_ms = 0
        """The last time at which that was true, on the steady clock."""

    def idle_ms(self, steady_ms: int) -> int:
        """Return the time since the last added event, in milliseconds."""
        if self.is_added_to:
            self.is_added_to, self.added_to_ms = False, steady_ms
        return steady_ms - self.added_to_ms


class RollUps:
    """Counts the events of each minute, and returns its rows when it is over.

    The event log's thread adds events, and takes the lines. The number of rows of a minute is bounded: events without a
    row of their own count in one row of their namespace and outcome, and beyond twice the bound in one row of the
    outcome.
    """

    def __init__(self, host_name: str, name_of: Callable[[int], str]) -> None:
        """`name_of` returns the name of the namespace with a number."""
        self.others_count = 0
        """Events that were counted in such common rows, since the start."""
        self._host_name = host_name
        self._name_of = name_of
        self._minutes: dict[int, _Minute] = {}
        """Rows by the start of their minute, in milliseconds since 1970."""

    def add_ends(self, ends: Ends) -> None:
        outcome, at_ms = ends.outcome, ends.at_ms
        minute = self._minute(at_ms)
        for topic, items in ends.items.items():
            for facts, count in Counter(map(_facts, items)).items():
                key = (topic.namespace, topic.base_name, facts[0], OUTCOMES[outcome])
                self._add_end(self._series(minute, key, count), outcome, at_ms, facts, count)

    def _add_end(
        self, series: Series, outcome: Outcome, at_ms: int, facts: tuple[int, int, int, int, int], count: int
    ) -> None:
        _, due_at, delivered_at, deliveries, lease_due_at = facts
        series.count += count
        is_delivered = is_ended_delivery(outcome, lease_due_at)
        series.attempts += (deliveries + is_delivered) * count
        if not is_delivered:
            return
        if deliveries:
            series.redeliveries += count
        if not delivered_at:
            return  # Another owner has delivered it.
        if not deliveries:
            series.wait = series.wait or Times()
            series.wait.add(delivered_at - due_at, count)
        series.processing = series.processing or Times()
        series.processing.add(at_ms - delivered_at, count)

    def add_enqueued(self, enqueued: Enqueued) -> None:
        minute, topic = self._minute(enqueued.at_ms), enqueued.topic
        for priority, count in Counter(enqueued.priorities).items():
            self._series(minute, (topic.namespace, topic.base_name, priority, SERIES_ENQUEUED), count).count += count

    def add_rate_limited(self, namespace: int | None, at_ms: int, count: int) -> None:
        self._series(self._minute(at_ms), (namespace, None, None, SERIES_RATE_LIMITED), count).count += count

    def add_lost(self, at_ms: int, count: int) -> None:
        """Count `count` lost events, which are in no other row."""
        self._series(self._minute(at_ms), (None, None, None, SERIES_LOST), count).count += count

    def _minute(self, at_ms: int) -> dict[_Key, Series]:
        start_ms = at_ms - at_ms % limits.MINUTE_MS
        minute = self._minutes.get(start_ms)
        if minute is None:
            minute = self._minutes[start_ms] = _Minute()
        minute.is_added_to = True
        return minute.series

    def _series(self, minute: dict[_Key, Series], key: _Key, count: int) -> Series:
        found = minute.get(key)
        if found is not None:
            return found
        if len(minute) >= limits.ROLLUP_SERIES_MAX and key[1] is not None:
            self.others_count += count
            namespace = key[0] if len(minute) < 2 * limits.ROLLUP_SERIES_MAX else None
            key = (namespace, None, None, key[3])
            found = minute.get(key)
            if found is None and len(minute) >= 2 * limits.ROLLUP_SERIES_MAX:
                key = (None, None, None, key[3])
                found = minute.get(key)
        if found is None:
            found = minute[key] = Series()
        return found

    def take(self, wall_ms: int, steady_ms: int, *, all_of_them: bool = False) -> Iterator[Line]:
        """Yield the lines of the minutes that are over, or of all minutes."""
        over_ms = wall_ms - limits.MINUTE_MS - CLOSE_AFTER_MS
        starts = sorted(self._minutes)
        for number, start_ms in enumerate(starts):
            idle_ms = self._minutes[start_ms].idle_ms(steady_ms)
            is_over = idle_ms >= (CLOSE_AFTER_MS if start_ms <= over_ms else IDLE_MS_MAX)
            if is_over or all_of_them or len(starts) - number > MINUTES_OPEN_MAX:
                yield from self._lines(start_ms, self._minutes.pop(start_ms).series)

    def _lines(self, start_ms: int, minute: dict[_Key, Series]) -> Iterator[Line]:
        for (namespace, topic, priority, outcome), series in minute.items():
            name, group = (None, "") if topic is None else parts(topic)
            row = {
                "v": FORMAT,
                "host": self._host_name,
                "minute_ms": start_ms,
                "namespace": None if namespace is None else self._name_of(namespace),
                "topic": name,
                **({"group": group} if group else {}),
                "priority": priority,
                "outcome": outcome,
                **series.row(),
            }
            yield Line(json.dumps(row, separators=(",", ":")).encode() + b"\n", 1, series.count)


def is_ended_delivery(outcome: Outcome, lease_due_at: int) -> bool:
    """True if a delivery ended with the life: an item can also expire or be deleted without a lease."""
    return lease_due_at != 0 and outcome is not Outcome.EXPIRED

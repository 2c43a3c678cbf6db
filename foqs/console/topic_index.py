"""The topics of a namespace in the memory of the console, and the pages of their list."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple

from foqs.console.topic_filter import QUICK_FILTERS, TopicFilter
from foqs.console.topic_row import TONES, TopicRow
from foqs.model.calls import TopicStats
from foqs.model.namespace import Namespace
from foqs.model.policy import TopicPolicy
from foqs.model.topic_name import hidden

ROWS_PER_PAGE: Final = 50
_FIRST_ROWS_MAX: Final = 200
"""Pages up to this row are taken from a heap; for later ones all rows are sorted."""
_ORDERS_KEPT_MAX: Final = 4
ORDERS: Final[dict[str, Callable[[TopicRow], Any]]] = {
    "attention": attrgetter("attention"),
    "name": attrgetter("name"),
    "why": attrgetter("movement"),
    "ready": attrgetter("ready"),
    "delayed": attrgetter("delayed"),
    "leased": attrgetter("leased"),
    "dead": attrgetter("dead"),
    "oldest": lambda row: -row.oldest_at_ms if row.oldest_at_ms else float("-inf"),
    "in": attrgetter("enqueued"),
    "out": attrgetter("ended"),
    "failed": attrgetter("failed"),
}
"""The keys by which the list can be sorted."""
DEFAULT_ORDER: Final = "-attention"


class TopicPageFound(NamedTuple):
    rows: Sequence[TopicRow]
    first: int
    """The number of the rows before the page."""
    topics_count: int
    items_count: int
    dead_count: int
    found: Sequence[TopicRow]
    """All rows for which the filter holds, in no order."""


class TopicIndex:
    """The topics of one namespace. The poller writes it in rounds; rows that a round does not bring are dropped."""

    def __init__(self) -> None:
        self.rows: dict[str, TopicRow] = {}
        self.round_number = 0
        self.as_of_ms = 0
        """The beginning of the last round that is complete; 0 before the first."""
        self.took_s = 0.0
        self.missing: list[str] = []
        """The shards and hosts that the last round could not ask, in words."""
        self._orders: dict[tuple[int, str], Sequence[TopicRow]] = {}
        self._quick_counts: tuple[int, dict[str, int]] = (-1, {})
        self._sums: tuple[int, dict[str, int]] = (-1, {})
        self._worst: tuple[int, list[TopicRow]] = (-1, [])

    def take(self, stats: TopicStats, policy: TopicPolicy, namespace: Namespace | None, now_ms: int) -> None:
        """Take a topic of the round that runs."""
        key = hidden(stats.topic, stats.group)
        row = self.rows.get(key)
        if row is None:
            row = self.rows[key] = TopicRow(stats.topic, stats.group or "")
        row.take(stats, policy, namespace, now_ms)
        row.round_number = self.round_number + 1

    def finish_round(self, as_of_ms: int, missing: Sequence[str]) -> None:
        """Drop the rows that the round has not brought, unless parts of the cluster were missing."""
        self.round_number += 1
        if not missing:
            gone = [key for key, row in self.rows.items() if row.round_number != self.round_number]
            for key in gone:
                del self.rows[key]
        self.missing = list(missing)
        self.as_of_ms = as_of_ms
        self._orders.clear()

    def page(self, chosen: TopicFilter, order: str, first: int, now_ms: int) -> TopicPageFound:
        """Return a page of the rows for which the filter holds. `order` is a key of ORDERS, with - for descending."""
        found = list(self.rows.values()) if chosen.is_empty else chosen.chosen(self.rows.values(), now_ms)
        is_down, key = order.startswith("-"), ORDERS[order.removeprefix("-")]
        end = first + ROWS_PER_PAGE
        if end <= _FIRST_ROWS_MAX:
            pick = heapq.nlargest if is_down else heapq.nsmallest
            rows: Sequence[TopicRow] = pick(end, found, key=key)[first:]
        elif chosen.is_empty:
            rows = self._sorted(order, found)[first:end]
        else:
            rows = sorted(found, key=key, reverse=is_down)[first:end]
        items = sum([row.ready + row.delayed + row.leased + row.dead for row in found])
        dead = sum([row.dead for row in found])
        return TopicPageFound(rows, first, len(found), items, dead, found)

    def quick_counts(self) -> dict[str, int]:
        """Return the numbers of topics for which each quick filter holds, as of the last round."""
        if self._quick_counts[0] != self.round_number:
            rows = list(self.rows.values())
            counts = {key: sum(map(one.holds, rows)) for key, one in QUICK_FILTERS.items()}
            self._quick_counts = (self.round_number, counts)
        return self._quick_counts[1]

    def sums(self) -> dict[str, int]:
        """Return the sums of all topics as of the last round, and the time since which the oldest item is ready."""
        if self._sums[0] != self.round_number:
            rows = list(self.rows.values())
            found = {key: sum([getattr(row, key) for row in rows]) for key in ("ready", "delayed", "leased", "dead")}
            found["topics"] = len(rows)
            found["oldest_at_ms"] = min([row.oldest_at_ms for row in rows if row.oldest_at_ms], default=0)
            self._sums = (self.round_number, found)
        return self._sums[1]

    def worst(self, count: int) -> list[TopicRow]:
        """Return the first rows of those that need somebody, as of the last round."""
        if self._worst[0] != self.round_number:
            bad = [row for row in self.rows.values() if TONES[row.movement] in ("bad", "warn")]
            self._worst = (self.round_number, heapq.nlargest(count, bad, key=attrgetter("attention")))
        return self._worst[1]

    def _sorted(self, order: str, rows: Sequence[TopicRow]) -> Sequence[TopicRow]:
        """Return all rows in order, which is kept until the next round."""
        key = (self.round_number, order)
        kept = self._orders.get(key)
        if kept is None:
            while len(self._orders) >= _ORDERS_KEPT_MAX:
                del self._orders[next(iter(self._orders))]
            is_down = order.startswith("-")
            kept = self._orders[key] = sorted(rows, key=ORDERS[order.removeprefix("-")], reverse=is_down)
        return kept

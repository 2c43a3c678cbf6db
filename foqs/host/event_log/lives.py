"""Ends of lives, sampled, as lines with columns. Pure."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence

from foqs.host.event_log.lines import Line
from foqs.host.event_log.rollups import OUTCOMES
from foqs.model import limits
from foqs.model.event_log import FORMAT, LIFE_COLUMNS, sample_point_of, threshold_of
from foqs.model.item import Outcome, ShardItem
from foqs.model.serial import shown_due_at
from foqs.model.topic import ShardTopic
from foqs.shard.state.events import Ends

LINE_EVENTS_MAX = 1_000
"""The number of events at which a line is ended. A call of the largest batch can add as many at once."""

_Group = tuple[ShardTopic, Outcome]


class Lives:
    """Makes lines of ended lives, and remembers the first deliveries of items that live on.

    The event log's thread adds ends in the order of their time, and takes the lines. The number of remembered first
    deliveries is bounded; a forgotten one is null in the line.
    """

    def __init__(self, host_name: str, name_of: Callable[[int], str], per_mille_of: Callable[[int], int]) -> None:
        """`name_of` and `per_mille_of` return the name and the sample of the namespace with a number."""
        self.waiting_count = 0
        """Events that are not in a line yet."""
        self._head = f'{{"v":{FORMAT},"host":{json.dumps(host_name)},"shard":'
        self._name_of = name_of
        self._per_mille_of = per_mille_of
        self._columns: dict[_Group, list[list[int | None]]] = {}
        self._lines: list[Line] = []
        self._firsts: OrderedDict[tuple[int, int], tuple[int, int]] = OrderedDict()
        """Times of readiness and of the first delivery, by shard and key, of delivered items that came back."""

    def add_ends(self, ends: Ends) -> None:
        for topic, items in ends.items.items():
            sampled = self._sampled(topic.namespace, items)
            if not sampled:
                continue
            if ends.outcome.ends_life:
                self._add(topic, ends.outcome, ends.at_ms, sampled)
            else:
                self._remember(topic.shard_id, sampled)

    def _sampled(self, namespace: int, items: list[ShardItem]) -> list[ShardItem]:
        per_mille = self._per_mille_of(namespace)
        if per_mille <= 0:
            return []
        if per_mille >= 1000:
            return items
        threshold = threshold_of(per_mille)
        return [item for item in items if sample_point_of(item.key) < threshold]

    def _remember(self, shard_id: int, items: list[ShardItem]) -> None:
        firsts = self._firsts
        for item in items:
            if not item.deliveries and item.delivered_at:
                firsts[shard_id, item.key] = (shown_due_at(item.due_at, item.enqueued_at), item.delivered_at)
        while len(firsts) > limits.EVENT_LOG_FIRSTS_MAX:
            firsts.popitem(last=False)

    def _add(self, topic: ShardTopic, outcome: Outcome, at_ms: int, items: list[ShardItem]) -> None:
        # A pass per attribute costs less than a pass per item.
        ready: Sequence[int | None] = [shown_due_at(item.due_at, item.enqueued_at) for item in items]
        delivered = [item.delivered_at for item in items]
        last: Sequence[int | None] = delivered if all(delivered) else [at or None for at in delivered]
        first = last
        attempts = [item.deliveries for item in items]
        if any(attempts):
            known = [self._first(topic.shard_id, item) for item in items]
            ready, first = [pair[0] for pair in known], [pair[1] for pair in known]
        if outcome is not Outcome.EXPIRED:  # As `rollups.is_ended_delivery` has it.
            attempts = [count + (item.lease_due_at != 0) for count, item in zip(attempts, items, strict=True)]
        added: tuple[Sequence[int | None], ...] = (
            [item.key for item in items],
            [item.priority for item in items],
            [item.enqueued_at for item in items],
            ready,
            first,
            last,
            (at_ms,) * len(items),
            attempts,
        )
        columns = self._columns.get((topic, outcome))
        if columns is None:
            columns = self._columns[topic, outcome] = [[] for _ in LIFE_COLUMNS]
        for column, values in zip(columns, added, strict=True):
            column.extend(values)
        self.waiting_count += len(items)
        if len(columns[0]) >= LINE_EVENTS_MAX:
            self._end_line(topic, outcome, self._columns.pop((topic, outcome)))

    def _first(self, shard_id: int, item: ShardItem) -> tuple[int | None, int | None]:
        """Return the times at which the item became ready and was first delivered, or None if forgotten."""
        if not item.deliveries:
            return shown_due_at(item.due_at, item.enqueued_at), item.delivered_at or None
        return self._firsts.pop((shard_id, item.key), (None, None))

    def _end_line(self, topic: ShardTopic, outcome: Outcome, columns: list[list[int | None]]) -> None:
        count = len(columns[0])
        name, group = topic.shown
        names = f'"namespace":{json.dumps(self._name_of(topic.namespace))},"topic":{json.dumps(name)}'
        if group:
            names += f',"group":{json.dumps(group)}'
        if topic.ordering_key is not None:
            names += f',"ordering_key":{json.dumps(topic.ordering_key)}'
        if topic.fairness_key is not None:
            names += f',"fairness_key":{json.dumps(topic.fairness_key)}'
        values = ",".join([f'"{name}":{text}' for name, text in zip(LIFE_COLUMNS, _texts(columns), strict=True)])
        line = f'{self._head}{topic.shard_id},{names},"outcome":"{OUTCOMES[outcome]}","count":{count},{values}}}\n'
        self._lines.append(Line(line.encode(), count, count))
        self.waiting_count -= count

    def take(self) -> list[Line]:
        """Return the lines of all added ends."""
        for (topic, outcome), columns in self._columns.items():
            self._end_line(topic, outcome, columns)
        self._columns = {}
        lines, self._lines = self._lines, []
        return lines


def _texts(columns: Sequence[list[int | None]]) -> Iterator[str]:
    """Yield the columns in JSON. Equal neighbours are formatted once, as items are often ready when enqueued."""
    before: list[int | None] = []
    text = ""
    for column in columns:
        if column != before:
            before, text = column, _text(column)
        yield text


def _text(column: list[int | None]) -> str:
    """Return the column in JSON. A column of one value is shortened to it, and Python's numbers are valid JSON."""
    if column[0] == column[-1] and column.count(column[0]) == len(column):
        return json.dumps(column[:1])
    try:
        return f"[{','.join(['%d'] * len(column))}]" % tuple(column)
    except TypeError:  # Some values are null.
        return json.dumps(column, separators=(",", ":"))

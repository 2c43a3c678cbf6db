"""The event log as plain Python reads it: an oracle for what hosts write and for what Spark makes of it."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

from foqs.host.event_log.log_service import EventLog, EventLogOptions, EventLogSource
from foqs.model import ids
from foqs.model.event_log import BOUNDS_MS, LIFE_COLUMNS, LIVES, ROLLUPS
from foqs.model.item import Outcome, Phase, ShardItem
from foqs.model.topic import ShardTopic
from foqs.model.window_budget import WindowBudget
from foqs.shard.state.events import Ends, Enqueued, Events


def closed_files(directory: Path, kind: str) -> list[Path]:
    return sorted(directory.glob(f"{kind}/date=*/hour=*/[!_]*.jsonl.gz"))


def open_files(directory: Path) -> list[Path]:
    return sorted(directory.glob("*/date=*/hour=*/_*"))


def lines(directory: Path, kind: str) -> Iterator[dict[str, Any]]:
    for path in closed_files(directory, kind):
        for line in gzip.decompress(path.read_bytes()).splitlines():
            yield json.loads(line)


def lives_of(line: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The events of one line."""
    for position in range(line["count"]):
        values = {name: line[name][position if len(line[name]) > 1 else 0] for name in LIFE_COLUMNS}
        yield {
            "id": ids.item_id(line["shard"], values.pop("key")),
            **{name: line[name] for name in ("namespace", "topic", "outcome")},
            **values,
        }


def lives(directory: Path) -> list[dict[str, Any]]:
    return [life for line in lines(directory, LIVES) for life in lives_of(line)]


def rollups(directory: Path) -> list[dict[str, Any]]:
    return list(lines(directory, ROLLUPS))


def counts(directory: Path) -> Counter[tuple[str | None, str | None, int | None, str]]:
    """Items by namespace, topic, priority and outcome."""
    found: Counter[tuple[str | None, str | None, int | None, str]] = Counter()
    for row in rollups(directory):
        found[row["namespace"], row["topic"], row["priority"], row["outcome"]] += row["count"]
    return found


def bucket_of(elapsed_ms: int) -> int:
    return next((number for number, bound in enumerate(BOUNDS_MS) if elapsed_ms <= bound), len(BOUNDS_MS))


# ---- made without a host ----


class MadeLog:
    """An event log of traffic that a test makes up, written by the host's own code without its thread.

    `ended` and `enqueued` are what it was told: the oracle.
    """

    def __init__(
        self,
        directory: Path,
        *,
        host_name: str = "queue-1:7600",
        per_mille: int = 1_000,
        now_s: float = 1_764_000_000.0,
        **options: Any,
    ) -> None:
        self.now_s = now_s
        """The time of day. The steady clock goes on with it, but for what `step` adds."""
        self._stepped_s = 0.0
        self.refused: dict[int | None, int] = {}
        self.ended: list[dict[str, Any]] = []
        self.enqueued: Counter[tuple[str, int, str, int]] = Counter()
        """By topic, minute (its beginning in ms), namespace and priority."""
        self.topics: dict[tuple[int, str], ShardTopic] = {}
        self._keys = count(1)
        settings = {"bytes_max": 1 << 30, "days": 30, **options}
        source = EventLogSource(lambda number: f"ns-{number}", lambda _: per_mille, lambda: self.refused)
        self.log = EventLog(
            EventLogOptions(host_name, directory, **settings),
            source,
            lambda: self.now_s,
            lambda: self.now_s - self._stepped_s,
        )

    def topic(self, name: str, namespace: int = 1, shard_id: int = 0) -> ShardTopic:
        if (namespace, name) not in self.topics:
            number = len(self.topics) + 1
            self.topics[namespace, name] = ShardTopic(
                shard_id, number, namespace, name, WindowBudget(), {}, stored=True
            )
        return self.topics[namespace, name]

    def enqueue(self, topic: ShardTopic, priorities: list[int], at_ms: int) -> None:
        events = Events()
        events.enqueued.append(Enqueued(topic, at_ms, priorities))
        for priority in priorities:
            self.enqueued[topic.name, at_ms - at_ms % 60_000, f"ns-{topic.namespace}", priority] += 1
        self.log.record(events)

    def end(
        self,
        topic: ShardTopic,
        outcome: Outcome,
        *,
        ready_ms: int,
        wait_ms: int,
        processing_ms: int,
        priority: int = 0,
        deliveries: int = 0,
        items_count: int = 1,
        key: int = 0,
    ) -> int:
        """So many items end together; returns the key of the last one."""
        items = []
        for _ in range(items_count):
            item = ShardItem(key or next(self._keys), topic, priority, ready_ms, 0, Phase.GONE, enqueued_at=ready_ms)
            item.delivered_at, item.deliveries, item.lease_due_at = ready_ms + wait_ms, deliveries, 1
            items.append(item)
            self.ended.append(
                {
                    "namespace": f"ns-{topic.namespace}", "topic": topic.name, "priority": priority,
                    "outcome": outcome.name.lower(), "key": item.key, "deliveries": deliveries, "wait_ms": wait_ms,
                    "processing_ms": processing_ms, "ended_at_ms": ready_ms + wait_ms + processing_ms,
                }
            )  # fmt: skip
        events = Events()
        events.ends.append(Ends(outcome, ready_ms + wait_ms + processing_ms, {topic: items}))
        self.log.record(events)
        return items[-1].key

    def step(self, seconds: float) -> None:
        """Somebody sets the clock of the machine."""
        self.now_s += seconds
        self._stepped_s += seconds

    def passes(self, seconds: float = 0.0) -> None:
        """Some time goes by, and the thread does one pass."""
        self.now_s += seconds
        self.log._pass(close=False)

    def close(self) -> None:
        """All of it is in closed files."""
        self.log._pass(close=True)

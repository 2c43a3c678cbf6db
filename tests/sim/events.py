"""The event logs of simulated hosts, and what all of them must say in the end.

The code is the host's own but for its thread and its files: it counts and writes on the event loop, into memory. The
book sees every commit of every server, so it knows which ends there were and which of them some host was told of.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

from foqs.host.event_log import log_service, sequence
from foqs.host.event_log.files import LogLock, Moment
from foqs.host.event_log.log_service import PASS_MS, EventLog, EventLogOptions, EventLogSource
from foqs.model.event_log import SERIES_ENQUEUED, sample_point_of, threshold_of
from foqs.model.item import Outcome
from foqs.model.topic_name import base_of
from foqs.shard.state.events import Events
from tests.histories.history import uid_of
from tests.sim.event_checks import log_problems, told_problems

if TYPE_CHECKING:
    from foqs.testing.fake_server import FakeServer, Script
    from tests.sim.world import World

_DISK_FAULT_SHARE = 0.02
_CUT_SHARE = 0.7
_SHOWN_MAX = 5

Key = tuple[int, int]
"""The shard and key of an item."""
Series = tuple[int, str, int, str]
"""The number of a namespace, topic, priority and outcome."""


def event_sizes(seed: int) -> dict[str, int]:
    """Sizes of a run. Drawn apart, so that the rest of a seed stays what it was."""
    pick = random.Random(f"events {seed}").choice
    return {
        "EVENT_LOG_WAITING_MAX": pick([8, 1_000_000, 1_000_000]),
        "ROLLUP_SERIES_MAX": pick([3, 10_000]),
        "EVENT_LOG_FIRSTS_MAX": pick([2, 100_000]),
        "EVENT_LOG_FILE_BYTES_MAX": pick([500, 1 << 26]),
        "EVENT_LOG_UNWRITTEN_BYTES_MAX": pick([1_000, 1 << 24]),
    }


class Born(NamedTuple):
    """An item as it was inserted."""

    uid: str
    namespace: int
    topic: str
    priority: int
    enqueued_at: int


class EventBook:
    """What happened by all commits, and what the hosts' logs were given of it."""

    def __init__(self, world: World) -> None:
        self.born: dict[Key, Born] = {}
        self.known_born: set[Key] = set()
        """Those of whose insert a host was told."""
        self.logs: list[SimEventLog] = []
        self.attempts: dict[Key, int] = {}
        """As the logs tell them of items that were acked."""
        self._world = world
        self._live: dict[int, set[int]] = {}
        """Keys by shard."""
        self._dead: dict[int, set[int]] = {}
        self._ends: dict[tuple[int, int], list[tuple[Key, bool]]] = {}
        """By shard and number of a transaction the items whose lives it ended, and whether they are dead letters."""
        self._inserts: dict[tuple[int, int], list[Key]] = {}
        self._known_ends: Counter[tuple[Key, bool]] = Counter()
        self._chance = random.Random(f"event log {world.seed}")
        self.per_mille = self._chance.choice([1_000, 1_000, 300])
        self.disk_fails = self._chance.random() < 0.3

    def make_log(self, options: EventLogOptions, source: EventLogSource) -> SimEventLog:
        log = SimEventLog(self, self._world, options, source)
        self.logs.append(log)
        return log

    def committed(self, server: FakeServer, script: Script) -> None:
        """A transaction happened, whether its host will know that or not."""
        shard_id, tables = server.shard_id, server.tables
        live, dead = self._live.setdefault(shard_id, set()), self._dead.setdefault(shard_id, set())
        place = (shard_id, script.mark.transaction_number)
        gone = [key for key in live if key not in tables.items]
        died = [key for key in live if key in tables.items and tables.items[key].lane < 0]
        ends = [((shard_id, key), False) for key in gone] + [((shard_id, key), True) for key in died]
        # A dead letter that is redriven begins another life.
        redriven = [key for key in dead if key in tables.items and tables.items[key].lane >= 0]
        live.difference_update(gone, died)
        dead.update(died)
        dead.difference_update(redriven)
        live.update(redriven)
        for row in script.rows_new:
            namespace, topic = tables.topics[row.topic]
            uid = uid_of(row.content.payload)
            self.born[shard_id, row.key] = Born(uid, namespace, base_of(topic.decode()), row.priority, row.enqueued_at)
            self._inserts.setdefault(place, []).append((shard_id, row.key))
            live.add(row.key)
        if ends:
            self._ends[place] = ends

    def known(self, shard_id: int, number: int) -> None:
        """The shard's owner was told that the transaction happened."""
        self._known_ends.update(self._ends.pop((shard_id, number), ()))
        self.known_born.update(self._inserts.pop((shard_id, number), ()))

    def problems(self) -> Iterator[str]:
        """What is wrong with the logs, after all hosts have ended."""
        given: Counter[tuple[Key, bool]] = Counter()
        enqueued: Counter[Series] = Counter()
        for log in self.logs:
            for (key, outcome), count in log.given_ends.items():
                if outcome.ends_life:
                    given[key, outcome is Outcome.DEAD] += count
            enqueued.update({series: count for series, count in log.given.items() if series[3] == SERIES_ENQUEUED})
        yield from _differences("E1: ends", self._known_ends, given)
        born = [self.born[key] for key in self.known_born]
        expected = Counter([(one.namespace, one.topic, one.priority, SERIES_ENQUEUED) for one in born])
        yield from _differences("E2: enqueues", expected, enqueued)
        for log in self.logs:
            yield from log_problems(log, self)
        yield from told_problems(self._world.calls, self)
        counts = self._world.counts
        counts["ends in event logs"] += given.total()
        counts["ends that no host was told of"] += sum(map(len, self._ends.values()))
        counts["event logs that were killed"] += sum([not log.is_complete for log in self.logs])
        counts["ends that event logs had no room for"] += sum([log.lost_items_count for log in self.logs])

    def is_sampled(self, key: int) -> bool:
        return sample_point_of(key) < threshold_of(self.per_mille)


def _differences(what: str, expected: Counter[Any], found: Counter[Any]) -> Iterator[str]:
    missing, extra = expected - found, found - expected
    if missing:
        yield f"{what} that a host was told of are in no log: {list(missing.items())[:_SHOWN_MAX]}"
    if extra:
        yield f"{what} that did not happen are in a log: {list(extra.items())[:_SHOWN_MAX]}"


class SimEventLog(EventLog):
    """Does its passes as it is given events, and when it ends. What is not flushed by then goes with its process."""

    def __init__(self, book: EventBook, world: World, options: EventLogOptions, source: EventLogSource) -> None:
        options = options._replace(directory=Path(f"log-{len(book.logs)}"))
        source = source._replace(name_of=str, per_mille_of=lambda _: book.per_mille)
        super().__init__(options, source, lambda: world.now_ms() / 1000, lambda: world.now_ms() / 1000)
        self.given: Counter[Series] = Counter()
        """All that it was given, as its roll-ups should count it."""
        self.given_ends: Counter[tuple[Key, Outcome]] = Counter()
        self.taken: Counter[Series] = Counter()
        """The same without what it had no room for."""
        self.taken_ends: Counter[tuple[Key, Outcome]] = Counter()
        self.is_complete = False
        """It ended, and was not killed."""
        self.files: list[MemoryFile] = []
        self.chance = random.Random(f"disk {world.seed} {len(book.logs)}") if book.disk_fails else None
        self._world = world
        self._passed_ms = 0

    def record(self, events: Events) -> None:
        series: Counter[Series] = Counter()
        ends: Counter[tuple[Key, Outcome]] = Counter()
        for enqueued in events.enqueued:
            topic = enqueued.topic
            series.update(
                [(topic.namespace, topic.base_name, priority, SERIES_ENQUEUED) for priority in enqueued.priorities]
            )
        for end in events.ends:
            outcome = end.outcome
            for topic, items in end.items.items():
                number, name = topic.namespace, topic.base_name
                series.update([(number, name, item.priority, outcome.name.lower()) for item in items])
                ends.update([((topic.shard_id, item.key), outcome) for item in items])
        self.given += series
        self.given_ends += ends
        lost_before = self.lost_items_count
        super().record(events)
        if self.lost_items_count == lost_before:
            self.taken += series
            self.taken_ends += ends
        if self._world.now_ms() - self._passed_ms >= PASS_MS:
            self._pass(close=False)

    def lines(self, kind: str) -> list[dict[str, Any]]:
        """What is on the disk."""
        return [json.loads(line) for file in self.files if file.kind == kind for line in file.lines[: file.kept_count]]

    def _pass(self, *, close: bool) -> None:
        self._passed_ms = self._world.now_ms()
        with (
            patch.object(LogLock, "take", _take),
            patch.object(sequence, "OpenFile", self._open),
            patch.object(log_service, "probe", self._probe),
        ):
            super()._pass(close=close)

    def _open(self, folder: Path, name: str, opened: Moment) -> MemoryFile:
        file = MemoryFile(folder.parts[1], opened, self.chance)
        self.files.append(file)
        return file

    def _probe(self, root: Path) -> None:
        _may_fail(self.chance)

    def _retain(self) -> None:
        return None

    async def _start(self) -> None:
        return None

    async def _drain(self) -> None:
        self._pass(close=True)

    async def _stop(self) -> None:
        self._is_closed = True
        self._pass(close=True)
        self.is_complete = True


class MemoryFile:
    """In place of foqs.host.event_log.files.OpenFile. What was flushed stays, whatever becomes of its process."""

    def __init__(self, kind: str, opened: Moment, chance: random.Random | None) -> None:
        self.kind = kind
        self.opened = opened
        self.size_bytes = 0
        self.lines: list[bytes] = []
        self.kept_count = 0
        self._chance = chance

    def write(self, line: bytes) -> None:
        _may_fail(self._chance)
        self.lines.append(line)
        self.size_bytes += len(line)

    def flush(self) -> None:
        _may_fail(self._chance)
        self.kept_count = len(self.lines)

    def close(self) -> None:
        self.flush()

    def abandon(self) -> bool:
        """What was not flushed is gone; at times the disk does not even say that."""
        return self._chance is None or self._chance.random() < _CUT_SHARE


def _take(lock: LogLock) -> None:
    """In place of LogLock.take: a directory in memory is one log's. So it is never held, and no house is kept."""


def _may_fail(chance: random.Random | None) -> None:
    if chance is not None and chance.random() < _DISK_FAULT_SHARE:
        raise OSError("the disk of this run is bad")

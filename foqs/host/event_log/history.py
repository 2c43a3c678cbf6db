"""Reads the history of topics from the roll-up files of this host, on the thread of the event log, in slices."""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from foqs.host.event_log.files import SUFFIX
from foqs.model import limits
from foqs.model.errors import FoqsError, InternalError, OverloadedError, UnavailableError
from foqs.model.event_history import OUTCOME_NAMES, History, HistoryRow, added, in_time_order
from foqs.model.event_log import BOUNDS_MS, FORMAT, FileLines

READ_MS_MAX = 3 * limits.SECOND_MS
"""The time of one call on the thread, in which the thread still writes between two slices."""
READ_BYTES_MAX = 64 * limits.MIB
"""The size of the compressed files that one call reads."""
SLICE_MS_MAX = 20
"""The time of a slice, after which the thread does its other work."""
WAITING_MAX = 4
"""Calls that wait for the thread. Further ones get OVERLOADED."""
RETRY_MS = 1 * limits.SECOND_MS


@dataclass(frozen=True, slots=True)
class HistoryQuery:
    """The wanted rows: of the topics, or of the whole namespace without topics, from `from_ms` to before `to_ms`.

    since_ms: the minute in which the namespace was created. Rows before it are of a former namespace of this name.
    """

    namespace: str
    topics: frozenset[str]
    group: str
    from_ms: int
    to_ms: int
    step_minutes: int
    since_ms: int = 0

    @property
    def first_ms(self) -> int:
        """The time before which no row is wanted."""
        return max(self.from_ms, self.since_ms)


class HistoryRead:
    """The reading of one history, the newest files first."""

    def __init__(self, root: Path, query: HistoryQuery, bytes_max: int = READ_BYTES_MAX) -> None:
        """`root` is the folder of the roll-ups."""
        self._root = root
        self._query = query
        self._bytes_left = bytes_max
        self._complete_from_ms = query.to_ms
        self._has_gap = False
        """True once a file could not be read."""
        self._rows: dict[tuple[str, int], HistoryRow] = {}
        self._needle = f'"namespace":{json.dumps(query.namespace)}'.encode()
        self._topics = [f'"topic":{json.dumps(topic)}'.encode() for topic in query.topics]

    def history(self) -> History:
        """Return the rows that it has found."""
        return History(in_time_order(self._rows.values()), self._query.step_minutes, self._complete_from_ms)

    def steps(self) -> Iterator[None]:
        """Read one block of a file in each step, up to the limit of bytes."""
        query = self._query
        # The rows of a minute are written in the hour of its end, or in the next one.
        last_hour = (query.to_ms - 1) // limits.HOUR_MS + 1
        oldest_ms = _oldest_ms(self._root)
        yield
        if query.first_ms >= query.to_ms:
            self._complete_from_ms = query.from_ms
            return
        for hour in range(last_hour, query.first_ms // limits.HOUR_MS - 1, -1):
            for path in _files_of(self._root, hour):
                for _ in self._blocks(path):
                    yield
                    if self._bytes_left < 0:
                        return
            if not self._has_gap:  # Files that were removed, or cannot be read, had events.
                from_ms = max(query.first_ms, hour * limits.HOUR_MS, oldest_ms)
                self._complete_from_ms = min(query.to_ms, from_ms) if from_ms > query.first_ms else query.from_ms
            yield

    def _blocks(self, path: Path) -> Iterator[None]:
        """Read a file. One that was renamed or removed meanwhile is left out."""
        try:
            with path.open("rb") as file:
                read_bytes = 0
                for block in FileLines(file).blocks():
                    if self._needle in block:
                        self._add_block(block)
                    size_bytes = os.lseek(file.fileno(), 0, 1)  # Where it is now.
                    self._bytes_left -= size_bytes - read_bytes
                    read_bytes = size_bytes
                    yield
        except FileNotFoundError:
            return
        except OSError:
            self._has_gap = True

    def _add_block(self, block: bytes) -> None:
        needle, topics = self._needle, self._topics
        for line in block.split(b"\n"):
            if needle in line and (not topics or any(topic in line for topic in topics)):
                with suppress(ValueError, KeyError, TypeError):  # A line that another program wrote.
                    self._add(json.loads(line))

    def _add(self, row: dict[str, Any]) -> None:
        query = self._query
        at_ms, name, outcome = row["minute_ms"], row["topic"], row["outcome"]
        is_wanted = row["v"] == FORMAT and row["namespace"] == query.namespace and outcome in OUTCOME_NAMES
        if not is_wanted or not query.first_ms <= at_ms < query.to_ms:
            return
        if query.topics and (name not in query.topics or row.get("group", "") != query.group):
            return
        topic = name if query.topics else ""
        step_ms = query.step_minutes * limits.MINUTE_MS
        at_ms -= (at_ms - query.from_ms) % step_ms
        found = self._rows.get((topic, at_ms))
        if found is None:
            found = self._rows[topic, at_ms] = HistoryRow(topic, at_ms)
        setattr(found, outcome, getattr(found, outcome) + row["count"])
        if outcome == "enqueued":
            return
        for times in ("wait", "processing"):
            buckets = row[times]
            if len(buckets) == len(BOUNDS_MS) + 1:
                setattr(found, f"{times}_buckets", added(getattr(found, f"{times}_buckets"), buckets))
                name_of_sum = f"{times}_ms_sum"
                setattr(found, name_of_sum, getattr(found, name_of_sum) + row[name_of_sum])


class HistoryReads:
    """The calls for history of one event log: the event loop asks, and the log's thread works."""

    def __init__(self, root: Path, steady_s: Callable[[], float]) -> None:
        self._root = root
        self._steady_s = steady_s
        self._waiting: deque[tuple[HistoryQuery, Future[History]]] = deque()
        self._answer: Future[History] | None = None
        """The answer of the call that is read now."""
        self._read: HistoryRead | None = None
        self._steps: Iterator[None] = iter(())
        self._left_s = 0.0
        self._is_closed = False

    def ask(self, query: HistoryQuery) -> Future[History]:
        """Return the answer to come. Raises OverloadedError if many calls wait. On the event loop."""
        if self._is_closed:
            raise UnavailableError("the event log of this host has ended: ask another host", nothing_done=True)
        if len(self._waiting) >= WAITING_MAX:
            raise OverloadedError(
                f"{len(self._waiting)} calls for history wait on this host, and the limit is {WAITING_MAX}: try again",
                retry_after_ms=RETRY_MS,
            )
        answer: Future[History] = Future()
        self._waiting.append((query, answer))
        return answer

    def work(self) -> bool:
        """Read for SLICE_MS_MAX at most. Returns True if more is to be read. On the thread."""
        if self._read is None and not self._begin():
            return False
        read, answer = self._read, self._answer
        assert read is not None, "it has begun"
        assert answer is not None, "it has begun"
        began_s = self._steady_s()
        is_over = answer.cancelled()
        while not is_over and self._steady_s() - began_s < SLICE_MS_MAX / 1000:
            try:
                is_over = next(self._steps, self) is self
            except Exception:
                self._end(answer, InternalError("the history was not read: the log of the host has the cause"))
                raise
        self._left_s -= self._steady_s() - began_s
        if is_over or self._left_s <= 0:
            self._end(answer, read.history())
        return self._read is not None or bool(self._waiting)

    def close(self) -> None:
        """Refuse the calls that wait. On the thread, which ends then."""
        self._is_closed = True
        error = UnavailableError("the event log of this host ends: ask again", nothing_done=True)
        if self._answer is not None:
            self._end(self._answer, error)
        while self._waiting:
            self._end(self._waiting.popleft()[1], error)

    def _begin(self) -> bool:
        if not self._waiting:
            return False
        query, self._answer = self._waiting.popleft()
        self._read = HistoryRead(self._root, query)
        self._steps, self._left_s = self._read.steps(), READ_MS_MAX / 1000
        return True

    def _end(self, answer: Future[History], outcome: History | FoqsError) -> None:
        self._read = self._answer = None
        # The caller can leave at any moment.
        if answer.set_running_or_notify_cancel():
            if isinstance(outcome, History):
                answer.set_result(outcome)
            else:
                answer.set_exception(outcome)


def _oldest_ms(root: Path) -> int:
    """Return the time at which the first hour begins of which files are left; limits.NEVER_MS without files."""
    first = min([path for path in root.glob("date=*/hour=*") if path.name[5:].isdigit()], default=None)
    if first is None:
        return limits.NEVER_MS
    try:
        day = datetime.strptime(f"{first.parent.name} {first.name}", "date=%Y-%m-%d hour=%H")
    except ValueError:
        return limits.NEVER_MS
    return int(day.replace(tzinfo=UTC).timestamp()) * limits.SECOND_MS


def _files_of(root: Path, hour: int) -> list[Path]:
    """Return the files that were opened in this hour, the newest first. The one that grows is among them."""
    folder = root / datetime.fromtimestamp(hour * 3600, UTC).strftime("date=%Y-%m-%d/hour=%H")
    return sorted(folder.glob(f"*{SUFFIX}"), key=lambda path: path.name.removeprefix("_"), reverse=True)

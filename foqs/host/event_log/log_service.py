"""The event log as a service of its host: a bounded queue, and the thread that counts and writes."""

from __future__ import annotations

import asyncio
import re
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import NamedTuple

import structlog

from foqs.background.service import Service
from foqs.host.event_log.files import LogLock, Moment, probe
from foqs.host.event_log.history import SLICE_MS_MAX, HistoryQuery, HistoryReads
from foqs.host.event_log.lines import Line
from foqs.host.event_log.lives import Lives
from foqs.host.event_log.recovery import leftovers, recover
from foqs.host.event_log.retention import retain
from foqs.host.event_log.rollups import RollUps
from foqs.host.event_log.sequence import FileSequence
from foqs.model import limits
from foqs.model.event_history import History
from foqs.model.event_log import LIVES, ROLLUPS
from foqs.shard.state.events import Ends, Enqueued, Events

PASS_MS = 100
"""The pause between two passes of the thread."""
READING_PAUSE_MS = SLICE_MS_MAX
"""The pause while it reads history, so that the event loop has its turn."""
RETRY_MS = 10 * limits.SECOND_MS
"""The pause of writes after an error of the disk."""
RETAIN_MS = limits.MINUTE_MS
"""The interval of searches for old files."""
DRAIN_MS_MAX = 5 * limits.SECOND_MS
STOP_MS_MAX = 2 * limits.SECOND_MS

_log = structlog.get_logger(__name__)


class _Entry(NamedTuple):
    """The events of one transaction."""

    items_count: int
    ends: list[Ends]
    enqueued: list[Enqueued]


class EventLogOptions(NamedTuple):
    """The options of the event log."""

    host_name: str
    directory: Path
    bytes_max: int
    days: int


class EventLogSource(NamedTuple):
    """The host of the event log, for calls from the log's own thread."""

    name_of: Callable[[int], str | None]
    """Returns the name of the namespace with a number."""
    per_mille_of: Callable[[int], int]
    """Returns the logged part of the items of the namespace with a number, per mille."""
    rate_limited: Callable[[], Mapping[int | None, int]]
    """Returns the items refused by quotas since the start, by namespace number; None stands for all others."""


class EventLog(Service):
    """Records the ends of items, and never delays its callers: events that do not fit are dropped and counted.

    The dispatcher records here, on the event loop. All other work runs on the thread, which owns the files. While
    another process uses the directory, nothing in it is written or removed, and lines wait as for a full disk.
    """

    def __init__(
        self,
        options: EventLogOptions,
        source: EventLogSource,
        wall_s: Callable[[], float] = time.time,
        steady_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`wall_s` is the time of day, for the names of files and the ends of minutes; `steady_s` is for all pauses."""
        super().__init__("event-log")
        self.lost_items_count = 0
        """Enqueues and ends that were not even counted, because the thread was too slow or the log was closed."""
        self.recovered_count = 0
        """Files that a killed process of this host or a full disk had left open."""
        self.removed_count = 0
        """Removed files, which were too old or exceeded the size."""
        self.disk_bytes = 0
        """The size of all files at the last check."""
        self.failing = False
        """True if the disk refused the last write, or another process uses the directory."""
        self._options = options
        self._source = source
        self._wall_s = wall_s
        self._steady_s = steady_s
        self._entries: deque[_Entry] = deque()
        self._entered_count = 0
        """Only the event loop changes it, and only the thread changes `_taken_count`."""
        self._taken_count = 0
        self._lost_logged_count = 0
        self._is_closed = False
        self._wake = threading.Event()
        self._stopping = False
        self._flushed: threading.Event | None = None
        """Set while a drain waits until all events are on the disk."""
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self.rollups = RollUps(options.host_name, self._name_of)
        self._lives = Lives(options.host_name, self._name_of, source.per_mille_of)
        safe_name = re.sub(r"[^A-Za-z0-9._-]", "_", options.host_name)
        self._own_prefix = f"{safe_name}-"
        unique = f"{safe_name}-{int(wall_s())}-{secrets.token_hex(4)}"
        self._lock = LogLock(options.directory)
        file_bytes_max = min(limits.EVENT_LOG_FILE_BYTES_MAX, options.bytes_max // 8)
        self._retained_bytes_max = options.bytes_max - 2 * file_bytes_max  # Two files can be open, and grow.
        self.lives_files = FileSequence(options.directory / LIVES, unique, file_bytes_max, self._retain)
        self.rollups_files = FileSequence(options.directory / ROLLUPS, unique, file_bytes_max, self._retain)
        self._sequences = {LIVES: self.lives_files, ROLLUPS: self.rollups_files}
        self._reads = HistoryReads(options.directory / ROLLUPS, steady_s)
        self._retry_s = 0.0
        self._cleared_s = -RETAIN_MS / 1000  # A steady clock can begin at 0.
        self._rate_limited: dict[int | None, int] = {}

    @property
    def waiting_count(self) -> int:
        """Recorded items that the thread has not processed yet."""
        return self._entered_count - self._taken_count

    def record(self, events: Events) -> None:
        """Record the events of a transaction. On the event loop."""
        ends, enqueued = events.ends, events.enqueued
        if not ends and not enqueued:
            return
        count = sum([len(some) for end in ends for some in end.items.values()])
        count += sum([len(some.priorities) for some in enqueued])
        if self._is_closed or self.waiting_count + count > limits.EVENT_LOG_WAITING_MAX:
            self.lost_items_count += count
            return
        self._entered_count += count
        self._entries.append(_Entry(count, ends, enqueued))

    def ask_history(self, query: HistoryQuery) -> Future[History]:
        """Return the answer to come, which the thread reads. Raises OverloadedError. On the event loop."""
        answer = self._reads.ask(query)
        self._wake.set()
        return answer

    async def _start(self) -> None:
        self._thread.start()

    async def _drain(self) -> None:
        flushed = self._flushed = threading.Event()
        self._wake.set()
        if not await asyncio.to_thread(flushed.wait, DRAIN_MS_MAX / 1000):
            _log.warning("event_log_not_flushed", waited_ms=DRAIN_MS_MAX)

    async def _stop(self) -> None:
        self._is_closed = True
        self._stopping = True
        self._wake.set()
        if self._thread.ident is not None:
            await asyncio.to_thread(self._thread.join, STOP_MS_MAX / 1000)

    # ---- on the thread ----

    def _run(self) -> None:
        is_reading = False
        while True:
            self._wake.wait((READING_PAUSE_MS if is_reading else PASS_MS) / 1000)
            self._wake.clear()
            stopping, flushed = self._stopping, self._flushed
            try:
                self._pass(close=stopping or flushed is not None)
                is_reading = self._reads.work()
            except Exception:  # A defect must not end the log.
                _log.error("host_defect", work=self.name, exc_info=True)
            if flushed is not None:
                self._flushed = None
                flushed.set()
            if stopping:
                self._reads.close()
                self._log_unwritten()
                self._lock.release()
                return

    def _pass(self, *, close: bool) -> None:
        """Count and write the waiting events; with `close`, complete all files."""
        for _ in range(len(self._entries)):
            entry = self._entries.popleft()
            for enqueued in entry.enqueued:
                self.rollups.add_enqueued(enqueued)
            for ends in entry.ends:
                self.rollups.add_ends(ends)
                self._lives.add_ends(ends)
            self._taken_count += entry.items_count
        now = Moment(self._wall_s(), self._steady_s())
        now_ms, steady_ms = int(now.wall_s * 1000), int(now.steady_s * 1000)
        self._log_refused(now_ms)
        if close or not self.failing:  # The losses of a whole failure make one row, and not one a minute.
            self._log_lost(now_ms)
        lines = {LIVES: self._lives.take(), ROLLUPS: self.rollups.take(now_ms, steady_ms, all_of_them=close)}
        if now.steady_s < self._retry_s and not close:
            for kind, files in self._sequences.items():
                files.keep(lines[kind])
        else:
            self._write(lines, now, close=close)
        if self._lock.is_held and now.steady_s - self._cleared_s > RETAIN_MS / 1000:
            self._cleared_s = now.steady_s
            self._keep_house()

    def _write(self, lines: Mapping[str, Iterable[Line]], now: Moment, *, close: bool) -> None:
        failure: OSError | None = None
        try:
            self._lock.take()
            if self.failing:
                probe(self._options.directory)
        except OSError as error:
            failure = error
        is_refused = failure is not None
        for kind, files in self._sequences.items():
            if is_refused:
                files.keep(lines[kind])
                continue
            try:
                # While it fails, each write is flushed, because unflushed bytes in memory do not test the disk.
                files.write(lines[kind], now, close=close, flush=self.failing)
            except OSError as error:
                failure = error
        self._note(failure, now)

    def _note(self, failure: OSError | None, now: Moment) -> None:
        """Log once that the directory refuses writes, and once that it accepts them again."""
        directory = str(self._options.directory)
        if failure is not None:
            self._retry_s = now.steady_s + RETRY_MS / 1000
            if not self.failing:
                _log.error("event_log_failing", directory=directory, error=str(failure))
        elif self.failing:
            _log.info("event_log_back", directory=directory)
        self.failing = failure is not None

    def _log_refused(self, now_ms: int) -> None:
        """Add the items that quotas refused since the last pass to the roll-ups."""
        for namespace, count in self._source.rate_limited().items():
            before = self._rate_limited.get(namespace, 0)
            if count > before:
                self.rollups.add_rate_limited(namespace, now_ms, count - before)
            self._rate_limited[namespace] = count

    def _log_lost(self, now_ms: int) -> None:
        """Add dropped events, and the events of dropped rows, to the roll-ups."""
        # Rows that count losses can be lost like other rows, and are then counted again.
        lost_count = self.lost_items_count + self.rollups_files.lost_items_count
        if lost_count > self._lost_logged_count:
            self.rollups.add_lost(now_ms, lost_count - self._lost_logged_count)
            self._lost_logged_count = lost_count

    def _log_unwritten(self) -> None:
        """Log the records that are lost with the process, because the disk refused them."""
        lives_count, rollups_count = self.lives_files.waiting_count, self.rollups_files.waiting_count
        if lives_count or rollups_count:
            _log.error("event_log_not_written", lives=lives_count, rollups=rollups_count)

    def _keep_house(self) -> None:
        """Close the files that were left open, and remove files by age and size."""
        for files in self._sequences.values():
            try:
                left = leftovers(files.root, self._own_prefix, files.current)
            except OSError as error:
                _log.warning("event_log_not_recovered", file=str(files.root), error=str(error))
                continue
            for path in left:
                self._recover(path)
        self._retain()

    def _retain(self) -> None:
        """Remove files by age and size. Called for each closed file as well, to make room for the next one."""
        kept = retain(self._options.directory, self._retained_bytes_max, self._options.days, self._wall_s())
        if kept.failure is not None:
            _log.warning("event_log_not_cleared", error=str(kept.failure))
        self.disk_bytes = kept.size_bytes
        self.removed_count += kept.removed_count

    def _recover(self, path: Path) -> None:
        try:
            found = recover(path)
        except OSError as error:
            _log.warning("event_log_not_recovered", file=path.name, error=str(error))
            return
        self.recovered_count += 1
        _log.info("event_log_recovered", file=path.name, lines=found.lines_count, torn=found.is_torn)

    def _name_of(self, number: int) -> str:
        return self._source.name_of(number) or f"(namespace {number})"

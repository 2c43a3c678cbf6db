"""One series of power cuts: load, cut, restart, again; after some cuts everything is drained and checked."""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from foqs.dev.local_server import LocalServer
from tests.histories.checker import check
from tests.histories.dedup_checks import WHOLE_WINDOW
from tests.histories.history import Verb, now_ns
from tests.histories.lives import overlaps
from tests.support.faults.cluster import (
    Databases,
    audit,
    make_databases,
    make_namespace,
    purge_dead_letters,
    torn_tables,
)
from tests.support.faults.load import TOPICS, Load, Pressure
from tests.support.faults.programs import HostProgram, free_port
from tests.support.faults.verdict import Tally, first_done_after
from tests.support.faults.volume import PoweredVolume

VOLUME_MIB = 1_024
SHARD_COUNT = 4
CLOCK_TOLERANCE_MS = 60
CLOCK_LATE_MS = 500
"""The host guesses the server's clock from a round trip, which takes this long on a busy machine; see chaos.run."""
SETTLE_MS = 40_000
"""After a cut, redelivery may be this late: what a killed host had prefetched stays claimed for so long."""
_LAST_ANSWERS_S = 0.08
"""From the server's stop until every answer that it gave has reached its client."""
_PATIENCE_S = 60.0
_BUFFERED_LOG = ("--loose-innodb-log-file-buffering=ON",)
"""What is written stays in the page cache until it is flushed, so that a flush too few shows. MariaDB writes its log
past the cache where it can, which the power cut of a file system does not take back; that is the other series."""
_BINARY_LOG = ("--log-bin=binlog", "--server-id=1", "--binlog-format=ROW")
_PRESSURE = Pressure(producers=3, consumers=3, backlog_items_max=4_000, dedup_share=0.2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """cuts_per_round: after so many everything is drained and checked.

    is_durable: otherwise the server flushes its log once a second only, set behind the back of the host's check.
    has_binary_log: then a commit is durable in two logs, which have to agree when the server comes back.
    host_dies: how likely it is that the host was on the machine whose power is cut.
    """

    name: str
    cuts: int
    seed: int
    cuts_per_round: int = 10
    is_durable: bool = True
    has_binary_log: bool = False
    host_dies: float = 1 / 3


def run_series(series: Series, progress: Callable[[str], None]) -> Tally:
    """What all rounds of the series found. Raises FaultError when the harness fails."""
    tally = Tally()
    with PoweredVolume(VOLUME_MIB) as volume, _Machine(series, volume) as machine:
        done = 0
        while done < series.cuts:
            count = min(series.cuts_per_round, series.cuts - done)
            machine.run_round(f"{series.name}-{series.seed}-{done}", count, tally)
            done += count
            progress(f"{series.name}: {done} of {series.cuts} cuts, {tally.violation_count} violations")
    return tally


class _Machine:
    """The server on the volume, and the host."""

    def __init__(self, series: Series, volume: PoweredVolume) -> None:
        self._series = series
        self._volume = volume
        self._random = random.Random(f"{series.name} {series.seed}")
        self._home = Path(tempfile.mkdtemp(prefix="foqs-power-"))
        options = _BINARY_LOG if series.has_binary_log else _BUFFERED_LOG
        self._server = LocalServer(self._home, buffer_pool_mib=64, log_file_mib=32, options=options)
        self._port = free_port()
        self._databases: Databases | None = None
        self._host: HostProgram | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with self._stack as stack:
            stack.callback(shutil.rmtree, self._home)
            self._make_server()
            self._server.start()
            stack.callback(self._server.stop)
            self._databases = make_databases(self._server, dict.fromkeys(range(SHARD_COUNT), self._server))
            stack.callback(self._stop_host)
            self._start_host()
            make_namespace(self._address)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._stack.close()

    def _make_server(self) -> None:
        """All its data on the volume; only its lock, its socket and its error log are on this machine's own disk."""
        with self._server:
            pass
        data = self._home / "mysql"
        shutil.move(data, self._volume.path / "mysql")
        data.symlink_to(self._volume.path / "mysql")
        self._volume.sync()

    def run_round(self, name: str, cut_count: int, tally: Tally) -> None:
        assert self._databases is not None
        cuts: list[tuple[int, int]] = []
        self._weaken()
        with Load(self._address, name, pressure=_PRESSURE) as load:
            for _ in range(cut_count):
                load.wait_for(enqueued=self._random.randrange(200, 4_000), settled=1, patience_s=_PATIENCE_S)
                cuts.append(self._cut())
            load.wait_for(enqueued=200, settled=200, patience_s=_PATIENCE_S)
            stored = load.drain(self._databases.shard_urls, patience_s=_PATIENCE_S)
        calls = load.history.calls
        disturbed = [(cut_at_ms, back_at_ms + SETTLE_MS) for cut_at_ms, back_at_ms in cuts]
        report = check(
            calls,
            stored,
            tolerance_ms=CLOCK_TOLERANCE_MS,
            late_ms=CLOCK_LATE_MS,
            disturbed=disturbed,
            answers_due=True,
            dedup=WHOLE_WINDOW,
        )
        for cut_at_ms, back_at_ms in cuts:
            tally.counts["calls under way at a cut"] += sum(
                overlaps([(call.invoked_at_ms, call.returned_at_ms or back_at_ms)], cut_at_ms, cut_at_ms + 1)
                for call in calls
            )
            done_at_ms = first_done_after(calls, Verb.ENQUEUE, cut_at_ms)
            if done_at_ms is not None:
                tally.recovery_ms["power cut to the first enqueue"].append(done_at_ms - cut_at_ms)
        tally.counts["power cuts"] += cut_count
        tally.add(report, [*audit(self._databases.shard_urls), *torn_tables(self._databases.shard_urls)])
        purge_dead_letters(self._address, TOPICS)

    def _cut(self) -> tuple[int, int]:
        """When the power went, and when server and host were there again."""
        host_dies = self._random.random() < self._series.host_dies
        self._server.pause()
        time.sleep(_LAST_ANSWERS_S)
        cut_at_ms = _wall_ms()
        if host_dies:
            self._stop_host()
        self._volume.cut_power()
        self._server.kill()
        self._volume.restore_power()
        self._server.start()
        if host_dies:
            self._start_host()
        self._weaken()
        return cut_at_ms, _wall_ms()

    def _weaken(self) -> None:
        """A host refuses such a server when it takes a shard and once a minute; between the two it goes unseen."""
        if not self._series.is_durable:
            with self._server.connect() as session, session.cursor() as cursor:
                cursor.execute("SET GLOBAL innodb_flush_log_at_trx_commit = 2")

    def _start_host(self) -> None:
        assert self._databases is not None
        self._host = HostProgram("host-1", self._port, self._databases.meta_url, self._databases.shard_urls)

    def _stop_host(self) -> None:
        host, self._host = self._host, None
        if host is not None:
            host.close()

    @property
    def _address(self) -> str:
        return f"127.0.0.1:{self._port}"


def _wall_ms() -> int:
    return now_ns() // 1_000_000

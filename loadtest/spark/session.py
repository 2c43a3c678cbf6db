"""Spark sessions on this machine, quick to start and silent: in one process, in several, or on a cluster."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_LOG_SETTINGS = """\
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
rootLogger.level = off
rootLogger.appenderRef.console.ref = console
"""
"""Without an appender Spark takes settings of its own."""
_WATCH_S = 0.1
_JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""A short life: no time is spent on the best code. For measurements it is left out."""


@contextmanager
def local_session(
    home: Path, *, master: str = "local[2,3]", is_short: bool = True, settings: dict[str, str] | None = None
) -> Iterator[Any]:
    """A session with two task slots, each task tried three times; its files are in `home`.

    The JVM stays when the session ends, and the next one of this process has it again.
    """
    import pyspark
    from pyspark.sql import SparkSession

    log_settings = home / "log4j2.properties"
    log_settings.write_text(_LOG_SETTINGS)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)  # Executors of their own are started from there.
    jvm = f"-Dlog4j2.configurationFile={log_settings.as_uri()} -Djava.io.tmpdir={home}"
    builder = SparkSession.builder.master(master).appName("foqs")
    for name, value in {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(home / "warehouse"),
        "spark.local.dir": str(home),
        "spark.driver.extraJavaOptions": f"{_JVM_OPTIONS} {jvm}" if is_short else jvm,
        "spark.executor.extraJavaOptions": f"{_JVM_OPTIONS} {jvm}" if is_short else jvm,
        "spark.executorEnv.PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        **(settings or {}),
    }.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    try:
        yield session
    finally:
        session.stop()


def kill_python_worker() -> int:
    """Kill a Python worker that is at work with SIGKILL, as the system does when memory runs out; its process id.

    It is the one that used most of the processor of late: workers stay when their task has ended.
    """
    before = {worker: _ticks_of(worker) for worker in _python_workers()}
    time.sleep(_WATCH_S)
    worker = max(before, key=lambda pid: _ticks_of(pid) - before[pid], default=None)
    if worker is None:
        raise RuntimeError("Spark has no Python worker now")
    os.kill(worker, signal.SIGKILL)
    return worker


def _python_workers() -> Iterator[int]:
    """Children of the daemon that forks the workers of tasks; the planner has daemons of its own."""
    daemons = [pid for pid in _processes() if "pyspark.daemon pyspark.worker" in _command_of(pid)]
    for pid in daemons:
        if _parent_of(pid) in daemons:
            yield pid


def _processes() -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            yield int(entry.name)


def _command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def _parent_of(pid: int) -> int:
    return int(_stat_of(pid)[1])


def _ticks_of(pid: int) -> int:
    """Of the processor, in user and kernel mode."""
    stat = _stat_of(pid)
    return int(stat[11]) + int(stat[12])


def _stat_of(pid: int) -> list[str]:
    """The fields from the third on: the second, the name, may have spaces."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["0"] * 50  # It has ended.

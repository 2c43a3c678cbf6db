"""A real cluster on one machine: a standalone master and workers that have an address of their own each.

Spark starts a copy of a slow task only on another host, so workers on one address would never show speculation.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from loadtest.spark.session import local_session

WORKERS = ("127.0.0.2", "127.0.0.3")
_START_S_MAX = 60.0
_MASTER_CLASS = "org.apache.spark.deploy.master.Master"
_WORKER_CLASS = "org.apache.spark.deploy.worker.Worker"
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "500ms",
    "spark.speculation.interval": "100ms",
}


@contextmanager
def standalone_session(home: Path, *, settings: dict[str, str] | None = None) -> Iterator[Any]:
    """A session on a cluster of two workers with a core each; tasks that take long get a copy on the other one."""
    with _cluster(home) as master, local_session(home, master=master, settings=SPECULATION | (settings or {})) as spark:
        yield spark


@contextmanager
def _cluster(home: Path) -> Iterator[str]:
    import pyspark

    spark_home = Path(pyspark.__file__).parent
    processes: list[subprocess.Popen[bytes]] = []
    try:
        master_log = home / "master.log"
        processes.append(_start(spark_home, "127.0.0.1", home, master_log, _MASTER_CLASS, "--webui-port", "0"))
        master = _wait_for(master_log, "Starting Spark master at ", processes)
        for address in WORKERS:
            log = home / f"worker-{address}.log"
            options = ("--webui-port", "0", "--cores", "1", "--memory", "1g", "--work-dir", str(home / address))
            processes.append(_start(spark_home, address, home, log, _WORKER_CLASS, *options, master))
        for address in WORKERS:
            _wait_for(home / f"worker-{address}.log", "Successfully registered with master ", processes)
        yield master
    finally:
        for process in reversed(processes):
            os.killpg(process.pid, signal.SIGTERM)
        for process in processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _start(
    spark_home: Path, address: str, home: Path, log: Path, program: str, *arguments: str
) -> subprocess.Popen[bytes]:
    environment = os.environ | {
        "SPARK_HOME": str(spark_home),
        "SPARK_LOCAL_IP": address,
        "SPARK_LOCAL_DIRS": str(home),
        "SPARK_DAEMON_MEMORY": "128m",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    command = [str(spark_home / "bin/spark-class"), program, "--host", address, "--port", "0", *arguments]
    with log.open("wb") as output:
        # Its own group: the executors that a worker starts end with it.
        return subprocess.Popen(command, env=environment, stdout=output, stderr=output, start_new_session=True)


def _wait_for(log: Path, text: str, processes: list[subprocess.Popen[bytes]]) -> str:
    """The word behind the text, once the log has it."""
    deadline_s = time.monotonic() + _START_S_MAX
    while time.monotonic() < deadline_s and all(process.poll() is None for process in processes):
        for line in log.read_text(errors="replace").splitlines():
            if text in line:
                return line.partition(text)[2].split()[0]
        time.sleep(0.05)
    raise RuntimeError(f"a Spark daemon did not start:\n{log.read_text(errors='replace')[-2000:]}")

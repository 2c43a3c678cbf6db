"""A private server and a host in a process of its own, and what they cost."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from foqs import AdminClient
from foqs.core.errors import FoqsError
from foqs.storage.local_server import LocalServer
from foqs.storage.migrations import SchemaKind, apply

NAMESPACE = "bench"
START_S_MAX = 120


@dataclass(frozen=True)
class Usage:
    """CPU seconds since the process began, those of its ended children too, and its resident memory: now, and most."""

    cpu_s: float
    rss_mib: float
    rss_mib_max: float


def usage(pid: int) -> Usage:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    ticks = sum(map(int, fields[11:15]))
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    rss_mib, rss_mib_max = (int(status[name].split()[0]) / 1024 for name in ("VmRSS", "VmHWM"))
    return Usage(ticks / os.sysconf("SC_CLK_TCK"), rss_mib, rss_mib_max)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Cluster:
    """Four shards on one durable server; the host starts and stops as often as a scenario wants."""

    def __init__(self, server: LocalServer, shard_count: int = 4) -> None:
        self.server = server
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.meta_url = server.url("bench_meta")
        self.shard_urls = {shard_id: server.url(f"bench_shard_{shard_id}") for shard_id in range(shard_count)}
        apply(self.meta_url, SchemaKind.META)
        for url in self.shard_urls.values():
            apply(url, SchemaKind.SHARD)
        self._log_path = server.data_dir / "host.log"
        self._host: subprocess.Popen[bytes] | None = None

    @property
    def host_pid(self) -> int:
        assert self._host is not None
        return self._host.pid

    def start_host(self) -> None:
        """Return when it serves every shard."""
        shards = [part for shard_id, url in self.shard_urls.items() for part in ("--shard", f"{shard_id}={url}")]
        options = ["host", "--meta-url", self.meta_url, *shards, "--port", str(self.port), "--log-level", "error"]
        with self._log_path.open("ab") as log:
            self._host = subprocess.Popen([str(Path(sys.executable).with_name("foqs")), *options], stderr=log)
        deadline_s = time.monotonic() + START_S_MAX
        while time.monotonic() < deadline_s and self._host.poll() is None:
            try:
                with AdminClient(self.address) as admin:
                    if all(shard.state == "owned" for shard in admin.host_status().shards):
                        if NAMESPACE not in [namespace.name for namespace in admin.list_namespaces()]:
                            admin.create_namespace(NAMESPACE, enqueues_per_minute_max=1_000_000_000)
                        return
            except FoqsError:
                time.sleep(0.02)
        raise SystemExit(f"the host did not start:\n{self._log_path.read_text()[-2_000:]}")

    def stop_host(self) -> None:
        if self._host is not None:
            self._host.terminate()
            self._host.wait(60)
            self._host = None

    def cpu_s(self) -> tuple[float, float]:
        """Of the server and of the host."""
        return usage(self.server.pid).cpu_s, usage(self.host_pid).cpu_s


@contextmanager
def running_server() -> Iterator[LocalServer]:
    with tempfile.TemporaryDirectory(prefix="foqs-bench-") as directory, LocalServer(Path(directory)) as server:
        yield server


@contextmanager
def running_cluster() -> Iterator[Cluster]:
    with running_server() as server:
        cluster = Cluster(server)
        try:
            cluster.start_host()
            yield cluster
        finally:
            cluster.stop_host()

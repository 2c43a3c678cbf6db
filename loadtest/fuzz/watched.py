"""A real host in a process of its own that watches its event loop and its memory, on a private server."""

from __future__ import annotations

import asyncio
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import uvloop

from foqs import AdminClient
from foqs.bootstrap import Host
from foqs.cli.running import tune_interpreter
from foqs.config import HostConfig
from foqs.dev.local_server import LocalServer
from foqs.logs import configure_logs
from foqs.storage.schema.migrations import SchemaKind, apply
from loadtest.cores import Cores
from loadtest.fuzz.tls_door import TlsDoor

NAMESPACE = "ns"
OTHER_NAMESPACE = "other"
SHARD_COUNT = 4
ANSWER_S_MAX = 60.0
_PROBE_S = 0.001
_MIB = 1 << 20


class WatchedHostError(Exception):
    """The host died, or does not answer."""


@dataclass(frozen=True, slots=True)
class Watch:
    """Since the last look. `stall_ms` is the longest turn of the loop in processor time of its thread, `lag_ms`
    the longest time that it was late, whoever had the processors."""

    stall_ms: float
    lag_ms: float
    rss_mib: float
    rss_mib_max: float


class WatchedHost:
    def __init__(self, process: Any, pipe: Connection, port: int) -> None:
        self._process = process
        self._pipe = pipe
        self.port = port

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def look(self) -> Watch:
        """What was seen since the last look. Raises WatchedHostError when the host is dead or hangs."""
        try:
            self._pipe.send("look")
            if self._pipe.poll(ANSWER_S_MAX):
                watch: Watch = self._pipe.recv()
                return watch
        except (EOFError, BrokenPipeError):
            self._process.join(ANSWER_S_MAX)
            raise WatchedHostError(f"the host died with exit code {self._process.exitcode}") from None
        raise WatchedHostError(f"the host's event loop stands still for {ANSWER_S_MAX:.0f} s")


class _Watcher:
    """Runs on the loop that it watches."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._stall_s = self._lag_s = 0.0
        self._due_s, self._cpu_s = loop.time(), time.thread_time()
        self._probe()

    def look(self) -> Watch:
        seen = Watch(self._stall_s * 1000, self._lag_s * 1000, _rss_mib(), _peak_rss_mib())
        self._stall_s = self._lag_s = 0.0
        return seen

    def _probe(self) -> None:
        now_s, cpu_s = self._loop.time(), time.thread_time()
        self._lag_s = max(self._lag_s, now_s - self._due_s)
        self._stall_s = max(self._stall_s, cpu_s - self._cpu_s)
        self._due_s, self._cpu_s = now_s + _PROBE_S, cpu_s
        self._loop.call_later(_PROBE_S, self._probe)


@contextmanager
def watched_host(
    cores: Cores | None = None, door: TlsDoor | None = None, settings: Mapping[str, Any] | None = None
) -> Iterator[WatchedHost]:
    """A host on four shards with two namespaces; it must end well. With `cores` the servers' are the host's
    alone, and its database has those of the clients. With a `door` it requires TLS. `settings`: further ones of it.
    """
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="foqs-door-") as directory, LocalServer(Path(directory)) as server:
        meta_url = server.url("meta")
        shards = {shard_id: server.url(f"shard_{shard_id}") for shard_id in range(SHARD_COUNT)}
        apply(meta_url, SchemaKind.META)
        for url in shards.values():
            apply(url, SchemaKind.SHARD)
        here, there = context.Pipe()
        config: dict[str, Any] = {
            "meta_url": meta_url,
            "shards": shards,
            "port": 0,
            "host_name": "watched",
            "log_level": "error",
        }
        config |= {**(door.settings if door else {}), **(settings or {})}
        process = context.Process(target=_serve, args=(there, config), name="watched-host")
        if cores is not None:
            cores.go_on_with_servers()
        process.start()
        if cores is not None:
            cores.go_on_with_clients()
        there.close()
        try:
            if not here.poll(ANSWER_S_MAX):
                raise WatchedHostError("the host does not start")
            host = WatchedHost(process, here, here.recv())
            with AdminClient(host.address, **(door.client_options if door else {})) as admin:
                for name in (NAMESPACE, OTHER_NAMESPACE):
                    admin.create_namespace(name, enqueues_per_minute_max=1_000_000_000)
            yield host
            host.look()
        finally:
            here.close()
            process.join(ANSWER_S_MAX)
            if process.is_alive():
                process.kill()
                process.join()


def _serve(pipe: Connection, config: dict[str, Any]) -> None:
    """In the child: until the pipe is closed."""
    raise_file_limit()
    settings = HostConfig(**config)
    configure_logs(settings.log_level, settings.log_format)
    tune_interpreter()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(pipe, settings))


async def _run(pipe: Connection, config: HostConfig) -> None:
    loop = asyncio.get_running_loop()
    host = Host(config)
    await host.start()
    ended = asyncio.Event()
    watcher = _Watcher(loop)

    def answer() -> None:
        try:
            pipe.recv()
            pipe.send(watcher.look())
        except (EOFError, BrokenPipeError):
            loop.remove_reader(pipe.fileno())
            ended.set()

    loop.add_reader(pipe.fileno(), answer)
    pipe.send(host.port)
    await ended.wait()
    await host.stop()


def raise_file_limit() -> None:
    """As many sockets as the system allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _rss_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / _MIB


def _peak_rss_mib() -> float:
    """Since the last call."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    Path("/proc/self/clear_refs").write_text("5")
    return int(status["VmHWM"].split()[0]) / 1024

"""The composition root: a host from its configuration."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial

import structlog
from prometheus_client import start_http_server

from foqs.config import HostConfig
from foqs.core import limits
from foqs.core.errors import UnavailableError
from foqs.core.service import Service
from foqs.host.admin import Admin
from foqs.host.dispatch import Dispatcher
from foqs.host.inspection import Inspection
from foqs.host.namespaces import Namespaces
from foqs.host.queue import Queue
from foqs.shard.runner import ShardRunner
from foqs.shard.state import ShardState
from foqs.storage.meta import MetaStore
from foqs.storage.shard_reader import ShardReader
from foqs.storage.shard_store import ShardAccess, ShardStore
from foqs.transport.server import ThriftServer

_log = structlog.get_logger(__name__)


class Host(Service):
    """Shards, the queue on them and the front door, started and drained in order."""

    def __init__(self, config: HostConfig) -> None:
        super().__init__("host")
        self._config = config
        self._meta = MetaStore(config.meta_url)
        address = f"{config.listen_address}:{config.port}"
        self._namespaces = Namespaces(self._meta, config.host_name, address, _wall_ms())
        self._runners: dict[int, ShardRunner] = {}
        self._dispatcher = Dispatcher(self._shard, self._wake, self._now_ms, self._namespaces.attempts_max)
        for shard_id, url in config.shards.items():
            self._runners[shard_id] = self._make_runner(shard_id, url)
        queue = Queue(self._runners, self._dispatcher, self._namespaces.get)
        readers = {shard_id: ShardReader(shard_id, url) for shard_id, url in config.shards.items()}
        self._inspection = Inspection(self._runners, readers)
        admin = Admin(config.host_name, self._namespaces, self._runners, self._dispatcher, self._inspection)
        self._server = ThriftServer(queue, admin, address=config.listen_address, port=config.port)
        self._ticker: asyncio.Task[None] | None = None
        self._cleaned_at_s = 0.0

    @property
    def port(self) -> int:
        return self._server.port

    async def _start(self) -> None:
        await self._namespaces.start()
        for runner in self._runners.values():
            await runner.start()
            self._opened(runner)
        self._ticker = asyncio.create_task(self._tick(), name="ticker")
        await self._inspection.start()
        await self._server.start()

    async def _drain(self) -> None:
        await self._server.drain()
        self._dispatcher.give_all_back()
        await asyncio.gather(*[runner.drain() for runner in self._runners.values()])

    async def _stop(self) -> None:
        await self._server.stop()
        if self._ticker is not None:
            self._ticker.cancel()
            await asyncio.gather(self._ticker, return_exceptions=True)
        await self._inspection.stop()
        for runner in self._runners.values():
            await runner.stop()
        await self._namespaces.stop()

    async def _tick(self) -> None:
        known: dict[int, ShardState | None] = {}
        while True:
            await asyncio.sleep(limits.TICK_MS / 1000)
            self._dispatcher.tick()
            self._forget_idle_topics()
            for runner in self._runners.values():
                if known.get(runner.shard_id) is not runner.shard:
                    known[runner.shard_id] = runner.shard
                    self._opened(runner)

    def _forget_idle_topics(self) -> None:
        now_s = time.monotonic()
        if now_s - self._cleaned_at_s > limits.TOPIC_IDLE_MS / 4_000:
            self._cleaned_at_s = now_s
            for runner in self._runners.values():
                if runner.shard is not None:
                    runner.shard.forget_idle_topics(runner.now_ms())
                    runner.wake()

    def _opened(self, runner: ShardRunner) -> None:
        if runner.shard is not None:
            self._dispatcher.learn(runner.shard)

    def _make_runner(self, shard_id: int, url: str) -> ShardRunner:
        config = self._config
        access = ShardAccess(
            shard_id=shard_id,
            url=url,
            lock_name=f"{config.cluster}.shard.{shard_id}",
            owner=config.host_name,
            allow_undurable=config.allow_undurable_servers,
        )
        take_epoch = partial(self._take_epoch, shard_id)
        store = ShardStore(access, take_epoch, self._owner_is_dead)
        return ShardRunner(shard_id, store, self._dispatcher, self._dispatcher.forget_shard)

    def _take_epoch(self, shard_id: int, at_least: int) -> int:
        return self._meta.take_shard_epoch(shard_id, self._config.host_name, _wall_ms(), at_least)

    def _owner_is_dead(self, owner: str) -> bool:
        try:
            return not self._meta.host_is_alive(owner, limits.HOST_DEAD_MS)
        except UnavailableError:
            return False

    def _shard(self, shard_id: int) -> ShardState | None:
        return self._runners[shard_id].shard

    def _wake(self, shard_id: int) -> None:
        self._runners[shard_id].wake()

    def _now_ms(self, shard_id: int) -> int:
        return self._runners[shard_id].now_ms()


async def run_host(config: HostConfig, stop_requested: asyncio.Event, on_ready: Callable[[int], None]) -> None:
    """Run one host until `stop_requested`, then drain it.

    `on_ready` gets the bound port. Raises FoqsError when the meta database cannot be reached, OSError when
    the port is taken.
    """
    configure_logs(config)
    host = Host(config)
    metrics = None
    if config.metrics_port:
        metrics = start_http_server(config.metrics_port, config.metrics_address)
    try:
        await host.start()
        on_ready(host.port)
        await stop_requested.wait()
        _log.info("host_draining")
        async with asyncio.timeout(config.drain_ms_max / 1000):
            await host.drain()
    except TimeoutError:
        _log.warning("drain_bound_reached", drain_ms_max=config.drain_ms_max)
    finally:
        await host.stop()
        if metrics is not None:
            server, thread = metrics
            server.shutdown()
            server.server_close()
            thread.join()


def configure_logs(config: HostConfig) -> None:
    renderer = structlog.processors.JSONRenderer() if config.log_format == "json" else structlog.dev.ConsoleRenderer()
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, config.log_level.upper())),
    )


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000

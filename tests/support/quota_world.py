"""Hosts that share the quota of one namespace, in virtual time: the code of production on a book in memory."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Generator, Mapping
from typing import Any, NamedTuple, cast

from foqs.host.admission.quotas import Quotas
from foqs.model.errors import RateLimitedError, UnavailableError
from foqs.model.grants import QUOTA_WINDOW_MS, Ask
from foqs.model.namespace import Namespace, NamespaceSettings
from foqs.testing.fake_meta_tables import MetaDatabase
from foqs.testing.fake_quotas import FakeQuotas
from foqs.testing.fake_sessions import FakeSessions
from tests.sim.loop import VirtualLoop

NUMBER = 1
_BASE_MS = 1_700_000_000_000


class LetIn(NamedTuple):
    at_s: float
    host: int
    count: int


class Refused(NamedTuple):
    at_s: float
    host: int
    count: int
    waited_s: float
    retry_after_ms: int


class Books(FakeQuotas):
    """The books of a meta database that may be away, for all hosts or for some."""

    def __init__(self, world: QuotaWorld, host: int) -> None:
        super().__init__(self._reach_world, f"host-{host}#1")
        self._world = world
        self._host = host

    def _reach_world(self) -> MetaDatabase:
        if self._world.is_away or self._host in self._world.cut_off:
            raise UnavailableError("the meta database does not answer")
        return self._world.database

    def _limit_of(self, namespace: int) -> int | None:
        return self._world.limit if namespace == NUMBER else None

    def ask(self, host_name: str, asks: Mapping[int, Ask], *, waits: bool = False) -> Any:
        """What the thread goes through: a round trip lies between the two statements."""
        self._world.asks_count += 1
        return self._asking(self.asking(host_name, asks, waits=waits))

    def _asking(self, ask: Generator[float | None, None, Any]) -> Generator[float, None, Any]:
        while True:
            try:
                wait_s = next(ask)
            except StopIteration as end:
                return end.value
            yield wait_s or 2 * self._world.away_s


class QuotaWorld:
    """`run` lets callers enqueue on the hosts, and `let_in` and `refused` are what became of that."""

    def __init__(self, hosts_count: int, limit: int, seed: int = 0) -> None:
        self.chance = random.Random(seed)
        self.loop = VirtualLoop(self._latency, lambda: 0.0)
        self.limit = limit
        self.is_away = False
        self.cut_off: set[int] = set()
        self.clock_step_ms = 0
        self.asks_count = 0
        self.missed_s = -1e9
        self.let_in: list[LetIn] = []
        self.refused: list[Refused] = []
        self.rates: list[float] = [0.0] * hosts_count
        """Items a second that callers want of each host."""
        self.call_items = 40
        self.latency_s = 0.004
        self.away_s = 0.0
        """What a statement takes to get to the meta database, and its answer to come back, beside that."""
        self.database = MetaDatabase(self._now_ms, self.chance)
        # A step of the server's clock does not end sessions.
        self.sessions = self.database.sessions = FakeSessions(lambda: int(self.loop.time() * 1000))
        self.books = self.database.tables.quotas
        self.hosts: list[Quotas] = []
        self.limits_seen: list[int] = [limit] * hosts_count
        """The limit as each host has read it."""
        self._calls: set[asyncio.Task[None]] = set()

    def run(self, story: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.loop.run_until_complete(self._run(story))
        self.loop.end_tasks()
        self.loop.close()

    async def _run(self, story: Callable[[], Coroutine[Any, Any, None]]) -> None:
        count = len(self.rates)
        self.hosts = [
            Quotas(cast(Any, Books(self, host)), f"host-{host}", self.loop.time, lambda: count, lambda: self.missed_s)
            for host in range(count)
        ]
        for host in self.hosts:
            await host.start()
        callers = [asyncio.create_task(self._callers(host)) for host in range(count)]
        watch = asyncio.create_task(self._watch())
        await story()
        for task in [*callers, watch]:
            task.cancel()
        await asyncio.gather(*callers, watch, *self._calls, return_exceptions=True)
        for host in self.hosts:
            await host.drain()
            await host.stop()

    async def shift(self, per_minute: float, every_s: float, until_s: float) -> None:
        """Let callers want so many items a minute in all, of other hosts every few seconds."""
        while self.loop.time() < until_s:
            parts = [self.chance.random() ** 3 for _ in self.rates]
            self.rates = [per_minute / 60 * part / sum(parts) for part in parts]
            await asyncio.sleep(every_s)

    async def enqueue(self, host: int, count: int) -> None:
        began_s = self.loop.time()
        try:
            namespace = self.namespace(host)
            charge = self.hosts[host].admit(namespace, count)
            if charge is None:
                charge = await self.hosts[host].wait(namespace, count)
            self.let_in.append(LetIn(self.loop.time(), host, count))
        except RateLimitedError as error:
            waited_s = self.loop.time() - began_s
            self.refused.append(Refused(self.loop.time(), host, count, waited_s, error.retry_after_ms or 0))

    def namespace(self, host: int) -> Namespace:
        return Namespace(NUMBER, "n", NamespaceSettings(enqueues_per_minute_max=self.limits_seen[host]), 0)

    def worst_minute(self, from_s: float = 0.0, until_s: float = 1e9) -> int:
        """The most items of any minute that ends between the two."""
        let_in = sorted(self.let_in)
        first, count, worst = 0, 0, 0
        for at_s, _, items in let_in:
            count += items
            while let_in[first].at_s <= at_s - QUOTA_WINDOW_MS / 1000:
                count -= let_in[first].count
                first += 1
            if from_s <= at_s <= until_s:
                worst = max(worst, count)
        return worst

    def count_between(self, from_s: float, until_s: float) -> int:
        return sum([count for at_s, _, count in self.let_in if from_s < at_s <= until_s])

    async def _callers(self, host: int) -> None:
        """Calls that come at random times."""
        while True:
            rate = self.rates[host]
            if rate <= 0:
                await asyncio.sleep(0.05)
                continue
            pause_s = self.chance.expovariate(rate / self.call_items)
            if pause_s > 0.5:
                await asyncio.sleep(0.5)
                continue
            await asyncio.sleep(pause_s)
            task = asyncio.create_task(self.enqueue(host, self.chance.randint(1, 2 * self.call_items - 1)))
            self._calls.add(task)
            task.add_done_callback(self._calls.discard)

    async def _watch(self) -> None:
        """As the reading of namespaces does, once a second: whether the database is there."""
        while True:
            await asyncio.sleep(1.0)
            if self.is_away:
                self.missed_s = self.loop.time()

    def _now_ms(self) -> int:
        return _BASE_MS + int(self.loop.time() * 1000) + self.clock_step_ms

    def _latency(self, _name: str) -> tuple[float, float]:
        there_s, back_s = [self.away_s + self.chance.random() * self.latency_s for _ in range(2)]
        return there_s, back_s

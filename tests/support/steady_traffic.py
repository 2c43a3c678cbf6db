"""Clients of a cluster that note all that they put in and get out, for tests in which no call may fail."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from foqs import Client
from foqs.client.queue_items import NewItem
from foqs.client.retry import RetryPolicy
from foqs.client.sync import AdminClient
from foqs.model.calls import HostStatus
from foqs.model.errors import FoqsError
from tests.support.faults.load import NAMESPACE
from tests.support.faults.programs import HostProgram

PATIENCE_S = 90.0


class Traffic:
    """A producer and a consumer for each host, which ask it first and others when it cannot serve; a context manager.

    What fails is kept. A consumer leases its items for so long that none comes twice. `options` are of each client.
    pause_s: how long a producer waits after each call.
    """

    def __init__(self, addresses: list[str], *, pause_s: float = 0.0, **options: Any) -> None:
        self._pause_s = pause_s
        self._changed = threading.Condition()
        self._ends = False
        self.failures: list[FoqsError] = []
        self.enqueued: set[str] = set()
        self.consumed: list[str] = []
        self._longest_ms: dict[str, float] = {}
        orders = [addresses[at:] + addresses[:at] for at in range(len(addresses))]
        works = [(work, order) for order in orders for work in (self._produce, self._consume)]
        self._wanted = [options for _ in works]
        self._used: list[dict[str, Any] | None] = [None for _ in works]
        self._threads = [threading.Thread(target=self._run, args=(number, *work)) for number, work in enumerate(works)]

    @staticmethod
    def _client(addresses: list[str], options: Mapping[str, Any]) -> Client:
        # Of equal addresses the first one is tried first.
        return Client(addresses, random=lambda: 0.0, **{"retry": RetryPolicy(deadline_ms=20_000), **options})

    def __enter__(self) -> Traffic:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.end()

    def go_on(self, *, consumed: int) -> None:
        """Return when so many more items are consumed."""
        with self._changed:
            up_to = len(self.consumed) + consumed
            self._wait(lambda: len(self.consumed) >= up_to)

    def roll(self, **options: Any) -> None:
        """Replace the clients by others with these options, one after the other while the rest goes on."""
        for number in range(len(self._threads)):
            with self._changed:
                self._wanted[number] = options
                self._wait(lambda number=number: self._used[number] is options)

    def end(self) -> None:
        """Return when all that was enqueued is consumed."""
        with self._changed:
            self._ends = True
            self._wait(lambda: self.enqueued.issubset(self.consumed))
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def take_longest_ms(self) -> dict[str, float]:
        """How long the longest call of each verb took since the last look."""
        with self._changed:
            longest_ms, self._longest_ms = self._longest_ms, {}
            return longest_ms

    @contextmanager
    def _timed(self, verb: str) -> Iterator[None]:
        began_s = time.monotonic()
        try:
            yield
        finally:
            took_ms = (time.monotonic() - began_s) * 1000
            with self._changed:
                self._longest_ms[verb] = max(took_ms, self._longest_ms.get(verb, 0.0))

    def _wait(self, done: Callable[[], bool]) -> None:
        assert self._changed.wait_for(lambda: bool(self.failures) or done(), PATIENCE_S), "it does not go on"

    def _run(self, number: int, work: Callable[[Client], bool], addresses: list[str]) -> None:
        try:
            goes_on = True
            while goes_on:
                options = self._wanted[number]
                with self._client(addresses, options) as client:
                    goes_on = work(client)
                    with self._changed:
                        self._used[number] = options
                        self._changed.notify_all()
                    while goes_on and self._wanted[number] is options:
                        goes_on = work(client)
        except FoqsError as error:
            with self._changed:
                self.failures.append(error)
                self._changed.notify_all()

    def _produce(self, client: Client) -> bool:
        with self._timed("enqueue"):
            ids = client.enqueue_many(NAMESPACE, [NewItem(f"t{number % 3}", b"x") for number in range(4)]).ids
        with self._changed:
            self.enqueued.update(ids)
            self._changed.notify_all()
            if self._pause_s:
                self._changed.wait_for(lambda: self._ends or bool(self.failures), self._pause_s)
            return not (self._ends or self.failures)

    def _consume(self, client: Client) -> bool:
        with self._timed("dequeue"):
            items = client.dequeue(NAMESPACE, ["t0", "t1", "t2"], 20, lease_ms=120_000, wait_ms=100)
        if items:
            with self._timed("ack"):
                client.ack(NAMESPACE, items)
        with self._changed:
            self.consumed += [item.id for item in items]
            self._changed.notify_all()
            return not (self.failures or (self._ends and self.enqueued.issubset(self.consumed)))


def status_of(host: HostProgram, **options: Any) -> HostStatus:
    with AdminClient(host.address, **options) as admin:
        return admin.host_status()


def owned_count(host: HostProgram, **options: Any) -> int:
    return sum(shard.state == "owned" for shard in status_of(host, **options).shards)

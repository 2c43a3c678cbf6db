"""A second host on the same shards: clients that know both lose no call when the first one goes, whichever way."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from foqs import Client
from foqs.client.retry import RetryPolicy
from foqs.client.sync import AdminClient
from foqs.model.calls import HostStatus
from foqs.model.errors import FoqsError
from tests.e2e.conftest import StartHost
from tests.support.faults.load import NAMESPACE
from tests.support.faults.programs import HostProgram, free_port
from tests.support.waiting import PATIENCE_MS, PATIENCE_S

pytestmark = [pytest.mark.database, pytest.mark.slow]

LEASE_MS = 1_000


class Workers:
    """A producer and a consumer on one client, until `stop`; what fails is kept. A context manager."""

    def __init__(self, addresses: list[str]) -> None:
        # Of equal addresses the first one is tried first.
        self._client = Client(addresses, random=lambda: 0.0, retry=RetryPolicy(deadline_ms=PATIENCE_MS))
        self._changed = threading.Condition()
        self._stopping = False
        self._is_all_enqueued = False
        """The producer has ended: an enqueue may be under way when it is told to stop."""
        self._threads = [threading.Thread(target=self._run, args=(work,)) for work in (self._produce, self._consume)]
        self.failures: list[FoqsError] = []
        self.enqueued: list[str] = []
        self.acked: set[str] = set()

    def __enter__(self) -> Workers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop()
        self._client.close()

    def wait_for(self, *, enqueued: int) -> None:
        """So many more, and as many acked."""
        with self._changed:
            up_to = len(self.enqueued) + enqueued
            self._wait(lambda: len(self.enqueued) >= up_to and len(self.acked) >= up_to)

    def stop(self) -> None:
        """Once all that was enqueued is acked."""
        with self._changed:
            self._stopping = True
            self._wait(self._is_done)
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def _wait(self, done: Callable[[], bool]) -> None:
        assert self._changed.wait_for(lambda: bool(self.failures) or done(), PATIENCE_S), "it does not go on"

    def _is_done(self) -> bool:
        return self._is_all_enqueued and self.acked.issuperset(self.enqueued)

    def _run(self, work: Callable[[], None]) -> None:
        try:
            while True:
                with self._changed:
                    if self.failures or self._is_done():
                        return
                work()
        except FoqsError as error:
            with self._changed:
                self.failures.append(error)
                self._changed.notify_all()

    def _produce(self) -> None:
        with self._changed:
            if self._stopping:
                self._is_all_enqueued = True
                self._changed.notify_all()
                self._changed.wait(0.01)
                return
        # One of unknown outcome may be there twice, which is no matter here.
        item_id = self._client.enqueue(NAMESPACE, "t", b"x", retry_unknown=True)
        with self._changed:
            self.enqueued.append(item_id)
            self._changed.notify_all()

    def _consume(self) -> None:
        items = self._client.dequeue(NAMESPACE, "t", 100, lease_ms=LEASE_MS, wait_ms=100)
        errors = self._client.ack(NAMESPACE, items, return_errors=True) if items else {}
        with self._changed:
            # A lease can end while its owner is away: the item then comes again.
            self.acked.update(item.id for position, item in enumerate(items) if position not in errors)
            self._changed.notify_all()


def status_of(host: HostProgram) -> HostStatus:
    with AdminClient(host.address) as admin:
        return admin.host_status()


def test_the_standby_serves_when_the_owner_ends_or_is_killed_and_no_call_fails(start_host: StartHost) -> None:
    ports = {"host-1": free_port(), "host-2": free_port()}
    first = start_host("host-1", ports["host-1"])
    second = start_host("host-2", ports["host-2"])
    assert {shard.state for shard in status_of(second).shards} == {"lost"}

    with Client([second.address, first.address], random=lambda: 0.0, retry=RetryPolicy(deadline_ms=0)) as client:
        for _ in range(10):  # Nothing is repeated: it is done by going on to the next address.
            client.enqueue(NAMESPACE, "t", b"x")

    with Workers([second.address, first.address]) as workers:
        workers.wait_for(enqueued=200)
        first.signal(signal.SIGTERM)
        assert first.wait() == 0, first.output
        workers.wait_for(enqueued=200)
        assert {shard.state for shard in status_of(second).shards} == {"owned"}

        first = start_host("host-1", ports["host-1"])
        assert {shard.state for shard in status_of(first).shards} == {"lost"}
        workers.wait_for(enqueued=100)
        second.kill()
        workers.wait_for(enqueued=200)
        assert {shard.state for shard in status_of(first).shards} == {"owned"}
        workers.stop()
        assert workers.failures == [], f"{first.output}\n{second.output}"

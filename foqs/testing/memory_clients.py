"""The clients of production, over a MemoryQueue instead of sockets."""

from __future__ import annotations

import asyncio
from typing import Any

from foqs.client.aio import AsyncAdminClient, AsyncClient
from foqs.client.aio.base import AsyncBaseClient
from foqs.client.aio.connections import AsyncConnectionPool
from foqs.client.client_errors import ClientClosedError
from foqs.client.client_options import Options
from foqs.client.flows import Send
from foqs.client.retry import RetryPolicy
from foqs.client.sync import AdminClient, Client
from foqs.client.sync.base import BaseClient
from foqs.client.sync.connections import ConnectionPool
from foqs.testing.traffic import Traffic, Waits

_TURNS_MAX = 20
"""Number of turns that other tasks get before a waiting dequeue moves the clock."""


class MemoryPool(ConnectionPool):
    """The connection pool of a blocking client. It has no connections."""

    def __init__(self, traffic: Traffic, options: Options, book: Any, caller: str) -> None:
        super().__init__(options, book)
        self._traffic = traffic
        self._caller = caller

    def exchange(self, step: Send) -> Any:
        """Make one attempt of one call. A waiting call blocks in its thread."""
        traffic = self._traffic
        with traffic.changed:
            self.check_open()
            if not step.call.wait_ms or traffic.waits is Waits.MOVE_CLOCK:
                return traffic.attempt(step, self._caller)
            until_ms = traffic.host.now_ms() + step.call.wait_ms
            while (response := traffic.poll(step, until_ms, self._caller)) is None:
                token = traffic.block()
                traffic.changed.wait()
                traffic.unblock(token)
                self.check_open()
            return response

    def pause(self, pause_ms: int) -> None:
        """Move the clock of the queue."""
        self.check_open()
        self._traffic.pass_time(pause_ms)

    def close(self) -> None:
        """Close the client. Calls that block raise ClientClosedError."""
        super().close()
        self._traffic.note_change()


class AsyncMemoryPool(AsyncConnectionPool):
    """The connection pool of an asyncio client. It has no connections."""

    def __init__(self, traffic: Traffic, options: Options, book: Any, caller: str) -> None:
        super().__init__(options, book)
        self._traffic = traffic
        self._caller = caller

    async def exchange(self, step: Send) -> Any:
        """Make one attempt of one call. A waiting call blocks in its task."""
        traffic = self._traffic
        await asyncio.sleep(0)  # Let other tasks run, as a socket would.
        self._check_open()
        if not step.call.wait_ms:
            return traffic.attempt(step, self._caller)
        until_ms = traffic.host.now_ms() + step.call.wait_ms
        turns_count = 0
        seen_count = traffic.changes_count
        while (response := traffic.poll(step, until_ms, self._caller)) is None:
            if traffic.waits is Waits.BLOCK:
                await self._changed(seen_count)
            elif turns_count < _TURNS_MAX:
                turns_count += 1
                await asyncio.sleep(0)
            else:
                return traffic.attempt(step, self._caller)
            self._check_open()
            seen_count = traffic.changes_count
        return response

    async def _changed(self, seen_count: int) -> None:
        """Block until `changes_count` differs from `seen_count`, which means that new items can be ready."""
        traffic, loop, woken = self._traffic, asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            loop.call_soon_threadsafe(woken.set)

        with traffic.changed:
            if traffic.changes_count != seen_count:
                return
            traffic.listeners.add(wake)
            token = traffic.block()
        try:
            await woken.wait()
        finally:
            with traffic.changed:
                traffic.listeners.discard(wake)
                traffic.unblock(token)

    async def pause(self, pause_ms: int) -> None:
        """Move the clock of the queue."""
        self._check_open()
        self._traffic.pass_time(pause_ms)
        await asyncio.sleep(0)

    async def close(self) -> None:
        """Close the client. Calls that block raise ClientClosedError."""
        await super().close()
        self._traffic.note_change()

    def _check_open(self) -> None:
        if self.closed.is_set():
            raise ClientClosedError("the client is closed")


class _Blocking(BaseClient):
    def __init__(self, traffic: Traffic, retry: RetryPolicy | None, caller: str, idempotent: bool = False) -> None:
        self._traffic = traffic
        self._caller = caller
        super().__init__("memory", retry=retry, idempotent=idempotent, clock_ms=traffic.host.now_ms, random=lambda: 0.5)

    def _make_pool(self) -> ConnectionPool:
        return MemoryPool(self._traffic, self.options, self._terms.book, self._caller)


class _Asyncio(AsyncBaseClient):
    def __init__(self, traffic: Traffic, retry: RetryPolicy | None, caller: str, idempotent: bool = False) -> None:
        self._traffic = traffic
        self._caller = caller
        super().__init__("memory", retry=retry, idempotent=idempotent, clock_ms=traffic.host.now_ms, random=lambda: 0.5)

    def _make_pool(self) -> AsyncConnectionPool:
        return AsyncMemoryPool(self._traffic, self.options, self._terms.book, self._caller)


class MemoryClient(_Blocking, Client):
    """A foqs.Client of a MemoryQueue."""


class MemoryAdminClient(_Blocking, AdminClient):
    """A foqs.AdminClient of a MemoryQueue."""


class AsyncMemoryClient(_Asyncio, AsyncClient):
    """A foqs.AsyncClient of a MemoryQueue."""


class AsyncMemoryAdminClient(_Asyncio, AsyncAdminClient):
    """A foqs.AsyncAdminClient of a MemoryQueue."""


class Clients:
    """Makes the clients of one principal, or those of the queue itself.

    `MemoryQueue.as_principal` returns it. Their calls are done and refused as those of this principal on a host.
    """

    def __init__(self, traffic: Traffic, caller: str) -> None:
        """`caller` is the name of the principal; empty for the queue itself."""
        self._traffic = traffic
        self._caller = caller

    def client(self, *, retry: RetryPolicy | None = None, idempotent: bool = False) -> MemoryClient:
        """Make a blocking client. Its pauses before retries move the clock."""
        return MemoryClient(self._traffic, retry, self._caller, idempotent)

    def admin(self, *, retry: RetryPolicy | None = None) -> MemoryAdminClient:
        """Make a blocking client of the operators' service."""
        return MemoryAdminClient(self._traffic, retry, self._caller)

    def async_client(self, *, retry: RetryPolicy | None = None, idempotent: bool = False) -> AsyncMemoryClient:
        """Make an asyncio client, on the running event loop."""
        return AsyncMemoryClient(self._traffic, retry, self._caller, idempotent)

    def async_admin(self, *, retry: RetryPolicy | None = None) -> AsyncMemoryAdminClient:
        """Make an asyncio client of the operators' service."""
        return AsyncMemoryAdminClient(self._traffic, retry, self._caller)

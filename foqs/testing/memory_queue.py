"""A queue in memory for the tests of programs that use foqs: the real state machine, and a clock moved by hand."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Self

from foqs.client.aio.worker import AsyncWorker
from foqs.client.retry import RetryPolicy
from foqs.client.sync.worker import Worker
from foqs.model.access import AccessGrant, AccessMode
from foqs.model.errors import FoqsError, PermissionDeniedError
from foqs.testing.memory_clients import (
    AsyncMemoryAdminClient,
    AsyncMemoryClient,
    Clients,
    MemoryAdminClient,
    MemoryClient,
)
from foqs.testing.memory_host import MemoryHost
from foqs.testing.traffic import Traffic, Waits

_POLL_S = 0.001
"""Interval between two checks if workers are idle, in seconds. Items that workers settle in the background wake no
waiter.
"""
_PATIENCE = timedelta(seconds=30)
_OWNER = "memory-queue"
"""The principal of the queue's own clients, which the test itself uses. It can do everything."""
_ALL_ROLES = ["owner", "operator", "admin"]
_NEVER = 0
Grants = Mapping[str, str | Sequence[str]]
"""The roles of a principal, by namespaces: NAME, PREFIX* or *."""


class ManualClock:
    """The clock of a MemoryQueue, which stands still until it is moved."""

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic

    def now_ms(self) -> int:
        """Return the time as milliseconds since 1970."""
        return self._traffic.host.now_ms()

    def now(self) -> datetime:
        """Return the time as a datetime, in UTC."""
        return datetime.fromtimestamp(self.now_ms() / 1000, UTC)

    def advance(self, by: timedelta | int) -> None:
        """Move the clock by a timedelta or by milliseconds, and do everything that is due by then.

        The clock moves 0.12 s further, because a host notices the end of a lease, a delay or a TTL within that time.
        Raises ValueError for a negative duration.
        """
        by_ms = by if isinstance(by, int) else by // timedelta(milliseconds=1)
        if by_ms < 0:
            raise ValueError(f"the clock cannot be moved by {by_ms} ms: it does not go back")
        with self._traffic.changed:
            self._traffic.host.advance(by_ms)
            self._traffic.note_change()


class MemoryQueue:
    """A queue in the memory of this process, with the code of a host, but without MySQL, sockets and threads.

    Its clients are foqs.Client, AsyncClient, AdminClient and AsyncAdminClient over memory, with the same methods,
    arguments, results and errors. Close it, or use it in a `with` statement. Safe for threads, except for clients of
    asyncio.

    namespaces ("default"): these exist from the beginning; `admin()` makes others, and changes their settings.
    shard_count (1): items of a topic are in order of priority and time on one shard, and nearly in order on several.
    waits_move_clock (True): a waiting dequeue that finds nothing moves the clock until an item is due or the wait is
    over, so that nothing sleeps. False: it blocks until another thread or task enqueues something or moves the clock,
    for tests that run workers or consumers of their own beside the test. principals: these exist from the beginning,
    each with its roles by namespaces, such as {"mailer": {"mails": "consumer", "reports.*": ["producer", "viewer"]}}.
    Access is then enforced: clients of `as_principal` have the permissions of the roles, and clients of the queue
    itself all permissions. None: everybody can do everything. Raises InvalidArgumentError for an unknown role and for a
    bad name. clock: the only time of the queue and its clients, see ManualClock.
    """

    def __init__(
        self,
        namespaces: str | Sequence[str] = "default",
        *,
        shard_count: int = 1,
        waits_move_clock: bool = True,
        principals: Mapping[str, Grants] | None = None,
    ) -> None:
        self._waits = Waits.MOVE_CLOCK if waits_move_clock else Waits.BLOCK
        self._traffic = Traffic(MemoryHost(shard_count), self._waits)
        self._clients = Clients(self._traffic, "")
        self._is_enforced = principals is not None
        self.clock = ManualClock(self._traffic)
        for name in [namespaces] if isinstance(namespaces, str) else namespaces:
            self.admin().create_namespace(name)
        if principals is not None:
            self._enforce(principals)

    def _enforce(self, principals: Mapping[str, Grants]) -> None:
        admin = self.admin()
        try:
            for name, grants in [*principals.items(), (_OWNER, {"*": _ALL_ROLES})]:
                roles = {key: [given] if isinstance(given, str) else given for key, given in grants.items()}
                admin.create_principal(name, [AccessGrant(*grant) for grant in roles.items()])
            self._sign_in("", _OWNER)
            admin.set_access_mode(AccessMode.ENFORCED)
        except BaseException:
            self.close()
            raise

    def _sign_in(self, caller: str, principal: str) -> None:
        token = self.admin().create_token(principal, label="memory", expires_in_ms=_NEVER).token
        self._traffic.host.sign_in(caller, token)

    def as_principal(self, name: str) -> Clients:
        """Return a factory of clients of this principal: `as_principal("mailer").client()`.

        The principal is one of `principals`, or was made by `admin().create_principal` since. Raises NotFoundError for
        another one, PermissionDeniedError if it is disabled, and ValueError if the queue was made without principals.
        """
        if not self._is_enforced:
            raise ValueError("this queue was made without principals: make it with MemoryQueue(principals={...})")
        with self._traffic.changed:
            try:
                is_known = self._traffic.host.follow(name)
            except PermissionDeniedError:  # It was deleted and made anew, or its token was revoked.
                is_known = False
            if not is_known:
                self._sign_in(name, name)
        return Clients(self._traffic, name)

    def client(self, *, retry: RetryPolicy | None = None, idempotent: bool = False) -> MemoryClient:
        """Make a blocking client. Its pauses before retries move the clock."""
        return self._clients.client(retry=retry, idempotent=idempotent)

    def admin(self, *, retry: RetryPolicy | None = None) -> MemoryAdminClient:
        """Make a blocking client of the operators' service."""
        return self._clients.admin(retry=retry)

    def async_client(self, *, retry: RetryPolicy | None = None, idempotent: bool = False) -> AsyncMemoryClient:
        """Make an asyncio client, on the running event loop."""
        return self._clients.async_client(retry=retry, idempotent=idempotent)

    def async_admin(self, *, retry: RetryPolicy | None = None) -> AsyncMemoryAdminClient:
        """Make an asyncio client of the operators' service."""
        return self._clients.async_admin(retry=retry)

    def fail_next(self, verb: str, error: FoqsError, *, count: int = 1) -> None:
        """Let the next `count` attempts of a client's method, such as "enqueue", raise the error without any effect.

        A client repeats calls that are safe to repeat, as it does with a host. Raises ValueError for an unknown verb.
        """
        self._traffic.fail(verb, error, count)

    def lose_next_response(self, verb: str) -> None:
        """Lose the response of the next attempt of a client's method, after the call is done: OutcomeUnknownError.

        Raises ValueError for an unknown verb.
        """
        self._traffic.lose(verb)

    def run_until_idle(self, *workers: Worker, patience: timedelta = _PATIENCE) -> None:
        """Run workers until they have no more work, then stop them.

        The clock stands still meanwhile, so delayed and backed-off items stay: move the clock and run another worker.
        The handlers run in the workers' threads. Raises the error of a worker, and TimeoutError if workers are still
        busy after `patience` of real time.
        """
        errors: list[BaseException] = []

        def run(worker: Worker) -> None:
            try:
                worker.run()
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=run, args=[worker], name="foqs-test-worker") for worker in workers]
        give_up_s = time.monotonic() + patience.total_seconds()
        self._set_waits(Waits.BLOCK, has_resting_workers=True)
        try:
            for thread in threads:
                thread.start()
            with self._traffic.changed:
                while not (errors or self._are_idle(workers)):
                    _check_time(give_up_s, workers)
                    self._traffic.changed.wait(_POLL_S)
        finally:
            for worker in workers:
                worker.stop()
            self._set_waits(Waits.END, has_resting_workers=True)
            for thread in threads:
                thread.join()
            self._set_waits(self._waits)
        if errors:
            raise errors[0]

    async def run_until_idle_async(self, *workers: AsyncWorker, patience: timedelta = _PATIENCE) -> None:
        """Run asyncio workers until they have no more work, then stop them: see `run_until_idle`."""
        give_up_s = time.monotonic() + patience.total_seconds()
        self._set_waits(Waits.BLOCK, has_resting_workers=True)
        runs = [asyncio.create_task(worker.run()) for worker in workers]
        try:
            while not (any(run.done() for run in runs) or self._are_idle(workers)):
                _check_time(give_up_s, workers)
                await asyncio.sleep(_POLL_S)
        finally:
            for worker in workers:
                worker.stop()
            self._set_waits(Waits.END, has_resting_workers=True)
            await asyncio.wait(runs)
            self._set_waits(self._waits)
        for run in runs:
            run.result()

    def close(self) -> None:
        """End the queue and drop its items. Calls of clients raise ClientClosedError from now on. Safe to repeat."""
        with self._traffic.changed:
            if not self._traffic.is_closed:
                self._traffic.is_closed = True
                self._traffic.host.close()
                self._traffic.note_change()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _set_waits(self, waits: Waits, *, has_resting_workers: bool = False) -> None:
        with self._traffic.changed:
            self._traffic.waits = waits
            self._traffic.has_resting_workers = has_resting_workers
            self._traffic.note_change()

    def _are_idle(self, workers: Sequence[Worker | AsyncWorker]) -> bool:
        return self._traffic.blocked_count >= len(workers) and all(map(_has_settled_all, workers))


def _has_settled_all(worker: Worker | AsyncWorker) -> bool:
    stats = worker.stats
    ended_count = stats.acked + stats.nacked + stats.released + stats.dead_lettered + stats.lease_lost + stats.unsettled
    return stats.received == ended_count


def _check_time(give_up_s: float, workers: Sequence[Worker | AsyncWorker]) -> None:
    if time.monotonic() > give_up_s:
        stats = ", ".join(str(worker.stats) for worker in workers)
        raise TimeoutError(
            f"the workers are still busy: {stats}; give them a longer `patience`, or look at what they wait for"
        )

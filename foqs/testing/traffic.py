"""The traffic between the clients of a MemoryQueue and its host: calls, waits, and the faults that a test plans."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from enum import Enum
from typing import Any

from foqs.client.client_errors import ClientClosedError, OutcomeUnknownError
from foqs.client.flows import Send
from foqs.model.errors import FoqsError, PausedError
from foqs.testing.memory_host import MemoryHost
from foqs.wire import codec as wire

_METHODS = {"extend": "extendLease", "topics": "getActiveTopics", "host_status": "getHostStatus"}
"""The wire's names of client methods that are named differently there."""


class Waits(Enum):
    """The kinds of wait for a dequeue that finds nothing."""

    MOVE_CLOCK = "move the clock"
    BLOCK = "block until somebody else changes something"
    END = "end at once"


class Traffic:
    """The path of all clients to one host. Safe for threads; `MemoryQueue` owns it."""

    def __init__(self, host: MemoryHost, waits: Waits) -> None:
        self.host = host
        self.waits = waits
        self.changed = threading.Condition(host.lock)
        """Guards all fields, and is notified when items can be ready."""
        self.listeners: set[Callable[[], None]] = set()
        """Functions to call at the same time as `changed` is notified."""
        self.has_resting_workers = False
        """True while workers run until they are idle. They then treat a pause as an empty queue, and do not ask
        again.
        """
        self.is_closed = False
        self.changes_count = 0
        self._blocked: dict[object, int] = {}
        """Blocked dequeues, each with the count of changes at its last attempt."""
        self._failures: defaultdict[str, deque[FoqsError]] = defaultdict(deque)
        self._losses: defaultdict[str, int] = defaultdict(int)

    def fail(self, verb: str, error: FoqsError, count: int) -> None:
        """Let the next calls of the verb raise the error before they reach the host."""
        with self.changed:
            self._failures[method_of(verb)].extend([error] * count)

    def lose(self, verb: str) -> None:
        """Lose the response of the next call of the verb, after the call is done."""
        with self.changed:
            self._losses[method_of(verb)] += 1

    def attempt(self, step: Send, caller: str) -> Any:
        """Make one attempt of one call of a principal, or of the queue itself if `caller` is empty.

        Raises the error that the test has planned, or that of the host.
        """
        method = step.call.method
        with self.changed:
            if self.is_closed:
                raise ClientClosedError("the queue of this client is closed")
            if failures := self._failures[method]:
                raise failures.popleft()
            try:
                response = self.host.exchange(step, caller)
            finally:
                if method != "dequeue":  # A dequeue makes no item ready.
                    self.note_change()
            if self._losses[method]:
                self._losses[method] -= 1
                raise OutcomeUnknownError(f"{method}: the response was lost, as the test has planned")
            return response

    def poll(self, step: Send, until_ms: int, caller: str) -> Any:
        """Make an attempt that does not wait at the host. Returns None if the call should wait and try again."""
        with self.changed:
            try:
                response = self.attempt(_without_wait(step), caller)
            except PausedError:
                if not self.has_resting_workers:
                    raise
                response = wire.structs.DequeueResponse(items=[])
            is_over = self.waits is Waits.END or self.host.now_ms() >= until_ms
            return response if response.items or is_over else None

    def block(self) -> object:
        """Count a call that found nothing as blocked, until `unblock`."""
        token = object()
        with self.changed:
            self._blocked[token] = self.changes_count
        return token

    def unblock(self, token: object) -> None:
        """End the blocking of a call, before it tries again."""
        with self.changed:
            del self._blocked[token]

    @property
    def blocked_count(self) -> int:
        """Number of blocked dequeues that have seen the latest change."""
        with self.changed:
            return list(self._blocked.values()).count(self.changes_count)

    def note_change(self) -> None:
        """Wake the blocked calls, so that they try again."""
        with self.changed:
            self.changes_count += 1
            self.changed.notify_all()
            for listener in list(self.listeners):
                listener()

    def pass_time(self, by_ms: int) -> None:
        """Move the clock for a pause of a client."""
        with self.changed:
            self.host.pass_time(by_ms)
            self.note_change()


def method_of(verb: str) -> str:
    """Return the wire's name of a client's method. Raises ValueError."""
    first, *others = verb.split("_")
    method = _METHODS.get(verb) or first + "".join(map(str.capitalize, others))
    if method not in wire.METHODS:
        raise ValueError(f"no call is named {verb!r}: give a method of a client, such as enqueue, dequeue, ack, extend")
    return method


def _without_wait(step: Send) -> Send:
    request = copy(step.call.request)
    request.wait_ms = 0
    return replace(step, call=replace(step.call, request=request, wait_ms=0))

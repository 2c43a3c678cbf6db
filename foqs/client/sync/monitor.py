"""Locks and waits that survive exceptions of signal handlers, which can be raised anywhere in the main thread.

Such an exception can leave a lock of `threading` that is written in Python (Condition, Event, Semaphore) held, if it is
raised after the lock is acquired and before that is recorded. A lock written in C is entered and left by `with`
atomically. So this module uses only locks written in C. The places and waits of a thread are recorded by name instead
of counted, so that it can return them regardless of the point of interruption.
"""

from __future__ import annotations

import threading
import time
from _thread import RLock, allocate_lock
from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

_WAIT_S_MAX = threading.TIMEOUT_MAX


def closed_gate() -> Any:
    """Make a gate at which one thread waits, by `acquire`, until another thread opens it."""
    gate = allocate_lock()
    gate.acquire()
    return gate


def open_gate(gate: Any) -> None:
    """Let the waiting thread pass. Safe to repeat; the caller holds the lock that guards the gate."""
    if gate.locked():
        gate.release()


P = ParamSpec("P")
T = TypeVar("T")


class Guarded(Protocol):
    """An object with a monitor for its state."""

    _changed: Monitor


G = TypeVar("G", bound=Guarded)


def guarded(method: Callable[Concatenate[G, P], T]) -> Callable[Concatenate[G, P], T]:
    """Hold the monitor of the object during the method, and surely release it afterwards."""

    @wraps(method)
    def call(self: G, /, *args: P.args, **kwargs: P.kwargs) -> T:
        monitor = self._changed
        was_held = monitor.is_held()  # A signal handler might call the method that it interrupted.
        try:
            with monitor:
                return method(self, *args, **kwargs)
        except BaseException:
            if not was_held:
                monitor.drop()
            raise

    return call


class Monitor(RLock):  # type: ignore[misc] # typeshed calls it final, which it is not
    """A lock, and a way to wait for changes of the guarded state: `with` holds it, `wait_for` waits."""

    def __init__(self) -> None:
        self._gates: list[Any] = []

    def is_held(self) -> bool:
        """True if this thread holds the lock."""
        return self._is_owned()  # type: ignore[attr-defined,no-any-return]

    def drop(self) -> None:
        """Release the lock if this thread still holds it, because an exception interrupted the exit of a `with`."""
        while self.is_held():
            self.release()

    def notify_all(self) -> None:
        """Make all waiting threads check the state again."""
        for gate in self._gates:
            open_gate(gate)

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until the predicate holds, up to `timeout` seconds; False on a timeout. The caller holds the lock."""
        end_s = None if timeout is None else time.monotonic() + timeout
        while not (holds := predicate()):
            left_s = _WAIT_S_MAX if end_s is None else end_s - time.monotonic()
            if left_s <= 0:
                break
            self._wait(min(left_s, _WAIT_S_MAX))
        return holds

    def _wait(self, timeout_s: float) -> None:
        gate = closed_gate()
        try:
            try:
                self._gates.append(gate)
                self.release()
                gate.acquire(timeout=timeout_s)
            finally:
                self._return_from(gate)
        except BaseException:
            self._return_from(gate)  # Repeated, because a signal might have interrupted it.
            raise

    def _return_from(self, gate: Any) -> None:
        """Acquire the lock again despite any exception, then raise that exception."""
        raised: BaseException | None = None
        while not self.is_held():
            try:
                self.acquire()
            except BaseException as error:
                raised = error
        if gate in self._gates:
            self._gates.remove(gate)
        if raised is not None:
            raise raised


class Flag:
    """A one-time event: `set` records it, `wait` waits for it."""

    def __init__(self) -> None:
        self._changed = Monitor()
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    @guarded
    def set(self) -> None:
        """Record the event and wake all waiting threads."""
        self._is_set = True
        self._changed.notify_all()

    @guarded
    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the event, up to `timeout` seconds. False on a timeout."""
        return self._changed.wait_for(self.is_set, timeout)


class Places:
    """A fixed number of places, each for one holder at a time. Waiting threads get a place in order of arrival.

    The pool of a client has one for each connection that it can open. Calls that wait for items at a host rank behind
    all others, and never take the last of several places. Safe for threads.
    """

    def __init__(self, count: int, lock: Monitor) -> None:
        """`lock` is the owner's lock, which it never leaves held after an exception."""
        self._count = count
        self._count_for_waits = max(1, count - 1)
        self._lock = lock
        self._holders: set[object] = set()
        self._waiting: dict[object, Any] = {}
        """Gates of the waiting holders."""
        self._patient: dict[object, Any] = {}
        """Gates of the waiting calls that wait for items."""

    @property
    def free_count(self) -> int:
        """Number of free places."""
        return self._count - len(self._holders)

    @property
    def is_wanted(self) -> bool:
        """True if a call waits for a place, other than the calls that wait for items."""
        return bool(self._waiting)

    def take(
        self, holder: object, timeout_s: float, *, is_wait: bool = False, on_full: Callable[[], None] | None = None
    ) -> bool:
        """Take a place within the time; False if none was free. Every `take` needs a `leave`, whatever its result.

        is_wait: True for a call that waits for items. on_full: called under the lock before any other call waits for a
        place.
        """
        waiting = self._patient if is_wait else self._waiting
        with self._lock:
            # If a place is free, no thread waits for it, because `leave` passes it on.
            if len(self._holders) < (self._count_for_waits if is_wait else self._count):
                self._holders.add(holder)
                return True
            gate = waiting[holder] = closed_gate()
            if on_full is not None and not is_wait:
                on_full()
        gate.acquire(timeout=min(max(0.0, timeout_s), _WAIT_S_MAX))
        with self._lock:
            waiting.pop(holder, None)
            return holder in self._holders

    def leave(self, holder: object) -> None:
        """Give up the place or the wait of the holder, if any. Safe to repeat, and after an interrupted `take`."""
        with self._lock:
            self._waiting.pop(holder, None)
            self._patient.pop(holder, None)
            self._holders.discard(holder)
            self._hand_on(self._waiting, self._count)
            self._hand_on(self._patient, self._count_for_waits)

    def _hand_on(self, waiting: dict[object, Any], count: int) -> None:
        for successor, gate in list(waiting.items()):
            if successor not in self._holders:
                if len(self._holders) >= count:
                    break
                self._holders.add(successor)
            open_gate(gate)

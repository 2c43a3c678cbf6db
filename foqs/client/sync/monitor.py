"""Locks and waits that outlive the handlers of signals, which may raise anywhere in the main thread.

Such an exception can leave a lock of `threading` held that is written in Python (Condition, Event, Semaphore): it comes
between the moment when the lock is taken and that when it is known to be. `with` enters and leaves a lock that is
written in C as one. So everything here stands on those, and what a thread has or waits for is known by name, not by a
count: whoever leaves can give back what it has without knowing how far it had come.
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
    """Make a gate at which one thread waits, by `acquire`, until another one opens it."""
    gate = allocate_lock()
    gate.acquire()
    return gate


def open_gate(gate: Any) -> None:
    """Let the thread through that waits there. Safe to repeat; the caller holds the lock that guards the gate."""
    if gate.locked():
        gate.release()


P = ParamSpec("P")
T = TypeVar("T")


class Guarded(Protocol):
    """What has a monitor for its state."""

    _changed: Monitor


G = TypeVar("G", bound=Guarded)


def guarded(method: Callable[Concatenate[G, P], T]) -> Callable[Concatenate[G, P], T]:
    """Have a method hold the monitor of its object, and surely not any more once it has been left."""

    @wraps(method)
    def call(self: G, /, *args: P.args, **kwargs: P.kwargs) -> T:
        monitor = self._changed
        was_held = monitor.is_held()  # The handler of a signal may call what it has interrupted.
        try:
            with monitor:
                return method(self, *args, **kwargs)
        except BaseException:
            if not was_held:
                monitor.drop()
            raise

    return call


class Monitor(RLock):  # type: ignore[misc] # typeshed calls it final, which it is not
    """A lock, and a place to wait for a change of what it guards: `with` holds it, `wait_for` waits."""

    def __init__(self) -> None:
        self._gates: list[Any] = []

    def is_held(self) -> bool:
        """Whether this thread holds it."""
        return self._is_owned()  # type: ignore[attr-defined,no-any-return]

    def drop(self) -> None:
        """Let go of it, if this thread holds it though it has left: an exception came on the way out of a `with`."""
        while self.is_held():
            self.release()

    def notify_all(self) -> None:
        """Have everybody who waits look at the state again."""
        for gate in self._gates:
            open_gate(gate)

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        """Return once the predicate holds, or after `timeout` seconds; whether it holds. The caller holds the lock."""
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
            self._return_from(gate)  # Once more: a signal may have cut it off.
            raise

    def _return_from(self, gate: Any) -> None:
        """Hold the lock again, whatever raises meanwhile; then raise that."""
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
    """Something that happens once: `set` says that it has, `wait` waits until then."""

    def __init__(self) -> None:
        self._changed = Monitor()
        self._is_set = False

    def is_set(self) -> bool:
        """Whether it has happened."""
        return self._is_set

    @guarded
    def set(self) -> None:
        """Let everybody know that it has happened."""
        self._is_set = True
        self._changed.notify_all()

    @guarded
    def wait(self, timeout: float | None = None) -> bool:
        """Return once it has happened, or after `timeout` seconds; whether it has."""
        return self._changed.wait_for(self.is_set, timeout)


class Places:
    """So many places, each for one holder at a time; who finds none waits, and those who wait go in their order.

    The pool of a client has one for each connection that it may open. Calls that wait for items at a host never take
    the last place, if there are several, and go behind all others. Safe for threads.
    """

    def __init__(self, count: int, lock: Monitor) -> None:
        """`lock` is that of the owner, which sees that nobody has left and holds it."""
        self._count = count
        self._count_for_waits = max(1, count - 1)
        self._lock = lock
        self._holders: set[object] = set()
        self._waiting: dict[object, Any] = {}
        """The gate of each who waits."""
        self._patient: dict[object, Any] = {}
        """The same of calls that wait for items."""

    @property
    def free_count(self) -> int:
        """How many places nobody has."""
        return self._count - len(self._holders)

    @property
    def is_wanted(self) -> bool:
        """Whether a call wants a place that does not wait for items."""
        return bool(self._waiting)

    def take(
        self, holder: object, timeout_s: float, *, is_wait: bool = False, on_full: Callable[[], None] | None = None
    ) -> bool:
        """Take a place within the time; whether there was one. `leave` ends it, however this has ended.

        is_wait: it is for a call that waits for items. on_full: what is done, under the lock, before any other call
        waits for a place.
        """
        waiting = self._patient if is_wait else self._waiting
        with self._lock:
            # Then nobody waits who may have it: `leave` sees to that.
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
        """Give back what the holder has or waits for, if anything. Safe to repeat, and after `take` was cut off."""
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

"""Responses to calls whose callers have given up, for threads; `foqs.client.aio.late` is the twin for tasks."""

from __future__ import annotations

from _thread import start_new_thread
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from foqs.client.client_errors import ClientClosedError
from foqs.client.flows import Call, Flow
from foqs.client.giving_back import LATE_CONNECTIONS_MAX, LATE_MS_MAX, LATE_ON_CLOSE_MS_MAX, log
from foqs.client.sync.monitor import Monitor, guarded
from foqs.model.errors import FoqsError

if TYPE_CHECKING:
    from foqs.client.sync.connections import ClientConnection


class LateAnswers:
    """Waits for responses without a waiting caller, each in a thread, and gives their items back.

    The pool of a client owns it and hands over the connections of these responses. `run` executes a verb; the client
    sets it. Safe for threads. Open responses are recorded by owner instead of counted, so that every step that a signal
    interrupts can be repeated.
    """

    def __init__(self) -> None:
        self.run: Callable[[Flow[None]], None] | None = None
        self._open: dict[object, bool] = {}
        """Owners of responses that are expected or being given back; True once the owner's thread has begun."""
        self._changed = Monitor()

    def take(self, connection: ClientConnection, call: Call) -> bool:
        """Own a connection until the response to an abandoned call has arrived; False if there are too many.

        Safe to repeat after an interruption: only one of the started threads continues.
        """
        if not self._has_room(connection):
            return False
        try:
            # Written in C, so no signal interrupts it. As with a daemon thread, the process can end before it.
            start_new_thread(self._wait, (connection, call))
        except RuntimeError:  # No threads can start, because the interpreter is ending.
            self.ended(connection)
            return False
        return True

    @guarded
    def _has_room(self, connection: ClientConnection) -> bool:
        if connection not in self._open and len(self._open) >= LATE_CONNECTIONS_MAX:
            return False
        self._open.setdefault(connection, False)
        return True

    def _wait(self, connection: ClientConnection, call: Call) -> None:
        with self._changed:
            if self._open.get(connection, True):
                return
            self._open[connection] = True
        try:
            try:
                response = connection.late_response(call, LATE_MS_MAX)
            finally:
                connection.close()
            self._release_late(call, response)
        finally:
            self.ended(connection)

    @guarded
    def expect(self, caller: object) -> None:
        """Record a caller that was made to give up and whose response is still to come, until it has `ended`."""
        self._open[caller] = True

    def came(self, caller: object, call: Call, response: Any) -> None:
        """Give back the items of an expected response."""
        try:
            self._release_late(call, response)
        finally:
            self.ended(caller)

    def _release_late(self, call: Call, response: Any) -> None:
        flow = call.late(response) if call.late is not None and response is not None else None
        if flow is not None and self.run is not None:
            try:
                self.run(flow)
            except (FoqsError, ClientClosedError) as error:
                log.warning("items that came too late were not given back: %s", error)

    @guarded
    def ended(self, owner: object) -> None:
        """Record that the owner is finished. Safe to repeat."""
        self._open.pop(owner, None)
        self._changed.notify_all()

    @guarded
    def close(self) -> None:
        """Wait until all responses have arrived and their items are given back, for a limited time."""
        self._changed.wait_for(lambda: not self._open, LATE_ON_CLOSE_MS_MAX / 1000)

"""Responses to calls whose callers have given up, for threads; `foqs.client.aio.late` is the twin for tasks."""

from __future__ import annotations

from _thread import start_new_thread
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from foqs.client.errors import ClientClosedError
from foqs.client.flows import Call, Flow
from foqs.client.giving_back import LATE_CONNECTIONS_MAX, LATE_MS_MAX, LATE_ON_CLOSE_MS_MAX, log
from foqs.client.sync.monitor import Monitor, guarded
from foqs.model.errors import FoqsError

if TYPE_CHECKING:
    from foqs.client.sync.connections import ClientConnection


class LateAnswers:
    """Waits for the responses that nobody else waits for, each in a thread, and has their items given back.

    The pool of a client owns it, and gives it the connections on which they come. `run` takes the steps of a verb; the
    client sets it. Safe for threads. What is open is known by who has it, not by a count, so that whatever was cut off
    by a signal can be done once more.
    """

    def __init__(self) -> None:
        self.run: Callable[[Flow[None]], None] | None = None
        self._open: dict[object, bool] = {}
        """Who waits for a response that may still come, or gives its items back; and whether its thread has begun."""
        self._changed = Monitor()

    def take(self, connection: ClientConnection, call: Call) -> bool:
        """Own a connection until the response has come to a call whose caller has gone; False for one too many.

        Safe to repeat after it was cut off: only one of the threads that it has started goes on.
        """
        if not self._has_room(connection):
            return False
        try:
            # Made in C, which no signal cuts off. Like a daemon it does not keep the process from ending.
            start_new_thread(self._wait, (connection, call))
        except RuntimeError:  # There are no threads any more: the interpreter ends.
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
            self._give_back(call, response)
        finally:
            self.ended(connection)

    @guarded
    def expect(self, caller: object) -> None:
        """Note that a caller was told to give up, whose response is still to come, until it has `ended`."""
        self._open[caller] = True

    def came(self, caller: object, call: Call, response: Any) -> None:
        """Give the items of a response back that was expected."""
        try:
            self._give_back(call, response)
        finally:
            self.ended(caller)

    def _give_back(self, call: Call, response: Any) -> None:
        flow = call.late(response) if call.late is not None and response is not None else None
        if flow is not None and self.run is not None:
            try:
                self.run(flow)
            except (FoqsError, ClientClosedError) as error:
                log.warning("items that came too late were not given back: %s", error)

    @guarded
    def ended(self, owner: object) -> None:
        """Note that nothing more comes of it. Safe to repeat."""
        self._open.pop(owner, None)
        self._changed.notify_all()

    @guarded
    def close(self) -> None:
        """Wait until all has come and is given back, but not for long."""
        self._changed.wait_for(lambda: not self._open, LATE_ON_CLOSE_MS_MAX / 1000)

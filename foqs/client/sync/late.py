"""Responses to calls whose callers have given up, for threads; `foqs.client.aio.late` is the twin for tasks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from foqs.client.errors import ClientClosedError
from foqs.client.flows import Call, Flow
from foqs.client.giving_back import LATE_CONNECTIONS_MAX, LATE_MS_MAX, LATE_ON_CLOSE_MS_MAX, log
from foqs.model.errors import FoqsError

if TYPE_CHECKING:
    from foqs.client.sync.connections import ClientConnection


class LateAnswers:
    """Waits for the responses that nobody else waits for, each in a thread, and has their items given back.

    The pool of a client owns it, and gives it the connections on which they come. `run` takes the steps of a verb; the
    client sets it. Safe for threads.
    """

    def __init__(self) -> None:
        self.run: Callable[[Flow[None]], None] | None = None
        self._open_count = 0
        """Responses that may still come, or whose items are being given back."""
        self._changed = threading.Condition()

    def take(self, connection: ClientConnection, call: Call) -> bool:
        """Own a connection until the response has come to a call whose caller has gone; False for one too many."""
        with self._changed:
            if self._open_count >= LATE_CONNECTIONS_MAX:
                return False
            self._open_count += 1
        thread = threading.Thread(target=self._wait, args=[connection, call], name="foqs-give-back", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # There are no threads any more: the interpreter ends.
            self._ended()
            return False
        return True

    def _wait(self, connection: ClientConnection, call: Call) -> None:
        try:
            try:
                response = connection.late_response(call, LATE_MS_MAX)
            finally:
                connection.close()
            self._give_back(call, response)
        finally:
            self._ended()

    def expect(self) -> None:
        """Note that a thread was told to give up, whose response is still to come."""
        with self._changed:
            self._open_count += 1

    def came(self, call: Call, response: Any) -> None:
        """Give the items of a response back that was expected; None where there is none."""
        try:
            self._give_back(call, response)
        finally:
            self._ended()

    def _give_back(self, call: Call, response: Any) -> None:
        flow = call.late(response) if call.late is not None and response is not None else None
        if flow is not None and self.run is not None:
            try:
                self.run(flow)
            except (FoqsError, ClientClosedError) as error:
                log.warning("items that came too late were not given back: %s", error)

    def _ended(self) -> None:
        with self._changed:
            self._open_count -= 1
            self._changed.notify_all()

    def close(self) -> None:
        """Wait until all has come and is given back, but not for long."""
        with self._changed:
            self._changed.wait_for(lambda: not self._open_count, LATE_ON_CLOSE_MS_MAX / 1000)

"""Notices to other hosts, which are kept until they are delivered.

A notice needs no answer but that it has arrived, so it can wait while its host does not answer. Questions are sent
without a courier, because their answers are awaited.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Mapping, Set
from itertools import islice
from typing import Generic, NamedTuple, TypeVar

from foqs.background.outage_log import OutageLog
from foqs.background.tasks import Tasks
from foqs.model.errors import FoqsError

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class CourierBounds(NamedTuple):
    """The bounds of the notices to one host."""

    kept_max: int
    """Notices that are kept, with those in flight."""
    message_max: int
    """Notices in one message."""
    answer_ms_max: int
    """Timeout of a message; its outcome is then unknown."""
    retry_ms: int
    """The pause after a message that has failed."""


class _Box(Generic[K, V]):
    """The notices to one host."""

    __slots__ = ("outage", "recalled", "sent", "task", "waiting")

    def __init__(self, outage: OutageLog) -> None:
        self.outage = outage
        self.waiting: OrderedDict[K, V] = OrderedDict()
        self.sent: dict[K, V] = {}
        """The notices in flight, without those that were withdrawn meanwhile."""
        self.recalled: dict[K, tuple[V, Callable[[V], None]]] = {}
        """Withdrawn notices in flight, each with the function that gets it if its message fails."""
        self.task: asyncio.Task[None] | None = None


class Courier(Generic[K, V]):
    """Sends values to hosts by key, with at most one message in flight to each. It owns the values until then.

    Two values for one key are joined. A value whose message has failed is sent again for as long as the host lives.
    """

    def __init__(
        self,
        tasks: Tasks,
        send: Callable[[str, Mapping[K, V]], Awaitable[object]],
        bounds: CourierBounds,
        outage: Callable[[], OutageLog],
        join: Callable[[V, V], V],
        again: Callable[[V, bool], V | None] = lambda value, nothing_done: value,
    ) -> None:
        """`tasks` are those of the owner, who stops them.

        `send` delivers a message to a host. `outage` makes the log of a host's failures. `join` returns one value for
        an older and a newer one. `again` returns the rest to send of a value whose message has failed, None for
        nothing; its second argument is False if the outcome is unknown.
        """
        self._tasks = tasks
        self._send = send
        self._bounds = bounds
        self._outage = outage
        self._join = join
        self._again = again
        self._boxes: dict[str, _Box[K, V]] = {}

    def __len__(self) -> int:
        """Return the number of values that are kept, for all hosts."""
        return sum([len(box.waiting) + len(box.sent) for box in self._boxes.values()])

    def put(self, host_id: str, key: K, value: V) -> bool:
        """Send a value once no message is in flight to the host. False if too many are kept for that host already."""
        box = self._boxes.get(host_id)
        if box is None:
            box = self._boxes[host_id] = _Box(self._outage())
        if key in box.waiting:
            value = self._join(box.waiting[key], value)
        elif len(box.waiting) + len(box.sent) >= self._bounds.kept_max:
            return False
        box.waiting[key] = value
        if box.task is None or box.task.done():
            box.task = self._tasks.spawn(self._deliver(host_id, box))
        return True

    def recall(self, host_id: str, key: K, returned: Callable[[V], None]) -> None:
        """Send the value for this key no more, and pass it to `returned`.

        The waiting value is returned now. A value in flight is returned, as far as it is to be sent again, if its
        message fails.
        """
        if (box := self._boxes.get(host_id)) is None:
            return
        if key in box.sent:
            box.recalled[key] = (box.sent.pop(key), returned)
        if key in box.waiting:
            returned(box.waiting.pop(key))

    def keep(self, host_ids: Set[str]) -> None:
        """Drop all values for other hosts, also those in flight."""
        for host_id in self._boxes.keys() - host_ids:
            if (task := self._boxes.pop(host_id).task) is not None:
                task.cancel()

    async def _deliver(self, host_id: str, box: _Box[K, V]) -> None:
        while box.waiting:
            message = dict(islice(box.waiting.items(), self._bounds.message_max))
            for key in message:
                del box.waiting[key]
            box.sent = dict(message)
            try:
                async with asyncio.timeout(self._bounds.answer_ms_max / 1000):
                    await self._send(host_id, message)
            except Exception as error:  # After any error the values are sent again, for as long as the host lives.
                reason = str(error) or f"it has not answered in time ({type(error).__name__})"
                box.outage.failed(reason, peer=host_id)
                self._put_back(box, nothing_done=isinstance(error, FoqsError) and error.nothing_done)
                await asyncio.sleep(self._bounds.retry_ms / 1000)
            else:
                box.outage.worked()
                box.sent, box.recalled = {}, {}

    def _put_back(self, box: _Box[K, V], *, nothing_done: bool) -> None:
        """Put the values still to be sent before the others, of which only those with the same keys cost anything."""
        for key, value in reversed(box.sent.items()):
            if (left := self._again(value, nothing_done)) is not None:
                box.waiting[key] = self._join(left, box.waiting[key]) if key in box.waiting else left
                box.waiting.move_to_end(key, last=False)
        recalled, box.sent, box.recalled = box.recalled, {}, {}
        for value, returned in recalled.values():
            if (left := self._again(value, nothing_done)) is not None:
                returned(left)

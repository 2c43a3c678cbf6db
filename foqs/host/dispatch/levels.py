"""The turns of a topic with fairness keys: the keys with the most urgent items take turns, and the others wait."""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING

from sortedcontainers import SortedDict

from foqs.model import order
from foqs.model.item import ShardItem

if TYPE_CHECKING:
    from foqs.host.dispatch.topic_queue import TopicQueue

ADOPTED_PER_TURN = 4
"""Topics of an older ring that find their places in each turn, so that no turn does so for all."""
URGENCIES_SKIPPED_MAX = 16
"""Priorities of a topic whose items can all be wanted already; behind them its place is an estimate."""
NOTHING = order.urgency_of(order.LAST)
"""The level of a topic without items."""


class Levels:
    """The topics of a ring by their levels, each the priority of the next item that no call wants yet.

    A place can be too urgent, since items leave without notice. So who takes the first topic checks its level again.
    """

    __slots__ = ("_level_of", "_rounds", "_unplaced")

    def __init__(self, before: Iterable[TopicQueue]) -> None:
        """`before` are the topics that the ring has had. The next turns find their places."""
        self._rounds: SortedDict = SortedDict()
        """The topics of each level, the one in turn first."""
        self._level_of: dict[TopicQueue, int] = {}
        self._unplaced = dict.fromkeys(before)

    def place(self, queue: TopicQueue, level: int) -> bool:
        """Put a topic behind all others of a level, unless it has it already. True if its level has changed."""
        before = self._level_of.get(queue)
        if before == level:
            return False
        self.remove(queue)
        self._level_of[queue] = level
        found: OrderedDict[TopicQueue, None] | None = self._rounds.get(level)
        if found is None:
            found = self._rounds[level] = OrderedDict()
        found[queue] = None
        return True

    def end_turn(self, queue: TopicQueue, level: int) -> None:
        """Put a topic whose turn is over behind all others of its level."""
        if not self.place(queue, level):
            self._rounds[level].move_to_end(queue)

    def remove(self, queue: TopicQueue) -> None:
        self._unplaced.pop(queue, None)
        level = self._level_of.pop(queue, None)
        if level is not None:
            found = self._rounds[level]
            del found[queue]
            if not found:
                del self._rounds[level]

    def first(self, *, needs_room: bool = True) -> TopicQueue:
        """Return the topic in turn. There must be one."""
        if self._unplaced:
            for queue in list(islice(self._unplaced, ADOPTED_PER_TURN)):
                self.place(queue, level_of(queue, needs_room=needs_room)[0])
        first: TopicQueue = next(iter(self._rounds.peekitem(0)[1]))
        return first


def level_of(queue: TopicQueue, *, needs_room: bool = True) -> tuple[int, int]:
    """Return the priority of the next item that no call wants, and the number of such items, or fewer.

    Items in the database alone count as one. Without `needs_room` items count that have no room for leases.
    """
    skip, buffer = queue.waiting_count, queue.buffer
    claimed_count = len(buffer) + queue.coming_count
    if skip < claimed_count:  # The items that are claimed are the most urgent ones.
        if buffer.sort_keys:
            return order.urgency_of(buffer.place_at(min(skip + 1, len(buffer)))), 1
        return order.urgency_of(min([part.claim_head for part in queue.parts.values()])), 1
    skip -= claimed_count
    windows = [
        part.window for part in queue.parts.values() if part.window.head != order.LAST and (not needs_room or part.room)
    ]
    level = min([order.urgency_of(window.head) for window in windows], default=NOTHING)
    for _ in range(URGENCIES_SKIPPED_MAX):
        if level == NOTHING:
            break
        bound, count, after = order.sort_key(level + 1, 0, 0, 0), 0, NOTHING
        for window in windows:
            at = bisect_left(window.sort_keys, bound)
            count += at
            if at < len(window.sort_keys):
                after = min(after, order.urgency_of(window.sort_keys[at]))
            elif window.edge < bound:
                count += 1
            else:
                after = min(after, order.urgency_of(window.edge))
        if count > skip:
            return level, count - skip
        level = after
    return level, 1


def in_turns(items: list[ShardItem]) -> list[ShardItem]:
    """Return the items of an answer in the order of priority, and of the turns of their keys within each."""
    seen: dict[tuple[str, int], int] = {}
    places: list[tuple[int, int, int]] = []
    for at, item in enumerate(items):
        urgency = order.urgency_of(item.sort_key)
        nth = seen.get((item.topic.name, urgency), 0)
        seen[item.topic.name, urgency] = nth + 1
        places.append((urgency, nth, at))
    return [items[at] for _, _, at in sorted(places)]

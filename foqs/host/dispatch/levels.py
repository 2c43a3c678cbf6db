"""The turns of a topic with fairness keys: the keys with the most urgent items take turns, and the others wait."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterable
from itertools import islice
from operator import neg
from typing import TYPE_CHECKING

from sortedcontainers import SortedDict

from foqs.model import order
from foqs.model.item import ShardItem

if TYPE_CHECKING:
    from foqs.host.dispatch.topic_queue import TopicQueue
    from foqs.model.topic import ReadyWindow

ADOPTED_PER_TURN = 4
"""Topics of an older ring that find their places in each turn, so that no turn does so for all."""
LEVELS_KEPT_MAX = 16
"""Levels in whose rounds a topic keeps its place."""
URGENCIES_SKIPPED_MAX = 16
"""Priorities of a topic whose items can all be wanted already; behind them its place is an estimate."""
_ANY_COUNT = 1 << 40
"""More items than a topic can have."""
NOTHING = order.urgency_of(order.LAST)
"""The level of a topic without items."""


class Levels:
    """The topics of a ring by their levels, each the priority of the next item that no call wants yet.

    A topic with a more urgent item keeps its place among those of the level that it had, so that urgent items of a key
    cost its other items no turn. A place can be too urgent, since items leave without notice. So who takes the first
    topic checks its level again.
    """

    __slots__ = ("_levels_of", "_rounds", "_unplaced")

    def __init__(self, before: Iterable[TopicQueue]) -> None:
        """`before` are the topics that the ring has had. The next turns find their places."""
        self._rounds: SortedDict = SortedDict()
        """The topics of each level, the one in turn first."""
        self._levels_of: dict[TopicQueue, list[int]] = {}
        """The levels in whose rounds a topic is, its present one first."""
        self._unplaced = dict.fromkeys(before)

    def place(self, queue: TopicQueue, level: int) -> bool:
        """Set the level of a topic, whose place is behind all others if it is new there. True if it has changed."""
        levels = self._levels_of.get(queue)
        if levels is None:
            self._unplaced.pop(queue, None)
            levels = self._levels_of[queue] = []
        elif levels[0] == level:
            return False
        while levels and levels[0] < level:
            self._leave_round(queue, levels.pop(0))  # It has no such items any more.
        if not levels or levels[0] != level:
            levels.insert(0, level)
            found: OrderedDict[TopicQueue, None] | None = self._rounds.get(level)
            if found is None:
                found = self._rounds[level] = OrderedDict()
            found[queue] = None
        if len(levels) > LEVELS_KEPT_MAX:
            self._leave_round(queue, levels.pop())
        return True

    def end_turn(self, queue: TopicQueue, level: int) -> None:
        """Put a topic whose turn is over behind all others of its level, and set its next level."""
        self._rounds[self._levels_of[queue][0]].move_to_end(queue)
        self.place(queue, level)

    def restore_turn(self, queue: TopicQueue) -> None:
        """Let the next turn of its level be that of a topic whose turn brought no item."""
        levels = self._levels_of.get(queue)
        if levels is not None:
            self._rounds[levels[0]].move_to_end(queue, last=False)

    def remove(self, queue: TopicQueue) -> None:
        self._unplaced.pop(queue, None)
        for level in self._levels_of.pop(queue, ()):
            self._leave_round(queue, level)

    def _leave_round(self, queue: TopicQueue, level: int) -> None:
        found = self._rounds[level]
        del found[queue]
        if not found:
            del self._rounds[level]

    def first(self, *, needs_room: bool = True) -> TopicQueue:
        """Return the topic in turn. There must be one."""
        if self._unplaced:
            for queue in list(islice(self._unplaced, ADOPTED_PER_TURN)):
                self.place(queue, level_of(queue, needs_room=needs_room))
        first: TopicQueue = next(iter(self._rounds.peekitem(0)[1]))
        return first


def level_of(queue: TopicQueue, *, needs_room: bool = True) -> int:
    """Return the priority of the next item that no call wants, or NOTHING.

    Claims in flight count as claims of their most urgent item. Without
    `needs_room` items count that have no room for leases.
    """
    windows: list[ReadyWindow] = []
    coming: list[tuple[int, int]] = []
    claimed, first = queue.buffer.sort_keys, queue.buffer.first
    for part in queue.parts.values():
        if part.claiming_count:
            coming.append((part.claim_head, part.claiming_count))
            first = min(first, part.claim_head)
        head = part.window.head
        if head != order.LAST and (not needs_room or part.room):
            windows.append(part.window)
            first = min(first, head)
    level = order.urgency_of(first)
    for _ in range(URGENCIES_SKIPPED_MAX):
        if level == NOTHING:
            break
        bound, count, after = order.sort_key(level + 1, 0, 0, 0), -queue.waiting_count, order.LAST
        for window in windows:
            at = bisect_left(window.sort_keys, bound)
            count += at
            if at < len(window.sort_keys):
                after = min(after, window.sort_keys[at])
            elif window.edge < bound:
                count += _ANY_COUNT  # There can be any number in the database.
            else:
                after = min(after, window.edge)
        if claimed:
            at = bisect_right(claimed, -bound, key=neg)
            count += len(claimed) - at
            after = min(after, claimed[at - 1]) if at else after
        for head, coming_count in coming:
            if head < bound:
                count += coming_count
            else:
                after = min(after, head)
        if count > 0:
            return level
        level = order.urgency_of(after)
    return level


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

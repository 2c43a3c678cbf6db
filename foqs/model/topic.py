"""A topic of one shard, with its number, ready window and exact counts; and the topics of a namespace, in order."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, MutableMapping, Sequence
from typing import TYPE_CHECKING

from sortedcontainers import SortedDict

from foqs.model import limits, order
from foqs.model.item import Phase, ShardItem
from foqs.model.policy import TopicPolicy
from foqs.model.serial import OnDead, oldest_shown
from foqs.model.topic_name import base_of, fairness_key_of, is_ordered, ordering_key_of, parts
from foqs.model.window_budget import WindowBudget

if TYPE_CHECKING:
    from foqs.model.topic_table import TopicTable

OLDEST_URGENCIES_MAX = 16
"""Priorities of a topic that are checked for its oldest item."""
OLDEST_ITEMS_MAX = 256
"""Items of a topic with more urgencies that are checked for the oldest one."""
OPEN_LEASES_OF_TOPIC_RATIO = 4
"""Ratio of a topic's leases to the free leases of the shard: one topic can have 200,000 leases, two can have 111,111
each.
"""
KEYED_TOPIC_IDLE_MS = 2 * limits.SECOND_MS
"""Time after which an empty keyed topic is forgotten: there can be many, each with an item now and then."""

NO_EVENTS = (0, 0, 0, 0)
"""The counts of a topic without events, as `take_counts` takes them."""
NO_SLOT = -1
"""The slot of a topic that is not serial."""

_FEW = 16
"""Sort keys are inserted one by one if fewer than one in this many of the list; more are sorted with it."""


class ItemCounts:
    """The number of items in each state, of a topic, of a namespace on a shard, or of a shard.

    Counts of a part are added to its parent as well, so that no reader has to sum over all topics.
    """

    __slots__ = ("dead", "delayed", "leased", "parent", "rows")

    def __init__(self, parent: ItemCounts | None) -> None:
        self.parent = parent
        """The counts of which these are a part."""
        self.rows = 0
        """Items that are ready, claimed or under lease."""
        self.leased = 0
        self.delayed = 0
        self.dead = 0

    @property
    def ready(self) -> int:
        return self.rows - self.leased

    @property
    def total(self) -> int:
        """The number of items in all states."""
        return self.rows + self.delayed + self.dead

    def count(self, rows: int = 0, leased: int = 0, delayed: int = 0, dead: int = 0) -> None:
        """Add these changes to the counts, of this part and its parents."""
        part: ItemCounts | None = self
        while part is not None:
            part.rows += rows
            part.leased += leased
            part.delayed += delayed
            part.dead += dead
            part = part.parent

    def count_leased(self, count: int) -> None:
        """Add a change of leases, which begin and end most often."""
        part: ItemCounts | None = self
        while part is not None:
            part.leased += count
            part = part.parent


class ReadyWindow:
    """The most urgent ready items of one lane, by sort key, up to an edge beyond which only the database knows.

    Each topic of a shard has one, and so has the timer lane. It takes items before the edge, drops its least urgent
    part if the shard's budget requires it, and wants a refill when it runs short. Every row of the lane at or before
    `edge` that is not taken is in the window, and rows after it are only in the database. So neither memory nor the
    time from a take-over to its first item grows with the backlog.
    """

    __slots__ = ("budget", "edge", "refilling", "sort_keys")

    def __init__(self, budget: WindowBudget, *, complete: bool) -> None:
        self.sort_keys: list[int] = []
        """The sort keys in order: a plain list, docs/decisions/0012."""
        self.edge = order.LAST if complete else order.FIRST
        self.refilling = False
        self.budget = budget

    def __len__(self) -> int:
        return len(self.sort_keys)

    @property
    def complete(self) -> bool:
        return self.edge == order.LAST

    @property
    def wants_refill(self) -> bool:
        return self.edge != order.LAST and not self.refilling and len(self.sort_keys) < self.budget.items_low

    @property
    def head(self) -> int:
        """A bound that no row of the lane stands before, unless it is taken; order.LAST if no row is left."""
        return self.sort_keys[0] if self.sort_keys else self.edge

    def add(self, sort_key: int) -> None:
        if sort_key <= self.edge:
            insort(self.sort_keys, sort_key)
            self.budget.items_count += 1
            if len(self.sort_keys) > limits.WINDOW_ITEMS_MIN:
                self._trim()

    def add_all(self, added: list[int]) -> None:
        """Add many sort keys, in any order."""
        sort_keys = self.sort_keys
        if self.edge != order.LAST:
            added = [sort_key for sort_key in added if sort_key <= self.edge]
        if len(added) * _FEW < len(sort_keys):
            for sort_key in added:
                insort(sort_keys, sort_key)
        else:
            sort_keys += added
            sort_keys.sort()
        self.budget.items_count += len(added)
        if len(sort_keys) > limits.WINDOW_ITEMS_MIN:
            self._trim()

    def remove(self, sort_key: int) -> bool:
        """Remove one sort key. Returns False if it is not in the window."""
        at = bisect_left(self.sort_keys, sort_key)
        if at == len(self.sort_keys) or self.sort_keys[at] != sort_key:
            return False
        del self.sort_keys[at]
        self.budget.items_count -= 1
        return True

    def first(self, count: int, before: int = order.FIRST, bound: int = limits.WINDOW_ITEMS_MAX) -> list[int]:
        """Return the first `count` sort keys, and all before `before`, up to `bound` in all."""
        return self.sort_keys[: min(bound, max(count, bisect_left(self.sort_keys, before)))]

    def take(self, count: int) -> list[int]:
        taken = self.sort_keys[:count]
        del self.sort_keys[:count]
        self.budget.items_count -= len(taken)
        return taken

    def extend(self, sort_keys: Sequence[int], edge: int) -> None:
        """Add the items that a scan found from the old edge up to the new one (order.LAST: nothing lies beyond)."""
        self.sort_keys += sort_keys
        self.sort_keys.sort()
        self.budget.items_count += len(sort_keys)
        self.edge = edge
        if len(self.sort_keys) > limits.WINDOW_ITEMS_MIN:
            self._trim()

    def oldest_due_at(self) -> int | None:
        """Return the earliest due time in the window; None if it is empty.

        Within one urgency the first item is the oldest, so the OLDEST_URGENCIES_MAX most urgent urgencies are checked.
        In a topic that ages nearly each item has an urgency of its own, and old ones are near the head, so with more
        urgencies the first OLDEST_ITEMS_MAX items are checked as well.
        """
        sort_keys = self.sort_keys
        if not sort_keys:
            return None
        first, last = sort_keys[0], sort_keys[-1]
        oldest = order.due_at_of(first)
        for _ in range(OLDEST_URGENCIES_MAX - 1):
            if order.are_as_urgent(first, last):
                break  # Most topics end here at once, which matters because a host checks all topics in turn.
            first = sort_keys[bisect_left(sort_keys, order.sort_key(order.urgency_of(first) + 1, 0, 0, 0))]
            oldest = min(oldest, order.due_at_of(first))
        else:
            oldest = min(oldest, *map(order.due_at_of, sort_keys[:OLDEST_ITEMS_MAX]))
        return oldest

    def _trim(self) -> None:
        """Drop the least urgent part of a window that is too long; short ones do not ask the budget."""
        items_max = self.budget.items_max
        if len(self.sort_keys) <= items_max:
            return
        keep = items_max * 3 // 4
        self.budget.items_count += keep - len(self.sort_keys)
        del self.sort_keys[keep:]
        self.edge = self.sort_keys[-1]


class NamespaceTopics(ItemCounts):
    """The topics of one namespace on one shard: their counts together, and the topics by name, in order."""

    __slots__ = ("_table", "by_name")

    def __init__(self, table: TopicTable) -> None:
        super().__init__(table.counts)
        self._table = table
        self.by_name: SortedDict = SortedDict()
        """ShardTopic by name."""

    def after(self, name: str, prefix: str) -> Iterator[ShardTopic]:
        """Yield its topics whose names come after `name` and begin with `prefix`, in the order of their names."""
        is_within = prefix <= name
        by_name = self.by_name
        for found in by_name.irange(name if is_within else prefix, inclusive=(not is_within, True)):
            if not found.startswith(prefix):
                return
            yield by_name[found]

    def all(self) -> Iterator[ShardTopic]:
        """Yield its topics, each with its keyed topics behind it."""
        for topic in self.by_name.values():
            yield topic
            if topic.keyed is not None:
                yield from topic.keyed.by_name.values()

    def is_counted(self) -> bool:
        """Return True if the counts are exact."""
        return self._table.counted

    def note_order(self, topic: ShardTopic) -> None:
        self._table.note_order(topic)

    def is_shut(self, slot: int) -> bool:
        """Return True if the shard delivers no item of the serial topics of this slot now."""
        return slot in self._table.shut_slots

    def emptied(self, topic: ShardTopic) -> None:
        self._table.note_empty(topic)


class KeyedTopics(ItemCounts):
    """The keyed topics of one base on one shard: their counts together, and the topics by name, in order."""

    __slots__ = ("by_name", "holding_count", "holding_fair_count")

    def __init__(self, namespace: ItemCounts) -> None:
        super().__init__(namespace)
        self.by_name: SortedDict = SortedDict()
        """ShardTopic by name."""
        self.holding_count = 0
        """The topics that have items."""
        self.holding_fair_count = 0
        """The topics of fairness keys that have items."""


class ShardTopic(ItemCounts):
    """A topic of a shard. Its counts are changes since the take-over until the shard's rows are counted, and exact
    after.
    """

    __slots__ = (
        "base", "base_name", "batch_max", "claim_head", "claiming_count", "delivered_count", "ended_count",
        "enqueued_count", "failed_count", "fairness_key", "first_enqueued_at", "has_places", "holds_on_dead",
        "is_serial", "keyed", "leases", "name", "namespace", "number", "of_namespace", "ordering_key", "out_count",
        "permits", "permits_granted", "run", "shard_id", "shown", "slot", "stored", "window",
    )  # fmt: skip

    def __init__(
        self,
        shard_id: int,
        number: int,
        namespace: int,
        name: str,
        budget: WindowBudget,
        leases: MutableMapping[int, ShardItem],
        *,
        stored: bool,
    ) -> None:
        super().__init__(None)
        self.of_namespace: NamespaceTopics | None = None
        """None while it is not a topic of the shard; then its changes are not counted."""
        self.shard_id = shard_id
        self.number = number
        self.namespace = namespace
        self.name = name
        base, group = parts(name)
        self.shown = base, group or None
        """The topic and the group that callers see; the group is None for the topic's own."""
        self.base_name = base_of(name)
        """Its hidden name without its key, if it is a keyed topic."""
        self.ordering_key = ordering_key_of(name)
        """The key that all its items have in common; None unless it is the keyed topic of one."""
        self.fairness_key = fairness_key_of(name)
        """The same of fairness keys, whose topics take turns."""
        self.base: ShardTopic | None = None
        """The topic whose keyed topic it is, if it is one and is known to its shard."""
        self.keyed: KeyedTopics | None = None
        """Its own keyed topics, if it has some."""
        self.stored = stored
        """True if its row is in the topic table."""
        self.leases = leases
        """The open leases of the shard."""
        self.window = ReadyWindow(budget, complete=not stored)
        self.claim_head = order.LAST
        """The first sort key that was taken from the window and whose claim is not committed yet."""
        self.claiming_count = 0
        """Claims on the way to the database."""
        self.out_count = 0
        """Its items in the shard's table of leases: those claimed, prefetched, under lease or being settled. Those of
        its keyed topics count as well.
        """
        self.is_serial = is_ordered(name)
        """True if it delivers one item at a time, or one run of items."""
        self.batch_max = 1
        """The most items of a run, being serial."""
        self.run: list[ShardItem] = []
        """The items that it has delivered last, in order, being serial. All end before others are delivered."""
        self.slot = NO_SLOT
        """Its slot while it is a serial topic of the shard."""
        self.has_places = False
        """True once it got an item with a place of its own, since it ages or did so (foqs/model/aging.py)."""
        self.holds_on_dead = False
        """True if it delivers nothing while it has a dead letter, being serial."""
        self.first_enqueued_at = 0
        """A time before which no waiting item of a serial topic was enqueued; 0 if unknown."""
        self.permits: int | None = None
        """The bound of `out_count` for further claims; None if the topic has no limit of items in flight."""
        self.permits_granted = 0
        """The permits that the book of the topic has noted for this shard, as far as this host knows: never less than
        the book has.
        """
        # Written where a batch of its items is enqueued, delivered or ends. A base counts for its keyed topics.
        self.enqueued_count = self.delivered_count = self.ended_count = self.failed_count = 0
        """The events since the host's sampler of rates has last taken them; see `take_counts`."""

    def take_counts(self) -> tuple[int, int, int, int] | None:
        """Return the items enqueued, the deliveries, the ended lives and the failed attempts since the last call.

        They are then counted anew. Returns None if all are 0.
        """
        counts = self.enqueued_count, self.delivered_count, self.ended_count, self.failed_count
        if counts == NO_EVENTS:
            return None
        self.enqueued_count = self.delivered_count = self.ended_count = self.failed_count = 0
        return counts

    def follow(self, serial: TopicPolicy | None) -> None:
        """Set the order of its deliveries by the policy of its topic, which is None unless it is serial."""
        self.is_serial = serial is not None
        self.batch_max = max(1, serial.key_batch) if serial is not None else 1
        if not self.is_serial:
            self.run = []
        self.holds_on_dead = serial is not None and serial.on_dead is OnDead.HOLD
        if self.of_namespace is not None:
            self.of_namespace.note_order(self)

    def count(self, rows: int = 0, leased: int = 0, delayed: int = 0, dead: int = 0) -> None:
        base, was_empty = self.base, self.empty
        super().count(rows, leased, delayed, dead)
        if base is not None and base.keyed is not None and was_empty != self.empty:
            change = 1 if was_empty else -1
            base.keyed.holding_count += change
            if self.fairness_key is not None:
                base.keyed.holding_fair_count += change
        if self.of_namespace is not None and self.empty:
            self.of_namespace.emptied(self)

    @property
    def empty(self) -> bool:
        return not (self.rows or self.delayed or self.dead)

    @property
    def holds_any(self) -> bool:
        """True if it has items, or a keyed topic of it possibly has some."""
        return not self.empty or self.keyed is not None

    @property
    def depth(self) -> int:
        """Its ready, delayed and leased items, and those of its keyed topics."""
        own = self.rows + self.delayed
        return own if self.keyed is None else own + self.keyed.rows + self.keyed.delayed

    @property
    def ready_with_keyed(self) -> int:
        """Its ready items, and those of its keyed topics."""
        return self.ready if self.keyed is None else self.ready + self.keyed.ready

    @property
    def room(self) -> int:
        """The number of further items that can be claimed.

        A topic can have a multiple of the leases that are free for all, so one that never settles leaves room for the
        others (dynamic thresholds, Choudhury and Hahne 1998).
        """
        if self.is_serial:
            return self._serial_room()
        ratio, free = OPEN_LEASES_OF_TOPIC_RATIO, limits.OPEN_LEASES_MAX - len(self.leases)
        spare = ratio * free - self.leased - self.claiming_count
        room = (spare + ratio) // (ratio + 1) if spare > 0 else 0  # Each claim also reduces the free leases by one.
        holder = self if self.base is None else self.base
        return room if holder.permits is None else max(0, min(room, holder.permits - holder.out_count))

    @property
    def needs_permits(self) -> bool:
        """True if it has a limit of items in flight, of its own or of its base."""
        return (self if self.base is None else self.base).permits is not None

    @property
    def lacks_permits(self) -> bool:
        """True if it has ready items and no permit to claim one. A serial topic needs as many as a run has items."""
        if self.permits is None or self.permits > self.out_count or not self._permits_left_count:
            return False
        return self.window.head != order.LAST or (self.keyed is not None and self.keyed.ready > 0)

    @property
    def permits_wanted_count(self) -> int:
        """The permits that its known ready items need."""
        # A window without items has its first ones in the database.
        count = max(1, len(self.window) + (0 if self.keyed is None else self.keyed.ready))
        return min(count, self._permits_left_count)

    @property
    def _permits_left_count(self) -> int:
        """The further permits that it could use with enough ready items."""
        if not self.is_serial or self.keyed is not None:
            return limits.OPEN_LEASES_MAX
        return max(0, self.batch_max - (self.permits or 0))

    @property
    def waits_for_permit(self) -> bool:
        """True for a keyed topic, or the base of some, that has room for an item, if only the base had a permit."""
        base = self if self.base is None else self.base
        is_short = base.keyed is not None and base.permits is not None and base.permits <= base.out_count
        is_free = not self.is_serial or self.is_idle
        return is_short and is_free and self.window.head != order.LAST

    def _serial_room(self) -> int:
        """The items of a run if no item is out or waits for its next attempt, and nothing keeps the topic back: no dead
        letter, and no other shard; else 0.

        Until the rows are counted, an item can wait unknown.
        """
        namespace = self.of_namespace
        if namespace is None or not namespace.is_counted() or self.out_count or self.delayed:
            return 0
        if namespace.is_shut(self.slot):
            return 0
        is_held = self.holds_on_dead and self.dead
        if is_held:
            return 0
        room = min(self.batch_max, limits.OPEN_LEASES_MAX - len(self.leases))
        holder = self if self.base is None else self.base
        return max(0, room if holder.permits is None else min(room, holder.permits - holder.out_count))

    @property
    def has_run_out(self) -> bool:
        """True if an item of its run has not ended, being serial."""
        return any(item.phase in (Phase.LEASED, Phase.SETTLING) for item in self.run)

    @property
    def holds_back(self) -> bool:
        """True if its claimed items must not be delivered now, being serial: an item of its run has not ended, an item
        waits for its next attempt, or a dead letter holds it. An item that is just ending counts as a dead letter.
        """
        is_held = self.holds_on_dead and bool(self.dead or self.leased)
        return is_held or bool(self.delayed) or self.has_run_out

    @property
    def is_idle(self) -> bool:
        """True if it has no item that is out or waits for its next attempt."""
        return not (self.out_count or self.delayed)

    @property
    def is_live(self) -> bool:
        """True if it has items that can be delivered without a redrive, or a dead letter that keeps it back."""
        return bool(self.rows or self.out_count or self.delayed or (self.holds_on_dead and self.dead))

    def oldest_due_at(self) -> int | None:
        """Return the earliest due time of the ready items in its window, or None."""
        return oldest_shown(self.window.oldest_due_at(), self.first_enqueued_at)

    @property
    def first_sort_key(self) -> int:
        """The most urgent item that can be claimed or is being claimed; the last sort key if none."""
        head = self.window.head
        return head if head < self.claim_head and self.room else self.claim_head

    def __repr__(self) -> str:
        return f"ShardTopic({self.shard_id}, {self.name!r})"

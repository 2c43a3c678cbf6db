"""One namespace on this host: its cap, its weighted turns, and its calls for any topic."""

from __future__ import annotations

from collections import OrderedDict
from itertools import chain, islice
from typing import TYPE_CHECKING

from foqs.host.dispatch.levels import NOTHING, Levels, level_of
from foqs.model import limits
from foqs.model.caps import Cap

if TYPE_CHECKING:
    from foqs.host.dispatch.topic_queue import DequeueCall, TopicQueue


class ReadyRing:
    """A round of the topics of a namespace that begin with a prefix and possibly have items to deliver.

    All topics of a ring stand for the same consumer group. The ring of a base has the base itself and its keyed topics;
    in all other rings the base stands for them, so that keys share the turns of their topic.

    The topic in turn delivers as many items as it has credit. Its credit grows by its weight with each turn (weighted
    deficit round robin, Shreedhar and Varghese 1996). A topic without items, or one that is held back, is in no ring.

    In the ring of a base with fairness keys, the topics with the most urgent items alone take turns, of one item each.
    """

    __slots__ = (
        "base", "callers_count", "current", "entries", "group", "is_offered", "lacking", "lacking_levels", "levels",
        "prefix", "tenant", "unfilled", "used_s", "waiting",
    )  # fmt: skip

    def __init__(self, tenant: Tenant, prefix: str, group: str = "", base: TopicQueue | None = None) -> None:
        self.tenant = tenant
        self.base = base
        """The topic whose keyed topics these are; None for a ring of any topics."""
        self.is_offered = False
        """True if the base stands for its ring in other rings."""
        self.prefix = prefix
        self.group = group
        self.entries: OrderedDict[TopicQueue, int] = OrderedDict()
        """The credit of each topic, the topic in turn first."""
        self.current: TopicQueue | None = None
        """The topic whose turn has begun."""
        self.callers_count = 0
        """Calls that take items of any of these topics, and are not over."""
        self.lacking: OrderedDict[TopicQueue, None] = OrderedDict()
        """Keyed topics that are in no ring while their base has no permit for their items."""
        self.levels: Levels | None = None
        self.lacking_levels: Levels | None = None
        """The same topics as `entries`, and as `lacking`, by the priority of their items; None without such keys."""
        self.waiting: dict[DequeueCall, None] = {}
        """Calls that want items of any of these topics, the oldest first."""
        self.unfilled: list[list[TopicQueue]] = []
        """Slices of older topics that have still to be compared with the prefix."""
        self.used_s = 0.0
        """The time of the last call that named the prefix."""

    def rank(self) -> None:
        """Order the topics by priority from now on."""
        if self.levels is None:
            self.levels, self.lacking_levels = Levels(self.entries), Levels(self.lacking)

    def join(self, queue: TopicQueue) -> None:
        self.entries.setdefault(queue, 0)
        if self.levels is not None:
            self.levels.place(queue, level_of(queue))

    def is_unread(self, queue: TopicQueue) -> bool:
        """True if items of a topic without known ones are as urgent as those of other keys, which wait for it then."""
        return self.levels is not None and not queue.is_paused and level_of(queue) != NOTHING

    def wanted_count(self) -> int:
        """Return the number of items that its first calls want of any of its topics."""
        return sum([call.lacks[self] for call in islice(self.waiting, limits.DEQUEUES_ENDED_PER_TICK)])

    def first(self) -> TopicQueue:
        """Return the topic in turn, or a topic that was as urgent before."""
        return next(iter(self.entries)) if self.levels is None else self.levels.first()

    def turn(self) -> tuple[TopicQueue, int] | None:
        """Return the topic in turn and its credit; begin its turn if it has not begun.

        Returns None if the topic in turn was less urgent than others: it has another place now.
        """
        queue = self.first()
        if self.levels is not None:
            is_moved = self.levels.place(queue, level_of(queue))
            return None if is_moved and self.levels.first() is not queue else (queue, 1)
        if self.current is not queue:
            self.current = queue
            self.entries[queue] += queue.weight
        return queue, self.entries[queue]

    def bounds(self, queue: TopicQueue) -> bool:
        """Return True if a call gets no more of the topic than it has credit here.

        A single topic has every turn, and each turn of an ordering key brings its run.
        """
        return len(self.entries) > 1 and not (queue.is_serial and self.base is not None)

    def lack(self, queue: TopicQueue) -> None:
        """Note a topic that lacks a permit."""
        self.lacking[queue] = None
        if self.lacking_levels is not None:
            self.lacking_levels.place(queue, level_of(queue, needs_room=False))

    def keep_lacking(self, queue: TopicQueue) -> None:
        """Note a topic some of whose shards lack permits: its place is another one once they have these."""
        if self.levels is not None and (queue in self.lacking or queue.lacks_room()):
            self.lack(queue)

    def take_lacking(self) -> TopicQueue:
        """Take out the next topic that lacked a permit."""
        levels = self.lacking_levels
        queue = next(iter(self.lacking)) if levels is None else levels.first(needs_room=False)
        self.forget_lacking(queue)
        return queue

    def forget_lacking(self, queue: TopicQueue) -> None:
        self.lacking.pop(queue, None)
        if self.lacking_levels is not None:
            self.lacking_levels.remove(queue)

    def refund(self, queue: TopicQueue, count: int) -> None:
        """Return credit to a topic whose turn brought `count` items fewer than wanted, because they came too late."""
        if queue not in self.entries:
            return
        if self.levels is not None:
            self.levels.restore_turn(queue)
        else:
            self.entries[queue] = min(self.entries[queue] + count, max(queue.weight, limits.TOPIC_WEIGHT_MAX))

    def remove(self, queue: TopicQueue) -> None:
        self.entries.pop(queue, None)
        if self.levels is not None:
            self.levels.remove(queue)
        if self.current is queue:
            self.current = None

    def end_turn(self, queue: TopicQueue, credit: int) -> None:
        """Set the credit that a topic has left. Without credit its turn ends, and the next topic has the turn."""
        if self.levels is not None:
            self.levels.end_turn(queue, level_of(queue))
            return
        self.entries[queue] = credit
        if credit <= 0:
            self.current = None
            self.entries.move_to_end(queue)


class Tenant:
    """One namespace on this host: its state for the choice of items and calls. The dispatcher makes it."""

    __slots__ = (
        "asking_permits_count", "cap", "is_any_first", "keyed_waiting", "namespace", "of_groups", "prefix_lengths",
        "queues_count",
        "ring", "rings",
        "token_wait_slot", "turn_count", "version", "waiting_any_count", "waiting_topics",
    )  # fmt: skip

    def __init__(self, namespace: int) -> None:
        self.namespace = namespace
        self.version = -1
        """The version of the settings that it has applied."""
        self.cap: Cap | None = None
        self.asking_permits_count = 0
        """Its topics whose books of permits are being asked."""
        self.queues_count = 0
        self.ring = ReadyRing(self, "")
        """The ring of all its topics, for the group "" of each."""
        self.of_groups: dict[TopicQueue, None] = {}
        """The groups other than "" that possibly have items to deliver. New rings of groups are filled from them."""
        self.rings: dict[tuple[str, str], ReadyRing] = {}
        """The rings of calls that name a prefix or a group, by group and prefix."""
        self.prefix_lengths: list[int] = []
        """The distinct lengths of these prefixes."""
        self.keyed_waiting: OrderedDict[ReadyRing, None] = OrderedDict()
        """The rings of bases that calls wait for."""
        self.waiting_any_count = 0
        """Calls in all rings that want items of any topic, those of bases included."""
        self.waiting_topics: OrderedDict[TopicQueue, None] = OrderedDict()
        """Topics with calls that wait for a token of the namespace, in the order in which they get one."""
        self.token_wait_slot = 0
        """The slot of the wheel until which it waits for a token; 0 when it does not."""
        self.is_any_first = False
        """True if calls for any topic take their tokens first this time. The next time, topics that wait do."""
        self.turn_count = 0
        """Tokens that the topic, or the calls, in turn can take now; 0 outside a turn."""

    def rings_of(self, name: str, group: str) -> list[ReadyRing]:
        """Return the rings that match a topic, for a consumer group of it."""
        own = [] if group else [self.ring]
        if not self.rings:
            return own
        keys = {(group, name[:length]) for length in self.prefix_lengths}
        return own + [self.rings[key] for key in keys if key in self.rings]

    def waiting_calls(self) -> list[DequeueCall]:
        """Return up to limits.DEQUEUES_ENDED_PER_TICK of its calls for any topic."""
        of_rings = [ring.waiting for ring in chain((self.ring,), self.rings.values(), self.keyed_waiting)]
        return list(islice(chain(*of_rings), limits.DEQUEUES_ENDED_PER_TICK))

    def has_entries(self) -> bool:
        return any(ring.entries for ring in chain((self.ring,), self.rings.values(), self.keyed_waiting))

    def enter(self, queue: TopicQueue) -> None:
        """Add a topic with possible items to its rings."""
        queue.in_ring = True
        base = queue.base_queue or queue
        if base.keyed_ring is None:
            self._enter_rings(queue)
        else:
            base.keyed_ring.join(queue)
            self.offer(base)

    def leave(self, queue: TopicQueue) -> None:
        """Remove a topic from its rings, because it has no items or is held back."""
        queue.in_ring = False
        base = queue.base_queue or queue
        keyed = base.keyed_ring
        if keyed is not None:
            keyed.remove(queue)
            if keyed.entries:
                return
            keyed.is_offered = False
        self._leave_rings(base)

    def offer(self, base: TopicQueue) -> None:
        """Let a base stand for its ring in other rings, if it has entries and nothing holds it back."""
        keyed = base.keyed_ring
        if keyed is not None and keyed.entries and not (keyed.is_offered or base.is_held):
            keyed.is_offered = True
            self._enter_rings(base)

    def hold_back(self, queue: TopicQueue) -> None:
        """Remove a topic from its rings, because it is paused or lacks tokens. Its keyed topics stay in theirs."""
        if queue.keyed_ring is None:
            self.leave(queue)
        else:
            queue.keyed_ring.is_offered = False
            self._leave_rings(queue)

    def _enter_rings(self, queue: TopicQueue) -> None:
        if queue.group:
            self.of_groups[queue] = None
        for ring in self.rings_of(queue.base, queue.group):
            ring.entries.setdefault(queue, 0)

    def _leave_rings(self, queue: TopicQueue) -> None:
        self.of_groups.pop(queue, None)
        for ring in self.rings_of(queue.base, queue.group):
            ring.remove(queue)

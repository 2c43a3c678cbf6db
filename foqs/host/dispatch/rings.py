"""Dequeues from any topic of a namespace, or from any topic with a prefix: the turns of topics, and new topics."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from operator import attrgetter

from foqs.host.dispatch.levels import level_of
from foqs.host.dispatch.prefetch import Prefetch
from foqs.host.dispatch.queues import Queues
from foqs.host.dispatch.ring_bounds import check_room_for_ring
from foqs.host.dispatch.tenant import ReadyRing, Tenant
from foqs.host.dispatch.tokens import Tokens
from foqs.host.dispatch.topic_queue import DequeueCall, TopicQueue
from foqs.model import limits
from foqs.model.errors import OverloadedError
from foqs.model.item import ShardItem
from foqs.model.namespace import SettingsTable
from foqs.model.topic import ShardTopic

TOPICS_CHECKED_MAX = 1_000
"""Topics that a call checks in one turn of the event loop. It continues in the next tick."""
KEYED_RINGS_PER_TURN = 100
"""Rings of bases that have a turn when their namespace has tokens again."""
RING_SLICE_TOPICS = 5_000
"""Topics that one turn of the event loop compares with a new prefix."""

_attached_number = attrgetter("attached_number")


class Rings:
    """The part of the dispatcher that finds topics for calls that name no topic. It owns the rings.

    Such a call wants items of certain topics, as if it had named them, and of any topic besides, until it has wanted as
    much as it asked for. This part writes the place of a queue in the rings.
    """

    def __init__(
        self, queues: Queues, prefetch: Prefetch, tokens: Tokens, clock: Callable[[], float], settings: SettingsTable
    ) -> None:
        """`clock` is monotonic, in seconds."""
        self._queues = queues
        self._prefetch = prefetch
        self._tokens = tokens
        self._clock = clock
        self._settings = settings
        self._busy: dict[DequeueCall, None] = {}
        """Calls for any topic that want items of certain topics now."""
        self._attached_count = 0
        """Calls that have ever been busy."""
        self.due: dict[DequeueCall, None] = {}
        """Calls for any topic that can be answered once all events of a turn are applied."""
        self.fed: dict[Tenant, None] = {}
        """Namespaces with calls for any topic and with topics that can have items for them."""
        self.fed_keyed: dict[ReadyRing, None] = {}
        """Rings of bases with calls and with topics that can have items for them."""
        self._fed_later: dict[Tenant, None] = {}
        """Namespaces that the next tick continues with."""
        self._fed_keyed_later: dict[ReadyRing, None] = {}
        """Rings of bases that the next tick continues with."""
        self.waiting_any_count = 0
        """Calls that want items of any topic."""
        self._waiting_for_room: dict[TopicQueue, None] = {}
        """Topics outside the rings for want of room for leases. No event reports new room, so sweeps check them."""
        self._filling: dict[ReadyRing, None] = {}
        """New rings that still lack some of their topics."""
        self._prefixed: dict[Tenant, int] = {}
        """The number of rings with prefixes, by namespace."""

    # ---- rings ----

    def enter(self, queue: TopicQueue) -> None:
        """Add a topic to the rings if it has items to deliver."""
        if queue.keyed_ring is not None:
            self._offer(queue)
        if queue.in_ring:
            self.relevel(queue)
            return
        self._tokens.refresh(queue)
        if queue.is_held:
            return
        if not queue.has_something():
            if queue.lacks_room():
                self._wait_for_room(queue)
            return
        queue.tenant.enter(queue)
        base = queue.base_queue or queue
        if base.keyed_ring is not None:
            base.keyed_ring.keep_lacking(queue)
            self._convert(base)
            if base.keyed_ring.waiting:
                self.fed_keyed[base.keyed_ring] = None
        if queue.tenant.waiting_any_count:
            self.fed[queue.tenant] = None

    def relevel(self, queue: TopicQueue) -> None:
        """Note that the items of a topic in a ring have changed, perhaps to more urgent ones."""
        ring = (queue.base_queue or queue).keyed_ring
        if ring is None or ring.levels is None:
            return
        if queue in ring.entries:
            ring.levels.place(queue, level_of(queue))
            if ring.waiting:
                self.fed_keyed[ring] = None
        ring.keep_lacking(queue)

    def _wait_for_room(self, queue: TopicQueue) -> None:
        """Note a topic that has ready items and no room, or no permits, for their leases."""
        base = queue.base_queue or queue
        ring = base.keyed_ring
        if ring is None or not any(part.waits_for_permit for part in queue.parts.values()):
            self._waiting_for_room[queue] = None
        else:
            ring.lack(queue)
        if base.in_flight_max:
            self._tokens.permits.check(base)

    def retry_lacking(self, base: TopicQueue) -> None:
        """Let keyed topics enter the ring again, as many as their base has free permits for."""
        ring = base.keyed_ring
        if ring is None or not ring.lacking:
            return
        free = [max(0, part.permits - part.out_count) for part in base.parts.values() if part.permits is not None]
        count = sum(free) if base.in_flight_max else limits.SWEEP_QUEUES_MAX
        for _ in range(min(count, len(ring.lacking), limits.SWEEP_QUEUES_MAX)):
            if ring.lacking:  # To let the base enter takes some out as well.
                self.enter(ring.take_lacking())
        if base.in_flight_max:
            self._tokens.permits.check(base)

    def _offer(self, base: TopicQueue) -> None:
        """Let the keyed topics of a base have their turns, if nothing holds it back any more."""
        ring, tenant = base.keyed_ring, base.tenant
        assert ring is not None, "the caller has checked it"
        self._tokens.refresh(base)
        if ring.lacking:
            self.retry_lacking(base)
        if base.is_held or not ring.entries:
            return
        if not ring.is_offered:
            tenant.offer(base)
            if tenant.waiting_any_count:
                self.fed[tenant] = None
        if ring.waiting:
            self.fed_keyed[ring] = None

    def _convert(self, base: TopicQueue) -> None:
        """Let calls that waited for a base before it had keyed topics take the items of these as well."""
        before = self._queues.calls_before.get(base)
        if before is None or base.keyed_ring is None:
            return
        for _ in range(min(len(before), limits.DEQUEUES_ENDED_PER_TICK)):
            call = before.popleft()
            if call in base.calls and base not in call.attached:
                count = self._queues.unwant(call, base)
                self.start(base.keyed_ring, count, call)
        if not before:
            del self._queues.calls_before[base]
            self._prefetch.release_for_calls(base)

    def settle(self, queue: TopicQueue) -> None:
        """Hold only what can be delivered now of a throttled topic, which leaves its rings if it waits for tokens."""
        if queue.is_throttled and self._tokens.settle(queue):
            queue.tenant.hold_back(queue)

    def forget(self, queue: TopicQueue) -> None:
        """Take a queue that is forgotten out of its rings, and forget its namespace if nothing refers to it."""
        queue.tenant.leave(queue)
        self._waiting_for_room.pop(queue, None)
        if queue.base_queue is not None and queue.base_queue.keyed_ring is not None:
            queue.base_queue.keyed_ring.forget_lacking(queue)
        self._queues.forget_tenant_if_unused(queue.tenant)

    def ring(self, namespace: int, prefix: str, group: str = "") -> ReadyRing:
        """Return the ring of a prefix and a group; a new one must be filled by `fill`.

        Raises OverloadedError for one too many.
        """
        tenant = self._queues.tenant(namespace)
        ring = tenant.rings.get((group, prefix)) if prefix or group else tenant.ring
        if ring is None:
            try:
                check_room_for_ring(tenant, sum(self._prefixed.values()), prefix, group)
            except OverloadedError:
                self._queues.forget_tenant_if_unused(tenant)
                raise
            ring = tenant.rings[group, prefix] = ReadyRing(tenant, prefix, group)
            self._note_rings(tenant)
            ready = list(tenant.of_groups if group else tenant.ring.entries)
            ring.unfilled = [ready[at : at + RING_SLICE_TOPICS] for at in range(0, len(ready), RING_SLICE_TOPICS)]
            self._filling[ring] = None
        ring.used_s = self._clock()
        return ring

    def fill(self, ring: ReadyRing) -> None:
        """Add one more slice of topics to a new ring."""
        if ring.unfilled:
            for queue in ring.unfilled.pop():
                if queue.is_offered and queue.group == ring.group and queue.base.startswith(ring.prefix):
                    ring.entries.setdefault(queue, 0)
        if not ring.unfilled:
            self._filling.pop(ring, None)
        if ring.waiting:
            self.fed[ring.tenant] = None

    def forget_prefixes(self) -> None:
        """Forget the prefixes that no call has named for limits.TOPIC_PREFIX_IDLE_MS."""
        self._forget_keyed_rings()
        before_s = self._clock() - limits.TOPIC_PREFIX_IDLE_MS / 1000
        for tenant in list(self._prefixed):
            idle = [key for key, ring in tenant.rings.items() if not ring.waiting and ring.used_s < before_s]
            for key in idle:
                del tenant.rings[key]
            self._note_rings(tenant)
            self._queues.forget_tenant_if_unused(tenant)

    def _forget_keyed_rings(self) -> None:
        """Forget the rings of bases that have no keyed topics any more."""
        unkeyed = self._queues.unkeyed
        for base in list(islice(unkeyed, limits.SWEEP_QUEUES_MAX)):
            del unkeyed[base]
            ring = base.keyed_ring
            if base.keyed or ring is None:
                continue
            if ring.callers_count:
                unkeyed[base] = None
                continue
            if not ring.is_offered:
                base.tenant.leave(base)
            self._queues.drop_ring(base)
            if self._queues.deactivate_if_idle(base):
                self._tokens.forget(base)
                self.forget(base)

    def _note_rings(self, tenant: Tenant) -> None:
        tenant.prefix_lengths = sorted({len(prefix) for _, prefix in tenant.rings})
        self._prefixed[tenant] = len(tenant.rings)
        if not tenant.rings:
            del self._prefixed[tenant]

    # ---- calls ----

    def start(self, ring: ReadyRing, count: int, call: DequeueCall) -> None:
        """Let a call wait for up to `count` items of any topic of a ring."""
        if ring not in call.lacks:
            ring.callers_count += 1
        call.lacks[ring] = call.lacks.get(ring, 0) + count
        self._wait(ring, call)
        if ring.base is None:
            self._tokens.permits.check_any(ring.tenant)
        elif ring.base.in_flight_max:
            self._tokens.permits.check(ring.base)
        if ring.entries:
            self._note_fed(ring)

    def _note_fed(self, ring: ReadyRing) -> None:
        if ring.base is None:
            self.fed[ring.tenant] = None
        else:
            self.fed_keyed[ring] = None

    def _wait(self, ring: ReadyRing, call: DequeueCall) -> None:
        if call not in ring.waiting:
            ring.waiting[call] = None
            ring.tenant.waiting_any_count += 1
            self.waiting_any_count += 1
            if ring.base is not None:
                ring.tenant.keyed_waiting[ring] = None

    def _stop_waiting(self, ring: ReadyRing, call: DequeueCall) -> None:
        if call in ring.waiting:
            del ring.waiting[call]
            ring.tenant.waiting_any_count -= 1
            self.waiting_any_count -= 1
            if ring.base is not None and not ring.waiting:
                del ring.tenant.keyed_waiting[ring]

    def end(self, call: DequeueCall, items: list[ShardItem]) -> None:
        """Let a call for any topic of rings that got `items` want no more."""
        for ring in call.lacks:
            ring.callers_count -= 1
            self._stop_waiting(ring, call)
        self._busy.pop(call, None)
        self.due.pop(call, None)
        call.refund(items)
        for ring in call.lacks:
            self._queues.forget_tenant_if_unused(ring.tenant)

    def note_due(self, call: DequeueCall) -> None:
        """Note that a call for any topic can be answered now."""
        self.due[call] = None

    def take_due(self) -> list[DequeueCall]:
        """Find topics for calls that want any topic. Take out the calls that can be answered, in their order."""
        keyed, self.fed_keyed = self.fed_keyed, {}
        for ring in keyed:
            if ring.tenant.namespace not in self._settings.dequeue_paused:
                self._tokens.refresh_tenant(ring.tenant)
                self._feed(ring)
        fed, self.fed = self.fed, {}
        for tenant in fed:
            if tenant.waiting_any_count:
                self._feed_any(tenant)
        due, self.due = self.due, {}
        return sorted(due, key=_attached_number)

    def feed(self, tenant: Tenant) -> None:
        """Assign topics to the calls of a namespace that had to wait for its tokens, or were paused."""
        self._feed_any(tenant)
        for ring in list(islice(tenant.keyed_waiting, KEYED_RINGS_PER_TURN)):
            tenant.keyed_waiting.move_to_end(ring)
            self.fed_keyed[ring] = None

    def _feed_any(self, tenant: Tenant) -> None:
        """Assign the topics of the rings to calls that want any topic, each ring's oldest call first."""
        if tenant.namespace in self._settings.dequeue_paused:
            return
        self._tokens.refresh_tenant(tenant)
        for ring in [tenant.ring, *tenant.rings.values()]:
            self._feed(ring)

    def _feed(self, ring: ReadyRing) -> None:
        tenant = ring.tenant
        while ring.waiting and ring.entries:
            call = next(iter(ring.waiting))
            attached = self._fill(call, ring)
            for queue in attached:
                self._prefetch.claim(queue)
            if attached:
                self.due[call] = None
            if not call.lacks[ring] or len(call.attached) >= limits.ANY_TOPICS_PER_CALL_MAX:
                self._stop_waiting(ring, call)
                continue
            if ring.entries and not tenant.token_wait_slot:
                # It has checked enough topics for now.
                if ring.base is None:
                    self._fed_later[tenant] = None
                elif not ring.base.is_held:
                    self._fed_keyed_later[ring] = None
            break

    def _fill(self, call: DequeueCall, ring: ReadyRing) -> dict[TopicQueue, None]:
        """Make the call want items of the next topics in turn. Returns these topics."""
        attached: dict[TopicQueue, None] = {}
        unread: set[TopicQueue] = set()
        now_s, tenant = self._clock(), ring.tenant
        for _ in range(TOPICS_CHECKED_MAX):
            left = call.lacks[ring]
            if not left or not ring.entries or len(call.attached) >= limits.ANY_TOPICS_PER_CALL_MAX:
                break
            if not self._tokens.can_take_any(tenant, now_s):
                break
            turns = self._turns(ring)
            if not turns:
                if ring.base is not None and ring.base.is_held:
                    break  # The base is held back, and all its keyed topics with it.
                continue
            queue = turns[-1][1]
            self._tokens.refresh(queue)
            spare = 0 if queue.is_paused else queue.spare_count(left + 1)
            if not spare and turns[-1][0].is_unread(queue):
                if queue in unread:
                    break  # So are all that are as urgent.
                unread.add(queue)
                for of, entry, _ in turns:
                    of.end_turn(entry, 0)
                continue
            want = min([spare, left, *[credit for of, _, credit in turns if of.bounds(queue)]])
            is_last = want == spare
            if want and queue.is_throttled:
                granted = self._tokens.take_or_wait(queue, want, now_s)
                is_last = is_last and granted == want
                want = granted
                if not granted and queue.asks_for_tokens():
                    call.passed = queue
            if want:
                self._attach(call, ring, queue, want)
                unread.clear()
                attached[queue] = None
                if queue.shares_permits:
                    self._prefetch.claim(queue)  # At once, so that the turns share what permits are left.
            if is_last and not turns[-1][0].is_unread(queue):
                tenant.leave(queue)  # It has no more items.
                call.passed = queue
                if queue.lacks_room():
                    self._wait_for_room(queue)
            for of, entry, credit in turns:
                if entry in of.entries:
                    of.end_turn(entry, max(0, credit - want))
        return attached

    def _turns(self, ring: ReadyRing) -> list[tuple[ReadyRing, TopicQueue, int]]:
        """Return the topic in turn and its credit; for a base also, behind it, the one in turn of its own ring.

        Empty if the base is held back, which leaves the ring then, unless that is its own; and if the topic in turn has
        given its turn to more urgent ones.
        """
        base, turn = ring.base, None
        if base is not None:
            self._tokens.refresh(base)
            if base.is_held:
                return []
        if (turn := ring.turn()) is None:
            return []
        entry, keyed = turn[0], turn[0].keyed_ring
        if base is not None or keyed is None:
            return [(ring, *turn)]
        self._tokens.refresh(entry)
        if entry.is_held:
            ring.tenant.hold_back(entry)
            return []
        return [] if (inner := keyed.turn()) is None else [(ring, *turn), (keyed, *inner)]

    def _attach(self, call: DequeueCall, ring: ReadyRing, queue: TopicQueue, want: int) -> None:
        """Make the call want `want` items of this topic, too."""
        if not call.attached:
            call.attached_s = self._clock()
            self._attached_count += 1
            call.attached_number = self._attached_count
            self._busy[call] = None
        call.attached[queue] = ring
        self._queues.want(call, queue, want)
        call.lacks[ring] -= want

    def attach_arriving(self, topic: ShardTopic) -> None:
        """Let a call for any topic claim at once the items of the topic that are about to be written."""
        tenant = self._queues.tenants.get(topic.namespace)
        if tenant is None or not tenant.waiting_any_count or topic.namespace in self._settings.dequeue_paused:
            return
        if topic.is_serial and not topic.room:
            return
        for ring in self._rings_of(tenant, topic):
            if not ring.waiting:
                continue
            queue = self._queues.of(topic)
            self._tokens.refresh(queue)
            if queue.base_queue is not None and queue.base_queue.is_held:
                return
            call = next(iter(ring.waiting))
            left = call.lacks[ring]
            want = min(left, topic.room) if queue.is_serial else left
            if queue.is_throttled:
                want = self._tokens.admit_arriving(queue, want)
            if want:
                self._attach(call, ring, queue, want)
                if not call.lacks[ring] or len(call.attached) >= limits.ANY_TOPICS_PER_CALL_MAX:
                    self._stop_waiting(ring, call)
            return

    def _rings_of(self, tenant: Tenant, topic: ShardTopic) -> list[ReadyRing]:
        """Return the rings whose calls can have items of a topic of a shard, that of its base first."""
        rings = tenant.rings_of(topic.shown[0], topic.shown[1] or "")
        if topic.base is not None:
            base = self._queues.of(topic).base_queue
            assert base is not None, "it is a keyed topic"
            self._convert(base)
        else:
            base = self._queues.by_topic.get((topic.namespace, topic.name))
        return rings if base is None or base.keyed_ring is None else [base.keyed_ring, *rings]

    def detach(self, call: DequeueCall, queue: TopicQueue) -> None:
        """Remove a topic from the wants of a call for any topic."""
        call.lacks[call.attached.pop(queue)] += self._queues.unwant(call, queue)
        self._prefetch.release_for_calls(queue)
        self.enter(queue)

    # ---- time ----

    def retry_waiting_for_room(self) -> None:
        """Retry topics that had no room for leases."""
        for queue in list(islice(self._waiting_for_room, limits.SWEEP_QUEUES_MAX)):
            del self._waiting_for_room[queue]
            self.enter(queue)

    def renew_calls(self) -> None:
        """Detach calls for any topic from topics without items for them, so that they find other topics."""
        for ring in list(self._filling):
            self.fill(ring)  # Its first caller has possibly left.
        for base in list(islice(self._queues.calls_before, limits.SWEEP_QUEUES_MAX)):
            self._convert(base)
        if self._fed_later or self._fed_keyed_later:
            self.fed.update(self._fed_later)
            self.fed_keyed.update(self._fed_keyed_later)
            self._fed_later, self._fed_keyed_later = {}, {}
        for call in list(islice(self._busy, limits.SWEEP_QUEUES_MAX)):
            del self._busy[call]
            self._busy[call] = None
            for queue in [one for one in call.attached if not one.can_bring()]:
                self.detach(call, queue)
                self.settle(queue)
            if not call.attached:
                del self._busy[call]
                call.awaited.clear()
            self.due[call] = None
            for ring, count in call.lacks.items():
                if count:
                    self._wait(ring, call)
                    if ring.entries:
                        self._note_fed(ring)

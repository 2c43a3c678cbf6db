"""Dequeues from any topic of a namespace, or from any topic with a prefix: the turns of topics, and new topics."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, islice
from operator import attrgetter

from foqs.host.dispatch.prefetch import Prefetch
from foqs.host.dispatch.queues import Queues
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
        self._fed_later: dict[Tenant, None] = {}
        """Namespaces that the next tick continues with."""
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
        if queue.in_ring:
            return
        self._tokens.refresh(queue)
        if queue.is_paused or queue.token_wait_slot:
            return
        if not queue.has_something():
            if queue.lacks_room():
                self._waiting_for_room[queue] = None
                if queue.in_flight_max:
                    self._tokens.permits.check(queue)
            return
        queue.tenant.enter(queue)
        if queue.tenant.waiting_any_count:
            self.fed[queue.tenant] = None

    def settle(self, queue: TopicQueue) -> None:
        """Hold only what can be delivered now of a throttled topic, which leaves its rings if it waits for tokens."""
        if queue.is_throttled and self._tokens.settle(queue):
            queue.tenant.leave(queue)

    def forget(self, queue: TopicQueue) -> None:
        """Take a queue that is forgotten out of its rings, and forget its namespace if nothing refers to it."""
        queue.tenant.leave(queue)
        self._waiting_for_room.pop(queue, None)
        self._queues.forget_tenant_if_unused(queue.tenant)

    def ring(self, namespace: int, prefix: str, group: str = "") -> ReadyRing:
        """Return the ring of a prefix and a group; a new one must be filled by `fill`.

        Raises OverloadedError for one too many.
        """
        tenant = self._queues.tenant(namespace)
        ring = tenant.rings.get((group, prefix)) if prefix or group else tenant.ring
        if ring is None:
            try:
                self._check_room_for_ring(tenant, prefix, group)
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
                if queue.in_ring and queue.group == ring.group and queue.base.startswith(ring.prefix):
                    ring.entries.setdefault(queue, 0)
        if not ring.unfilled:
            self._filling.pop(ring, None)
        if ring.waiting:
            self.fed[ring.tenant] = None

    def _check_room_for_ring(self, tenant: Tenant, prefix: str, group: str) -> None:
        of_namespace, of_host = len(tenant.rings), sum(self._prefixed.values())
        if of_namespace >= limits.TOPIC_PREFIXES_MAX or of_host >= limits.TOPIC_PREFIXES_OF_HOST_MAX:
            raise OverloadedError(
                f"dequeues of this host have named {of_namespace} prefixes of topics, or groups, of the namespace in "
                f"{limits.TOPIC_PREFIX_IDLE_MS} ms, and {of_host} of all: {limits.TOPIC_PREFIXES_MAX} and "
                f"{limits.TOPIC_PREFIXES_OF_HOST_MAX} may be: use fewer, or try again",
                retry_after_ms=limits.TOPIC_PREFIX_IDLE_MS,
            )
        of_group = [one for name, one in tenant.rings if name == group]
        nested = [one for one in of_group if one.startswith(prefix) or prefix.startswith(one)]
        if len(nested) >= limits.TOPIC_PREFIXES_NESTED_MAX:
            chain = max(sum(one.startswith(other) for other in nested) for one in [*nested, prefix])
            if chain >= limits.TOPIC_PREFIXES_NESTED_MAX:
                raise OverloadedError(
                    f"topic_prefix {prefix!r:.80} and others named within {limits.TOPIC_PREFIX_IDLE_MS} ms begin with "
                    f"one another, {chain} of them, and {limits.TOPIC_PREFIXES_NESTED_MAX} may: use fewer prefixes",
                    retry_after_ms=limits.TOPIC_PREFIX_IDLE_MS,
                )

    def forget_prefixes(self) -> None:
        """Forget the prefixes that no call has named for limits.TOPIC_PREFIX_IDLE_MS."""
        before_s = self._clock() - limits.TOPIC_PREFIX_IDLE_MS / 1000
        for tenant in list(self._prefixed):
            idle = [key for key, ring in tenant.rings.items() if not ring.waiting and ring.used_s < before_s]
            for key in idle:
                del tenant.rings[key]
            self._note_rings(tenant)
            self._queues.forget_tenant_if_unused(tenant)

    def _note_rings(self, tenant: Tenant) -> None:
        tenant.prefix_lengths = sorted({len(prefix) for _, prefix in tenant.rings})
        self._prefixed[tenant] = len(tenant.rings)
        if not tenant.rings:
            del self._prefixed[tenant]

    # ---- calls ----

    def start(self, ring: ReadyRing, count: int, call: DequeueCall) -> None:
        """Let a call wait for up to `count` items of any topic of a ring."""
        call.ring, call.count_left = ring, count
        self._wait(ring, call)
        self._tokens.permits.check_any(ring.tenant)
        if ring.entries:
            self.fed[ring.tenant] = None

    def _wait(self, ring: ReadyRing, call: DequeueCall) -> None:
        if call not in ring.waiting:
            ring.waiting[call] = None
            ring.tenant.waiting_any_count += 1
            self.waiting_any_count += 1

    def _stop_waiting(self, ring: ReadyRing, call: DequeueCall) -> None:
        if call in ring.waiting:
            del ring.waiting[call]
            ring.tenant.waiting_any_count -= 1
            self.waiting_any_count -= 1

    def end(self, ring: ReadyRing, call: DequeueCall, items: list[ShardItem]) -> None:
        """Let a call for any topic of a ring that got `items` want no more."""
        self._stop_waiting(ring, call)
        self._busy.pop(call, None)
        self.due.pop(call, None)
        _refund(ring, call, items)
        self._queues.forget_tenant_if_unused(ring.tenant)

    def waiting_calls(self, tenant: Tenant) -> list[DequeueCall]:
        """Return up to limits.DEQUEUES_ENDED_PER_TICK calls for any topic of a namespace."""
        calls = chain(tenant.ring.waiting, *[ring.waiting for ring in tenant.rings.values()])
        return list(islice(calls, limits.DEQUEUES_ENDED_PER_TICK))

    def note_due(self, call: DequeueCall) -> None:
        """Note that a call for any topic can be answered now."""
        self.due[call] = None

    def take_due(self) -> list[DequeueCall]:
        """Find topics for calls that want any topic. Take out the calls that can be answered, in their order."""
        fed, self.fed = self.fed, {}
        for tenant in fed:
            if tenant.waiting_any_count:
                self.feed(tenant)
        due, self.due = self.due, {}
        return sorted(due, key=_attached_number)

    def feed(self, tenant: Tenant) -> None:
        """Assign the topics of the rings to calls that want any topic, each ring's oldest call first."""
        if tenant.namespace in self._settings.dequeue_paused:
            return
        self._tokens.refresh_tenant(tenant)
        for ring in [tenant.ring, *tenant.rings.values()]:
            while ring.waiting and ring.entries:
                call = next(iter(ring.waiting))
                attached = self._fill(call, ring)
                for queue in attached:
                    self._prefetch.claim(queue)
                if attached:
                    self.due[call] = None
                if not call.count_left or len(call.wants) >= limits.ANY_TOPICS_PER_CALL_MAX:
                    self._stop_waiting(ring, call)
                    continue
                if ring.entries and not tenant.token_wait_slot:
                    self._fed_later[tenant] = None  # It has checked enough topics for now.
                break

    def _fill(self, call: DequeueCall, ring: ReadyRing) -> dict[TopicQueue, None]:
        """Make the call want items of the next topics in turn. Returns these topics."""
        attached: dict[TopicQueue, None] = {}
        now_s, tenant = self._clock(), ring.tenant
        for _ in range(TOPICS_CHECKED_MAX):
            if not call.count_left or not ring.entries or len(call.wants) >= limits.ANY_TOPICS_PER_CALL_MAX:
                break
            if not self._tokens.can_take_any(tenant, now_s):
                break
            queue, credit = ring.turn()
            self._tokens.refresh(queue)
            spare = 0 if queue.is_paused else queue.spare_count(call.count_left + 1)
            want = min(spare, call.count_left)
            if want > credit and len(ring.entries) > 1:  # A single topic has every turn.
                want = credit
            is_last = want == spare
            if want and queue.is_throttled:
                granted = self._tokens.take_in_turn(queue, want, now_s)
                if (
                    granted < want
                    and queue.cap is not None
                    and queue.cap.wait_s(now_s)
                    and self._tokens.wait_for_token(queue)
                ):
                    tenant.leave(queue)  # It has no tokens of its own.
                is_last = is_last and granted == want
                want = granted
                if not granted and queue.asks_for_tokens():
                    call.passed = queue
            if want:
                self._attach(call, queue, want)
                attached[queue] = None
            if is_last:
                tenant.leave(queue)  # It has no more items.
                call.passed = queue
                if queue.lacks_room():
                    self._waiting_for_room[queue] = None
            elif queue.in_ring:
                ring.end_turn(queue, max(0, credit - want))
        return attached

    def _attach(self, call: DequeueCall, queue: TopicQueue, want: int) -> None:
        """Make the call want `want` items of this topic, too."""
        if not call.wants:
            call.attached_s = self._clock()
            self._attached_count += 1
            call.attached_number = self._attached_count
            self._busy[call] = None
        self._queues.want(call, queue, want)
        call.count_left -= want

    def attach_arriving(self, topic: ShardTopic) -> None:
        """Let a call for any topic claim at once the items of the topic that are about to be written."""
        tenant = self._queues.tenants.get(topic.namespace)
        if tenant is None or not tenant.waiting_any_count or topic.namespace in self._settings.dequeue_paused:
            return
        if topic.is_serial and not topic.room:
            return
        for ring in tenant.rings_of(topic.shown[0], topic.shown[1] or ""):
            if not ring.waiting:
                continue
            queue = self._queues.of(topic)
            self._tokens.refresh(queue)
            call = next(iter(ring.waiting))
            want = min(call.count_left, 1) if queue.is_serial else call.count_left
            if queue.is_throttled:
                want = self._tokens.admit_arriving(queue, want)
            if want:
                self._attach(call, queue, want)
                if not call.count_left or len(call.wants) >= limits.ANY_TOPICS_PER_CALL_MAX:
                    self._stop_waiting(ring, call)
            return

    def detach(self, call: DequeueCall, queue: TopicQueue) -> None:
        """Remove a topic from the wants of a call for any topic."""
        call.count_left += self._queues.unwant(call, queue)
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
        self.fed.update(self._fed_later)
        self._fed_later = {}
        for call in list(islice(self._busy, limits.SWEEP_QUEUES_MAX)):
            del self._busy[call]
            self._busy[call] = None
            for queue in [one for one in call.wants if not one.can_bring()]:
                self.detach(call, queue)
                self.settle(queue)
            if not call.wants:
                del self._busy[call]
                call.awaited.clear()
            self.due[call] = None
            if call.count_left and call.ring is not None:
                self._wait(call.ring, call)
                if call.ring.entries:
                    self.fed[call.ring.tenant] = None


def _refund(ring: ReadyRing, call: DequeueCall, items: list[ShardItem]) -> None:
    """Return its credit to a topic whose turn brought fewer items than wanted, because they came too late."""
    if len(items) == sum(call.wants.values()):
        return
    got: dict[str, int] = {}
    for item in items:
        got[item.topic.name] = got.get(item.topic.name, 0) + 1
    for queue, want in call.wants.items():
        missing = want - got.get(queue.name, 0)
        if missing > 0 and queue in ring.entries:
            ring.entries[queue] = min(ring.entries[queue] + missing, max(queue.weight, limits.TOPIC_WEIGHT_MAX))

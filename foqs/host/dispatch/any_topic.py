"""Dequeues from any topic of a namespace, or from any topic with a prefix: the turns of topics, and new topics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain, islice
from operator import attrgetter

from mypy_extensions import mypyc_attr

from foqs.host.dispatch.hand_out import HandOut
from foqs.host.dispatch.prefix_sweep import PrefixSweep
from foqs.host.dispatch.tenant import ReadyRing, Tenant
from foqs.host.dispatch.topic_queue import DequeueCall, TopicQueue
from foqs.model import limits
from foqs.model.errors import OverloadedError
from foqs.model.item import ShardItem
from foqs.model.namespace import SettingsTable
from foqs.model.topic import ShardTopic
from foqs.shard.writer.shard_writer import ShardWriter

LOOKS_MAX = 1_000
"""Topics that a call checks in one turn of the event loop. It continues in the next tick."""
RING_SLICE_TOPICS = 5_000
"""Topics that one turn of the event loop compares with a new prefix."""

_attached_number = attrgetter("attached_number")


@mypyc_attr(allow_interpreted_subclasses=True)
class AnyTopic(HandOut):
    """The part of the dispatcher that finds topics for calls that name no topic. It owns the rings.

    Such a call wants a number of items of certain topics at any time, as if it had named them, and the rest of its
    count from any topic, until all of its count is assigned to topics.
    """

    def __init__(self, writers: Mapping[int, ShardWriter], clock: Callable[[], float], settings: SettingsTable) -> None:
        super().__init__(writers, clock, settings)
        self._busy: dict[DequeueCall, None] = {}
        """Calls for any topic that want items of certain topics now."""
        self._attached_count = 0
        """Calls that have ever been busy."""
        self._fed: dict[Tenant, None] = {}
        """Namespaces with calls for any topic and with topics that can have items for them."""
        self._fed_later: dict[Tenant, None] = {}
        """Namespaces that the next tick continues with."""
        self._hungry_count = 0
        """Namespaces with calls that want items of any topic."""
        self._roomless: dict[TopicQueue, None] = {}
        """Topics outside the rings for want of room for leases. No event reports new room, so sweeps check them."""
        self._filling: dict[ReadyRing, None] = {}
        """New rings that still lack some of their topics."""
        self._prefixed: dict[Tenant, int] = {}
        """The number of rings with prefixes, by namespace."""
        self._prefix_sweep = PrefixSweep()
        self._namespaces_paused: frozenset[int] = frozenset()
        self._caps_known: Mapping[int, float] = {}

    # ---- rings ----

    def _enter(self, queue: TopicQueue) -> None:
        """Add a topic to the rings if it has items to deliver."""
        if queue.version != self.settings.version:
            self.tokens.refresh(queue)
        if queue.is_paused or queue.parked_slot:
            return
        if not queue.has_something():
            if queue.lacks_room():
                self._roomless[queue] = None
            return
        queue.tenant.enter(queue)
        if queue.tenant.hungry_count:
            self._fed[queue.tenant] = None

    def ring(self, namespace: int, prefix: str) -> ReadyRing:
        """Return the ring of a prefix; a new one must be filled by `fill`. Raises OverloadedError for one too many."""
        tenant = self.queues.tenant(namespace)
        ring = tenant.rings.get(prefix) if prefix else tenant.ring
        if ring is None:
            try:
                self._check_room_for_ring(tenant, prefix)
            except OverloadedError:
                self.queues.forget_tenant_if_unused(tenant)
                raise
            ring = tenant.rings[prefix] = ReadyRing(tenant, prefix)
            self._note_rings(tenant)
            ready = list(tenant.ring.entries)
            ring.unfilled = [ready[at : at + RING_SLICE_TOPICS] for at in range(0, len(ready), RING_SLICE_TOPICS)]
            self._filling[ring] = None
        ring.used_s = self._clock()
        return ring

    def fill(self, ring: ReadyRing) -> None:
        """Add one more slice of topics to a new ring."""
        if ring.unfilled:
            for queue in ring.unfilled.pop():
                if queue.name.startswith(ring.prefix) and queue.in_ring:
                    ring.entries.setdefault(queue, 0)
        if not ring.unfilled:
            self._filling.pop(ring, None)
        if ring.hungry:
            self._fed[ring.tenant] = None

    def _check_room_for_ring(self, tenant: Tenant, prefix: str) -> None:
        of_namespace, of_host = len(tenant.rings), sum(self._prefixed.values())
        if of_namespace >= limits.TOPIC_PREFIXES_MAX or of_host >= limits.TOPIC_PREFIXES_OF_HOST_MAX:
            raise OverloadedError(
                f"dequeues of this host have named {of_namespace} prefixes of topics of the namespace within "
                f"{limits.TOPIC_PREFIX_IDLE_MS} ms, and {of_host} of all: {limits.TOPIC_PREFIXES_MAX} and "
                f"{limits.TOPIC_PREFIXES_OF_HOST_MAX} may be: use fewer, or try again",
                retry_after_ms=limits.TOPIC_PREFIX_IDLE_MS,
            )
        nested = [one for one in tenant.rings if one.startswith(prefix) or prefix.startswith(one)]
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
            idle = [one for one, ring in tenant.rings.items() if not ring.hungry and ring.used_s < before_s]
            for prefix in idle:
                del tenant.rings[prefix]
            self._note_rings(tenant)
            self.queues.forget_tenant_if_unused(tenant)

    def _note_rings(self, tenant: Tenant) -> None:
        tenant.prefix_lengths = sorted({len(one) for one in tenant.rings})
        self._prefixed[tenant] = len(tenant.rings)
        if not tenant.rings:
            del self._prefixed[tenant]

    def _forget(self, queue: TopicQueue) -> None:
        super()._forget(queue)
        self._roomless.pop(queue, None)
        self.queues.forget_tenant_if_unused(queue.tenant)

    # ---- calls ----

    def start_any(self, ring: ReadyRing, count: int, call: DequeueCall) -> None:
        """Serve a call for up to `count` items of any topic of a ring now, or make it wait."""
        self.queues.begin_call()
        call.ring, call.count_left = ring, count
        self._wait(call)
        if ring.entries:
            self._fed[ring.tenant] = None
            self._serve_any()

    def _wait(self, call: DequeueCall) -> None:
        assert call.ring is not None
        tenant = call.ring.tenant
        if not tenant.hungry_count:
            self._hungry_count += 1
        tenant.wait(call)

    def _stop_waiting(self, call: DequeueCall) -> None:
        assert call.ring is not None
        tenant = call.ring.tenant
        if tenant.hungry_count:
            tenant.stop_waiting(call)
            if not tenant.hungry_count:
                self._hungry_count -= 1

    def answer(self, call: DequeueCall, items: list[ShardItem]) -> None:
        super().answer(call, items)
        ring = call.ring
        if ring is not None:
            self._stop_waiting(call)
            self._busy.pop(call, None)
            self._due_calls.pop(call, None)
            self._refund(ring, call, items)
            self.queues.forget_tenant_if_unused(ring.tenant)
        for queue in call.wants:
            if not queue.in_ring and (queue.parts or queue.buffer.sort_keys):
                self._enter(queue)  # Items that the call wanted and did not get are free for other calls.

    def _refund(self, ring: ReadyRing, call: DequeueCall, items: list[ShardItem]) -> None:
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

    def _serve_any(self) -> None:
        """Find topics for calls that want any topic, and answer the calls that wait for nothing more."""
        while self._fed or self._due_calls:
            fed, self._fed = self._fed, {}
            for tenant in fed:
                if tenant.hungry_count:
                    self._feed(tenant)
            due, self._due_calls = self._due_calls, {}
            # The oldest call has its turn first at each topic.
            for call in sorted(due, key=_attached_number):
                if call.items is None and not call.awaits_more(self._clock()):
                    self._answer_any(call)

    def _answer_any(self, call: DequeueCall) -> None:
        queues = list(call.wants)
        if not queues:
            return
        self._deliver_to(call)
        if call.items is None:
            return  # No item has come, or all had expired: the next tick looks for more.
        for queue in queues:
            if queue.calls or queue.is_throttled:
                self.serve(queue)

    def _feed(self, tenant: Tenant) -> None:
        """Assign the topics of the rings to calls that want any topic, each ring's oldest call first."""
        if tenant.namespace in self.settings.dequeue_paused:
            return
        self.tokens.refresh_tenant(tenant)
        for ring in [tenant.ring, *tenant.rings.values()]:
            while ring.hungry and ring.entries:
                call = next(iter(ring.hungry))
                attached = self._fill(call, ring)
                for queue in attached:
                    self.prefetch.claim(queue)
                if attached:
                    self._due_calls[call] = None
                if not call.count_left or len(call.wants) >= limits.ANY_TOPICS_PER_CALL_MAX:
                    self._stop_waiting(call)
                    continue
                if ring.entries and not tenant.parked_slot:
                    self._fed_later[tenant] = None  # It has checked enough topics for now.
                break

    def _fill(self, call: DequeueCall, ring: ReadyRing) -> dict[TopicQueue, None]:
        """Make the call want items of the next topics in turn. Returns these topics."""
        attached: dict[TopicQueue, None] = {}
        now_s, tenant = self._clock(), ring.tenant
        for _ in range(LOOKS_MAX):
            if not call.count_left or not ring.entries or len(call.wants) >= limits.ANY_TOPICS_PER_CALL_MAX:
                break
            if not self.tokens.may_take_any(tenant, now_s):
                break
            queue, credit = ring.turn()
            if queue.version != self.settings.version:
                self.tokens.refresh(queue)
            spare = 0 if queue.is_paused else queue.spare_count(call.count_left + 1)
            want = min(spare, call.count_left)
            if want > credit and len(ring.entries) > 1:  # A single topic has every turn.
                want = credit
            is_last = want == spare
            if want and queue.is_throttled:
                granted = self._take_any_tokens(queue, want, now_s)
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
                    self._roomless[queue] = None
            elif queue.in_ring:
                ring.end_turn(queue, max(0, credit - want))
        return attached

    def _take_any_tokens(self, queue: TopicQueue, count: int, now_s: float) -> int:
        """Take tokens for a call for any topic. A topic without tokens of its own leaves the rings until it has some.

        Returns the number of tokens.
        """
        granted = self.tokens.take_in_turn(queue, count, now_s)
        if granted < count and queue.cap is not None and queue.cap.wait_s(now_s) and self.tokens.park(queue):
            queue.tenant.leave(queue)
        return granted

    def _attach(self, call: DequeueCall, queue: TopicQueue, want: int) -> None:
        """Make the call want `want` items of this topic, too."""
        if not call.wants:
            call.attached_s = self._clock()
            self._attached_count += 1
            call.attached_number = self._attached_count
            self._busy[call] = None
        self.queues.want(call, queue, want)
        call.count_left -= want

    def _detach(self, call: DequeueCall, queue: TopicQueue) -> None:
        super()._detach(call, queue)
        if not queue.in_ring:
            self._enter(queue)

    def _attach_arriving(self, topic: ShardTopic) -> None:
        """Let a call for any topic claim at once the items of the topic that are about to be written."""
        tenant = self.queues.tenants.get(topic.namespace)
        if tenant is None or not tenant.hungry_count or topic.namespace in self.settings.dequeue_paused:
            return
        for ring in tenant.rings_of(topic.name):
            if not ring.hungry:
                continue
            queue = self.queues.of(topic)
            if queue.version != self.settings.version:
                self.tokens.refresh(queue)
            call = next(iter(ring.hungry))
            want = call.count_left
            if queue.is_throttled:
                want = self.tokens.admit_arriving(queue, want)
            if want:
                self._attach(call, queue, want)
                if not call.count_left or len(call.wants) >= limits.ANY_TOPICS_PER_CALL_MAX:
                    self._stop_waiting(call)
            return

    def _look_for_room(self) -> None:
        """Retry topics that had no room for leases."""
        for queue in list(islice(self._roomless, limits.SWEEP_QUEUES_MAX)):
            del self._roomless[queue]
            if not queue.in_ring:
                self._enter(queue)

    def _renew_calls(self) -> None:
        """Detach calls for any topic from topics without items for them, so that they find other topics."""
        for ring in list(self._filling):
            self.fill(ring)  # Its first caller has possibly left.
        self._fed.update(self._fed_later)
        self._fed_later = {}
        for call in list(islice(self._busy, limits.SWEEP_QUEUES_MAX)):
            del self._busy[call]
            self._busy[call] = None
            for queue in [one for one in call.wants if not one.may_bring()]:
                self._detach(call, queue)
                if queue.is_throttled:
                    self._settle_tokens(queue)
            if not call.wants:
                del self._busy[call]
                call.awaited.clear()
            self._due_calls[call] = None
            if call.count_left:
                assert call.ring is not None
                self._wait(call)
                if call.ring.entries:
                    self._fed[call.ring.tenant] = None

    # ---- settings of operators, and the passing of time ----

    def _follow_settings(self) -> None:
        """Apply changes of policies, caps and pauses, also to topics and calls that wait or are parked."""
        changes = self.settings.policy_changes
        for _ in range(min(len(changes), limits.SWEEP_QUEUES_MAX)):
            self._follow_policy(changes.popleft())
        for topic in self._prefix_sweep.take(self.settings.prefix_changes, self._topics_with_policies):
            self._follow_policy(topic)
        paused, caps = self.settings.dequeue_paused, self.settings.caps
        if paused is self._namespaces_paused and caps is self._caps_known:
            return
        for number in {*paused, *(caps.keys() ^ self._caps_known.keys()), *_changed(caps, self._caps_known)}:
            tenant = self.queues.tenants.get(number)
            if tenant is None:
                self.tokens.forget_cap(number, "")
            elif number in paused:
                self._end_hungry(tenant)
            else:
                self._wake_tenant(tenant)
        if any(number in self.queues.tenants and self.queues.tenants[number].hungry_count for number in paused):
            return  # More calls must be ended.
        self._namespaces_paused, self._caps_known = paused, caps

    def _follow_policy(self, topic: tuple[int, str]) -> None:
        """Apply the current policy to a topic."""
        queue = self.queues.by_topic.get(topic)
        if queue is None:
            self.tokens.forget_cap(*topic)
            return
        self.tokens.unpark(queue)
        self.tokens.refresh(queue)
        self._woken(queue)

    def _topics_with_policies(self) -> list[tuple[int, str]]:
        """Return all topics that are known here, and all that have caps; some appear twice."""
        return [*self.queues.by_topic, *self.tokens.capped_topics]

    def _end_hungry(self, tenant: Tenant) -> None:
        """End some calls for any topic of a paused namespace; the next ticks end the others."""
        calls = chain(tenant.ring.hungry, *[ring.hungry for ring in tenant.rings.values()])
        for call in list(islice(calls, limits.DEQUEUES_ENDED_PER_TICK)):
            call.is_paused = True
            self.answer(call, [])

    def _woken(self, queue: TopicQueue) -> None:
        """Resume a topic that waited for a token or for an operator."""
        if queue.calls:
            self.queues.activate(queue)
        if queue in self.queues.active:
            self.serve(queue)
        if not queue.in_ring:
            self._enter(queue)
        if not queue.parked_slot:
            self.queues.notify(queue.namespace, queue.name)

    def _turn_wheel(self) -> None:
        """Serve the topics and namespaces that have waited for tokens until now."""
        for queue in self.tokens.due_topics():
            self._woken(queue)
        for tenant in self.tokens.due_tenants():
            self._wake_tenant(tenant)

    def _wake_tenant(self, tenant: Tenant) -> None:
        """Give the tokens of a namespace to topics that wait for them, in their order, and to calls for any topic."""
        turns, share = self.tokens.begin_turns(tenant)
        if not share:
            return
        if tenant.is_any_first:
            self._feed_turn(tenant, share)
        for queue in turns:
            if not self.tokens.begin_turn(queue, share):
                break
            self._woken(queue)
        self.tokens.end_turn(tenant)
        if not tenant.is_any_first:
            self._feed_turn(tenant, share)
        if tenant.starved or (tenant.hungry_count and tenant.has_entries()):
            self.tokens.park_tenant(tenant)

    def _feed_turn(self, tenant: Tenant, share: int) -> None:
        """Serve calls for any topic in their turn, beside the topics that wait for tokens."""
        if tenant.hungry_count:
            self.tokens.begin_any_turn(tenant, share)
            self._feed(tenant)
            self.tokens.end_turn(tenant)


def _changed(caps: Mapping[int, float], before: Mapping[int, float]) -> list[int]:
    return [number for number, cap in caps.items() if before.get(number) != cap]

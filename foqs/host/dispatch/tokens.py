"""Limits of deliveries by topic: caps, pauses, and the wheel on which topics and namespaces wait for tokens."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice

from foqs.host.dispatch.prefetch import Prefetch
from foqs.host.dispatch.queues import Queues
from foqs.host.dispatch.tenant import Tenant
from foqs.host.dispatch.token_wheel import TokenWheel
from foqs.host.dispatch.topic_queue import DequeueCall, TopicQueue
from foqs.model import limits
from foqs.model.caps import Cap, TokenBucket
from foqs.model.namespace import SettingsTable
from foqs.model.stocks import Topic

WEIGHED_MAX = 100
"""Topics waiting for their namespace's tokens whose weights are added up; the others count with their average."""


class Tokens:
    """The part of the dispatcher that holds topics back. It owns the caps, and the topics that wait for tokens.

    A token is taken before an item is claimed, spent by its delivery, and returned if the item is not delivered. So
    every claimed item may be delivered. A topic that waits for a token, or is paused, costs nothing meanwhile, because
    it is not active, is in no ring, and in one slot of the wheel at most. This part writes the settings and the tokens
    of a queue.
    """

    def __init__(self, queues: Queues, prefetch: Prefetch, clock: Callable[[], float], settings: SettingsTable) -> None:
        """`clock` is monotonic, in seconds."""
        self._queues = queues
        self._prefetch = prefetch
        self._clock = clock
        self._settings = settings
        self._new_cap: Callable[[Topic, float, float], Cap] = _new_bucket
        self._caps: dict[Topic, Cap] = {}
        """The caps of topics, and of namespaces under the name "". They outlive their queues, because otherwise a
        topic that is often forgotten would get a fresh cap each time.
        """
        self._topics: TokenWheel[TopicQueue] = TokenWheel(clock)
        self._tenants: TokenWheel[Tenant] = TokenWheel(clock)

    def share_caps(self, new_cap: Callable[[Topic, float, float], Cap]) -> None:
        """Make the cap of a topic or a namespace, of a rate, by `new_cap`: hosts share caps, which their homes feed."""
        self._new_cap = new_cap

    @property
    def capped_topics(self) -> Iterable[Topic]:
        """The topics that have caps, and the namespaces under the name ""."""
        return self._caps

    # ---- settings of operators ----

    def refresh(self, queue: TopicQueue) -> None:
        """Apply the current policy of a topic and the current settings of its namespace, unless that was done."""
        if queue.version == self._settings.version:
            return
        queue.version = self._settings.version
        policy = self._settings.policy(queue.namespace, queue.name)
        queue.weight = policy.weight
        self.refresh_tenant(queue.tenant)
        cap = self._cap_of(queue.namespace, queue.name, policy.deliveries_per_second_max)
        shared_cap = queue.tenant.cap
        if policy.dequeue_paused or cap is not queue.cap or shared_cap is not queue.shared_cap:
            self._give_back(queue, queue.allowed_count)
            queue.cap, queue.shared_cap = cap, shared_cap
            self._topics.wake(queue)  # It waits for tokens of its former cap.
        if queue.is_paused != policy.dequeue_paused:
            queue.is_paused = policy.dequeue_paused
            queue.pausing = deque(queue.calls) if queue.is_paused else None
        queue.is_throttled = queue.is_paused or cap is not None or shared_cap is not None

    def refresh_tenant(self, tenant: Tenant) -> None:
        """Apply the cap of a namespace, unless it was applied."""
        if tenant.version != self._settings.version:
            tenant.version = self._settings.version
            cap = self._cap_of(tenant.namespace, "", self._settings.caps.get(tenant.namespace, 0.0))
            if cap is not tenant.cap:
                self._tenants.wake(tenant)
            tenant.cap = cap

    def _cap_of(self, namespace: int, name: str, rate: float) -> Cap | None:
        """Return the cap for the current rate, or None without a rate."""
        if not rate:
            if (ended := self._caps.pop((namespace, name), None)) is not None:
                ended.end(self._clock())
            return None
        cap = self._caps.get((namespace, name))
        if cap is None or cap.rate != rate:
            now_s = self._clock()
            # A new object, so that tokens of the old rate are not used.
            cap = self._new_cap((namespace, name), rate, now_s) if cap is None else cap.at_rate(rate, now_s)
            self._caps[namespace, name] = cap
        return cap

    def forget(self, queue: TopicQueue) -> None:
        """Give back the tokens of a queue that is forgotten."""
        self._give_back(queue, queue.allowed_count)
        queue.tenant.starved.pop(queue, None)
        self._topics.leave(queue)

    def forget_cap(self, namespace: int, name: str) -> None:
        """Drop the cap of a topic or namespace that this host does not know now, if no setting asks for it."""
        policies, caps = self._settings.policy(namespace, name), self._settings.caps
        if not (policies.deliveries_per_second_max if name else namespace in caps):
            self._caps.pop((namespace, name), None)

    def call_begins(self, queue: TopicQueue, call: DequeueCall) -> None:
        """Let a new call for a topic end if the topic is paused."""
        if queue.pausing is not None:
            queue.pausing.appendleft(call)

    def paused_calls(self, queue: TopicQueue) -> list[DequeueCall]:
        """Take out some calls of a paused topic, which have to be checked. Each is taken out once."""
        calls = queue.pausing
        if not calls:
            return []
        some = [calls.popleft() for _ in range(min(len(calls), limits.DEQUEUES_ENDED_PER_TICK))]
        return [call for call in some if call in queue.calls]

    # ---- tokens ----

    def take(self, queue: TopicQueue, count: int, now_s: float) -> int:
        """Take up to `count` tokens of each cap of a topic. Return the number taken."""
        if queue.is_paused:
            return 0
        cap, shared_cap = queue.cap, queue.shared_cap
        if cap is not None:
            count = cap.take(count, now_s)
        if shared_cap is not None and count:
            granted = shared_cap.take(count, now_s)
            if cap is not None:
                cap.give_back(count - granted, now_s)
            count = granted
        queue.allowed_count += count
        return count

    def take_in_turn(self, queue: TopicQueue, count: int, now_s: float) -> int:
        """Take up to `count` tokens for a call for any topic, which has its turn like the topics that wait."""
        tenant = queue.tenant
        if not tenant.turn_count:
            return self.take(queue, count, now_s)
        granted = self.take(queue, min(count, tenant.turn_count), now_s)
        tenant.turn_count -= granted
        return granted

    def spend(self, queue: TopicQueue, count: int) -> None:
        """Note the delivery of `count` items of a topic."""
        count, now_s = min(count, queue.allowed_count), self._clock()
        queue.allowed_count -= count
        for cap in (queue.cap, queue.shared_cap):
            if cap is not None:
                cap.spend(count, now_s)

    def _give_back(self, queue: TopicQueue, count: int) -> None:
        """Give back unused tokens. A call that waits for the next token gets one of them."""
        queue.allowed_count -= count
        now_s = self._clock()
        for cap in (queue.cap, queue.shared_cap):
            if cap is not None:
                cap.give_back(count, now_s)
        if count:
            self._topics.wake(queue)
            if queue.shared_cap is not None:
                self._tenants.wake(queue.tenant)

    def undelivered(self, topic: Topic, count: int) -> None:
        """Return the tokens of `count` deliveries that reached no consumer, so that their items can be sent again."""
        now_s = self._clock()
        namespace, _ = topic
        for key in (topic, (namespace, "")):
            if (cap := self._caps.get(key)) is not None:
                cap.unspend(count, now_s)
        queue, tenant = self._queues.by_topic.get(topic), self._queues.tenants.get(namespace)
        if queue is not None:
            self._topics.wake(queue)
        if tenant is not None and tenant.cap is not None:
            self._tenants.wake(tenant)

    def admit(self, queue: TopicQueue) -> None:
        """Take tokens for the wants of its calls, if the topic has items."""
        tenant = queue.tenant
        wanted = queue.tokens_wanted()
        if wanted <= 0 or queue.is_paused or not queue.has_something():
            return
        if queue.shared_cap is not None:
            if tenant.turn_count:
                wanted = min(wanted, tenant.turn_count)
            elif tenant.starved or tenant.parked_slot:
                # Other topics came first.
                tenant.starved[queue] = None
                self.park_tenant(tenant)
                return
        now_s = self._clock()
        is_short = self.take(queue, wanted, now_s) < wanted and queue.shared_cap is not None
        if is_short and (queue.cap is None or not queue.cap.wait_s(now_s)):
            tenant.starved[queue] = None
            self.park_tenant(tenant)

    def admit_arriving(self, queue: TopicQueue, wanted: int) -> int:
        """Take up to `wanted` tokens for items that are about to be written. Return the number taken."""
        is_behind = queue.shared_cap is not None and (queue.tenant.starved or queue.tenant.parked_slot)
        return 0 if is_behind or wanted <= 0 else self.take(queue, wanted, self._clock())

    def settle(self, queue: TopicQueue) -> bool:
        """Hold no more items of a capped topic, and no more tokens, than can be delivered now.

        Park the topic if its calls lack tokens. True if it must leave its rings.
        """
        buffer = queue.buffer
        excess = len(buffer) if not queue.calls else len(buffer) - queue.allowed_count
        if excess > 0:
            self._prefetch.unclaim(queue, buffer.least_urgent(excess))
        held_count = len(buffer) + queue.coming_count
        if queue.allowed_count > held_count:
            self._give_back(queue, queue.allowed_count - held_count)
        if queue.allowed_count or queue.buffer.sort_keys or queue.claims_count or not queue.calls:
            return False
        # A topic that waits for tokens asks for some, which then are not with the host that has the items.
        return (queue.is_paused or (queue.has_something() and self._lacks_tokens(queue))) and self.park(queue)

    def _lacks_tokens(self, queue: TopicQueue) -> bool:
        return queue in queue.tenant.starved or (queue.cap is not None and queue.cap.wait_s(self._clock()) > 0)

    # ---- topics and namespaces that wait ----

    def park(self, queue: TopicQueue) -> bool:
        """Let a topic that lacks tokens, or is paused, cost nothing. True if it must leave its rings."""
        self._queues.deactivate(queue)
        if queue in queue.tenant.starved:
            return False  # Its namespace has no tokens, and will wake it.
        if not (
            queue.parked_slot or queue.is_paused or queue.cap is None
        ):  # Else it waits already, or for an operator.
            self._topics.park(queue)
            self._queues.notify(queue.namespace, queue.name)  # No other host should come for its items meanwhile.
        return queue.in_ring

    def unpark(self, queue: TopicQueue) -> None:
        """Let a topic wait no more, because another policy is possibly in force."""
        self._topics.leave(queue)

    def park_tenant(self, tenant: Tenant) -> None:
        if tenant.parked_slot:
            return
        if tenant.cap is not None:
            some = list(islice(tenant.starved, WEIGHED_MAX))
            weight = sum([queue.weight for queue in some]) * len(tenant.starved) // max(1, len(some))
            tenant.cap.weigh(max(1, weight + tenant.hungry_count))
            self._tenants.park(tenant)
        elif tenant.starved:
            # Its cap has ended: more topics have waited for it than one turn wakes.
            self._tenants.park_for_a_turn(tenant)

    def may_take_any(self, tenant: Tenant, now_s: float) -> bool:
        """True if calls for any topic of a capped namespace may take tokens now; else park it until their turn."""
        if tenant.cap is None:
            return True
        if not tenant.cap.wait_s(now_s) and (tenant.turn_count or not (tenant.parked_slot or tenant.starved)):
            return True
        self.park_tenant(tenant)
        return False

    def fed(self, namespace: int, name: str) -> None:
        """Note that the home of a cap has sent tokens, or the date of the next one."""
        if name:
            queue = self._queues.by_topic.get((namespace, name))
            if queue is not None:
                self._topics.fed(queue)
        else:
            tenant = self._queues.tenants.get(namespace)
            if tenant is not None:
                self._tenants.fed(tenant)

    def due_topics(self) -> list[TopicQueue]:
        """Take out topics that have waited long enough, not too many at once."""
        return self._topics.take_due(limits.SWEEP_QUEUES_MAX)

    def due_tenants(self) -> list[Tenant]:
        """Take out the namespaces that have waited long enough."""
        return self._tenants.take_due()

    # ---- turns of those that wait for tokens of their namespace ----

    def begin_turns(self, tenant: Tenant) -> tuple[list[TopicQueue], int]:
        """Choose topics that wait for tokens of a namespace, in their order.

        Return them with the tokens for each unit of weight, or for each call for any topic. 0: the namespace has no
        token, and waits on.
        """
        self.refresh_tenant(tenant)
        count = 0
        if tenant.cap is not None:
            count = tenant.cap.count(self._clock())
            if not count:
                self.park_tenant(tenant)
                return [], 0
        tenant.is_any_first = not tenant.is_any_first
        turns = list(islice(tenant.starved, limits.SWEEP_QUEUES_MAX))
        return turns, max(1, count // max(1, len(turns) + tenant.hungry_count))

    def begin_turn(self, queue: TopicQueue, share: int) -> bool:
        """Let a topic take tokens by its weight. False if none are left."""
        tenant = queue.tenant
        if tenant.cap is not None and tenant.cap.wait_s(self._clock()):
            return False
        del tenant.starved[queue]
        tenant.turn_count = share * queue.weight
        return True

    def begin_any_turn(self, tenant: Tenant, share: int) -> None:
        """Let calls for any topic take tokens, beside the topics that wait for some."""
        tenant.turn_count = share * tenant.hungry_count if tenant.starved else 0

    def end_turn(self, tenant: Tenant) -> None:
        tenant.turn_count = 0


def _new_bucket(_: Topic, rate: float, now_s: float) -> Cap:
    """The cap of a host that shares it with no other one."""
    return TokenBucket(rate, now_s)

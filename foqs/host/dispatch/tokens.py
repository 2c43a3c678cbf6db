"""Limits of deliveries by topic: caps, pauses, and the wheel on which topics and namespaces wait for tokens."""

from __future__ import annotations

import math
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Generic, Protocol, TypeVar

from foqs.host.dispatch.permits import Permits
from foqs.host.dispatch.prefetch import Prefetch
from foqs.host.dispatch.queues import Queues
from foqs.host.dispatch.tenant import Tenant
from foqs.host.dispatch.topic_queue import DequeueCall, TopicQueue
from foqs.model import limits
from foqs.model.caps import NEVER_S, Cap
from foqs.model.namespace import SettingsTable
from foqs.model.stocks import Topic
from foqs.model.topic_name import base_of

NewCap = Callable[[Topic, float, float], Cap]
"""Makes the cap of a topic, or of a namespace under the name "", by its rate and the time in seconds."""

SLOT_MS = 20
"""Length of a slot in which topics wait for tokens, in milliseconds: the shortest time between two checks of one."""
UNTIL_FED = -1
"""The slot number of a topic that waits until `fed` reports a token, or the time of the next one."""
WEIGHED_MAX = 100
"""Topics waiting for their namespace's tokens whose weights are added up; the others count with their average."""


class WaitsForToken(Protocol):
    """A topic or a namespace that can wait."""

    cap: Cap | None
    token_wait_slot: int


P = TypeVar("P", bound=WaitsForToken)


class TokenWheel(Generic[P]):
    """The topics or namespaces that wait for tokens, by slots of time. They cost nothing until their slot is over.

    The wheel writes their `token_wait_slot`.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` is monotonic, in seconds."""
        self._clock = clock
        self._slots: dict[int, list[P]] = {}
        self._slot = self._slot_now()
        """The last slot that was checked."""
        self._due: OrderedDict[P, None] = OrderedDict()
        """Topics or namespaces whose waits are over, and which `take_due` has not returned yet."""

    def wait_for_token(self, one: P) -> None:
        """Wait until the cap of `one` has a token. `one` possibly waits already, with another date."""
        cap = one.cap
        assert cap is not None
        slot, before = self._slot_after(cap.wait_s(self._clock())), one.token_wait_slot
        one.token_wait_slot = slot
        if slot not in (before, UNTIL_FED):
            self._slots.setdefault(slot, []).append(one)

    def wait_for_turn(self, one: P) -> None:
        """Wait until the next `take_due`."""
        one.token_wait_slot = UNTIL_FED
        self._due[one] = None

    def wake(self, one: P | None) -> None:
        """Wait no longer than until the next `take_due`."""
        if one is not None and one.token_wait_slot:
            self._due[one] = None

    def fed(self, one: P | None) -> None:
        """Wake `one` if its cap has a token, or note when it will."""
        if one is not None and one.token_wait_slot and one.cap is not None:
            if one.cap.wait_s(self._clock()) > 0:
                self.wait_for_token(one)
            else:
                self._due[one] = None

    def leave(self, one: P) -> None:
        """Wait no longer."""
        one.token_wait_slot = 0

    def take_due(self, count_max: int = sys.maxsize) -> list[P]:
        """Take out up to `count_max` of those whose wait is over."""
        slot = self._slot_now()
        if not self._slots and not self._due:
            self._slot = slot
            return []
        for number in self._occupied(slot):
            self._due.update({one: None for one in self._slots.pop(number) if one.token_wait_slot == number})
        self._slot = slot
        some: list[P] = []
        # However many are due, a tick pays for those alone that it takes.
        while self._due and len(some) < count_max:
            one, _ = self._due.popitem(last=False)
            if one.token_wait_slot:
                one.token_wait_slot = 0
                some.append(one)
        return some

    def _occupied(self, last: int) -> list[int]:
        """The occupied slots up to `last`, found by the slots or by the time, the fewer of both."""
        if last - self._slot < len(self._slots):
            return [number for number in range(self._slot + 1, last + 1) if number in self._slots]
        return sorted([number for number in self._slots if number <= last])

    def _slot_after(self, wait_s: float) -> int:
        if wait_s == NEVER_S:
            return UNTIL_FED
        wait_s = min(wait_s, limits.DAY_MS / 1000)
        return max(self._slot + 1, math.ceil((self._clock() + wait_s) * 1000 / SLOT_MS))

    def _slot_now(self) -> int:
        return math.floor(self._clock() * 1000 / SLOT_MS)


class Tokens:
    """The part of the dispatcher that holds topics back. It owns the caps, and the topics that wait for tokens.

    A token is taken before an item is claimed, spent by its delivery, and returned if the item is not delivered. So
    every claimed item can be delivered. A topic that waits for a token, or is paused, costs nothing meanwhile, because
    it is not active, is in no ring, and in one slot of the wheel at most. This part writes the settings and the tokens
    of a queue.
    """

    def __init__(
        self,
        queues: Queues,
        prefetch: Prefetch,
        permits: Permits,
        clock: Callable[[], float],
        settings: SettingsTable,
        new_cap: NewCap,
    ) -> None:
        """`clock` is monotonic, in seconds."""
        self._queues = queues
        self._prefetch = prefetch
        self.permits = permits
        self._clock = clock
        self._settings = settings
        self._new_cap = new_cap
        self.caps: dict[Topic, Cap] = {}
        """The caps of topics, and of namespaces under the name "". They outlive their queues, because otherwise a
        topic that is often forgotten would get a fresh cap each time.
        """
        self.topic_wheel: TokenWheel[TopicQueue] = TokenWheel(clock)
        """Topics that wait for tokens of their own caps."""
        self.tenant_wheel: TokenWheel[Tenant] = TokenWheel(clock)
        """Namespaces that wait for tokens, with the topics that wait for these."""

    # ---- settings of operators ----

    def refresh(self, queue: TopicQueue) -> None:
        """Apply the current policy of a topic and the current settings of its namespace, unless that was done."""
        if queue.version == self._settings.version:
            return
        queue.version = self._settings.version
        base = queue.base_queue or queue
        if base is not queue:
            self.refresh(base)
        policy = self._settings.policy(queue.namespace, queue.name)
        is_paused = policy.dequeue_paused or not self._settings.is_read(queue.namespace, queue.name)
        queue.weight = policy.weight
        self._refresh_order(queue)
        if base is queue and queue.in_flight_max != policy.in_flight_max:
            self.permits.limit(queue, policy.in_flight_max)
        self.refresh_tenant(queue.tenant)
        cap = self._cap_of(queue.namespace, base.name, policy.deliveries_per_second_max)
        shared_cap = queue.tenant.cap
        if is_paused or cap is not queue.cap or shared_cap is not queue.shared_cap:
            self._refund(queue, queue.allowed_count)
            queue.cap, queue.shared_cap = cap, shared_cap
            self.topic_wheel.wake(queue)  # It waits for tokens of its former cap.
        if queue.is_paused != is_paused:
            queue.is_paused = is_paused
            queue.pausing = deque(_calls_of(queue)) if queue.is_paused else None
        queue.is_throttled = queue.is_paused or cap is not None or shared_cap is not None

    def _refresh_order(self, queue: TopicQueue) -> None:
        """Apply the order of a topic to its parts on all shards."""
        serial = self._settings.serial_policy(queue.namespace, queue.name)
        if serial is not None or queue.is_serial:
            queue.is_serial = serial is not None
            queue.batch_max = max(1, serial.key_batch) if serial is not None else 1
            for topic in [*queue.parts.values(), *queue.sick_parts.values()]:
                topic.follow(serial)

    def refresh_tenant(self, tenant: Tenant) -> None:
        """Apply the cap of a namespace, unless it was applied."""
        if tenant.version != self._settings.version:
            tenant.version = self._settings.version
            cap = self._cap_of(tenant.namespace, "", self._settings.caps.get(tenant.namespace, 0.0))
            if cap is not tenant.cap:
                self.tenant_wheel.wake(tenant)
            tenant.cap = cap

    def _cap_of(self, namespace: int, name: str, rate: float) -> Cap | None:
        """Return the cap for the current rate, or None without a rate."""
        if not rate:
            if (ended := self.caps.pop((namespace, name), None)) is not None:
                ended.end(self._clock())
            return None
        cap = self.caps.get((namespace, name))
        if cap is None or cap.rate != rate:
            now_s = self._clock()
            # A new object, so that tokens of the old rate are not used.
            cap = self._new_cap((namespace, name), rate, now_s) if cap is None else cap.at_rate(rate, now_s)
            self.caps[namespace, name] = cap
        return cap

    def forget(self, queue: TopicQueue) -> None:
        """Refund the tokens of a queue that is forgotten."""
        self._refund(queue, queue.allowed_count)
        queue.tenant.waiting_topics.pop(queue, None)
        self.topic_wheel.leave(queue)
        self.permits.forget(queue)

    def forget_cap(self, namespace: int, name: str) -> None:
        """Drop the cap of a topic or namespace that this host does not know now, if no setting asks for it."""
        policies, caps = self._settings.policy(namespace, name), self._settings.caps
        if not (policies.deliveries_per_second_max if name else namespace in caps):
            self.caps.pop((namespace, name), None)

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
        return [call for call in some if not call.done and (call in queue.calls or queue.keyed_ring in call.lacks)]

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
                cap.refund(count - granted, now_s)
            count = granted
        queue.allowed_count += count
        return count

    def take_in_turn(self, queue: TopicQueue, count: int, now_s: float) -> int:
        """Take up to `count` tokens for a call for any topic, which has its turn like the topics that wait."""
        tenant = queue.tenant
        granted = self.take(queue, min(count, tenant.turn_count or count), now_s)
        tenant.turn_count = max(0, tenant.turn_count - granted)
        return granted

    def take_or_wait(self, queue: TopicQueue, count: int, now_s: float) -> int:
        """Take up to `count` tokens in turn, and return their number. A topic whose cap has no more is held back."""
        granted = self.take_in_turn(queue, count, now_s)
        base = queue.base_queue or queue
        if granted < count and base.cap is not None and base.cap.wait_s(now_s) and self.wait_for_token(base):
            base.tenant.hold_back(base)  # It has no tokens of its own.
        return granted

    def spend(self, queue: TopicQueue, count: int) -> None:
        """Note the delivery of `count` items of a topic."""
        count, now_s = min(count, queue.allowed_count), self._clock()
        queue.allowed_count -= count
        for cap in queue.caps():
            cap.spend(count, now_s)

    def _refund(self, queue: TopicQueue, count: int) -> None:
        """Refund unused tokens. A call that waits for the next token gets one."""
        queue.allowed_count -= count
        now_s = self._clock()
        for cap in queue.caps():
            cap.refund(count, now_s)
        if count:
            self.topic_wheel.wake(queue)
            self.topic_wheel.wake(queue.base_queue)
            if queue.shared_cap is not None:
                self.tenant_wheel.wake(queue.tenant)

    def undelivered(self, topic: Topic, count: int) -> None:
        """Return the tokens of `count` deliveries that reached no consumer, so that their items can be sent again."""
        now_s = self._clock()
        namespace, name = topic
        topic = namespace, base_of(name)
        for key in (topic, (namespace, "")):
            if (cap := self.caps.get(key)) is not None:
                cap.unspend(count, now_s)
        self.topic_wheel.wake(self._queues.by_topic.get(topic))
        self.tenant_wheel.wake(self._queues.tenants.get(namespace))

    def admit(self, queue: TopicQueue) -> None:
        """Take tokens for the wants of its calls, if the topic has items."""
        tenant = queue.tenant
        wanted = queue.tokens_wanted()
        if wanted <= 0 or queue.is_paused or not queue.has_something():
            return
        if queue.shared_cap is not None:
            if tenant.turn_count:
                wanted = min(wanted, tenant.turn_count)
            elif tenant.waiting_topics or tenant.token_wait_slot:
                # Other topics came first.
                tenant.waiting_topics[queue] = None
                self.wait_for_namespace(tenant)
                return
        now_s = self._clock()
        is_short = self.take(queue, wanted, now_s) < wanted and queue.shared_cap is not None
        if is_short and (queue.cap is None or not queue.cap.wait_s(now_s)):
            tenant.waiting_topics[queue] = None
            self.wait_for_namespace(tenant)

    def admit_arriving(self, queue: TopicQueue, wanted: int) -> int:
        """Take up to `wanted` tokens for items that are about to be written. Return the number taken."""
        is_behind = queue.shared_cap is not None and (queue.tenant.waiting_topics or queue.tenant.token_wait_slot)
        return 0 if is_behind or wanted <= 0 else self.take(queue, wanted, self._clock())

    def settle(self, queue: TopicQueue) -> bool:
        """Hold no more items of a capped topic, and no more tokens, than can be delivered now.

        Make the topic wait if its calls lack tokens. True if it must leave its rings.
        """
        buffer = queue.buffer
        excess = len(buffer) if not queue.calls else len(buffer) - queue.allowed_count
        if excess > 0:
            self._prefetch.unclaim(queue, buffer.least_urgent(excess))
        held_count = len(buffer) + queue.coming_count
        if queue.allowed_count > held_count:
            self._refund(queue, queue.allowed_count - held_count)
        if queue.allowed_count or queue.buffer.sort_keys or queue.claims_count or not queue.calls:
            return False
        # A topic that waits for tokens asks for some, which then are not with the host that has the items.
        return (queue.is_paused or (queue.has_something() and self._lacks_tokens(queue))) and self.wait_for_token(queue)

    def _lacks_tokens(self, queue: TopicQueue) -> bool:
        return queue in queue.tenant.waiting_topics or (queue.cap is not None and queue.cap.wait_s(self._clock()) > 0)

    # ---- topics and namespaces that wait ----

    def wait_for_token(self, queue: TopicQueue) -> bool:
        """Let a topic that lacks tokens, or is paused, cost nothing. True if it must leave its rings."""
        self._queues.deactivate(queue)
        if queue in queue.tenant.waiting_topics:
            return False  # Its namespace has no tokens, and will wake it.
        # Otherwise it waits already, or for an operator.
        if not (queue.token_wait_slot or queue.is_paused or queue.cap is None):
            self.topic_wheel.wait_for_token(queue)
            self._queues.changed(queue)  # No other host should come for its items meanwhile.
        return queue.in_ring or queue.keyed_ring is not None

    def wait_for_namespace(self, tenant: Tenant) -> None:
        if tenant.token_wait_slot:
            return
        if tenant.cap is not None:
            some = list(islice(tenant.waiting_topics, WEIGHED_MAX))
            weight = sum([queue.weight for queue in some]) * len(tenant.waiting_topics) // max(1, len(some))
            tenant.cap.weigh(max(1, weight + tenant.waiting_any_count))
            self.tenant_wheel.wait_for_token(tenant)
        elif tenant.waiting_topics:
            # Its cap has ended: more topics have waited for it than one turn wakes.
            self.tenant_wheel.wait_for_turn(tenant)

    def can_take_any(self, tenant: Tenant, now_s: float) -> bool:
        """True if calls for any topic of a capped namespace can take tokens now; else it waits until their turn."""
        if tenant.cap is None:
            return True
        if not tenant.cap.wait_s(now_s) and (
            tenant.turn_count or not (tenant.token_wait_slot or tenant.waiting_topics)
        ):
            return True
        self.wait_for_namespace(tenant)
        return False

    def fed(self, namespace: int, name: str) -> None:
        """Note that the home of a cap has sent tokens, or the date of the next one."""
        if name:
            self.topic_wheel.fed(self._queues.by_topic.get((namespace, name)))
        else:
            self.tenant_wheel.fed(self._queues.tenants.get(namespace))

    # ---- turns of those that wait for tokens of their namespace ----

    def turns(self, tenant: Tenant) -> Iterator[TopicQueue | None]:
        """Give the tokens of a namespace to those that wait for them, each in its turn.

        Yields the topics in their order, which take tokens by their weights, and None for the calls for any topic:
        sometimes before the topics, sometimes after them.
        """
        self.refresh_tenant(tenant)
        cap, count = tenant.cap, 0
        if cap is not None and not (count := cap.count(self._clock())):
            self.wait_for_namespace(tenant)
            return
        tenant.is_any_first = not tenant.is_any_first
        queues = list(islice(tenant.waiting_topics, limits.SWEEP_QUEUES_MAX))
        share = max(1, count // max(1, len(queues) + tenant.waiting_any_count))
        has_tokens = True
        for queue in [None, *queues] if tenant.is_any_first else [*queues, None]:
            if queue is None:
                tenant.turn_count = share * tenant.waiting_any_count if tenant.waiting_topics else 0
            elif queue not in tenant.waiting_topics:
                continue  # The turn of another topic has ended the call that waited for both.
            elif has_tokens and (cap is None or not cap.wait_s(self._clock())):
                del tenant.waiting_topics[queue]
                tenant.turn_count = share * queue.weight
            else:
                has_tokens = False  # The other topics wait on, but calls for any topic still have their turn.
                continue
            yield queue
            tenant.turn_count = 0
        if tenant.waiting_topics or (tenant.waiting_any_count and tenant.has_entries()):
            self.wait_for_namespace(tenant)


def _calls_of(queue: TopicQueue) -> list[DequeueCall]:
    """Return the calls that wait for a topic, or for the topic and its keyed topics."""
    keyed = queue.keyed_ring
    return [*queue.calls, *keyed.waiting] if keyed is not None else list(queue.calls)

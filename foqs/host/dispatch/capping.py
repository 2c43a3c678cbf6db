"""How much of each topic may go now: caps, pauses, and the wheel on which capped topics wait."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from itertools import islice

from mypy_extensions import mypyc_attr

from foqs.host.dispatch.prefetching import Prefetching
from foqs.host.dispatch.tenant import Tenant
from foqs.host.dispatch.topic_queue import TopicQueue
from foqs.model import limits
from foqs.model.caps import NEVER_S, Cap, TokenBucket, TokenSource
from foqs.model.namespace import SettingsTable
from foqs.model.stocks import Topic
from foqs.shard.writer.shard_writer import ShardWriter

SLOT_MS = 20
"""Topics wait for their tokens in slots of this time: the least time in which they are looked at again."""
UNTIL_FED = -1
"""A number that stands for a slot: `cap_fed` tells when there is a token, or when one comes."""
WEIGHED_MAX = 100
"""The weights of so many topics that wait for the tokens of their namespace are added up; the others weigh as much."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Capping(Prefetching):
    """The part of the dispatcher that holds topics back: it owns the caps, and the topics that wait for tokens.

    A token is taken before an item is claimed, used up by its delivery, and given back if there is none. So nothing is
    claimed that may not go. A topic that waits for a token, or is paused, costs nothing meanwhile: it is not active,
    stands in no ring, and at most in one slot of the wheel.
    """

    def __init__(self, writers: Mapping[int, ShardWriter], clock: Callable[[], float], settings: SettingsTable) -> None:
        super().__init__(writers, clock, settings)
        self.new_cap: Callable[[tuple[int, str], float, float], Cap] = _new_bucket
        """Makes the cap of a topic or a namespace of a rate. Where hosts share caps, what their homes feed."""
        self.on_changed: Callable[[Topic], None] | None = None
        """Called with topics whose ready items may be others, where other hosts have to know."""
        self._caps: dict[tuple[int, str], Cap] = {}
        """The caps of topics, and of namespaces under the name "". They outlive their queues: else a topic that comes
        and goes had none.
        """
        self._slots: dict[int, list[TopicQueue]] = {}
        """Topics that wait for tokens of their own, by slot."""
        self._tenant_slots: dict[int, list[Tenant]] = {}
        """Namespaces that do."""
        self._slot = math.floor(clock() * 1000 / SLOT_MS)
        """The last slot that was looked at."""
        self._due: list[TopicQueue] = []
        """Topics whose slots are over, and which were not looked at yet."""
        self._due_tenants: list[Tenant] = []

    # ---- what operators say ----

    def _refresh(self, queue: TopicQueue) -> None:
        """Whatever operators have said of the topic and its namespace holds from now on."""
        queue.version = self.settings.version
        policy = self.settings.policy(queue.namespace, queue.name)
        queue.weight = policy.weight
        self._refresh_tenant(queue.tenant)
        cap = self._cap_of(queue.namespace, queue.name, policy.deliveries_per_second_max)
        shared_cap = queue.tenant.cap
        if policy.dequeue_paused or cap is not queue.cap or shared_cap is not queue.shared_cap:
            self._return_tokens(queue, queue.allowed_count)
            queue.cap, queue.shared_cap = cap, shared_cap
            if queue.parked_slot:
                self._due.append(queue)  # It waits for tokens of the cap that it had.
        if queue.is_paused != policy.dequeue_paused:
            queue.is_paused = policy.dequeue_paused
            queue.pausing = deque(queue.calls) if queue.is_paused else None
        queue.is_throttled = queue.is_paused or cap is not None or shared_cap is not None

    def _refresh_tenant(self, tenant: Tenant) -> None:
        if tenant.version != self.settings.version:
            tenant.version = self.settings.version
            cap = self._cap_of(tenant.namespace, "", self.settings.caps.get(tenant.namespace, 0.0))
            if cap is not tenant.cap and tenant.parked_slot:
                self._due_tenants.append(tenant)
            tenant.cap = cap

    def _cap_of(self, namespace: int, name: str, rate: float) -> Cap | None:
        """The cap as it is now."""
        if not rate:
            if (ended := self._caps.pop((namespace, name), None)) is not None:
                ended.end(self._clock())
            return None
        cap = self._caps.get((namespace, name))
        if cap is None or cap.rate != rate:
            now_s = self._clock()
            # Another one, so that nobody goes on with tokens of the old rate.
            cap = self.new_cap((namespace, name), rate, now_s) if cap is None else cap.at_rate(rate, now_s)
            self._caps[namespace, name] = cap
        return cap

    def _forget(self, queue: TopicQueue) -> None:
        self._return_tokens(queue, queue.allowed_count)
        queue.tenant.starved.pop(queue, None)
        super()._forget(queue)

    # ---- tokens ----

    def _take_tokens(self, queue: TopicQueue, count: int, now_s: float) -> int:
        """Take up to `count` tokens of each of its caps. Returns how many it got."""
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

    def _spend_tokens(self, queue: TopicQueue, count: int) -> None:
        """Note that so many items of the topic were delivered."""
        count, now_s = min(count, queue.allowed_count), self._clock()
        queue.allowed_count -= count
        for cap in (queue.cap, queue.shared_cap):
            if cap is not None:
                cap.spend(count, now_s)

    def _return_tokens(self, queue: TopicQueue, count: int) -> None:
        """Give back tokens that were not used: a call that waits for the next one has one now."""
        queue.allowed_count -= count
        now_s = self._clock()
        for cap in (queue.cap, queue.shared_cap):
            if cap is not None:
                cap.give_back(count, now_s)
        if count and queue.parked_slot:
            self._due.append(queue)
        if count and queue.shared_cap is not None and queue.tenant.parked_slot:
            self._due_tenants.append(queue.tenant)

    def undelivered(self, topic: Topic, count: int) -> None:
        """So many of its deliveries have reached nobody: others may have them for the same tokens."""
        now_s = self._clock()
        namespace, _ = topic
        for key in (topic, (namespace, "")):
            if (cap := self._caps.get(key)) is not None:
                cap.unspend(count, now_s)
        queue, tenant = self._queues.get(topic), self._tenants.get(namespace)
        if queue is not None and queue.parked_slot:
            self._due.append(queue)
        if tenant is not None and tenant.cap is not None and tenant.parked_slot:
            self._due_tenants.append(tenant)

    def _admit(self, queue: TopicQueue) -> None:
        """Take tokens for what its calls want, if there is something."""
        tenant = queue.tenant
        wanted = min(queue.waiting_count, limits.TRANSACTION_CLAIMS_MAX) - queue.allowed_count
        if wanted <= 0 or queue.is_paused or not queue.has_something():
            return
        if queue.shared_cap is not None:
            if tenant.turn_count:
                wanted = min(wanted, tenant.turn_count)
            elif tenant.starved or tenant.parked_slot:
                # Others came first.
                tenant.starved[queue] = None
                self._park_tenant(tenant)
                return
        now_s = self._clock()
        is_short = self._take_tokens(queue, wanted, now_s) < wanted and queue.shared_cap is not None
        if is_short and (queue.cap is None or not queue.cap.wait_s(now_s)):
            tenant.starved[queue] = None
            self._park_tenant(tenant)

    def _settle_tokens(self, queue: TopicQueue) -> None:
        """Hold no more of it, and no more tokens, than may go now; and wait for more tokens if calls do."""
        buffer = queue.buffer
        excess = len(buffer) if not queue.calls else len(buffer) - queue.allowed_count
        if excess > 0:
            self._unclaim(buffer, buffer.least_urgent(excess))
        held_count = len(buffer) + queue.coming_count
        if queue.allowed_count > held_count:
            self._return_tokens(queue, queue.allowed_count - held_count)
        if queue.allowed_count or queue.buffer.sort_keys or queue.claims_count or not queue.calls:
            return
        # Whoever waits for tokens asks for some, which then are not with the host that has the items.
        if queue.is_paused or (queue.has_something() and self._lacks_tokens(queue)):
            self._park(queue)

    def _lacks_tokens(self, queue: TopicQueue) -> bool:
        return queue in queue.tenant.starved or (queue.cap is not None and queue.cap.wait_s(self._clock()) > 0)

    def _admit_arriving(self, queue: TopicQueue) -> None:
        """Take tokens for what its calls want of items that are about to be written."""
        wanted = min(queue.waiting_count, limits.TRANSACTION_CLAIMS_MAX) - queue.allowed_count
        is_behind = queue.shared_cap is not None and (queue.tenant.starved or queue.tenant.parked_slot)
        if wanted > 0 and not is_behind:
            self._take_tokens(queue, wanted, self._clock())

    # ---- the wheel ----

    def _park(self, queue: TopicQueue) -> None:
        """Nothing of it may go now: let it cost nothing until it may."""
        self._active.pop(queue, None)
        if queue in queue.tenant.starved:
            return  # Its namespace has no tokens, and wakes it.
        if queue.in_ring:
            queue.tenant.leave(queue)
        if queue.parked_slot or queue.is_paused or queue.cap is None:
            return  # It waits already, or for an operator.
        self._wait_for_slot(queue, queue.cap)
        if self.on_changed is not None:
            self.on_changed((queue.namespace, queue.name))  # Nobody else is to come for its items meanwhile.

    def _wait_for_slot(self, queue: TopicQueue, cap: TokenSource) -> None:
        slot, before = self._slot_after(cap), queue.parked_slot
        queue.parked_slot = slot
        if slot not in (before, UNTIL_FED):
            self._slots.setdefault(slot, []).append(queue)

    def _park_tenant(self, tenant: Tenant) -> None:
        if tenant.parked_slot:
            return
        if tenant.cap is not None:
            some = list(islice(tenant.starved, WEIGHED_MAX))
            weight = sum([queue.weight for queue in some]) * len(tenant.starved) // max(1, len(some))
            tenant.cap.weigh(max(1, weight + tenant.hungry_count))
            self._wait_for_tenant_slot(tenant, tenant.cap)
        elif tenant.starved:
            # Its cap was taken away: more topics have waited for that than one turn wakes.
            tenant.parked_slot = UNTIL_FED
            self._due_tenants.append(tenant)

    def _wait_for_tenant_slot(self, tenant: Tenant, cap: TokenSource) -> None:
        slot, before = self._slot_after(cap), tenant.parked_slot
        tenant.parked_slot = slot
        if slot not in (before, UNTIL_FED):
            self._tenant_slots.setdefault(slot, []).append(tenant)

    def cap_fed(self, namespace: int, name: str) -> None:
        """Note that there may be tokens of a cap whose home feeds it, or that it is known when there will be."""
        now_s = self._clock()
        if name:
            queue = self._queues.get((namespace, name))
            if queue is not None and queue.parked_slot and queue.cap is not None:
                if queue.cap.wait_s(now_s) > 0:
                    self._wait_for_slot(queue, queue.cap)
                else:
                    self._due.append(queue)
            return
        tenant = self._tenants.get(namespace)
        if tenant is not None and tenant.parked_slot and tenant.cap is not None:
            if tenant.cap.wait_s(now_s) > 0:
                self._wait_for_tenant_slot(tenant, tenant.cap)
            else:
                self._due_tenants.append(tenant)

    def _slot_after(self, cap: TokenSource) -> int:
        now_s = self._clock()
        wait_s = cap.wait_s(now_s)
        if wait_s == NEVER_S:
            return UNTIL_FED
        wait_s = min(wait_s, limits.DAY_MS / 1000)
        return max(self._slot + 1, math.ceil((now_s + wait_s) * 1000 / SLOT_MS))

    def _take_due(self) -> list[TopicQueue]:
        """Topics that have waited until now, not too many at once."""
        slot = math.floor(self._clock() * 1000 / SLOT_MS)
        for number in _slots_between(self._slots, self._slot, slot):
            self._due += [queue for queue in self._slots.pop(number) if queue.parked_slot == number]
        some, self._due = self._due[: limits.SWEEP_QUEUES_MAX], self._due[limits.SWEEP_QUEUES_MAX :]
        for queue in some:
            queue.parked_slot = 0
        return some

    def _take_due_tenants(self) -> list[Tenant]:
        slot = math.floor(self._clock() * 1000 / SLOT_MS)
        found, self._due_tenants = self._due_tenants, []
        for number in _slots_between(self._tenant_slots, self._slot, slot):
            found += [tenant for tenant in self._tenant_slots.pop(number) if tenant.parked_slot == number]
        due = [tenant for tenant in dict.fromkeys(found) if tenant.parked_slot]
        for tenant in due:
            tenant.parked_slot = 0
        return due

    def _note_slot(self) -> None:
        """All slots until now have been looked at."""
        self._slot = math.floor(self._clock() * 1000 / SLOT_MS)


def _new_bucket(_: tuple[int, str], rate: float, now_s: float) -> Cap:
    """The cap of a host that shares it with none."""
    return TokenBucket(rate, now_s)


def _slots_between(slots: Mapping[int, object], after: int, last: int) -> list[int]:
    """The numbers of slots that are there, whichever is less to look at: them, or the time between."""
    if last - after < len(slots):
        return [number for number in range(after + 1, last + 1) if number in slots]
    return sorted([number for number in slots if number <= last])

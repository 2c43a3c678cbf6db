"""Limits of deliveries by topic: caps, pauses, and the wheel on which capped topics wait."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from itertools import islice

from mypy_extensions import mypyc_attr

from foqs.host.dispatch.prefetch import Prefetch
from foqs.host.dispatch.queues import Queues
from foqs.host.dispatch.tenant import Tenant
from foqs.host.dispatch.topic_queue import TopicQueue
from foqs.model import limits
from foqs.model.caps import NEVER_S, Cap, TokenBucket, TokenSource
from foqs.model.namespace import SettingsTable
from foqs.model.stocks import Topic
from foqs.shard.writer.shard_writer import ShardWriter

SLOT_MS = 20
"""Length of a slot in which topics wait for tokens, in milliseconds: the shortest time between two checks of one."""
UNTIL_FED = -1
"""The slot number of a topic that waits until `cap_fed` reports a token, or the time of the next one."""
WEIGHED_MAX = 100
"""Topics waiting for their namespace's tokens whose weights are added up; the others count with their average."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Capping:
    """The part of the dispatcher that holds topics back. It owns the caps, and the topics that wait for tokens.

    A token is taken before an item is claimed, spent by its delivery, and returned if the item is not delivered. So
    every claimed item may be delivered. A topic that waits for a token, or is paused, costs nothing meanwhile, because
    it is not active, is in no ring, and in one slot of the wheel at most.
    """

    def __init__(self, writers: Mapping[int, ShardWriter], clock: Callable[[], float], settings: SettingsTable) -> None:
        """`writers` is the live mapping of the host's shard writers by id; `clock` is monotonic, in seconds.

        `settings` is the table that the shards read as well.
        """
        self.queues = Queues()
        self.prefetch = Prefetch(self.queues, writers, settings)
        self._writers = writers
        self._clock = clock
        self.settings = settings
        self.new_cap: Callable[[tuple[int, str], float, float], Cap] = _new_bucket
        """Makes the cap of a topic or a namespace for a rate. If hosts share caps, homes feed the result."""
        self._caps: dict[tuple[int, str], Cap] = {}
        """The caps of topics, and of namespaces under the name "". They outlive their queues, because otherwise a
        topic that is often forgotten would get a fresh cap each time.
        """
        self._slots: dict[int, list[TopicQueue]] = {}
        """Topics that wait for tokens of their own, by slot."""
        self._tenant_slots: dict[int, list[Tenant]] = {}
        """Namespaces that wait for tokens, by slot."""
        self._slot = math.floor(clock() * 1000 / SLOT_MS)
        """The last slot that was checked."""
        self._due: list[TopicQueue] = []
        """Topics whose waits are over, and which still have to be served."""
        self._due_tenants: list[Tenant] = []

    # ---- settings of operators ----

    def _refresh(self, queue: TopicQueue) -> None:
        """Apply the current policy of a topic and the current settings of its namespace."""
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
                self._due.append(queue)  # It waits for tokens of its former cap.
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
        """Return the cap for the current rate, or None without a rate."""
        if not rate:
            if (ended := self._caps.pop((namespace, name), None)) is not None:
                ended.end(self._clock())
            return None
        cap = self._caps.get((namespace, name))
        if cap is None or cap.rate != rate:
            now_s = self._clock()
            # A new object, so that tokens of the old rate are not used.
            cap = self.new_cap((namespace, name), rate, now_s) if cap is None else cap.at_rate(rate, now_s)
            self._caps[namespace, name] = cap
        return cap

    def _rest(self, queue: TopicQueue) -> None:
        if self.queues.deactivate_if_idle(queue):
            self._forget(queue)

    def _forget(self, queue: TopicQueue) -> None:
        self._return_tokens(queue, queue.allowed_count)
        queue.tenant.starved.pop(queue, None)
        queue.tenant.leave(queue)
        queue.parked_slot = 0

    # ---- tokens ----

    def _take_tokens(self, queue: TopicQueue, count: int, now_s: float) -> int:
        """Take up to `count` tokens of each of its caps. Returns the number taken."""
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
        """Spend the tokens of `count` delivered items."""
        count, now_s = min(count, queue.allowed_count), self._clock()
        queue.allowed_count -= count
        for cap in (queue.cap, queue.shared_cap):
            if cap is not None:
                cap.spend(count, now_s)

    def _return_tokens(self, queue: TopicQueue, count: int) -> None:
        """Return `count` unused tokens, and wake topics and namespaces that wait for one."""
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
        """Return the tokens of `count` deliveries that reached no consumer, so that their items can be sent again."""
        now_s = self._clock()
        namespace, _ = topic
        for key in (topic, (namespace, "")):
            if (cap := self._caps.get(key)) is not None:
                cap.unspend(count, now_s)
        queue, tenant = self.queues.by_topic.get(topic), self.queues.tenants.get(namespace)
        if queue is not None and queue.parked_slot:
            self._due.append(queue)
        if tenant is not None and tenant.cap is not None and tenant.parked_slot:
            self._due_tenants.append(tenant)

    def _admit(self, queue: TopicQueue) -> None:
        """Take tokens for the wants of its calls, if the topic has items."""
        tenant = queue.tenant
        wanted = min(queue.waiting_count, limits.TRANSACTION_CLAIMS_MAX) - queue.allowed_count
        if wanted <= 0 or queue.is_paused or not queue.has_something():
            return
        if queue.shared_cap is not None:
            if tenant.turn_count:
                wanted = min(wanted, tenant.turn_count)
            elif tenant.starved or tenant.parked_slot:
                # Other topics came first.
                tenant.starved[queue] = None
                self._park_tenant(tenant)
                return
        now_s = self._clock()
        is_short = self._take_tokens(queue, wanted, now_s) < wanted and queue.shared_cap is not None
        if is_short and (queue.cap is None or not queue.cap.wait_s(now_s)):
            tenant.starved[queue] = None
            self._park_tenant(tenant)

    def _settle_tokens(self, queue: TopicQueue) -> None:
        """Return items and tokens that cannot be used now, and park the topic if its calls need more tokens."""
        buffer = queue.buffer
        excess = len(buffer) if not queue.calls else len(buffer) - queue.allowed_count
        if excess > 0:
            self.prefetch.unclaim(queue, buffer.least_urgent(excess))
        held_count = len(buffer) + queue.coming_count
        if queue.allowed_count > held_count:
            self._return_tokens(queue, queue.allowed_count - held_count)
        if queue.allowed_count or queue.buffer.sort_keys or queue.claims_count or not queue.calls:
            return
        # A topic without items must not wait for tokens, because the wait takes them from the host that has the items.
        if queue.is_paused or (queue.has_something() and self._lacks_tokens(queue)):
            self._park(queue)

    def _lacks_tokens(self, queue: TopicQueue) -> bool:
        return queue in queue.tenant.starved or (queue.cap is not None and queue.cap.wait_s(self._clock()) > 0)

    def _admit_arriving(self, queue: TopicQueue) -> None:
        """Take tokens for the wants of its calls before items are written."""
        wanted = min(queue.waiting_count, limits.TRANSACTION_CLAIMS_MAX) - queue.allowed_count
        is_behind = queue.shared_cap is not None and (queue.tenant.starved or queue.tenant.parked_slot)
        if wanted > 0 and not is_behind:
            self._take_tokens(queue, wanted, self._clock())

    # ---- the wheel ----

    def _park(self, queue: TopicQueue) -> None:
        """Park a topic that has no tokens."""
        self.queues.deactivate(queue)
        if queue in queue.tenant.starved:
            return  # Its namespace has no tokens, and will wake it.
        if queue.in_ring:
            queue.tenant.leave(queue)
        if queue.parked_slot or queue.is_paused or queue.cap is None:
            return  # It already waits for a slot, or it waits for an operator.
        self._wait_for_slot(queue, queue.cap)
        self.queues.notify(queue.namespace, queue.name)  # Other hosts must not ask for its items meanwhile.

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
            # Its cap was removed, and more topics wait than one turn wakes.
            tenant.parked_slot = UNTIL_FED
            self._due_tenants.append(tenant)

    def _wait_for_tenant_slot(self, tenant: Tenant, cap: TokenSource) -> None:
        slot, before = self._slot_after(cap), tenant.parked_slot
        tenant.parked_slot = slot
        if slot not in (before, UNTIL_FED):
            self._tenant_slots.setdefault(slot, []).append(tenant)

    def cap_fed(self, namespace: int, name: str) -> None:
        """React to a report of a cap's home: it fed tokens, or set the time of the next ones."""
        now_s = self._clock()
        if name:
            queue = self.queues.by_topic.get((namespace, name))
            if queue is not None and queue.parked_slot and queue.cap is not None:
                if queue.cap.wait_s(now_s) > 0:
                    self._wait_for_slot(queue, queue.cap)
                else:
                    self._due.append(queue)
            return
        tenant = self.queues.tenants.get(namespace)
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
        """Take the topics whose waits are over, up to limits.SWEEP_QUEUES_MAX."""
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
        """Note that all slots until now were checked."""
        self._slot = math.floor(self._clock() * 1000 / SLOT_MS)


def _new_bucket(_: tuple[int, str], rate: float, now_s: float) -> Cap:
    """Make a cap that this host does not share."""
    return TokenBucket(rate, now_s)


def _slots_between(slots: Mapping[int, object], after: int, last: int) -> list[int]:
    """Return the occupied slots up to `last`."""
    if last - after < len(slots):
        return [number for number in range(after + 1, last + 1) if number in slots]
    return sorted([number for number in slots if number <= last])

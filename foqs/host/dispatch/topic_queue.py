"""One topic over all shards of a host: the calls that wait for its items, and its claims."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from itertools import chain, islice

from foqs.host.dispatch.prefetch_buffer import PrefetchBuffer
from foqs.host.dispatch.tenant import ReadyRing, Tenant
from foqs.model import limits, order
from foqs.model.caps import Cap
from foqs.model.clock import Now
from foqs.model.holder import LeaseHolder
from foqs.model.item import ShardItem, count_of
from foqs.model.stocks import Topic
from foqs.model.topic import ShardTopic
from foqs.model.topic_name import parts
from foqs.shard.state.events import Demand
from foqs.shard.writer.shard_writer import ShardWriter

PREFETCH_HORIZON_MS = 100
"""Items are claimed ahead for the demand of this time, in milliseconds, at the recent rate."""
PREFETCH_ITEMS_PER_TOPIC_MAX = 2_000
"""The most items of one topic that are claimed ahead of consumers."""
PREFETCH_BEGIN_ITEMS_MAX = 32
"""The most items that are claimed ahead of consumers whose rate is not known yet."""


class DequeueCall:
    """One dequeue. It is over once `items` is set; `answered` is set with it if a caller waits for the answer."""

    __slots__ = (
        "answered",
        "attached",
        "attached_number",
        "attached_s",
        "awaited",
        "claimed_for",
        "claimed_for_s",
        "holder",
        "is_paused",
        "items",
        "lacks",
        "lease_ms",
        "lease_ms_default",
        "passed",
        "says_begun",
        "since_s",
        "timer",
        "wants",
    )  # fmt: skip

    def __init__(self, lease_ms: int | None, lease_ms_default: int, since_s: float, says_begun: bool = False,
                 holder: LeaseHolder | None = None) -> None:  # fmt: skip
        self.wants: dict[TopicQueue, int] = {}
        self.awaited: dict[TopicQueue, int] = {}
        """The claims started so far when the call could first have been answered in part."""
        self.claimed_for: dict[TopicQueue, int] = {}
        """The claims started so far when items were last claimed for this call."""
        self.claimed_for_s = 0.0
        """The time of the last claim for this call."""
        self.is_paused = False
        """True if it ended because its namespace or its topics were paused."""
        self.lease_ms = lease_ms
        self.lease_ms_default = lease_ms_default
        self.since_s = since_s
        self.says_begun = says_begun
        """True if its consumer reports each start of work. Until then an item is handed over, and not tried."""
        self.holder = holder
        """Its consumer, if that is known."""
        self.items: list[ShardItem] | None = None
        self.passed: TopicQueue | None = None
        """The last topic that had no more items for a call that names no topic."""
        self.answered: asyncio.Future[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.lacks: dict[ReadyRing, int] = {}
        """The rings of which the call takes items of any topic, each with the items that it still wants beyond its
        `wants`, which then change while it waits.
        """
        self.attached: dict[TopicQueue, ReadyRing] = {}
        """The topics among its wants that were found in a ring, with that ring."""
        self.attached_number = 0
        """Its number among such calls, in the order in which they began to want items of a certain topic."""
        self.attached_s = 0.0
        """The time at which it last began to want items of a certain topic."""

    @property
    def done(self) -> bool:
        return self.items is not None

    def has_candidates(self) -> bool:
        """True if items for the call are ready or being claimed."""
        for ring, count in self.lacks.items():
            if count and ring.entries and not (ring.base is not None and ring.base.is_held):
                cap = ring.tenant.cap
                if not ring.tenant.token_wait_slot or (cap is not None and cap.is_asking):
                    return True
            if count and ring.tenant.asking_permits_count:
                return True
            if ring.base is not None and ring.base.asks_for_tokens():
                return True
        if self.passed is not None and self.passed.can_bring():
            return True  # Earlier calls want all its known items, and can leave some.
        return any(queue.can_bring() for queue in self.wants)

    def refund(self, items: list[ShardItem]) -> None:
        """Return their credit to topics found in rings that brought fewer items than wanted."""
        if count_of(items) == sum(self.wants.values()):
            return
        got: dict[str, int] = {}
        for item in items:
            got[item.topic.name] = got.get(item.topic.name, 0) + item.count
        for queue, ring in self.attached.items():
            missing = self.wants[queue] - got.get(queue.name, 0)
            if missing > 0:
                ring.refund(queue, missing)

    @property
    def takes_turns(self) -> bool:
        """True if it takes items of a topic with fairness keys."""
        return any(ring.levels is not None for ring in self.lacks)

    def wants_paused_only(self) -> bool:
        """True if all topics that the call names are paused."""
        return all(ring.base is not None and ring.base.is_paused for ring in self.lacks) and all(
            queue.is_paused for queue in self.wants
        )

    def next_items(
        self, queues: list[TopicQueue], clocks: dict[int, Now], writers: Mapping[int, ShardWriter]
    ) -> tuple[dict[TopicQueue, list[ShardItem]], dict[TopicQueue, list[ShardItem]]]:
        """Return the next items of the call, of the topics where it is the first call.

        Returns them by topic, and of these the items whose claims do not back the lease. Missing clocks are added to
        `clocks`.
        """
        room, bytes_left = limits.DEQUEUE_ITEMS_MAX, limits.DEQUEUE_ANSWER_BYTES_MAX
        found: dict[TopicQueue, list[ShardItem]] = {}
        unbacked: dict[TopicQueue, list[ShardItem]] = {}
        for queue in queues:
            items, unbacked_items, bytes_left = queue.next_items(self, room, bytes_left, clocks, writers)
            if self.says_begun and (place := _place_of_suspect(items, writers)) is not None:
                count = place or int(not found)  # A suspect is delivered alone: with no item before or behind it.
                left_out = set(items[count:])
                items, unbacked_items = items[:count], [item for item in unbacked_items if item not in left_out]
                bytes_left = 0
            room -= count_of(items)
            if items:
                found[queue] = items
            if unbacked_items:
                unbacked[queue] = unbacked_items
        return found, unbacked

    def awaits_more(self, now_s: float) -> bool:
        """True if a call for any topic still waits for claims in flight for it, up to limits.LINGER_MS_MAX."""
        if now_s - self.attached_s > limits.LINGER_MS_MAX / 1000:
            return False
        for queue, want in self.wants.items():
            if queue.coming_count and not queue.has_buffered_for(self, want):
                awaited = self.awaited.get(queue)
                if awaited is None:
                    awaited = self.awaited[queue] = queue.claims_started_count
                if queue.claims_ended_count < awaited:
                    return True
        return False

    def awaits_claims(self, now_s: float) -> bool:
        """True if it must wait for claims that were made for it, up to limits.LINGER_MS_MAX.

        It waits even if other items can be delivered. Otherwise a consumer of several topics that always gets items of
        one topic would never get an item of another.
        """
        if now_s - self.claimed_for_s > limits.LINGER_MS_MAX / 1000:
            return False
        return any(
            queue.coming_count and queue.claims_ended_count < awaited for queue, awaited in self.claimed_for.items()
        )


class TopicQueue:
    """One topic on this host: its parts on the shards, the calls that wait for its items, and its prefetched items.

    `Queues` makes it, and forgets it when nothing refers to it. It counts demand and the deliverable items of the
    buffer. It changes no shard. Each of its fields is written by one part of the dispatcher.
    """

    __slots__ = (
        "_rate", "_rated_at_s", "_served_count", "allowed_count", "base", "base_queue", "batch_max", "buffer", "calls",
        "cap", "claiming_last", "claims_ended_count", "expired_claims_in_row", "group", "has_claims_for_calls",
        "has_prefetched_for_calls", "in_flight_max", "in_ring", "is_asking_permits", "is_paused", "is_serial",
        "is_throttled", "keyed", "keyed_ring", "lacks_permits",
        "name", "namespace", "parts", "pausing", "permits_got_s", "shared_cap", "sick_parts", "tenant",
        "token_wait_slot", "topic",
        "version", "waiting_count", "weight",
    )  # fmt: skip

    def __init__(self, tenant: Tenant, name: str) -> None:
        self.tenant, self.namespace, self.name = tenant, tenant.namespace, name
        self.topic: Topic = tenant.namespace, name
        self.base, self.group = parts(name)
        """The topic and the consumer group that callers see."""
        # Written by Queues.
        self.base_queue: TopicQueue | None = None
        self.keyed: dict[TopicQueue, None] = {}
        self.keyed_ring: ReadyRing | None = None
        """The base of a keyed topic; its own keyed topics; and its ring with these, if it had some lately."""
        self.parts: dict[int, ShardTopic] = {}
        """The topic on each healthy shard."""
        self.sick_parts: dict[int, ShardTopic] = {}
        """The topic on each sick shard, whose claims in flight can end late, or never."""
        self.calls: dict[DequeueCall, None] = {}
        """The calls in the order of their arrival."""
        self.waiting_count = 0
        """Items that the calls want in all."""
        # Written by Prefetch.
        self.buffer = PrefetchBuffer()
        self.claims_ended_count = 0
        self.claiming_last = order.FIRST
        """An upper bound of the sort keys of claims in flight."""
        self.expired_claims_in_row = 0
        """The number of the last claims in a row that brought no item, because it had expired or the claim failed."""
        self.has_claims_for_calls = self.has_prefetched_for_calls = False
        """True if claims in flight, or prefetched items, are possibly for a call, which can be over by now."""
        self._rate = 0.0
        """The recent rate of deliveries, in items per second."""
        self._rated_at_s, self._served_count = 0.0, 0
        """The time of that rate, and the items delivered since then."""
        # Written by Tokens.
        self.version = -1
        """The version of the settings that it has applied."""
        self.weight = 1
        self.is_paused = False
        """True if no item is delivered."""
        self.is_serial, self.batch_max = False, 1
        """True if it delivers one run of items at a time, to one call, and claims none before a call waits for it; the
        most items of a run.
        """
        self.pausing: deque[DequeueCall] | None = None
        """The calls that a pause has not checked yet; it ends calls that wait for paused topics only."""
        self.cap: Cap | None = None
        self.shared_cap: Cap | None = None
        """The cap of its namespace, which all its topics share."""
        self.is_throttled, self.allowed_count = False, 0
        """True if it is paused or has a cap; and the items for which it holds tokens, the only ones it gives then."""
        # Written by the wheel of Tokens.
        self.token_wait_slot = 0
        """The slot of the wheel until which it waits for a token; 0 when it does not."""
        # Written by Permits.
        self.in_flight_max = 0
        """The limit of its items in flight; 0 for none. With a limit no item is claimed ahead of calls."""
        self.is_asking_permits = self.lacks_permits = False
        """True while its book is being asked; and if ready items waited for permits when it was last served."""
        self.permits_got_s = 0.0
        """The time at which it last got permits."""
        # Written by Rings.
        self.in_ring = False
        """True if it is in the rings of its namespace that match its name."""

    @property
    def is_held(self) -> bool:
        """True if it delivers nothing for now: it is paused, or waits for a token."""
        return self.is_paused or bool(self.token_wait_slot)

    @property
    def shares_permits(self) -> bool:
        """True if its items in flight have a limit together with those of other keys."""
        base = self.base_queue or self
        return base.keyed_ring is not None and bool(base.in_flight_max)

    @property
    def is_offered(self) -> bool:
        """True if it is in the rings of its namespace, for itself and its keyed topics."""
        return self.in_ring if self.keyed_ring is None else self.keyed_ring.is_offered

    @property
    def claims_count(self) -> int:
        """Claims in flight to the database."""
        if not self.sick_parts:
            return self.coming_count
        return self.coming_count + sum([part.claiming_count for part in self.sick_parts.values()])

    @property
    def coming_count(self) -> int:
        """Claims in flight on healthy shards."""
        count = 0
        for part in self.parts.values():  # With few shards this is cheaper than sum().
            count += part.claiming_count
        return count

    @property
    def claims_started_count(self) -> int:
        return self.claims_ended_count + self.claims_count

    def has_waited(self, call: DequeueCall, now_s: float) -> bool:
        """True if a call that can be answered in part has waited for the claims in flight at that moment.

        It waits up to limits.LINGER_MS_MAX.
        """
        if self.coming_count == 0:
            return True
        awaited = call.awaited.get(self)
        if awaited is None:
            awaited = call.awaited[self] = self.claims_started_count
        return self.claims_ended_count >= awaited or now_s - call.since_s > limits.LINGER_MS_MAX / 1000

    @property
    def expects_consumers(self) -> bool:
        """True if the topic had consumers recently."""
        return bool(self._rate or self._served_count)

    def demand_count(self) -> int:
        """Return the number of items for calls that wait, and for calls that will soon come.

        The latter get the items of the horizon at the recent rate. New consumers get as many as they have had, up to
        PREFETCH_BEGIN_ITEMS_MAX (like TCP's slow start). A topic with a cap claims only items that it can deliver now.
        """
        if self.is_serial:
            wanted = next(iter(self.calls)).wants[self] if self.calls else 0
            return min(wanted, self.batch_max, self.allowed_count if self.is_throttled else self.batch_max)
        if self.is_throttled:
            if not self.allowed_count:
                return 0
            allowed = self.allowed_count + (self.expired_claims_in_row if self.calls else 0)
            return min(self.waiting_count, limits.TRANSACTION_CLAIMS_MAX, allowed)
        if (self.base_queue or self).in_flight_max:
            return min(self.waiting_count, limits.TRANSACTION_CLAIMS_MAX)
        at_rate = int(self._rate * PREFETCH_HORIZON_MS / 1000)
        begun = min(self._served_count, PREFETCH_BEGIN_ITEMS_MAX)
        ahead = min(max(at_rate, begun), PREFETCH_ITEMS_PER_TOPIC_MAX)
        if self.calls:
            # The demand doubles each time, so that few transactions skip all expired items.
            ahead += self.expired_claims_in_row
        return min(self.waiting_count, limits.TRANSACTION_CLAIMS_MAX) + ahead

    def tokens_wanted(self) -> int:
        """The number of tokens that its calls lack; 0 or less if they lack none."""
        return min(self.waiting_count, limits.TRANSACTION_CLAIMS_MAX) - self.allowed_count

    def demand(self, count: int) -> Demand:
        """Return the demand that covers `count` wanted items."""
        prefetched_count = len(self.buffer)
        if prefetched_count >= count:
            return Demand(count, 0, self.buffer.place_at(count))
        coming_count = self.coming_count
        before = max(self.buffer.last, self.claiming_last) if coming_count else self.buffer.last
        return Demand(count, max(0, count - prefetched_count - coming_count), before)

    def choose(self, parts: list[ShardTopic], demand: Demand) -> dict[int, int]:
        """Return the number of items to claim by shard: a k-way merge over the heads of the windows of `parts`."""
        shortage, before = demand.shortage, demand.before
        heads: list[list[int]] = []
        for part in parts:
            window = part.window
            if window.sort_keys and (shortage or window.sort_keys[0] < before):
                heads.append(window.first(shortage, before, min(demand.items_max, part.room)))
        chosen = heads[0] if len(heads) == 1 else sorted(chain.from_iterable(heads))
        counts: dict[int, int] = {}
        for shard_id in order.shards_of(chosen[: demand.count_of(chosen)]):
            counts[shard_id] = counts.get(shard_id, 0) + 1
        return counts

    def first_unclaimed(self) -> int:
        first = order.LAST
        for part in self.parts.values():
            if part.first_sort_key < first:
                first = part.first_sort_key
        return first

    def servable_count(self, bound: int) -> int:
        """Return the number of prefetched items before the first unclaimed ready item, up to `bound` and the caps."""
        if not self.buffer.sort_keys:
            return 0
        if self.is_throttled and bound > self.allowed_count:
            bound = self.allowed_count
        return self.buffer.count_up_to(self.first_unclaimed(), bound)

    def has_something(self) -> bool:
        """True if items are prefetched, ready or being claimed."""
        return bool(self.buffer.sort_keys) or self.first_unclaimed() < order.LAST

    def lacks_room(self) -> bool:
        """True if ready items cannot be claimed because of the open leases of their shards."""
        return any(part.window.head != order.LAST and not part.room for part in self.parts.values())

    def can_bring(self) -> bool:
        """True if items that are ready or being claimed can still come for a call."""
        if self.is_throttled and not self.allowed_count:
            return not self.is_paused and self.asks_for_tokens() and self.has_something()
        return self.coming_count > 0 or self.has_something() or (self.is_asking_permits and self.lacks_permits)

    def caps(self) -> list[Cap]:
        """Return its own cap and that of its namespace, as far as they exist."""
        return [cap for cap in (self.cap, self.shared_cap) if cap is not None]

    def asks_for_tokens(self) -> bool:
        """True if another host is about to answer an ask for tokens."""
        return any(cap.is_asking for cap in self.caps())

    def has_buffered_for(self, call: DequeueCall, want: int) -> bool:
        """True if the buffer meets the wants of the call and of the calls before it now."""
        for other in self.calls:
            if other is call:
                break
            want += other.wants[self]
        return self.servable_count(want) >= want

    def spare_count(self, bound: int) -> int:
        """Return the known items beyond those that calls already want, up to `bound`."""
        if self.is_serial and self.waiting_count:
            return 0  # A run is for one call.
        bound += self.waiting_count
        count = len(self.buffer)
        for part in self.parts.values():
            if count >= bound:
                break
            window = part.window
            # Items beyond the edge of a window are read only when a call wants them.
            if window.head != order.LAST and part.room:
                count += min(len(window) or 1, part.room) if self.is_serial else len(window) or 1
            count += part.claiming_count
        return max(0, min(count, bound) - self.waiting_count)

    def next_items(
        self, call: DequeueCall, room: int, bytes_left: int, clocks: dict[int, Now], writers: Mapping[int, ShardWriter]
    ) -> tuple[list[ShardItem], list[ShardItem], int]:
        """Return the next items of the first call, in order, up to `room` items and the `bytes_left` of its answer.

        Returns the items, the items whose claims do not back their leases, and the bytes left. If one is not backed,
        the items of the calls behind are checked as well, because otherwise each of these calls would wait for a commit
        of its own. Sets the `lease_wanted_ms` of the items that are not backed, and adds missing clocks to `clocks`.
        """
        count = self.servable_count(min(call.wants[self], room)) if bytes_left > 0 else 0
        if not count:
            return [], [], bytes_left
        items, room_bytes = self.buffer.most_urgent(count, bytes_left), bytes_left
        unbacked, count, bytes_left = _unbacked(call, items, room_bytes, clocks, writers)
        if unbacked:
            items = self.buffer.ones(items)  # Their calls can want different leases.
            unbacked, count, bytes_left = _unbacked(call, items, room_bytes, clocks, writers)
            taken_count = count
            waiting_count = self.servable_count(min(self.waiting_count, limits.TRANSACTION_CLAIMS_MAX))
            behind = self.buffer.ones(self.buffer.most_urgent(waiting_count))
            for other in islice(self.calls, 1, None):
                some = behind[taken_count : taken_count + other.wants[self]]
                if not some:
                    break
                more, more_count, _ = _unbacked(other, some, limits.DEQUEUE_ANSWER_BYTES_MAX, clocks, writers)
                unbacked += more
                taken_count += more_count
        return items[:count], unbacked, bytes_left

    def note_served(self, count: int, now_s: float) -> None:
        elapsed_s = now_s - self._rated_at_s
        if elapsed_s >= PREFETCH_HORIZON_MS / 1000:
            self._rate = (self._rate + self._served_count / elapsed_s) / 2 if elapsed_s < 2 else 0.0
            if self._rate < 1:
                self._rate = 0.0
            self._served_count = 0
            self._rated_at_s = now_s
        self._served_count += count


def _place_of_suspect(items: list[ShardItem], writers: Mapping[int, ShardWriter]) -> int | None:
    """Return the place of the first item that possibly ended its consumer, or None."""
    for place, item in enumerate(items):
        shard = writers[item.topic.shard_id].shard
        if shard is not None and item.key in shard.suspects:
            return place
    return None


def _unbacked(
    call: DequeueCall,
    items: list[ShardItem],
    bytes_left: int,
    clocks: dict[int, Now],
    writers: Mapping[int, ShardWriter],
) -> tuple[list[ShardItem], int, int]:
    """Return the items whose claims do not back the call's lease, the number of items that fit, and the bytes left."""
    found: list[ShardItem] = []
    count, backed, backed_lease_ms = 0, None, 0
    for item in items:
        if bytes_left <= 0:
            break
        lease_ms = call.lease_ms or item.lease_ms or call.lease_ms_default
        # Most items are under the same claim as the one before, which backs them alike.
        if item.claim is not backed or lease_ms != backed_lease_ms or item.at_most_once or backed is None:
            shard_id = item.topic.shard_id
            if shard_id not in clocks:  # Read once for all items, because a clock costs more than all else here.
                clocks[shard_id] = writers[shard_id].now()
            if item.is_claimed_for(clocks[shard_id].steady_ms + lease_ms):
                backed, backed_lease_ms = None if item.at_most_once else item.claim, lease_ms
            else:
                item.lease_wanted_ms = lease_ms
                found.append(item)
        bytes_left -= item.size_bytes
        count += 1
    return found, count, bytes_left

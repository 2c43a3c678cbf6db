"""One topic over all shards of a host: what waits for its items, and what is claimed for them."""

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
from foqs.model.item import ShardItem
from foqs.model.topic import ShardTopic
from foqs.shard.state.events import Demand
from foqs.shard.writer.shard_writer import ShardWriter

PREFETCH_HORIZON_MS = 100
"""Items are claimed ahead for the demand of this time, at the recent rate."""
PREFETCH_ITEMS_PER_TOPIC_MAX = 2_000
"""Items of one topic that are claimed ahead of consumers."""
PREFETCH_BEGIN_ITEMS_MAX = 32
"""Items that are claimed ahead of consumers whose rate is not known yet."""


class DequeueCall:
    """One dequeue; it is over once `items` is set, and `answered` with it where somebody waits for that."""

    __slots__ = (
        "answered", "attached_number", "attached_s", "awaited", "claimed_for", "claimed_for_s", "count_left",
        "is_paused", "items", "lease_ms", "lease_ms_default", "passed", "ring", "says_begun", "since_s", "timer",
        "wants",
    )  # fmt: skip

    def __init__(self, lease_ms: int | None, lease_ms_default: int, since_s: float, says_begun: bool = False) -> None:
        self.wants: dict[TopicQueue, int] = {}
        self.awaited: dict[TopicQueue, int] = {}
        """The claims that were in flight when the call could first have been answered with a part."""
        self.claimed_for: dict[TopicQueue, int] = {}
        """The claims that were in flight when items were last claimed for this call."""
        self.claimed_for_s = 0.0
        """When items were last claimed for this call."""
        self.is_paused = False
        """It ended because its namespace or its topics were paused."""
        self.lease_ms = lease_ms
        self.lease_ms_default = lease_ms_default
        self.since_s = since_s
        self.says_begun = says_begun
        """Its consumer says on which items it begins to work: until then they are handed over, and not tried."""
        self.items: list[ShardItem] | None = None
        self.passed: TopicQueue | None = None
        """The last topic of which there was nothing more for a call that names none."""
        self.answered: asyncio.Future[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.ring: ReadyRing | None = None
        """Set if the call takes items of any topic of a ring: then its wants come and go."""
        self.count_left = 0
        """Items that such a call wants beside what it already wants of certain topics."""
        self.attached_number = 0
        """The number of the call among such calls, in the order in which they began to want something of a certain
        topic.
        """
        self.attached_s = 0.0
        """When it last began to want something of a certain topic."""

    @property
    def done(self) -> bool:
        return self.items is not None

    def next_items(
        self, queues: list[TopicQueue], clocks: dict[int, Now], writers: Mapping[int, ShardWriter]
    ) -> tuple[dict[TopicQueue, list[ShardItem]], dict[TopicQueue, list[ShardItem]]]:
        """The next items of the call, of those of its topics where it is the first one.

        Returns it, and what of it is not claimed as the lease needs it. Clocks that are missing are added.
        """
        room, bytes_left = limits.DEQUEUE_ITEMS_MAX, limits.DEQUEUE_ANSWER_BYTES_MAX
        found: dict[TopicQueue, list[ShardItem]] = {}
        unbacked: dict[TopicQueue, list[ShardItem]] = {}
        for queue in queues:
            items, unbacked_items, bytes_left = queue.next_items(self, room, bytes_left, clocks, writers)
            if self.says_begun and (place := _place_of_suspect(items, writers)) is not None:
                count = place or int(not found)  # It comes alone, and nothing comes with it, or behind it.
                left_out = set(items[count:])
                items, unbacked_items = items[:count], [item for item in unbacked_items if item not in left_out]
                bytes_left = 0
            room -= len(items)
            if items:
                found[queue] = items
            if unbacked_items:
                unbacked[queue] = unbacked_items
        return found, unbacked

    def awaits_more(self, now_s: float) -> bool:
        """Whether a call for any topic waits for claims that are on the way for it, which it does for a while."""
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
        """Whether it is to wait for claims that were made for it.

        It does for a while, whatever else there is to be delivered: who often asks for several topics, and always gets
        something of one, would never get anything of another one else.
        """
        if now_s - self.claimed_for_s > limits.LINGER_MS_MAX / 1000:
            return False
        return any(
            queue.coming_count and queue.claims_ended_count < awaited for queue, awaited in self.claimed_for.items()
        )


class TopicQueue:
    """One topic on this host: its parts on the shards, the calls that wait for its items, and what is prefetched.

    The dispatcher makes it, and forgets it when nothing refers to it. It counts demand and says how much of the buffer
    may be delivered; it changes no shard.
    """

    __slots__ = (
        "_rate",
        "_rated_at_s",
        "_served_count",
        "allowed_count",
        "buffer",
        "calls",
        "cap",
        "claiming_last",
        "claims_ended_count",
        "expired_claims_in_row",
        "has_claims_for_calls",
        "has_prefetched_for_calls",
        "in_ring",
        "is_paused",
        "is_throttled",
        "name",
        "namespace",
        "parked_slot",
        "parts",
        "pausing",
        "shared_cap",
        "sick_parts",
        "tenant",
        "version",
        "waiting_count",
        "weight",
    )

    def __init__(self, tenant: Tenant, name: str) -> None:
        self.tenant = tenant
        self.namespace = tenant.namespace
        self.name = name
        self.version = -1
        """The settings that are valid for it, by their version, are known up to this one."""
        self.weight = 1
        self.is_paused = False
        """Nothing of it is delivered."""
        self.pausing: deque[DequeueCall] | None = None
        """While it is paused: the calls not yet looked at, of which those end that wait for nothing else."""
        self.cap: Cap | None = None
        self.shared_cap: Cap | None = None
        """The cap that its namespace shares among topics."""
        self.is_throttled = False
        """It is paused or has a cap: no more of it is delivered, or claimed, than is allowed."""
        self.allowed_count = 0
        """The tokens that it holds of each of its caps."""
        self.parked_slot = 0
        """The slot of the wheel until which it waits for a token; 0 when it does not."""
        self.in_ring = False
        """It stands in the rings of its namespace whose prefixes it has."""
        self.parts: dict[int, ShardTopic] = {}
        """The topic on each healthy shard."""
        self.sick_parts: dict[int, ShardTopic] = {}
        """The topic on the others: what they have in flight may come late, or never."""
        self.buffer = PrefetchBuffer()
        self.calls: dict[DequeueCall, None] = {}
        """The calls in the order of their arrival."""
        self.waiting_count = 0
        """Items that the calls want."""
        self.claims_ended_count = 0
        self.claiming_last = order.FIRST
        """No claim in flight is of a later sort key."""
        self.expired_claims_in_row = 0
        """The last claims in a row that brought nothing: their items had expired, or they failed."""
        self.has_claims_for_calls = False
        """Some of the claims in flight may be for a call, which may be over by the time they arrive."""
        self.has_prefetched_for_calls = False
        """Some prefetched items may have been claimed for a call."""
        self._rate = 0.0
        """Items delivered a second, lately."""
        self._rated_at_s = 0.0
        self._served_count = 0
        """Items that were delivered since then."""

    @property
    def claims_count(self) -> int:
        """Claims in flight to the database."""
        if not self.sick_parts:
            return self.coming_count
        return self.coming_count + sum([part.claiming_count for part in self.sick_parts.values()])

    @property
    def coming_count(self) -> int:
        """The claims in flight that are on healthy shards."""
        count = 0
        for part in self.parts.values():  # Cheaper than sum() of the few shards that there are.
            count += part.claiming_count
        return count

    @property
    def claims_started_count(self) -> int:
        return self.claims_ended_count + self.claims_count

    def note_claims_started(self, count: int, last: int) -> None:
        """Note that so many claims have just been started, of items up to the sort key `last`."""
        if self.claims_count <= count or last > self.claiming_last:
            self.claiming_last = last

    def has_waited(self, call: DequeueCall, now_s: float) -> bool:
        """A call that can be answered in part waits for what is on the way at that moment, and no longer."""
        if self.coming_count == 0:
            return True
        awaited = call.awaited.get(self)
        if awaited is None:
            awaited = call.awaited[self] = self.claims_started_count
        return self.claims_ended_count >= awaited or now_s - call.since_s > limits.LINGER_MS_MAX / 1000

    @property
    def expects_consumers(self) -> bool:
        """Whether consumers of the topic were here of late."""
        return bool(self._rate or self._served_count)

    def demand_count(self) -> int:
        """Items for those who wait, and for those who will soon come.

        As many as come within the horizon at the rate of late; where consumers have just begun, a few: as many as they
        have had, up to a bound (as TCP's slow start). Of a topic with a cap, nothing that may not go at once.
        """
        if self.is_throttled:
            if not self.allowed_count:
                return 0
            allowed = self.allowed_count + (self.expired_claims_in_row if self.calls else 0)
            return min(self.waiting_count, limits.TRANSACTION_CLAIMS_MAX, allowed)
        at_rate = int(self._rate * PREFETCH_HORIZON_MS / 1000)
        begun = min(self._served_count, PREFETCH_BEGIN_ITEMS_MAX)
        ahead = min(max(at_rate, begun), PREFETCH_ITEMS_PER_TOPIC_MAX)
        if self.calls:
            # Twice as many each time, so that few transactions get past what has expired.
            ahead += self.expired_claims_in_row
        return min(self.waiting_count, limits.TRANSACTION_CLAIMS_MAX) + ahead

    def demand(self, count: int) -> Demand:
        """The demand by which there is something for `count` items that are wanted."""
        prefetched_count = len(self.buffer)
        if prefetched_count >= count:
            return Demand(count, 0, self.buffer.place_at(count))
        coming_count = self.coming_count
        before = max(self.buffer.last, self.claiming_last) if coming_count else self.buffer.last
        return Demand(count, max(0, count - prefetched_count - coming_count), before)

    def choose(self, parts: list[ShardTopic], demand: Demand) -> dict[int, int]:
        """How many items to claim by shard: a k-way merge over the heads of the windows of `parts`."""
        shortage, before = demand.shortage, demand.before
        heads: list[list[int]] = []
        for part in parts:
            window = part.window
            if window.sort_keys and (shortage or window.sort_keys[0] < before):
                heads.append(window.first(shortage, before, min(demand.items_max, part.room)))
        chosen = heads[0] if len(heads) == 1 else sorted(chain.from_iterable(heads))
        counts: dict[int, int] = {}
        for sort_key in chosen[: demand.count_of(chosen)]:
            shard_id = order.shard_of(sort_key)
            counts[shard_id] = counts.get(shard_id, 0) + 1
        return counts

    def first_unclaimed(self) -> int:
        first = order.LAST
        for part in self.parts.values():
            if part.first_sort_key < first:
                first = part.first_sort_key
        return first

    def servable_count(self, bound: int) -> int:
        """How many prefetched items precede every ready item that is not held, up to `bound`, as far as caps allow."""
        if not self.buffer.sort_keys:
            return 0
        if self.is_throttled and bound > self.allowed_count:
            bound = self.allowed_count
        return self.buffer.count_up_to(self.first_unclaimed(), bound)

    def has_something(self) -> bool:
        """Whether there are items to deliver, or on the way."""
        return bool(self.buffer.sort_keys) or self.first_unclaimed() < order.LAST

    def lacks_room(self) -> bool:
        """Whether there are ready items that may not be claimed, because of the open leases of their shards."""
        return any(part.window.head != order.LAST and not part.room for part in self.parts.values())

    def may_bring(self) -> bool:
        """A call may wait for what is ready or on the way here."""
        if self.is_throttled and not self.allowed_count:
            return not self.is_paused and self.asks_for_tokens() and self.has_something()
        return self.coming_count > 0 or self.has_something()

    def asks_for_tokens(self) -> bool:
        """Another host is about to say whether there are any."""
        return any(cap is not None and cap.is_asking for cap in (self.cap, self.shared_cap))

    def has_buffered_for(self, call: DequeueCall, want: int) -> bool:
        """Whether the wants of the call and of those before it can be met now."""
        for other in self.calls:
            if other is call:
                break
            want += other.wants[self]
        return self.servable_count(want) >= want

    def spare_count(self, bound: int) -> int:
        """How many items there are beside those that calls want already, up to `bound`, as far as is known."""
        bound += self.waiting_count
        count = len(self.buffer)
        for part in self.parts.values():
            if count >= bound:
                break
            window = part.window
            # What lies beyond the edge of a window is read when somebody wants it.
            if window.head != order.LAST and part.room:
                count += len(window) or 1
            count += part.claiming_count
        return max(0, min(count, bound) - self.waiting_count)

    def next_items(
        self, call: DequeueCall, room: int, bytes_left: int, clocks: dict[int, Now], writers: Mapping[int, ShardWriter]
    ) -> tuple[list[ShardItem], list[ShardItem], int]:
        """The items that the first call gets next, in order, up to `room`, as far as its answer has bytes for them.

        Returns them, those whose claims do not back the leases that they are about to get, and the bytes that are left.
        Where there is one of the latter, those that the calls behind get then are looked at as well: else each of these
        would wait for a commit of its own. The `lease_wanted_ms` of what is not backed is set. The clocks of shards
        that are missing in `clocks` are added.
        """
        count = self.servable_count(min(call.wants[self], room)) if bytes_left > 0 else 0
        if not count:
            return [], [], bytes_left
        items = self.buffer.most_urgent(count)
        unbacked, count, bytes_left = _unbacked(call, items, bytes_left, clocks, writers)
        if unbacked:
            taken_count = count
            behind = self.buffer.most_urgent(
                self.servable_count(min(self.waiting_count, limits.TRANSACTION_CLAIMS_MAX))
            )
            for other in islice(self.calls, 1, None):
                some = behind[taken_count : taken_count + other.wants[self]]
                if not some:
                    break
                more, more_count, _ = _unbacked(other, some, limits.DEQUEUE_ANSWER_BYTES_MAX, clocks, writers)
                unbacked += more
                taken_count += more_count
        return items[:count], unbacked, bytes_left

    def take(self, count: int, now_s: float) -> None:
        """The next items are delivered, so many of them."""
        self.buffer.take(count)
        self.note_served(count, now_s)

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
    """The place of the first item that may have ended its consumer; None if there is none."""
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
    """The items whose claims do not back the call's lease, how many there are bytes for, and the bytes left."""
    found: list[ShardItem] = []
    count = 0
    for item in items:
        if bytes_left <= 0:
            break
        shard_id = item.topic.shard_id
        if shard_id not in clocks:  # Once for all items: a clock costs more than all else here.
            clocks[shard_id] = writers[shard_id].now()
        lease_ms = call.lease_ms or item.lease_ms or call.lease_ms_default
        if not item.is_claimed_for(clocks[shard_id].steady_ms + lease_ms):
            item.lease_wanted_ms = lease_ms
            found.append(item)
        bytes_left -= item.size_bytes
        count += 1
    return found, count, bytes_left

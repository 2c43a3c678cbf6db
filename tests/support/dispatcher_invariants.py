"""What must hold of a dispatcher between two steps of the loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator
from typing import Any

from foqs.host.dispatch.dispatcher import Dispatcher
from foqs.host.dispatch.levels import level_of
from foqs.host.dispatch.tenant import ReadyRing, Tenant
from foqs.host.dispatch.tokens import UNTIL_FED
from foqs.host.dispatch.topic_queue import DequeueCall, TopicQueue
from foqs.model.caps import NEVER_S
from foqs.model.item import Phase
from foqs.model.shared_caps import SharedCap
from foqs.model.topic import ShardTopic
from foqs.shard.state.engine import ShardState
from tests.support.invariants import contents_bytes


def dispatcher_problems(dispatcher: Dispatcher, shards: list[ShardState]) -> Iterator[str]:
    """Between two steps of the loop, whatever is under way."""
    buffers = [queue.buffer for queue in dispatcher.queues.by_topic.values()]
    held = sum(contents_bytes(item) for buffer in buffers for item in buffer.items)
    if dispatcher.prefetch.prefetched_bytes != held:
        yield f"the prefetch buffers count {dispatcher.prefetch.prefetched_bytes} bytes and hold {held}"
    waiting = {call for queue in dispatcher.queues.by_topic.values() for call in queue.calls}
    waiting |= calls_waiting_any(dispatcher)
    waiting |= dispatcher.rings._busy.keys()
    yield from _cap_problems(dispatcher)
    untold = {topic.name for shard in shards for topic in shard.index.events.topics_changed}
    yield from _ring_problems(dispatcher, untold)
    if dispatcher.queues.waiting_count != len(waiting):
        yield f"{dispatcher.queues.waiting_count} calls are counted as waiting, there are {len(waiting)}"
    on_the_way: Counter[tuple[int, str]] = Counter()
    buffered = Counter((item.topic.shard_id, key) for buffer in buffers for item in buffer.items for key in item.keys)
    for buffer in buffers:
        if sorted(buffer._items, reverse=True) != buffer.sort_keys:
            yield "the places of a prefetch buffer are not those of its items"
    for shard in shards:
        for item in [*shard.claims.waiting_for_calls.values(), *shard.claims.waiting.values(), *shard.claims.in_flight]:
            on_the_way[item.topic.namespace, item.topic.name] += item.count
        for key, item in shard.index.leases.items():
            count = buffered.get((shard.shard_id, key), 0)
            if (item.phase is Phase.PREFETCHED) != (count == 1):
                yield f"{key:x} is {item.phase.name} and stands {count} times in a prefetch buffer"
    for name, queue in dispatcher.queues.by_topic.items():
        if not queue.calls:
            yield from problems_of_ended_calls(dispatcher, queue)
        wanted = sum([call.wants[queue] for call in queue.calls])
        if queue.waiting_count != wanted:
            yield f"{name} counts {queue.waiting_count} wanted items, its calls want {wanted}"
        claims_count = queue.claims_count - sum([part.claiming_count for part in parts_left(queue, shards)])
        if claims_count != on_the_way[name]:
            yield f"{name} counts {claims_count} claims on the way, there are {on_the_way[name]}"


def parts_left(queue: TopicQueue, shards: Iterable[ShardState]) -> list[ShardTopic]:
    """The topic's parts on shards that were lost. They are taken out slice by slice, in turns of the loop."""
    held = {shard.shard_id for shard in shards}
    return [part for part in [*queue.parts.values(), *queue.sick_parts.values()] if part.shard_id not in held]


def calls_waiting_any(dispatcher: Dispatcher) -> set[DequeueCall]:
    """Calls that want something of any topic."""
    return {call for tenant in dispatcher.queues.tenants.values() for ring in _rings(tenant) for call in ring.waiting}


def _rings(tenant: Tenant) -> list[ReadyRing]:
    return [tenant.ring, *tenant.rings.values(), *tenant.keyed_waiting]


def _cap_problems(dispatcher: Dispatcher) -> Iterator[str]:
    """Tokens are held for what is held, and nothing is held without them."""
    tokens = dispatcher.tokens
    held: Counter[int] = Counter()
    caps = {id(cap): cap for cap in tokens.caps.values()}
    for name, queue in dispatcher.queues.by_topic.items():
        for cap in (queue.cap, queue.shared_cap):
            if cap is not None:
                held[id(cap)] += queue.allowed_count
                if id(cap) not in caps and queue.version == dispatcher.settings.version:
                    yield f"{name} has a cap that is none any more"
        if queue.allowed_count < 0 or (queue.allowed_count and not queue.is_throttled):
            yield f"{name} holds {queue.allowed_count} tokens"
        if queue.token_wait_slot == UNTIL_FED:
            is_waited_for = queue in tokens.topic_wheel._due or _is_looked_after(queue.cap)
        else:
            is_waited_for = queue in tokens.topic_wheel._slots.get(queue.token_wait_slot, [*tokens.topic_wheel._due])
        if queue.token_wait_slot and not is_waited_for:
            yield f"{name} waits for tokens, and nobody will wake it"
    for tenant in dispatcher.queues.tenants.values():
        is_waited_for = tenant in tokens.tenant_wheel._due or _is_looked_after(tenant.cap)
        if tenant.token_wait_slot == UNTIL_FED and tenant.version == dispatcher.settings.version and not is_waited_for:
            yield f"namespace {tenant.namespace} waits for tokens, and nobody will wake it"
    for key, any_cap in caps.items():
        cap = any_cap._own if isinstance(any_cap, SharedCap) else any_cap
        if any_cap._held_count != held[key]:
            yield f"a cap of {any_cap.rate} counts {any_cap._held_count} tokens, {held[key]} are held"
        if cap is None:
            continue
        if cap._held_count != held[key] or cap._tokens < -1e-6 or cap._tokens > max(0, cap.burst - held[key]) + 1e-6:
            yield f"a cap of {cap.rate} counts {cap._tokens} and {cap._held_count} tokens, {held[key]} are held"


def _is_looked_after(cap: Any) -> bool:
    """Whether a home is asked for its tokens, or will be."""
    return isinstance(cap, SharedCap) and (cap.is_asking or cap.watched_s < NEVER_S)


def _ring_problems(dispatcher: Dispatcher, untold: Container[str]) -> Iterator[str]:
    """`untold`: topics of whose changes the dispatcher will soon be told."""
    for name, queue in dispatcher.queues.by_topic.items():
        own = (queue.base_queue or queue).keyed_ring
        if own is not None and (queue in own.entries) != queue.in_ring:
            yield f"{name} is {'' if queue.in_ring else 'not '}in the ring of its base, but not so in its entries"
        if own is not None and own.base is queue:
            yield from _level_problems(own, untold)
        for ring in queue.tenant.rings_of(queue.base, queue.group) if queue.base_queue is None else ():
            if (queue in ring.entries) != queue.is_offered and not _is_unfilled(queue):
                yield f"{name} is {'' if queue.is_offered else 'not '}in rings, but not so in that of {ring.prefix!r}"
        if own is not None and own.base is queue and own.entries and not (queue.is_held or own.is_offered):
            is_untold = queue.name in untold or any(entry.name in untold for entry in own.entries)
            if not (is_untold or name in dispatcher.settings.policy_changes):
                yield f"{name} has keyed topics with items, and is in no ring"
        if queue.in_ring:
            continue
        is_held_back = queue.is_paused or queue.token_wait_slot or queue.name in untold
        is_held_back = is_held_back or queue in dispatcher.rings._waiting_for_room
        is_held_back = is_held_back or queue.coming_count  # Their end will be told.
        is_held_back = is_held_back or name in dispatcher.settings.policy_changes  # It may have gone on.
        is_held_back = is_held_back or dispatcher.settings.prefix_changes or dispatcher._prefix_sweep.is_under_way
        if not is_held_back and queue.spare_count(1) and queue.has_something():
            yield f"{name} has something to give, and is in no ring"
    queues_of = Counter([id(queue.tenant) for queue in dispatcher.queues.by_topic.values()])
    for tenant in dispatcher.queues.tenants.values():
        rings = _rings(tenant)
        if tenant.waiting_any_count != sum(len(ring.waiting) for ring in rings):
            yield f"namespace {tenant.namespace} counts {tenant.waiting_any_count} calls for any topic"
        if tenant.queues_count != queues_of[id(tenant)]:
            yield f"namespace {tenant.namespace} counts {tenant.queues_count} topics"
        is_held_back = tenant.token_wait_slot or dispatcher._namespaces_paused is not dispatcher.settings.dequeue_paused
        is_held_back = is_held_back or tenant.namespace in dispatcher.settings.dequeue_paused
        for ring in rings:
            if (
                ring.waiting
                and ring.entries
                and not is_held_back
                and not (ring.base is not None and ring.base.is_held)
                and ring not in {**dispatcher.rings.fed_keyed, **dispatcher.rings._fed_keyed_later}
                and tenant not in {**dispatcher.rings.fed, **dispatcher.rings._fed_later}
            ):
                ready = [
                    queue
                    for entry in ring.entries
                    for queue in (entry.keyed_ring.entries if entry.keyed_ring is not None else [entry])
                    if queue.spare_count(1) and not (queue.is_paused or queue.coming_count or queue.name in untold)
                ]
                if ready:
                    yield f"a call waits for {ring.prefix!r} although {ready[0].name} has something"
    waiting_any_count = sum(tenant.waiting_any_count for tenant in dispatcher.queues.tenants.values())
    if dispatcher.rings.waiting_any_count != waiting_any_count:
        yield f"{dispatcher.rings.waiting_any_count} calls for any topic are counted, there are {waiting_any_count}"


def _level_problems(ring: ReadyRing, untold: Container[str]) -> Iterator[str]:
    """The topics of a ring are those of its levels, and no place is less urgent than its topic."""
    for levels, found in ((ring.levels, ring.entries), (ring.lacking_levels, ring.lacking)):
        if levels is None:
            continue
        if levels._levels_of.keys() | levels._unplaced.keys() != found.keys():
            yield f"a ring has {len(found)} topics, and others in its levels"
        in_rounds = sorted([(level, id(one)) for level, some in levels._rounds.items() for one in some])
        if in_rounds != sorted([(level, id(one)) for one, some in levels._levels_of.items() for level in some]):
            yield "the topics in the rounds of a ring are not those with its level"
        for queue, (level, *_) in levels._levels_of.items():
            actual = level_of(queue, needs_room=levels is ring.levels)
            if actual < level and queue.name not in untold:
                yield f"{queue.name!r} has an item of {actual}, and its place is that of {level}"


def problems_of_ended_calls(dispatcher: Dispatcher, queue: TopicQueue) -> Iterator[str]:
    """What is claimed for a call although none waits: if the host died, it would be taken for delivered."""
    if queue.calls:
        return
    for item in queue.buffer.items:
        if not item.is_claimed_ahead:
            yield f"{item.key:x} of {queue.name} was claimed for a call, and is held although none waits"
    for part in [*queue.parts.values(), *queue.sick_parts.values()]:
        shard = dispatcher.prefetch._writers[part.shard_id].shard
        for item in shard.claims.waiting_for_calls.values() if shard is not None else ():
            if item.topic is part:
                yield f"{item.key:x} of {queue.name} is to be claimed for a call, and none waits"


def _is_unfilled(queue: TopicQueue) -> bool:
    """Whether one of its tenant's rings has still to take it."""
    return any(queue in some for ring in queue.tenant.rings.values() for some in ring.unfilled)

"""What must hold of a host's state and its servers' rows whenever a transaction has ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import NamedTuple

from foqs.host.dispatch import Dispatcher
from foqs.host.topic_queue import DequeueCall, TopicQueue
from foqs.model import limits, order
from foqs.model.item import Phase, ShardItem
from foqs.model.seen import BLOCK_IDS, SeenTable, hashes_of
from foqs.model.seen_image import BadImageError, ImageKey, ImageReader, read_head
from foqs.model.topic import ItemCounts, ShardTopic
from foqs.shard.port import TIMER_LANE, StoredClaim, Transaction
from foqs.shard.state.engine import ShardState
from foqs.shard.state.index import ShardIndex
from foqs.shard.state.leases import SLOT_MS
from foqs.storage.formats import unpack_items
from foqs.storage.packs.index import PackIndex
from foqs.testing.fake_tables import Tables

_READY = "ready"
_UNDER_LEASE = (Phase.LEASED, Phase.SETTLING)


# ---- P6: nothing is handed out past something more urgent ----


def order_problems(
    dispatcher: Dispatcher, items: list[ShardItem], tables: Mapping[int, Tables], passed: Container[ShardTopic]
) -> Iterator[str]:
    """Of the items of one response. `passed`: topics that had no room for more claims, which hold nobody up."""
    last: dict[TopicQueue, int] = {}
    for item in items:
        queue = dispatcher._queues[item.topic.namespace, item.topic.name]
        last[queue] = max(last.get(queue, order.FIRST), item.sort_key)
    for queue, sort_key in last.items():
        for shard_id, topic in queue.parts.items():
            writer = dispatcher._writers[shard_id]
            shard = writer.shard
            lane = tables[shard_id].lanes.get(topic.number)
            if shard is None or not lane or tables[shard_id].writer.epoch != shard.epoch:
                continue
            now_ms = writer.now_ms()
            before = (order.urgency_of(sort_key), order.due_at_of(sort_key), order.key_of(sort_key))
            for found in lane.irange(maximum=before, inclusive=(True, False)):
                problem = _overtaken(shard, found[2], tables[shard_id], now_ms)
                if problem == _READY and topic in passed:
                    continue
                if problem:
                    yield f"P6: {found[2]:x} of {topic.name} is {problem} and overtaken by {before}"


def _overtaken(shard: ShardState, key: int, tables: Tables, now_ms: int) -> str:
    """How the row is ready and not handed out; "" when it is not."""
    if tables.items[key].expires_at <= now_ms:
        return ""
    item = shard.index.leases.get(key)
    if item is not None:
        is_fresh = item.phase is Phase.ARRIVING  # Committed with its row, and its host does not know yet.
        return "" if item.phase in _UNDER_LEASE or is_fresh else f"in phase {item.phase.name}"
    in_flight = shard.in_flight
    if in_flight is not None and (
        key in in_flight.wakes
        or any(insert.key == key for insert in [*in_flight.inserts, *in_flight.inserts_short_lived])
        or any(rewrite.key == key for rewrite in in_flight.rewrites)
    ):
        return ""  # Committed, and its host does not know yet.
    return _READY


# ---- the state is what the rows are ----


def state_problems(shard: ShardState, packs: PackIndex, tables: Tables) -> Iterator[str]:
    """Of a shard without a transaction under way."""
    yield from _window_problems(shard, tables)
    yield from _count_problems(shard, tables)
    yield from _lease_problems(shard, tables)
    yield from _journal_problems(shard, tables)
    yield from _unseen_problems(shard, tables)
    yield from _timer_problems(shard, tables)
    yield from _buffer_problems(shard)
    yield from _dedup_problems(shard, tables)
    yield from _image_problems(shard, tables)
    yield from _topic_problems(shard, tables)
    yield from _pack_problems(packs, tables)


def _window_problems(shard: ShardState, tables: Tables) -> Iterator[str]:
    for topic in shard.index.topics.values():
        window = topic.window
        sort_keys = window.sort_keys
        if sort_keys != sorted(set(sort_keys)):
            yield f"the window of {topic} is not in order, or a sort_key stands twice in it"
        if sort_keys and sort_keys[-1] > window.edge:
            yield f"the window of {topic} reaches beyond its edge"
        if len(sort_keys) > limits.WINDOW_ITEMS_MAX:
            yield f"the window of {topic} holds {len(sort_keys)} sort_keys"
        expected = set()
        for urgency, due_at, key in tables.lanes.get(topic.number, ()):
            sort_key = order.sort_key(urgency, due_at, key, shard.shard_id)
            if sort_key <= window.edge and key not in shard.index.leases:
                expected.add(sort_key)
        for sort_key in expected - set(sort_keys):
            yield f"row {order.key_of(sort_key):x} of {topic} is ready, before the edge, and not in the window"
        for sort_key in set(sort_keys) - expected:
            yield f"{order.key_of(sort_key):x} is in the window of {topic}, and there is no such ready row"


def _count_problems(shard: ShardState, tables: Tables) -> Iterator[str]:
    leased = Counter(item.topic for item in shard.index.leases.values() if item.phase in _UNDER_LEASE)
    delayed = Counter(tables.items[key].topic for _, _, key in tables.lanes.get(TIMER_LANE, ()))
    for topic in shard.index.topics.values():
        if topic.empty and topic not in shard.index.topic_table.empty_since_ms:
            yield f"{topic} is empty and will not be forgotten"
        if topic.leased != leased[topic]:
            yield f"{topic} counts {topic.leased} leased, there are {leased[topic]}"
        if not shard.index.counted:
            continue
        counted = (topic.rows, topic.delayed, topic.dead)
        number = topic.number
        there = (len(tables.lanes.get(number, ())), delayed[number], len(tables.lanes.get(-number, ())))
        if counted != there:
            yield f"{topic} counts (rows, delayed, dead) {counted}, there are {there}"
    yield from _kept_count_problems(shard.index)


def _kept_count_problems(index: ShardIndex) -> Iterator[str]:
    """What is kept by namespace and for the shard is the sum of what its topics count."""
    by_namespace: dict[int, list[ItemCounts]] = {}
    for topic in index.topics.values():
        by_namespace.setdefault(topic.namespace, []).append(topic)
    if index.namespaces.keys() != by_namespace.keys():
        yield f"namespaces {list(index.namespaces)} are known, those of the topics are {list(by_namespace)}"
        return
    for number, namespace in index.namespaces.items():
        if _counts(namespace) != _sum(by_namespace[number]):
            yield f"namespace {number} counts {_counts(namespace)}, its topics {_sum(by_namespace[number])}"
    if _counts(index.counts) != _sum(index.namespaces.values()):
        yield f"the shard counts {_counts(index.counts)}, its namespaces {_sum(index.namespaces.values())}"


def _counts(counts: ItemCounts) -> tuple[int, int, int, int]:
    return (counts.rows, counts.leased, counts.delayed, counts.dead)


def _sum(parts: Iterable[ItemCounts]) -> tuple[int, int, int, int]:
    total = ItemCounts(None)
    for part in parts:
        total.count(*_counts(part))
    return _counts(total)


def _lease_problems(shard: ShardState, tables: Tables) -> Iterator[str]:
    extending = {id(extension.item) for extension in shard.extensions.waiting}
    slots = shard.leases._wheel._slots
    for key, item in shard.index.leases.items():
        row = tables.items.get(key)
        if item.phase in (Phase.READY, Phase.INSERTING, Phase.GONE):
            yield f"{key:x} is among the leases in phase {item.phase.name}"
        if row is None or row.lane <= 0:
            yield f"{key:x} is {item.phase.name}, and its row is {'gone' if row is None else f'in lane {row.lane}'}"
            continue
        if item.phase not in (Phase.PREFETCHED, Phase.LEASED):
            continue
        if row.deliveries != item.deliveries:
            yield f"{key:x} has {item.deliveries} deliveries, its row {row.deliveries}"
        claim = item.claim
        if claim is None or claim.id not in tables.claims:
            yield f"{key:x} is {item.phase.name} without a claim"
            continue
        stored = tables.claims[claim.id]
        said = (claim.due_at, claim.is_ahead)
        if (key, item.deliveries + 1) not in stored.entries or said != (stored.due_at, stored.is_ahead):
            yield f"{key:x} is {item.phase.name}, and its claim {claim.id:x} does not say so"
        if item.phase is Phase.LEASED:
            if stored.due_at < item.lease_due_at:
                yield f"the lease of {key:x} runs until {item.lease_due_at}, its claim until {stored.due_at}"
            if key not in slots.get(item.lease_due_at // SLOT_MS + 1, {}) and id(item) not in extending:
                yield f"the lease of {key:x} never ends"


def _journal_problems(shard: ShardState, tables: Tables) -> Iterator[str]:
    journal = shard.journal
    known = {**dict.fromkeys(journal.open), **dict.fromkeys(journal.gone)}
    if known.keys() != tables.claims.keys():
        only_rows = [f"{claim_id:x}" for claim_id in tables.claims.keys() - known.keys()]
        only_known = [f"{claim_id:x}" for claim_id in known.keys() - tables.claims.keys()]
        yield f"claims that only the table has: {only_rows}, that only the host knows: {only_known}"
    users = Counter(item.claim.id for item in shard.index.leases.values() if item.claim is not None)
    for claim in journal.open.values():
        if claim.open_count != users[claim.id]:
            yield f"claim {claim.id:x} counts {claim.open_count} items, {users[claim.id]} use it"
        if claim.id < tables.writer.claim_checkpoint:
            yield f"claim {claim.id:x} is open and before the checkpoint {tables.writer.claim_checkpoint:x}"


def claim_problems(transaction: Transaction) -> Iterator[str]:
    ahead_ms = limits.AHEAD_LEASE_MS + limits.CLAIM_SLACK_MS
    for claim in transaction.claims:
        if claim.is_ahead and claim.due_at > transaction.steady_ms + ahead_ms:
            yield f"claim {claim.id:x} was made ahead for over {ahead_ms} ms"


def _unseen_problems(shard: ShardState, tables: Tables) -> Iterator[str]:
    """What is ready was seen by nobody: a new owner must not take it for delivered."""
    for (key, number), claim in newest_claims(tables).items():
        row = tables.items.get(key)
        if row is None or row.lane <= 0 or row.deliveries + 1 != number or claim.is_ahead:
            continue
        if key not in shard.index.leases:
            yield f"{key:x} is ready, and claim {claim.id:x} says that it was claimed for a call"


def newest_claims(tables: Tables) -> dict[tuple[int, int], StoredClaim]:
    """By key and delivery number: what a new owner goes by."""
    return {entry: claim for _, claim in sorted(tables.claims.items()) for entry in claim.entries}


def _timer_problems(shard: ShardState, tables: Tables) -> Iterator[str]:
    window, changing = shard.timers._window, shard.timers.changing
    expected = set()
    for urgency, due_at, key in tables.lanes.get(TIMER_LANE, ()):
        sort_key = order.sort_key(urgency, due_at, key, shard.shard_id)
        if sort_key <= window.edge and key not in changing:
            expected.add(sort_key)
    there = set(window.sort_keys)
    if there != expected:
        missing = [f"{order.key_of(sort_key):x}" for sort_key in expected - there]
        wrong = [f"{order.key_of(sort_key):x}" for sort_key in there - expected]
        yield f"the timers lack {missing} and have {wrong} for nothing"
    if any(order.key_of(sort_key) not in shard.timers._topics for sort_key in there):
        yield "a delayed row has no topic"


def _buffer_problems(shard: ShardState) -> Iterator[str]:
    inserts, index = shard.inserts, shard.index
    batches = list(inserts.batches())
    counted = (inserts.buffered_count, inserts.buffered_bytes)
    held = _held_for_dedup(shard)
    there = (
        sum(len(batch.items) for batch in batches) + len(held),
        sum(batch.size_bytes for batch in batches) + sum(item.size_bytes for item in held),
    )
    if counted != there:
        yield f"the enqueue buffer counts (items, bytes) {counted}, there are {there}"
    if there[0] > limits.ENQUEUE_BUFFER_ITEMS_MAX:
        yield f"the enqueue buffer holds {there[0]} items"
    size_bytes = sum(
        limits.RESIDENT_ITEM_BYTES + item.content.size_bytes for item in index.resident.values() if item.content
    )
    if index._resident_bytes != size_bytes:
        yield f"resident items count {index._resident_bytes} bytes and have {size_bytes}"
    if size_bytes > limits.RESIDENT_BYTES_MAX:
        yield f"resident items have {size_bytes} bytes"


def _held_for_dedup(shard: ShardState) -> list[ShardItem]:
    dedup = shard.dedup
    repeats = [repeat.item for some in dedup.repeats.values() for repeat in some]
    waiting = [item for calls in dedup.loading.values() for call in calls for item in call.items]
    return [*repeats, *waiting, *[check.item for check in dedup.checks.held()]]


def _dedup_problems(shard: ShardState, tables: Tables) -> Iterator[str]:
    """S1 and S2: the log has no digest twice in its window, and what is in the window is found where it stands."""
    dedup = shard.dedup
    pending = [digest for batch in shard.inserts.batches() for digest in getattr(batch.firsts, "digests", ())]
    pending += [check.digest for check in dedup.checks.held()]
    if sorted(dedup.pending) != sorted(pending) or not dedup.repeats.keys() <= dedup.pending.keys():
        yield f"{len(dedup.pending)} dedup ids are pending, and those of {len(pending)} items are on their way"
    extents = {extent.namespace: extent for extent in tables.seen_extents()}
    for namespace, window in dedup.windows.items():
        extent = extents.get(namespace)
        if namespace in dedup.loading:
            continue
        end = extent.end if extent is not None else window.dropped_to
        if (window.end, window.is_doomed or window.edge >= window.dropped_to) != (end, True):
            yield f"namespace {namespace} has dedup ids up to {end}, and {window.edge} to {window.end} are known"
            continue
        found = list(window_ids(tables, namespace, window.edge, window.end))
        if [number for number, *_ in found] != list(range(window.edge, window.end)):
            yield f"rows of the dedup ids of namespace {namespace} are missing between {window.edge} and {window.end}"
        settings = shard.index.settings
        # The bounds may have been narrower once: a namespace that was recovered has those that it is given.
        ids_max, ms_max = min(settings.dedup_ids(namespace), 40), min(settings.dedup_ms(namespace), 1_500)
        # What came with a slot is as its first shard had it, with ids that were forgotten there and taken again.
        yield from _twice([one for one in found if one.number >= window.moved_end], namespace, ids_max, ms_max)
        places = window.probe([digest for _, digest, *_ in found])
        for at, (number, *_) in enumerate(found):
            if number // BLOCK_IDS not in places.get(at, ()):
                yield f"dedup id {number} of namespace {namespace} is not found in its block"
    for namespace in extents:
        if namespace not in dedup.windows:
            yield f"nobody knows the dedup ids of namespace {namespace}"
        if namespace not in tables.namespaces:
            yield f"dedup ids are of namespace {namespace}, which has no name"


def _image_problems(shard: ShardState, tables: Tables) -> Iterator[str]:
    """Images are known to the shard, and those of its tables have all their ids that the log has."""
    images, windows = shard.images, shard.dedup.windows
    stored = {image.key: image for some in images.stored.values() for image in some.values()}
    unused = {image.key: image for some in images.unused.values() for image in some}
    known = {**stored, **unused, **images.gone}
    found = {image.key: image for image in tables.seen_images()}
    making = images.making
    if found != known and (making is None or {**found, making.key: None} != {**known, making.key: None}):
        yield f"images {found} of dedup ids are there, and {known} are known"
    for key in stored.keys() & found.keys():
        try:
            table = _read_image(key, tables)
        except BadImageError as error:
            yield f"{key} is not to be used: {error}"
            continue
        first = max(key.first, windows[key.namespace].edge)
        for number, digest, *_ in window_ids(tables, key.namespace, first, key.end):
            if number // BLOCK_IDS not in table.blocks_of(hashes_of([digest])[0]):
                yield f"{key} has not dedup id {number}"


def _read_image(key: ImageKey, tables: Tables) -> SeenTable:
    head, *parts = tables.parts_of(key)
    reader = ImageReader(read_head(key, head.body))
    for part in parts:
        reader.take(part.number, part.body)
    return reader.table()


class WindowId(NamedTuple):
    """A dedup id in the log."""

    number: int
    digest: bytes
    at_ms: int
    item: tuple[int, int]


def window_ids(tables: Tables, namespace: int, first: int, end: int) -> Iterator[WindowId]:
    """The ids in the log from `first` on and before `end`."""
    for row in tables.seen_rows(namespace, first // BLOCK_IDS * BLOCK_IDS, end):
        for at, (digest, item) in enumerate(zip(row.digests, row.items, strict=True), row.first):
            if first <= at < end:
                yield WindowId(at, digest, row.at_ms, item)


def _twice(found: list[WindowId], namespace: int, ids_max: int, ms_max: int) -> Iterator[str]:
    """A new owner may know ids again that the last one had forgotten by their number or age, and taken again.

    What has gone with its slot and come back stands there once more, with the item that it had.
    """
    last: dict[bytes, WindowId] = {}
    for one in found:
        before = last.get(one.digest)
        is_near = before is not None and one.number - before.number <= ids_max and one.at_ms - before.at_ms < ms_max
        if before is not None and is_near and one.item != before.item:
            yield (
                f"dedup ids {before.number} and {one.number} of namespace {namespace} are the same, "
                f"of {before.at_ms} and {one.at_ms} ms"
            )
        last[one.digest] = one


def _topic_problems(shard: ShardState, tables: Tables) -> Iterator[str]:
    waiting = [*shard.claims.waiting_for_calls.values(), *shard.claims.waiting.values()]
    claiming = {(item.topic, item.sort_key) for item in waiting}
    for topic in shard.index.topics.values():
        if topic.claim_head != order.LAST and (topic, topic.claim_head) not in claiming:
            yield f"the first claim of {topic} is none of those that wait"
    stored = {topic.number for topic in shard.index.topics.values() if topic.stored}
    if stored | set(shard._topics_gone) != tables.topics.keys():
        yield f"topics {stored} and {shard._topics_gone} going are known, {set(tables.topics)} are there"
    for number, (namespace, _) in tables.topics.items():
        if namespace not in tables.namespaces:
            yield f"topic {number} is of namespace {namespace}, which has no name"
    for row in tables.items.values():
        if row.topic not in tables.topics:
            yield f"row {row.key:x} is of topic {row.topic}, which is not there"


def _pack_problems(index: PackIndex, tables: Tables) -> Iterator[str]:
    """Each item is once in a row or in a pack, and the index of packs knows which."""
    gone = {key for keys in tables.tombstones.values() for key in keys}
    left = [(row, pack_id) for pack_id, contents in tables.packs.items() for row in unpack_items(contents)]
    left = [(row, pack_id) for row, pack_id in left if row.key not in gone]
    if {row.key: pack_id for row, pack_id in left} != tables.packed:
        yield "a new owner would find other items in the packs than those that have not left them"
    if {key: pack.id for key, pack in index._packed.items()} != tables.packed:
        yield f"{len(index)} items are known to be packed, {len(tables.packed)} are: or not in the same packs"
        return
    rows = index.rows(tables.items)
    if rows != {key: tables.items[key] for key in tables.packed}:
        yield "the packs in memory hold other items than the stored ones"
    packs = index._packs.values()
    if Counter(index._packed.values()) != {pack: pack.left_count for pack in packs}:
        yield "the packs count other items than are left in them"
    if {pack.id: pack.contents for pack in packs} != tables.packs:
        yield "the packs in memory are not those that are stored"
    if index.stored_bytes != sum(pack.size_bytes for pack in packs):
        yield f"the packs count {index.stored_bytes} bytes and have others"
    if [*index._tombstones] != sorted(tables.tombstones):
        yield f"tombstones {[*index._tombstones]} are known, {sorted(tables.tombstones)} are there"
    of_topic = {topic: list(found) for topic, found in index._of_topic.items()}
    if of_topic != {topic: [pack.id for pack in packs if topic in pack.topics] for topic in of_topic}:
        yield f"the packs of topics are known to be {of_topic}, and are others"
    if not {row.topic for row in rows.values()} <= of_topic.keys():
        yield "a packed item is of a topic that no pack is known to have"


# ---- the dispatcher ----


def dispatcher_problems(dispatcher: Dispatcher, shards: list[ShardState]) -> Iterator[str]:
    """Between two steps of the loop, whatever is under way."""
    held = sum(
        item.content.size_bytes
        for queue in dispatcher._queues.values()
        for item in queue.buffer.items
        if item.content is not None
    )  # fmt: skip
    if dispatcher.prefetched_bytes != held:
        yield f"the prefetch buffers count {dispatcher.prefetched_bytes} bytes and hold {held}"
    waiting = {call for queue in dispatcher._queues.values() for call in queue.calls} | hungry_calls(dispatcher)
    waiting |= dispatcher._busy.keys()
    yield from _cap_problems(dispatcher)
    untold = {topic.name for shard in shards for topic in shard.index.events.topics_changed}
    yield from _ring_problems(dispatcher, untold)
    if dispatcher.waiting_count != len(waiting):
        yield f"{dispatcher.waiting_count} calls are counted as waiting, there are {len(waiting)}"
    on_the_way: Counter[tuple[int, str]] = Counter()
    buffered = Counter(id(item) for queue in dispatcher._queues.values() for item in queue.buffer.items)
    for shard in shards:
        for item in [*shard.claims.waiting_for_calls.values(), *shard.claims.waiting.values(), *shard.claims.in_flight]:
            on_the_way[item.topic.namespace, item.topic.name] += 1
        for item in shard.index.leases.values():
            if (item.phase is Phase.PREFETCHED) != (buffered[id(item)] == 1):
                yield f"{item.key:x} is {item.phase.name} and stands {buffered[id(item)]} times in a prefetch buffer"
    for name, queue in dispatcher._queues.items():
        yield from problems_of_ended_calls(dispatcher, queue)
        wanted = sum(call.wants[queue] for call in queue.calls)
        if queue.waiting_count != wanted:
            yield f"{name} counts {queue.waiting_count} wanted items, its calls want {wanted}"
        if queue.claims_count != on_the_way[name]:
            yield f"{name} counts {queue.claims_count} claims on the way, there are {on_the_way[name]}"


def hungry_calls(dispatcher: Dispatcher) -> set[DequeueCall]:
    """Calls that want something of any topic."""
    tenants = dispatcher._tenants.values()
    return {call for tenant in tenants for ring in [tenant.ring, *tenant.rings.values()] for call in ring.hungry}


def _cap_problems(dispatcher: Dispatcher) -> Iterator[str]:
    """Tokens are held for what is held, and nothing is held without them."""
    held: Counter[int] = Counter()
    caps = {id(cap): cap for cap in dispatcher._caps.values()}
    for name, queue in dispatcher._queues.items():
        for cap in (queue.cap, queue.shared_cap):
            if cap is not None:
                held[id(cap)] += queue.allowed_count
                if id(cap) not in caps and queue.version == dispatcher.settings.version:
                    yield f"{name} has a cap that is none any more"
        if queue.allowed_count < 0 or (queue.allowed_count and not queue.is_throttled):
            yield f"{name} holds {queue.allowed_count} tokens"
        if queue.parked_slot and queue not in dispatcher._slots.get(queue.parked_slot, [*dispatcher._due]):
            yield f"{name} is parked, and nobody will wake it"
    for key, cap in caps.items():
        if cap._held_count != held[key] or cap._tokens < -1e-6 or cap._tokens > max(0, cap.burst - held[key]) + 1e-6:
            yield f"a cap of {cap.rate} counts {cap._tokens} and {cap._held_count} tokens, {held[key]} are held"


def _ring_problems(dispatcher: Dispatcher, untold: Container[str]) -> Iterator[str]:
    """`untold`: topics of whose changes the dispatcher will soon be told."""
    for name, queue in dispatcher._queues.items():
        unfilled = {other for ring in queue.tenant.rings.values() for some in ring.unfilled for other in some}
        for ring in queue.tenant.rings_of(queue.name):
            if (queue in ring.entries) != queue.in_ring and queue not in unfilled:
                yield f"{name} is {'' if queue.in_ring else 'not '}in rings, but not so in that of {ring.prefix!r}"
        is_held_back = queue.is_paused or queue.parked_slot or queue.name in untold or queue in dispatcher._roomless
        is_held_back = is_held_back or queue.coming_count  # Their end will be told.
        if not queue.in_ring and not is_held_back and queue.spare_count(1) and queue.has_something():
            yield f"{name} has something to give, and is in no ring"
    for tenant in dispatcher._tenants.values():
        rings = [tenant.ring, *tenant.rings.values()]
        if tenant.hungry_count != sum(len(ring.hungry) for ring in rings):
            yield f"namespace {tenant.namespace} counts {tenant.hungry_count} hungry calls"
        if tenant.queues_count != sum(queue.tenant is tenant for queue in dispatcher._queues.values()):
            yield f"namespace {tenant.namespace} counts {tenant.queues_count} topics"
        is_held_back = tenant.is_parked or dispatcher._namespaces_paused is not dispatcher.settings.dequeue_paused
        is_held_back = is_held_back or tenant.namespace in dispatcher.settings.dequeue_paused
        for ring in rings:
            if (
                ring.hungry
                and ring.entries
                and not is_held_back
                and tenant not in {**dispatcher._fed, **dispatcher._fed_later}
            ):
                ready = [
                    queue
                    for queue in ring.entries
                    if queue.spare_count(1) and not (queue.is_paused or queue.coming_count or queue.name in untold)
                ]
                if ready:
                    yield f"a call waits for {ring.prefix!r} although {ready[0].name} has something"
    hungry_count = sum(tenant.hungry_count > 0 for tenant in dispatcher._tenants.values())
    if dispatcher._hungry_count != hungry_count:
        yield f"{dispatcher._hungry_count} namespaces are counted as hungry, there are {hungry_count}"


def problems_of_ended_calls(dispatcher: Dispatcher, queue: TopicQueue) -> Iterator[str]:
    """What is claimed for a call although none waits: if the host died, it would be taken for delivered."""
    if queue.calls:
        return
    for item in queue.buffer.items:
        if not item.is_claimed_ahead:
            yield f"{item.key:x} of {queue.name} was claimed for a call, and is held although none waits"
    for part in [*queue.parts.values(), *queue.sick_parts.values()]:
        shard = dispatcher._writers[part.shard_id].shard
        for item in shard.claims.waiting_for_calls.values() if shard is not None else ():
            if item.topic is part:
                yield f"{item.key:x} of {queue.name} is to be claimed for a call, and none waits"

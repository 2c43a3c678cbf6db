"""What must hold of a host's state and its servers' rows whenever a transaction has ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping

from foqs.host.dispatch.dispatcher import Dispatcher
from foqs.host.dispatch.topic_queue import TopicQueue
from foqs.model import limits, order
from foqs.model.item import Phase, ShardItem, count_of
from foqs.model.topic import ItemCounts, ShardTopic
from foqs.shard.port import TIMER_LANE, StoredClaim, Transaction
from foqs.shard.state.engine import ShardState
from foqs.shard.state.index import ShardIndex
from foqs.shard.state.lease_table import SLOT_MS
from foqs.shard.state.ops.dedup import with_copies
from foqs.storage.shard.formats import unpack_items
from foqs.storage.shard.packs.pack_index import PackIndex
from foqs.testing.fake_tables import Tables
from tests.support.dedup_invariants import dedup_problems, image_problems

_READY = "ready"
_UNDER_LEASE = (Phase.LEASED, Phase.SETTLING)


# ---- P6: nothing is handed out past something more urgent ----


def order_problems(
    dispatcher: Dispatcher, items: list[ShardItem], tables: Mapping[int, Tables], passed: Container[ShardTopic]
) -> Iterator[str]:
    """Of the items of one response. `passed`: topics that had no room for more claims, which hold nobody up."""
    last: dict[TopicQueue, int] = {}
    for item in items:
        queue = dispatcher.queues.by_topic[item.topic.namespace, item.topic.name]
        last[queue] = max(last.get(queue, order.FIRST), item.sort_keys[-1])
    for queue, sort_key in last.items():
        for shard_id, topic in queue.parts.items():
            writer = dispatcher.prefetch._writers[shard_id]
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
        or key in in_flight.wakes_in_place
        or any(key in insert.keys for insert in _inserts_of(in_flight))
        or any(rewrite.key == key for rewrite in in_flight.rewrites)
    ):
        return ""  # Committed, and its host does not know yet.
    return _READY


def _inserts_of(transaction: Transaction) -> list[ShardItem]:
    return [*transaction.inserts, *transaction.inserts_placed, *transaction.inserts_short_lived]


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
    yield from dedup_problems(shard, tables)
    yield from image_problems(shard, tables)
    yield from _topic_problems(shard, tables)
    yield from _pack_problems(packs, tables)


def _window_problems(shard: ShardState, tables: Tables) -> Iterator[str]:
    held_count = sum(len(topic.window) for topic in shard.index.topics.values())
    if held_count != shard.index.budget.items_count:
        yield f"the windows hold {held_count} sort_keys, and {shard.index.budget.items_count} are counted"
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
    claimed = Counter(item.topic for item in shard.index.leases.values())
    delayed = Counter(tables.items[key].topic for _, _, key in tables.lanes.get(TIMER_LANE, ()))
    for topic in shard.index.topics.values():
        of_keys = [] if topic.keyed is None else topic.keyed.by_name.values()
        if topic.out_count != claimed[topic] + sum([claimed[one] for one in of_keys]):
            yield f"{topic} counts {topic.out_count} claimed items, there are {claimed[topic]}"
        table = shard.index.topic_table
        since_ms = table.empty_since_ms if topic.base is None else table.empty_keyed_since_ms
        if topic.empty and topic.keyed is None and topic not in since_ms:
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
        if key not in item.keys or (item.bundle is not None and item.bundle.parts):
            yield f"{key:x} is among the leases as {item.count} items from {item.key:x}, which were divided"
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
            entry = slots.get(item.lease_due_at // SLOT_MS + 1, {}).get(item.key)
            if entry is not item and id(item) not in extending:
                yield f"the lease of {key:x} never ends"
    yield from _receipt_problems(shard)


def _receipt_problems(shard: ShardState) -> Iterator[str]:
    leases = shard.index.leases
    expected = {receipt: item for item in leases.values() if item.phase is Phase.LEASED for receipt in item.receipts}
    if shard.leases.by_receipt != expected:
        yield f"receipts {shard.leases.by_receipt.keys() ^ expected.keys()} are known, and others are those of leases"


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
        sum(count_of(batch.items) for batch in batches) + len(held),
        sum(batch.size_bytes for batch in batches) + sum(item.size_bytes for item in held),
    )
    if counted != there:
        yield f"the enqueue buffer counts (items, bytes) {counted}, there are {there}"
    if there[0] > limits.ENQUEUE_BUFFER_ITEMS_MAX:
        yield f"the enqueue buffer holds {there[0]} items"
    for key, item in index.resident.items():
        if key not in item.keys or (item.bundle is not None and item.bundle.parts):
            yield f"{key:x} is resident as {item.count} items from {item.key:x}, which were divided"
    size_bytes = sum(
        item.count * limits.RESIDENT_ITEM_BYTES + contents_bytes(item)
        for item in dict.fromkeys(index.resident.values())
    )
    if index._resident_bytes != size_bytes:
        yield f"resident items count {index._resident_bytes} bytes and have {size_bytes}"
    if size_bytes > limits.RESIDENT_BYTES_MAX:
        yield f"resident items have {size_bytes} bytes"


def contents_bytes(item: ShardItem) -> int:
    """The bytes of all contents that are in memory."""
    if item.bundle is None:
        return 0 if item.content is None else item.content.size_bytes
    shared_bytes = len(item.bundle.metadata) + len(item.bundle.trace_context)
    return sum(len(payload) + shared_bytes for payload in item.bundle.payloads)


def _held_for_dedup(shard: ShardState) -> list[ShardItem]:
    dedup = shard.dedup
    held = [(repeat.item, repeat.outcome) for some in dedup.repeats.values() for repeat in some]
    held += [(item, call.outcome) for calls in dedup.loading.values() for call in calls for item in call.items]
    held += [(check.item, check.outcome) for check in dedup.checks.held()]
    return [one for item, outcome in held for one in with_copies([item], outcome)]


def _topic_problems(shard: ShardState, tables: Tables) -> Iterator[str]:
    waiting = [*shard.claims.waiting_for_calls.values(), *shard.claims.waiting.values()]
    claiming = {(item.topic, item.sort_key) for item in waiting}
    if count_of(waiting) != shard.claims.waiting_count:
        yield f"{shard.claims.waiting_count} claims are counted as waiting, there are {count_of(waiting)}"
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

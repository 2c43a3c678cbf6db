"""Shards and their dispatcher against a model: random calls, commits, failures and take-overs, every step checked.

No clock, thread or database: the transactions are applied to dictionaries, and may fail, or be lost with the host.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Container
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, cast

import pytest

from foqs.host.dispatch import Dispatcher
from foqs.host.topic_queue import DequeueCall
from foqs.model import limits, order
from foqs.model.calls import ItemContent
from foqs.model.clock import Now
from foqs.model.errors import InvalidArgumentError, NotFoundError, UnavailableError
from foqs.model.item import Phase, ShardItem
from foqs.model.namespace import Namespace, NamespaceSettings, SettingsTable
from foqs.model.topic import ItemCounts
from foqs.shard.port import TIMER_LANE, ItemRow
from foqs.shard.state.engine import ShardState
from foqs.shard.state.events import Completion, LookUp
from foqs.testing.fake_server import Tables
from tests.support.shards import StillWriter, plan, tick
from tests.support.stored_shard import StoredShard

NAMESPACE = 7
ATTEMPTS_MAX = 3
TOPICS = ("a", "b", "c")


@dataclass
class Known:
    """What a client knows of an item."""

    topic: str
    due_at: int
    expires_at: int
    at_most_once: bool
    lease_due_at: int = 0
    deliveries: int = 0
    over: bool = False
    ending: bool = False
    """Its delete was asked for, and may have happened."""
    receipts: set[int] = field(default_factory=set)


def new_settings() -> SettingsTable:
    table = SettingsTable()
    settings = NamespaceSettings(attempts_max=ATTEMPTS_MAX, payload_bytes_max=1_000, metadata_bytes_max=0)
    table.replace({NAMESPACE: Namespace(NAMESPACE, "n", settings, 0)})
    return table


class WatchedDispatcher(Dispatcher):
    """Shows every answer at the moment it is given."""

    def __init__(self, world: World) -> None:
        writers = {number: StillWriter(number, world.shards, lambda _: world.now) for number in world.tables}
        super().__init__(cast(Any, writers), lambda: world.now_ms / 1000, new_settings(), lambda *_: None)
        self._world = world
        self._passed: set[tuple[int, int]] = set()

    def _deliver_to(self, call: DequeueCall) -> bool:
        parts = chain.from_iterable(queue.parts.values() for queue in call.wants)
        self._passed = {(part.shard_id, part.number) for part in parts if not part.room}
        return super()._deliver_to(call)

    def answer(self, call: DequeueCall, items: list[ShardItem]) -> None:
        super().answer(call, items)
        for item in items:
            self._world.delivered(item)
        for item in items:
            self._world.check_order(item, self._passed)


class World:
    def __init__(self, seed: int, shard_count: int) -> None:
        self.chance = random.Random(seed)
        self.now_ms = 1_000_000
        """Steady."""
        self.stored = {
            shard_id: StoredShard(shard_id, lambda: self.server_ms, self.now_ms) for shard_id in range(shard_count)
        }
        self.tables = {shard_id: stored.tables for shard_id, stored in self.stored.items()}
        self.known: dict[tuple[int, int], Known] = {}
        self.leased: dict[tuple[int, int], ShardItem] = {}
        self.calls: list[DequeueCall] = []
        self.start_host()

    @property
    def server_ms(self) -> int:
        """Another clock: who takes one for the other is days off."""
        return self.now_ms + 1_000_000_000

    @property
    def now(self) -> Now:
        return Now(self.server_ms, self.now_ms)

    def start_host(self) -> None:
        """A new host takes every shard over from whatever the last one left."""
        self.shards: dict[int, ShardState] = {}
        self.dispatcher = WatchedDispatcher(self)
        self.calls = []
        self.leased = {}
        for shard_id, stored in self.stored.items():
            image = stored.open()
            shard = self.shards[shard_id] = ShardState(shard_id, image, self.dispatcher.settings)
            shard.index.name_namespace(self.dispatcher.settings.by_number[NAMESPACE])
            self.dispatcher.shard_opened(shard_id, shard.index.topics.values())
            list(shard.add_counts(image.count()))

    # ---- what clients do ----

    def enqueue(self) -> None:
        shard = self.chance.choice(list(self.shards.values()))
        items = []
        for _ in range(self.chance.randrange(1, 8)):
            topic = shard.index.topic(NAMESPACE, self.chance.choice(TOPICS))
            delay_ms = self.chance.choice([0, 0, 0, 50, 500, 3_000])
            key, priority, due_at = shard.index.next_key(), self.chance.randrange(-2, 3), self.server_ms + delay_ms
            ttl_ms = self.chance.choice([600, 10_000, 1_000_000, 1_000_000])
            item = ShardItem(
                key, topic, priority, due_at, order.sort_key(priority, due_at, key, shard.shard_id), Phase.INSERTING,
                self.server_ms, due_at + ttl_ms, self.chance.choice([0, 0, 2_000]), self.chance.random() < 0.2,
                ItemContent(b"p%d" % key, b"m"),
            )  # fmt: skip
            items.append(item)

        def on_done(completion: Completion) -> None:
            if completion.failure is None:
                for item in items:
                    self.known[shard.shard_id, item.key] = Known(
                        item.topic.name, item.due_at, item.expires_at, item.at_most_once
                    )

        shard.insert(items, 10, Completion(on_done))

    def dequeue(self) -> None:
        call = DequeueCall(self.chance.choice([None, 1_000, 5_000]), 1_500, self.now_ms / 1000)
        names = self.chance.sample(TOPICS, self.chance.randrange(1, 3))
        self.dispatcher.start(NAMESPACE, {name: self.chance.randrange(1, 6) for name in names}, call)
        self.calls.append(call)

    def end_call(self) -> None:
        self.calls = [call for call in self.calls if not call.done]
        if self.calls:
            self.dispatcher.end(self.chance.choice(self.calls))

    def settle(self) -> None:
        """Ack, nack, release or dead-letter something, perhaps with a receipt that is stale by now."""
        if not self.leased:
            return
        shard_id, key = sort_key = self.chance.choice(list(self.leased))
        item, shard, known = self.leased.pop(sort_key), self.shards[shard_id], self.known[sort_key]
        held = shard.index.leases.get(key) is item and item.phase is Phase.LEASED
        assert held or known.lease_due_at <= self.now_ms, "a lease ended before its time"
        if not held:
            return
        kind = self.chance.choice(["ack", "ack", "nack", "delay", "release", "dead"])
        rewrite = None
        if kind != "ack":
            rewrite = shard.failed_attempt(
                item, self.server_ms, delay_ms=400 if kind == "delay" else 0, reason="r", dead=kind == "dead",
                release=kind == "release", metadata=b"n",
            )  # fmt: skip

        def on_done(completion: Completion) -> None:
            if not completion.errors:
                known.lease_due_at = 0
                known.over = rewrite is None or rewrite.lane < 0
                known.due_at = known.due_at if rewrite is None else max(known.due_at, rewrite.due_at)

        known.lease_due_at = 0  # From here on its holder expects nothing of it.
        shard.end_lease(item)
        shard.settle([item], [rewrite], Completion(on_done), [0])

    def extend(self) -> None:
        if not self.leased:
            return
        sort_key = self.chance.choice(list(self.leased))
        item, shard, known = self.leased[sort_key], self.shards[sort_key[0]], self.known[sort_key]
        if shard.index.leases.get(item.key) is not item or item.phase is not Phase.LEASED:
            return

        def on_done(completion: Completion) -> None:
            if not completion.errors and sort_key in self.leased:
                known.lease_due_at = item.lease_due_at

        shard.extend(item, 4_000, Completion(on_done), 0)

    def change_row(self) -> None:
        """Delete an item, or redrive it when it is dead."""
        shard_id = self.chance.choice(list(self.shards))
        if not self.tables[shard_id].items:
            return
        key = self.chance.choice(list(self.tables[shard_id].items))
        shard, known = self.shards[shard_id], self.known.get((shard_id, key))
        redrive = self.chance.random() < 0.6

        def on_rows(rows: dict[int, ItemRow]) -> None:
            if key not in rows:
                return
            completion = Completion(on_done)
            try:
                if rows[key].lane < 0 and redrive:
                    shard.redrive(rows[key], self.server_ms, limits.TTL_MS_MAX, completion, 0)
                    if known is not None:
                        known.over = False
                        ttl_ms = rows[key].expires_at - rows[key].enqueued_at
                        known.expires_at = max(known.expires_at, self.server_ms + ttl_ms)
                else:
                    shard.delete(rows[key], completion, 0)
                    self.dispatcher.on_events(shard.take_events())
                    if known is not None:
                        known.ending = True
                    self.leased.pop((shard_id, key), None)
                    if known is not None:
                        known.lease_due_at = 0
            except (NotFoundError, InvalidArgumentError, UnavailableError):
                return

        def on_done(completion: Completion) -> None:
            if known is not None and not completion.errors:
                known.over = known.ending

        shard.look_up(LookUp([key], on_rows, lambda _: None))

    def check_order(self, item: ShardItem, passed: Container[tuple[int, int]]) -> None:
        """Nothing more urgent was there to be handed out; but topics without room for more claims are passed."""
        for shard_id, tables in self.tables.items():
            leases = self.shards[shard_id].index.leases
            number = next((n for n, (_, name) in tables.topics.items() if name.decode() == item.topic.name), None)
            for row in tables.items.values():
                other = leases.get(row.key)
                ready = other is None and (shard_id, number) not in passed
                free = ready or (other is not None and other.phase in (Phase.CLAIMING, Phase.PREFETCHED))
                if free and row.lane == number and row.expires_at > self.server_ms:
                    assert sort_key_of(shard_id, row) > item.sort_key, "overtaken by a less urgent item"

    def delivered(self, item: ShardItem) -> None:
        sort_key = (item.topic.shard_id, item.key)
        known = self.known[sort_key]
        assert not known.over, "delivered after its end"
        assert known.lease_due_at <= self.now_ms, "delivered under another's lease"
        assert known.due_at <= self.server_ms < known.expires_at, "delivered outside its time"
        assert not (known.at_most_once and known.deliveries), "at most once, delivered twice"
        assert item.content.payload == b"p%d" % item.key
        assert item.deliveries + 1 not in known.receipts, "a receipt is given twice"
        known.receipts.add(item.deliveries + 1)
        known.deliveries += 1
        known.lease_due_at = item.lease_due_at
        self.leased[sort_key] = item

    # ---- what the host and its servers do ----

    def begin(self, shard_id: int) -> None:
        """Start a transaction; much may happen before it ends."""
        shard = self.shards[shard_id]
        tick(shard, self.dispatcher, self.now)
        if shard.in_flight is None:
            plan(shard, self.dispatcher, self.now)

    def end(self, shard_id: int, *, well: bool) -> None:
        shard = self.shards[shard_id]
        if shard.in_flight is None:
            return
        if well:
            self.dispatcher.on_events(shard.committed(self.stored[shard_id].apply(shard.in_flight), self.now))
        else:
            self.dispatcher.on_events(shard.failed("a lock wait"))

    def crash(self) -> None:
        """The host is gone. Its clients do not know what became of their calls."""
        for shard_id, shard in self.shards.items():
            if shard.in_flight is not None and self.chance.random() < 0.5:
                self.stored[shard_id].apply(shard.in_flight)
        for shard_id, tables in self.tables.items():
            for key, row in tables.items.items():
                self.known.setdefault(
                    (shard_id, key),
                    Known(self.topic_name(tables, row.topic), row.due_at, row.expires_at, bool(row.at_most_once)),
                )
        self.start_host()

    def topic_name(self, tables: Tables, number: int) -> str:
        return tables.topics[number][1].decode()

    def step(self) -> None:
        action = self.chance.random()
        shard_id = self.chance.choice(list(self.shards))
        if action < 0.15:
            self.enqueue()
        elif action < 0.30:
            self.dequeue()
        elif action < 0.33:
            self.end_call()
        elif action < 0.48:
            self.settle()
        elif action < 0.50:
            self.extend()
        elif action < 0.51:
            self.change_row()
        elif action < 0.68:
            self.begin(shard_id)
        elif action < 0.86:
            self.end(shard_id, well=True)
        elif action < 0.88:
            self.end(shard_id, well=False)
        elif action < 0.883:
            self.crash()
        elif action < 0.886:
            self.drain()
        else:
            self.now_ms += self.chance.choice([1, 20, 200, 1_500])
            self.dispatcher.tick()
            if self.chance.random() < 0.3:
                self.dispatcher.sweep()

    def drain(self) -> None:
        """A graceful end: what was held is there for the next owner at once."""
        self.dispatcher.end_all()
        self.dispatcher.drain()
        for shard_id, shard in self.shards.items():
            self.end(shard_id, well=True)
            shard.make_exact()
            for _ in range(200):
                if plan(shard, self.dispatcher, self.now) is None:
                    break
                self.end(shard_id, well=True)
            leased = {key for key, item in shard.index.leases.items() if item.phase is Phase.LEASED}
            entries = {key for claim in self.tables[shard_id].claims.values() for key, _ in claim.entries}
            assert entries == leased | (entries & self.stale_entries(shard_id)), "an item that is free is still claimed"
        self.start_host()

    def stale_entries(self, shard_id: int) -> set[int]:
        """Keys of journal entries of a delivery that is over."""
        tables = self.tables[shard_id]
        return {
            key
            for claim in tables.claims.values()
            for key, delivery in claim.entries
            if key not in tables.items or tables.items[key].deliveries + 1 != delivery
        }

    def work_off(self) -> None:
        """Consume until nothing but dead letters is left."""
        for _ in range(600):
            if not any(row.lane >= 0 for tables in self.tables.values() for row in tables.items.values()):
                break
            self.dequeue()
            for sort_key in list(self.leased):
                item, shard = self.leased.pop(sort_key), self.shards[sort_key[0]]
                if shard.index.leases.get(item.key) is item and item.phase is Phase.LEASED:
                    self.known[sort_key].lease_due_at = 0
                    shard.end_lease(item)
                    shard.settle([item], None, Completion(lambda _, k=self.known[sort_key]: _over(k)), [0])
            for shard_id in self.shards:
                self.end(shard_id, well=True)
                self.begin(shard_id)
            self.now_ms += 100
            self.dispatcher.tick()
            self.dispatcher.sweep()
            self.check()
        self.drain()
        for tables in self.tables.values():
            assert all(row.lane < 0 for row in tables.items.values()), "not everything was delivered"
            assert not tables.claims
            assert tables.writer.delay_checkpoint <= self.server_ms

    # ---- what must hold after every step ----

    def check(self) -> None:
        for shard_id, shard in self.shards.items():
            if shard.in_flight is None:
                check_state(shard, self.tables[shard_id])
        untold = {topic.name for shard in self.shards.values() for topic in shard.index.events.topics_changed}
        claiming = Counter(
            (item.topic.namespace, item.topic.name)
            for shard in self.shards.values()
            for item in [*claims_waiting(shard), *shard.claims.in_flight]
        )
        check_dispatcher(self.dispatcher, claiming, untold)
        for (shard_id, key), known in self.known.items():
            if key not in self.tables[shard_id].items:
                gone = known.over or known.at_most_once or known.expires_at <= self.server_ms
                assert gone or known.ending or known.deliveries, "an item is lost"


def _over(known: Known) -> None:
    known.over = True


def sort_key_of(shard_id: int, row: ItemRow) -> int:
    return order.sort_key(row.urgency, row.due_at, row.key, shard_id)


def claims_waiting(shard: ShardState) -> list[ShardItem]:
    return [*shard.claims.waiting_for_calls.values(), *shard.claims.waiting.values()]


def check_state(shard: ShardState, tables: Tables) -> None:
    """The state says what the tables say; only called while no transaction is under way."""
    index = shard.index
    by_lane: dict[int, list[int]] = {}
    for row in tables.items.values():
        by_lane.setdefault(row.lane, []).append(sort_key_of(shard.shard_id, row))
    arriving = {item.key for batch in shard.inserts.batches() for item in batch.items}
    for topic in index.topics.values():
        sort_keys = by_lane.get(topic.number, [])
        assert topic.rows == len(sort_keys)
        assert topic.dead == len(by_lane.get(-topic.number, []))
        taken = [sort_key for sort_key in sort_keys if order.key_of(sort_key) in index.leases]
        assert topic.leased == sum(
            item.topic is topic and item.phase in (Phase.LEASED, Phase.SETTLING) for item in index.leases.values()
        )
        free = sorted(sort_key for sort_key in sort_keys if sort_key <= topic.window.edge and sort_key not in taken)
        assert topic.window.sort_keys == free, "the window is not what is ready before its edge"
        claiming = [item.sort_key for item in claims_waiting(shard) if item.topic is topic]
        assert topic.claim_head == order.LAST or topic.claim_head in claiming
    timers = sorted(sort_key for sort_key in by_lane.get(TIMER_LANE, []) if sort_key <= shard.timers._window.edge)
    assert list(shard.timers._window.sort_keys) == [
        sort_key for sort_key in timers if order.key_of(sort_key) not in shard.timers.changing
    ]
    assert all(order.due_at_of(sort_key) >= tables.writer.delay_checkpoint for sort_key in by_lane.get(TIMER_LANE, []))
    for number, namespace in index.namespaces.items():
        parts = [topic for topic in index.topics.values() if topic.namespace == number]
        assert list(namespace.by_name.values()) == sorted(parts, key=lambda topic: topic.name)
        assert _counts(namespace) == _sum(parts)
    assert _counts(index.counts) == _sum(index.namespaces.values())
    assert {topic for topic in index.topics.values() if topic.empty} <= index.topic_table.empty_since_ms.keys()
    assert not arriving & set(index.leases)
    for key, item in index.leases.items():
        assert key in tables.items
        if item.phase in (Phase.PREFETCHED, Phase.LEASED):
            assert item.claim is not None
            stored = tables.claims[item.claim.id]
            assert (key, tables.items[key].deliveries + 1) in stored.entries
            assert stored.is_ahead is item.claim.is_ahead
            assert item.phase is Phase.PREFETCHED or stored.due_at >= item.lease_due_at
    assert set(shard.journal.open) == {item.claim.id for item in index.leases.values() if item.claim is not None}
    assert set(tables.claims) >= set(shard.journal.open)
    assert all(claim_id >= tables.writer.claim_checkpoint for claim_id in shard.journal.open)


def _counts(counts: ItemCounts) -> list[int]:
    return [counts.rows, counts.leased, counts.delayed, counts.dead]


def _sum(parts: Collection[ItemCounts]) -> list[int]:
    return [sum(_counts(part)[at] for part in parts) for at in range(4)]


def check_dispatcher(dispatcher: Dispatcher, claiming: Counter[tuple[int, str]], untold: set[str]) -> None:
    calls = {call for queue in dispatcher._queues.values() for call in queue.calls}
    assert dispatcher.waiting_count == len(calls)
    prefetched_bytes = 0
    for name, queue in dispatcher._queues.items():
        assert queue.waiting_count == sum(call.wants[queue] for call in queue.calls)
        prefetched_bytes += sum(item.content.size_bytes if item.content else 0 for item in queue.buffer.items)
        assert queue.claims_count == claiming[name]
        first = queue.first_unclaimed()
        for call in queue.calls:
            assert not call.done
        held = [item for item in queue.buffer.items if item.phase is Phase.PREFETCHED]
        told_after_refill = any(
            not part.room and (part.window.wants_refill or part.window.refilling) for part in queue.parts.values()
        )
        waits = bool(queue.claims_count) or queue in dispatcher._lingering
        if queue.calls and held and not (waits or queue.name in untold or told_after_refill):
            assert min(item.sort_key for item in held) > first, "an item that may be handed out is not"
    assert dispatcher.prefetched_bytes == prefetched_bytes


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds so low that every edge is met often."""
    for name, value in (
        ("WINDOW_ITEMS_MAX", 8), ("WINDOW_ITEMS_MIN", 8), ("TRANSACTION_INSERTS_MAX", 10),
        ("TRANSACTION_CLAIMS_MAX", 6), ("TRANSACTION_CHANGES_MAX", 5), ("SWEEP_CHUNK_ITEMS", 3),
        ("TRANSACTION_FETCH_BYTES_MAX", 3_000), ("TRANSACTION_CONTENTS_BYTES_MAX", 60),
        ("OPEN_LEASES_MAX", 30), ("PREFETCH_BYTES_MAX", 60),
        ("RESIDENT_BYTES_MAX", 3_000), ("CLAIM_REWRITE_ITEMS_MIN", 2), ("CLAIM_SPARSE_RATIO", 2),
        ("CLAIM_REWRITE_EVERY_MS", 500), ("TOPIC_IDLE_MS", 700), ("DEQUEUE_ITEMS_MAX", 5),
        ("TRANSACTION_REFILLS_MAX", 2), ("WARM_UPS_PER_TICK", 1), ("TIMER_ENTRIES_SPARE", 4),
    ):  # fmt: skip
        monkeypatch.setattr(limits, name, value)


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize("seed", range(60))
def test_every_promise_holds_after_every_step(seed: int) -> None:
    world = World(seed, shard_count=1 + seed % 3)
    for _ in range(400):
        world.step()
        world.check()
    world.work_off()

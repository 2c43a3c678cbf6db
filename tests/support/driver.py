"""Shards and their dispatcher driven by chance: calls, commits, failures, sick shards and takeovers, against a model.

No clock, thread or database: transactions are applied to a fake server, and may fail, or be lost with the host.
"""

from __future__ import annotations

import random
from collections.abc import Container
from dataclasses import dataclass, field
from itertools import chain

from foqs.host.dispatch.dispatcher import Dispatcher
from foqs.host.dispatch.topic_queue import DequeueCall
from foqs.model import limits, order
from foqs.model.calls import ItemContent
from foqs.model.errors import InvalidArgumentError, NotFoundError, UnavailableError
from foqs.model.item import Phase, ShardItem
from foqs.model.topic import ShardTopic
from foqs.shard.port import ItemRow
from foqs.shard.state.events import Completion, LookUp
from tests.support.dispatcher_invariants import calls_waiting_any, dispatcher_problems
from tests.support.invariants import order_problems, state_problems
from tests.support.shards import NAMESPACE, Shards, plan

ATTEMPTS_MAX = 3
TOPICS = ("a", "b", "c", "d")
SMALL = {
    "WINDOW_ITEMS_MAX": 8, "WINDOW_ITEMS_MIN": 8, "TRANSACTION_INSERTS_MAX": 10, "TRANSACTION_CLAIMS_MAX": 6,
    "TRANSACTION_CHANGES_MAX": 5, "SWEEP_CHUNK_ITEMS": 3, "TRANSACTION_FETCH_BYTES_MAX": 3_000,
    "TRANSACTION_CONTENTS_BYTES_MAX": 60, "OPEN_LEASES_MAX": 30, "PREFETCH_BYTES_MAX": 60, "RESIDENT_BYTES_MAX": 3_000,
    "CLAIM_REWRITE_ITEMS_MIN": 2, "CLAIM_SPARSE_RATIO": 2, "CLAIM_REWRITE_EVERY_MS": 500, "TOPIC_IDLE_MS": 700,
    "DEQUEUE_ITEMS_MAX": 5, "TRANSACTION_REFILLS_MAX": 2, "WARM_UPS_PER_TICK": 1, "TIMER_ENTRIES_SPARE": 4,
}  # fmt: skip
"""Limits so low that every edge is met often."""


@dataclass
class Known:
    """What a client knows of an item. Dates are those of the server's clock, the lease is of the steady one."""

    due_at: int
    expires_at: int
    at_most_once: bool
    lease_due_at: int = 0
    deliveries: int = 0
    over: bool = False
    ending: bool = False
    """Its delete was asked for, and may have happened."""
    receipts: set[int] = field(default_factory=set)


class _AnswerObserver:
    """Checks every answer at the moment it is given."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._passed: Container[ShardTopic] = ()

    def settings_followed(self) -> None:
        return None

    def delivering(self, call: DequeueCall) -> None:
        parts = chain.from_iterable(queue.parts.values() for queue in call.wants)
        self._passed = {part for part in parts if not part.room}

    def answering(self, call: DequeueCall, items: list[ShardItem]) -> None:
        driver = self._driver
        overtaken = list(order_problems(driver.dispatcher, items, driver.shards.tables, self._passed))
        assert not overtaken, overtaken[0]

    def answered(self, call: DequeueCall, items: list[ShardItem]) -> None:
        for item in items:
            self._driver.delivered(item)


class Driver:
    """`sick`: shards become sick and well again. `calm`: now and then all that is well comes to rest and is checked.

    `capped`: topics and the namespace have caps and weights, and are paused, now and then.
    """

    def __init__(
        self, seed: int, shard_count: int, *, sick: bool = False, calm: bool = False, capped: bool = False
    ) -> None:
        self.chance = random.Random(seed)
        self.shards = Shards(shard_count, observer=_AnswerObserver(self))
        self.shards.server_ahead_ms = 1_000_000_000  # Another clock: who takes one for the other is days off.
        self.shards.change_settings(attempts_max=ATTEMPTS_MAX, payload_bytes_max=1_000, metadata_bytes_max=0)
        self.known: dict[tuple[int, int], Known] = {}
        self.leased: dict[tuple[int, int], ShardItem] = {}
        self.calls: list[DequeueCall] = []
        self._sick: set[int] = set()
        self._steps = [
            (self.enqueue, 150), (self.dequeue, 150), (self.end_call, 30), (self.settle, 150), (self.extend, 20),
            (self.change_row, 10), (self.begin, 170), (self.end, 200), (self.crash, 3), (self.drain, 3),
            (self.dequeue_any, 50), (self.change_policy, 15 * capped), (self.change_cap, 5 * capped),
            (self.pass_time, 90), (self.sweep, 30), (self.change_health, 30 * sick), (self.settle_down, 40 * calm),
        ]  # fmt: skip

    def step(self) -> None:
        steps, weights = zip(*self._steps, strict=True)
        self.chance.choices(steps, weights)[0]()

    @property
    def dispatcher(self) -> Dispatcher:
        return self.shards.dispatcher

    @property
    def server_ms(self) -> int:
        return self.shards.server_ms()

    def _number(self) -> int:
        return self.chance.choice(list(self.shards.states))

    # ---- what clients do ----

    def enqueue(self) -> None:
        shard = self.shards.states[self._number()]
        items = []
        for _ in range(self.chance.randrange(1, 8)):
            topic = shard.index.topic(NAMESPACE, self.chance.choice(TOPICS))
            delay_ms = self.chance.choice([0, 0, 0, 50, 500, 3_000])
            key, priority, due_at = shard.index.next_key(), self.chance.randrange(-2, 3), self.server_ms + delay_ms
            ttl_ms = self.chance.choice([600, 10_000, 1_000_000, 1_000_000])
            item = ShardItem(
                key, topic, priority, due_at, order.sort_key(priority, due_at, key, shard.shard_id), Phase.INSERTING,
                self.server_ms, due_at + ttl_ms, self.chance.choice([0, 0, 0, 2_000, 60_000]),
                self.chance.random() < 0.2, ItemContent(b"p%d" % key, b"m"),
            )  # fmt: skip
            items.append(item)

        def on_done(completion: Completion) -> None:
            if completion.failure is None:
                for item in items:
                    self.known[shard.shard_id, item.key] = Known(item.due_at, item.expires_at, item.at_most_once)

        shard.insert(items, 10, Completion(on_done))

    def dequeue(self) -> None:
        names = self.chance.sample(TOPICS, self.chance.randrange(1, 4))
        wants = {name: self.chance.randrange(1, 7) for name in names}
        self.calls.append(self.shards.dequeue(wants, self.chance.choice([None, 1_000, 5_000, 40_000])))
        self.calls = [call for call in self.calls if not call.done]

    def dequeue_any(self) -> None:
        prefix, count = self.chance.choice(["", "", "a", "c"]), self.chance.choice([1, 4, 20])
        self.calls.append(self.shards.dequeue_any(count, prefix, self.chance.choice([None, 1_000, 40_000])))
        self.calls = [call for call in self.calls if not call.done]

    def change_policy(self) -> None:
        """Pauses, caps and weights of topics come and go."""
        self.shards.set_policy(
            self.chance.choice(TOPICS),
            dequeue_paused=self.chance.random() < 0.2,
            deliveries_per_second_max=self.chance.choice([0.0, 0.0, 0.0, 2.0, 30.0, 500.0]),
            weight=self.chance.choice([1, 1, 7]),
        )

    def change_cap(self) -> None:
        """Of the namespace."""
        cap, is_paused = self.chance.choice([0.0, 0.0, 5.0, 100.0]), self.chance.random() < 0.1
        self.shards.change_settings(deliveries_per_second_max=cap, dequeue_paused=is_paused)

    def end_call(self) -> None:
        self.calls = [call for call in self.calls if not call.done]
        if self.calls:
            self.dispatcher.end(self.chance.choice(self.calls))

    def settle(self) -> None:
        """Ack, nack, release or dead-letter something, perhaps with a receipt that is stale by now."""
        if not self.leased:
            return
        shard_id, key = at = self.chance.choice(list(self.leased))
        item, shard, known = self.leased.pop(at), self.shards.states[shard_id], self.known[at]
        held = shard.index.leases.get(key) is item and item.phase is Phase.LEASED
        assert held or known.lease_due_at <= self.shards.clock_ms, "a lease ended before its time"
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
        shard.end_leases([item])
        shard.settle([item], [rewrite], Completion(on_done), [0])

    def extend(self) -> None:
        if not self.leased:
            return
        at = self.chance.choice(list(self.leased))
        item, shard, known = self.leased[at], self.shards.states[at[0]], self.known[at]
        if shard.index.leases.get(item.key) is not item or item.phase is not Phase.LEASED:
            return

        def on_done(completion: Completion) -> None:
            if not completion.errors and at in self.leased:
                known.lease_due_at = item.lease_due_at

        lease_ms = 4_000
        # It may be shorter than what was left, and may happen without an answer.
        known.lease_due_at = min(known.lease_due_at, self.shards.clock_ms + lease_ms)
        shard.extend(item, lease_ms, Completion(on_done), 0)

    def change_row(self) -> None:
        """Delete an item, or redrive it when it is dead."""
        shard_id = self._number()
        if not self.shards.tables[shard_id].items:
            return
        key = self.chance.choice(list(self.shards.tables[shard_id].items))
        shard, known = self.shards.states[shard_id], self.known.get((shard_id, key))
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
                    self.leased.pop((shard_id, key), None)
                    if known is not None:
                        known.ending = True
                        known.lease_due_at = 0
            except (NotFoundError, InvalidArgumentError, UnavailableError):
                return

        def on_done(completion: Completion) -> None:
            if known is not None and not completion.errors:
                known.over = known.ending

        shard.look_up(LookUp([key], on_rows, lambda _: None))

    def delivered(self, item: ShardItem) -> None:
        at = (item.topic.shard_id, item.key)
        known = self.known[at]
        assert not known.over, "delivered after its end"
        assert known.lease_due_at <= self.shards.clock_ms, "delivered under another's lease"
        assert known.due_at <= self.server_ms < known.expires_at, "delivered outside its time"
        assert not (known.at_most_once and known.deliveries), "at most once, delivered twice"
        assert item.content is not None
        assert item.content.payload == b"p%d" % item.key
        assert item.deliveries + 1 not in known.receipts, "a receipt is given twice"
        known.receipts.add(item.deliveries + 1)
        known.deliveries += 1
        known.lease_due_at = item.lease_due_at
        self.leased[at] = item

    # ---- what the host and its servers do ----

    def begin(self) -> None:
        """Start a transaction; much may happen before it ends."""
        number = self._number()
        if self.shards.states[number].in_flight is None:
            self.shards.begin(number)

    def end(self) -> None:
        number = self._number()
        if self.shards.states[number].in_flight is not None:
            self.shards.end(number, well=self.chance.random() > 0.1)

    def pass_time(self) -> None:
        self.dispatcher.rings.forget_prefixes()
        self.shards.clock_ms += self.chance.choice([1, 20, 200, 1_500])
        self.dispatcher.tick()

    def sweep(self) -> None:
        self.dispatcher.sweep()

    def change_health(self) -> None:
        number = self._number()
        self._sick ^= {number}
        topics = self.shards.states[number].index.topics.values()
        self.dispatcher.shard_health(number, topics, healthy=number not in self._sick)

    def crash(self) -> None:
        """The host is gone. Its clients do not know what became of their calls."""
        for shard_id, shard in self.shards.states.items():
            if shard.in_flight is not None and self.chance.random() < 0.5:
                self.shards.stored[shard_id].apply(shard.in_flight)
        for shard_id, tables in self.shards.tables.items():
            for key, row in tables.items.items():
                self.known.setdefault((shard_id, key), Known(row.due_at, row.expires_at, bool(row.at_most_once)))
        self._start_host()

    def drain(self) -> None:
        """A graceful end: what was held is there for the next owner at once."""
        for call in self.calls:
            if not call.done:
                self.dispatcher.deliveries.answer(call, [])
        for _ in self.dispatcher.prefetch.drain():
            pass
        for shard_id, shard in self.shards.states.items():
            if shard.in_flight is not None:
                self.shards.end(shard_id)
            shard.make_exact()
            for _ in range(200):
                if plan(shard, self.dispatcher, self.shards.now(shard_id)) is None:
                    break
                self.shards.end(shard_id)
            leased = {key for key, item in shard.index.leases.items() if item.phase is Phase.LEASED}
            tables = self.shards.tables[shard_id]
            entries = [entry for claim in tables.claims.values() for entry in claim.entries]
            current = {
                key for key, number in entries if key in tables.items and tables.items[key].deliveries + 1 == number
            }
            assert current == leased, "an item that is free is still claimed"
        self._start_host()

    def _start_host(self) -> None:
        """A new host takes every shard over from whatever the last one left."""
        self.calls, self.leased, self._sick = [], {}, set()
        self.shards.take_over()

    def work_off(self) -> None:
        """Consume until nothing but dead letters is left."""
        self.shards.settings.replace_policies({})
        self.shards.change_settings(deliveries_per_second_max=0.0, dequeue_paused=False)
        for _ in range(600):
            if not any(row.lane >= 0 for tables in self.shards.tables.values() for row in tables.items.values()):
                break
            self.chance.choice([self.dequeue, self.dequeue_any])()
            for at in list(self.leased):
                item, shard, known = self.leased.pop(at), self.shards.states[at[0]], self.known[at]
                if shard.index.leases.get(item.key) is item and item.phase is Phase.LEASED:
                    known.lease_due_at = 0
                    shard.end_leases([item])
                    shard.settle([item], None, Completion(lambda _, known=known: _end(known)), [0])  # type: ignore[misc]
            for number, shard in self.shards.states.items():
                if shard.in_flight is not None:
                    self.shards.end(number)
                self.shards.begin(number)
            self.shards.clock_ms += 200
            self.dispatcher.tick()
            self.dispatcher.sweep()
            self.check()
        self.drain()
        for tables in self.shards.tables.values():
            assert all(row.lane < 0 for row in tables.items.values()), "not everything was delivered"
            assert not tables.claims
            assert tables.writer.delay_checkpoint <= self.server_ms

    # ---- what must hold ----

    def check(self) -> None:
        """After every step."""
        states = self.shards.states
        problems = list(dispatcher_problems(self.dispatcher, list(states.values())))
        for number, shard in states.items():
            if shard.in_flight is None:
                stored = self.shards.stored[number]
                problems += state_problems(shard, stored.packs, stored.tables)
        assert not problems, problems[0]
        for (shard_id, key), known in self.known.items():
            if key not in self.shards.tables[shard_id].items:
                gone = known.over or known.at_most_once or known.expires_at <= self.server_ms
                assert gone or known.ending or known.deliveries, "an item is lost"
        self._check_held()

    def _check_held(self) -> None:
        """Nothing is held that may be handed out, unless something else is awaited."""
        untold = {topic.name for shard in self.shards.states.values() for topic in shard.index.events.topics_changed}
        dispatcher = self.dispatcher
        for queue in dispatcher.queues.by_topic.values():
            held = [item for item in queue.buffer.items if item.phase is Phase.PREFETCHED]
            told_after_refill = any(
                not part.room and (part.window.wants_refill or part.window.refilling) for part in queue.parts.values()
            )
            waits = bool(queue.claims_count) or queue in dispatcher.deliveries._lingering or queue.is_throttled
            waits = waits or not dispatcher.rings._busy.keys().isdisjoint(queue.calls)
            if queue.calls and held and not (waits or queue.name in untold or told_after_refill):
                first = queue.first_unclaimed()
                assert min(item.sort_key for item in held) > first, "an item that may be handed out is not"

    def settle_down(self) -> None:
        """Let the well shards work, without a sweep: nobody may wait for what they have then."""
        well = [number for number in self.shards.states if number not in self._sick]
        for _ in range(12):
            for number in well:
                self._finish(number)
            self.shards.clock_ms += 20
            self.dispatcher.tick()
        rings = [ring for call in calls_waiting_any(self.dispatcher) for ring in call.lacks]
        wanted = {queue for call in self.calls if not call.done for queue in call.wants}
        for queue in self.dispatcher.queues.by_topic.values():
            if any(queue.name.startswith(ring.prefix) for ring in rings):
                wanted.add(queue)
        for queue in wanted:
            assert not [item for item in queue.buffer.items if item.topic.shard_id in well]
            for number in well:
                topic = self.shards.states[number].index.topics.get((NAMESPACE, queue.name))
                assert topic is None or (topic.window.complete and not topic.window.sort_keys)

    def _finish(self, number: int) -> None:
        for _ in range(300):
            if self.shards.states[number].in_flight is not None:
                self.shards.end(number)
            elif self.shards.begin(number) is None:
                return
        raise AssertionError(f"shard {number} goes round and round")


def _end(known: Known) -> None:
    known.over = True

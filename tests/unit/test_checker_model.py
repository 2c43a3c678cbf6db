"""The checker against a queue of a hundred lines: never red while that is right, red for each defect of it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foqs.model.calls import ItemState
from tests.histories.checker import Report, check
from tests.histories.history import Call, Outcome, Put, Settled, Taken, Verb
from tests.histories.lives import Stored

Answer = tuple[Outcome, list[str], list[Taken]]
"""Outcome, ids and deliveries of a call."""
NO_TTL_MS = 1 << 60
TOPICS = ["t", "u"]
DEFECTS = {
    "acknowledges without storing": "P1",
    "stores what it refuses": "P1",
    "loses metadata in a nack": "P1",
    "counts a release as an attempt": "P1",
    "stores twice": "P1",
    "drops an item whose lease ended": "P2",
    "drops a released item": "P2",
    "forgets a nacked item in the timers": "P2",
    "gives out what is leased": "P3",
    "ignores extensions": "P3",
    "redelivers at-most-once items": "P4",
    "keeps the row of an ack": "P5",
    "takes any receipt": "P5",
    "hands out the oldest first": "P6",
    "ignores deliver_after": "P7",
    "ignores the delay of a nack": "P7",
    "ignores the TTL": "P7",
    "drops a failed item at its TTL": "P2",
    "finds ended leases late": "P7",
    "uses ids again": "P9",
}


@dataclass
class Row:
    key: int
    put: Put
    due_at_ms: int
    expires_at_ms: int
    metadata: str
    number: int = 1
    """Of the present or next delivery."""
    attempt: int = 1
    leased_until_ms: int | None = None
    dead: bool = False

    @property
    def item_id(self) -> str:
        return f"0-{self.key:x}"


class Model:
    """One shard with a clock that calls move on. `defect` is one of DEFECTS, or none."""

    def __init__(self, rng: random.Random, defect: str = "") -> None:
        self.rng = rng
        self.defect = defect
        self.now_ms = 1_000_000
        self.rows: dict[int, Row] = {}
        self.calls: list[Call] = []
        self.receipts: list[str] = []
        self.late: list[Callable[[], Answer]] = []
        """What calls without an answer will still do."""
        self.uids = 0
        self.keys = 0

    # ---- the queue ----

    def is_wrong(self, defect: str) -> bool:
        return self.defect == defect

    def insert(self, put: Put) -> str:
        if not self.is_wrong("uses ids again") or self.keys in self.rows:
            self.keys += 1
        self.keys = max(self.keys, 1)
        due_at_ms = self.now_ms + (put.delay_ms or 0)
        expires_at_ms = due_at_ms + put.ttl_ms if put.ttl_ms else NO_TTL_MS
        row = Row(self.keys, put, due_at_ms, expires_at_ms, put.metadata)
        if not (self.is_wrong("acknowledges without storing") and self.rng.random() < 0.2):
            self.rows[row.key] = row
        return row.item_id

    def sweep(self) -> None:
        slack_ms = 4_000 if self.is_wrong("finds ended leases late") else 0
        for row in list(self.rows.values()):
            if row.leased_until_ms is not None and row.leased_until_ms + slack_ms <= self.now_ms:
                gone = row.put.at_most_once and not self.is_wrong("redelivers at-most-once items")
                if gone or self.is_wrong("drops an item whose lease ended"):
                    del self.rows[row.key]
                    continue
                row.leased_until_ms = None
                row.number += 1
                row.attempt += 1
            expired = row.expires_at_ms <= self.now_ms and not row.dead and not self.is_wrong("ignores the TTL")
            if expired and row.leased_until_ms is None:
                if row.attempt > 1 and not row.put.at_most_once and not self.is_wrong("drops a failed item at its TTL"):
                    row.dead = True
                else:
                    del self.rows[row.key]

    def claim(self, topic: str, count: int, lease_ms: int) -> list[Taken]:
        self.sweep()
        ready = [
            row
            for row in self.rows.values()
            if row.put.topic == topic
            and not row.dead
            and (row.due_at_ms <= self.now_ms or self.is_wrong("ignores deliver_after"))
            and (row.leased_until_ms is None or self.is_wrong("gives out what is leased"))
        ]
        if not self.is_wrong("hands out the oldest first"):
            ready.sort(key=lambda row: (row.put.priority, row.due_at_ms, row.key))
        taken = []
        for row in ready[:count]:
            row.number += row.leased_until_ms is not None
            row.attempt += row.leased_until_ms is not None
            row.leased_until_ms = self.now_ms + lease_ms
            receipt = f"{row.item_id}:{row.number:x}"
            put, until_ms = row.put, row.leased_until_ms
            taken.append(
                Taken(receipt, put.uid, topic, put.priority, row.due_at_ms, until_ms, row.attempt, row.metadata)
            )
        return taken

    def settle(self, verb: Verb, settled: Settled) -> Outcome:
        self.sweep()
        item_id, _, number = settled.receipt.partition(":")
        row = self.rows.get(int(item_id.removeprefix("0-"), 16))
        if row is None or row.leased_until_ms is None:
            return Outcome.FAIL
        if int(number, 16) != row.number and not self.is_wrong("takes any receipt"):
            return Outcome.FAIL
        if verb is Verb.EXTEND:
            if not self.is_wrong("ignores extensions"):
                row.leased_until_ms = self.now_ms + settled.lease_ms
        elif verb is Verb.ACK:
            if not self.is_wrong("keeps the row of an ack"):
                del self.rows[row.key]
        else:
            self.nack(row, settled)
        return Outcome.OK

    def nack(self, row: Row, settled: Settled) -> None:
        row.leased_until_ms = None
        row.number += 1
        row.attempt += not settled.release or self.is_wrong("counts a release as an attempt")
        dropped = settled.release and self.is_wrong("drops a released item")
        if settled.dead_letter:
            row.dead = True
        elif dropped or (row.put.at_most_once and not self.is_wrong("redelivers at-most-once items")):
            del self.rows[row.key]
        elif settled.delay_ms and not self.is_wrong("ignores the delay of a nack"):
            row.due_at_ms = self.now_ms + settled.delay_ms
            if self.is_wrong("forgets a nacked item in the timers"):
                row.due_at_ms = NO_TTL_MS
        if settled.metadata is not None and not self.is_wrong("loses metadata in a nack"):
            row.metadata = settled.metadata

    # ---- its clients ----

    def run(self, step_count: int) -> Report:
        steps = [self.enqueue, self.enqueue, self.dequeue, self.dequeue, self.end_one, self.end_one, self.wait]
        for _ in range(step_count):
            self.rng.choice(steps)()
            if self.late and self.rng.random() < 0.3:
                self.late.pop(self.rng.randrange(len(self.late)))()
        for work in self.late:
            work()
        self.drain()
        stored = [Stored(row.item_id, row.put.uid, self.state_of(row)) for row in self.rows.values()]
        return check(self.calls, stored)

    def state_of(self, row: Row) -> ItemState:
        if row.dead:
            return ItemState.DEAD
        return ItemState.LEASED if row.leased_until_ms is not None else ItemState.READY

    def call(self, verb: Verb, asked: list[object], work: Callable[[], Answer]) -> None:
        """One call of some milliseconds in whose middle the work is done, or later, or never."""
        call = Call("c", len(self.calls), verb, asked, self.now_ms)
        self.calls.append(call)
        self.now_ms += self.rng.randrange(3)
        fate = self.rng.random()
        if fate < 0.8:
            call.outcome, call.ids, call.taken = work()
        elif fate < 0.87:
            work()
        elif fate < 0.94:
            self.late.append(work)
        self.receipts += [entry.receipt for entry in call.taken]
        self.now_ms += self.rng.randrange(3)
        if call.outcome is not Outcome.INFO or self.rng.random() < 0.5:
            call.returned_at_ms = self.now_ms
        self.now_ms += 1

    def enqueue(self) -> None:
        self.uids += 1
        rng = self.rng
        put = Put(
            f"c/{self.uids}",
            rng.choice(TOPICS),
            rng.randrange(3),
            delay_ms=rng.choice([None, None, rng.randrange(3_000)]),
            ttl_ms=rng.choice([None, None, rng.randrange(1, 4_000)]),
            metadata=rng.choice(["", "aa"]),
            at_most_once=rng.random() < 0.2,
        )

        def work() -> Answer:
            refused = rng.random() < 0.1
            if refused and not self.is_wrong("stores what it refuses"):
                return Outcome.FAIL, [], []
            ids = [self.insert(put)]
            if self.is_wrong("stores twice") and rng.random() < 0.2:
                self.insert(put)
            return (Outcome.FAIL, [], []) if refused else (Outcome.OK, ids, [])

        self.call(Verb.ENQUEUE, [put], work)

    def dequeue(self) -> None:
        topic, count, lease_ms = self.rng.choice(TOPICS), self.rng.randrange(1, 5), self.rng.randrange(50, 2_000)

        self.call(Verb.DEQUEUE, [topic], lambda: (Outcome.OK, [], self.claim(topic, count, lease_ms)))

    def end_one(self) -> None:
        if not self.receipts:
            return
        rng = self.rng
        receipt = rng.choice(self.receipts[-6:])
        verb = rng.choice([Verb.ACK, Verb.NACK, Verb.EXTEND])
        settled = Settled(receipt, lease_ms=rng.randrange(50, 3_000))
        if verb is Verb.NACK:
            delay_ms, metadata = rng.choice([0, rng.randrange(2_000)]), rng.choice([None, "bb", "cc"])
            release, dead = rng.random() < 0.3, rng.random() < 0.1
            settled = Settled(receipt, delay_ms, metadata, release, dead)
        self.call(verb, [settled], lambda: (self.settle(verb, settled), [], []))

    def wait(self) -> None:
        self.now_ms += self.rng.randrange(1_500)

    def drain(self) -> None:
        """Everything that can be had is taken and acked, by calls that all are answered."""
        for _ in range(8):
            self.now_ms += 4_500
            for topic in TOPICS:
                while True:
                    call = Call("c", len(self.calls), Verb.DEQUEUE, [topic], self.now_ms)
                    call.taken, call.outcome = self.claim(topic, 10, 3_000), Outcome.OK
                    self.now_ms += 1
                    call.returned_at_ms = self.now_ms
                    self.calls.append(call)
                    if not call.taken:
                        break
                    self.ack_all([entry.receipt for entry in call.taken])

    def ack_all(self, receipts: list[str]) -> None:
        self.now_ms += 1
        settled = [Settled(receipt) for receipt in receipts]
        call = Call("c", len(self.calls), Verb.ACK, settled, self.now_ms, outcome=Outcome.OK)
        for position, entry in enumerate(settled):
            if (outcome := self.settle(Verb.ACK, entry)) is not Outcome.OK:
                call.others[position] = outcome
        self.now_ms += 1
        call.returned_at_ms = self.now_ms
        self.calls.append(call)


@settings(max_examples=60)
@given(st.randoms(use_true_random=False), st.integers(1, 80))
def test_a_correct_queue_is_never_accused(rng: random.Random, step_count: int) -> None:
    report = Model(rng).run(step_count)
    assert not report.violations, str(report)


@pytest.mark.parametrize("seed", range(20))
def test_a_correct_queue_is_never_accused_in_a_long_history(seed: int) -> None:
    report = Model(random.Random(seed)).run(600)
    assert not report.violations, str(report)
    assert report.counts["redeliveries"] > 20


@pytest.mark.parametrize("defect", DEFECTS)
def test_every_defect_of_the_queue_is_found(defect: str) -> None:
    found: set[str] = set()
    for seed in range(10):
        found |= Model(random.Random(seed), defect).run(300).promises_broken
    assert DEFECTS[defect] in found

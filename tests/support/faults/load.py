"""Load on a running queue from many clients, every call and answer of it recorded."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from foqs.client.queue_items import Nack
from foqs.client.retry import RetryPolicy
from foqs.client.sync import Client
from foqs.model.calls import ItemState
from foqs.model.ids import item_id
from foqs.model.topic_name import parts
from tests.histories.group_views import consumer_of
from tests.histories.history import Call, History, Outcome, Put, Verb, now_ns, uid_of
from tests.histories.lives import Stored
from tests.histories.recorder import RecordedClient
from tests.histories.stored import item_rows, topic_names
from tests.support.faults import FaultError
from tests.support.waiting import PATIENCE_S

NAMESPACE = "jobs"
TOPICS = [f"topic-{number}" for number in range(4)]
LEASE_MS = 1_000
_DRAIN_S = 70.0
"""What a killed host had claimed ahead of consumers is not to be had for 37 s."""
PAUSE_AFTER_FAILURE_S = 0.02
_RECENT_IDS = 500
_REPEATED_SHARE = 0.2
"""Of the items with dedup ids."""
ANSWER_ITEMS_MAX = len(TOPICS) * (_TOPIC_ITEMS := 10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pressure:
    """How much load: as much as the clients can, or about `items_per_s`.

    backlog_items_max: producers wait for the consumers beyond it, so that a drain does not take longer than the load.
    timeout_ms: after which a client gives a call up.
    pause_after_failure_s: before its next one.
    dedup_share: of the items that have dedup ids. Some of these ids were enqueued before, by any producer, and those of
    calls whose outcome is unknown are enqueued again at once.
    """

    producers: int = 2
    consumers: int = 3
    backlog_items_max: int = 2_000
    items_per_s: int | None = None
    timeout_ms: int = 5_000
    pause_after_failure_s: float = PAUSE_AFTER_FAILURE_S
    dedup_share: float = 0.0


def _new(producer: str, rng: random.Random) -> Put:
    delay_ms = rng.randrange(50, 1_500) if rng.random() < 0.1 else None
    return Put(
        f"{producer}/{rng.getrandbits(60):x}",
        rng.choice(TOPICS),
        rng.randrange(5),
        delay_ms=delay_ms,
        deliver_after_ms=now_ns() // 1_000_000 + rng.randrange(1_000)
        if delay_ms is None and rng.random() < 0.05
        else None,
        ttl_ms=rng.randrange(2_000, 6_000) if rng.random() < 0.1 else None,
        metadata=rng.randbytes(rng.randrange(8)).hex(),
        at_most_once=rng.random() < 0.1,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Of what kind the items are, and who takes them.

    new: the next item of a producer, by its name.
    groups: consumer groups, which consumers serve by turns; without any they take the items of the topics themselves.
    """

    topics: Sequence[str] = tuple(TOPICS)
    new: Callable[[str, random.Random], Put] = _new
    groups: Sequence[str] = ()


class Load:
    """Producers and consumers, a thread and a client each. As a context manager it ends them all.

    `name` is unique among the loads that write into one history. Failures of the harness are FaultErrors.
    """

    def __init__(
        self,
        address: str | Sequence[str],
        name: str = "load",
        history: History | None = None,
        pressure: Pressure = Pressure(),
        shape: Shape = Shape(),
    ) -> None:
        self.history = history or History()
        self._pressure = pressure
        self._shape = shape
        self._address = address
        self._draining = threading.Event()
        self._stopped = threading.Event()
        self._lock = threading.Condition()
        self._ok: Counter[str] = Counter()
        self._gone_count = 0
        """Of items that nobody acked: they have died, expired, or been delivered at most once."""
        self._failures: list[BaseException] = []
        self._recent_ids: deque[str] = deque(maxlen=_RECENT_IDS)
        self._unknown_ids: dict[str, list[str]] = {}
        """By producer: the dedup ids of its last call, if nobody knows what became of that."""
        self._held: dict[str, list[tuple[float, Verb, list[str]]]] = {}
        """By consumer: what it will do at which time with items that it took before."""
        self._producers = [
            self._thread(f"{name}-producer-{number}", self._produce, ended_by=self._draining)
            for number in range(pressure.producers)
        ]
        self._consumers = [
            self._consumer(f"{name}-consumer-{number}", number, shape.groups) for number in range(pressure.consumers)
        ]

    def __enter__(self) -> Self:
        for thread in [*self._producers, *self._consumers]:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._draining.set()
        self._stopped.set()
        _join([*self._producers, *self._consumers])
        if self._failures and error is None:
            raise self._failures[0]

    def wait_for(self, *, enqueued: int = 0, settled: int = 0, patience_s: float = PATIENCE_S) -> None:
        """Return once so many more items were enqueued and settled than when this was called."""
        with self._lock:
            goal = {"enqueued": self._ok["enqueued"] + enqueued, "settled": self._ok["settled"] + settled}
            reached = self._lock.wait_for(
                lambda: bool(self._failures) or all(self._ok[key] >= count for key, count in goal.items()), patience_s
            )
        self._raise_failure()
        if not reached:
            raise FaultError(f"{dict(self._ok)} after {patience_s} s, not {goal}")

    def drain(self, shard_urls: Mapping[int, str], patience_s: float = _DRAIN_S) -> list[Stored]:
        """Enqueue no more, take and ack until only dead letters are left; the rows that are."""
        self._draining.set()
        _join(self._producers)
        deadline = time.monotonic() + patience_s
        while True:
            rows = stored_rows(shard_urls)
            if all(row.state is ItemState.DEAD for row in rows) or time.monotonic() > deadline:
                return rows
            with self._lock:
                self._lock.wait(0.1)
            self._raise_failure()

    def _raise_failure(self) -> None:
        if self._failures:
            raise FaultError(f"the load failed: {self._failures[0]!r}") from self._failures[0]

    # ---- what the threads do ----

    def _consumer(self, name: str, number: int, groups: Sequence[str]) -> threading.Thread:
        if not groups:
            return self._thread(name, self._consume, ended_by=self._stopped)
        group = groups[number % len(groups)]
        return self._thread(consumer_of(name, group), self._consume, ended_by=self._stopped, group=group)

    def _thread(
        self,
        name: str,
        work: Callable[[RecordedClient, random.Random], None],
        ended_by: threading.Event,
        group: str | None = None,
    ) -> threading.Thread:
        def run() -> None:
            retry = RetryPolicy(deadline_ms=0)
            try:
                with Client(
                    self._address, timeout_ms=self._pressure.timeout_ms, retry=retry, connections_max=1
                ) as client:
                    recorded = RecordedClient(client, self.history, name, NAMESPACE, group=group)
                    rng = random.Random(name)
                    while not ended_by.is_set():
                        work(recorded, rng)
            except BaseException as error:
                with self._lock:
                    self._failures.append(error)
                    self._lock.notify_all()

        return threading.Thread(target=run, name=name)

    def _done(self, what: str, call: Call) -> None:
        """Count what was done; after a failure, do not hurry into the next."""
        with self._lock:
            count = sum(call.outcome_at(position) is Outcome.OK for position in range(len(call.asked)))
            self._ok[what] += count
            self._lock.notify_all()
        if call.outcome is not Outcome.OK:
            self._stopped.wait(self._pressure.pause_after_failure_s)

    def _produce(self, client: RecordedClient, rng: random.Random) -> None:
        unsettled = self._ok["enqueued"] * max(1, len(self._shape.groups)) - self._ok["settled"]
        is_full = unsettled - self._gone_count > self._pressure.backlog_items_max
        if is_full and (stored_count := client.stored_count()) is not None:
            self._gone_count = unsettled - stored_count
        if is_full:
            self._draining.wait(PAUSE_AFTER_FAILURE_S)
            return
        count = 1 if rng.random() < 0.5 else rng.randrange(2, 40)
        if self._pressure.items_per_s is not None:
            # Each waits on the average as long as the rate of all producers together allows.
            mean_s = count * self._pressure.producers / self._pressure.items_per_s
            if self._draining.wait(rng.expovariate(1 / mean_s)):
                return
        puts = [self._shape.new(client.name, rng) for _ in range(count)]
        if self._pressure.dedup_share:
            puts = self._with_ids(client.name, puts, rng)
        call = client.enqueue(puts)
        unknown = [position for position in range(len(puts)) if call.outcome_at(position) is Outcome.INFO]
        self._unknown_ids[client.name] = [puts[position].dedup_id for position in unknown if puts[position].dedup_id]
        self._done("enqueued", call)

    def _with_ids(self, producer: str, puts: list[Put], rng: random.Random) -> list[Put]:
        again = self._unknown_ids.pop(producer, [])
        found = [self._shape.new(producer, rng)._replace(dedup_id=dedup_id) for dedup_id in again]
        with self._lock:
            recent = list(self._recent_ids)
        for put in puts:
            dedup_id = ""
            if rng.random() < self._pressure.dedup_share:
                dedup_id = rng.choice(recent) if recent and rng.random() < _REPEATED_SHARE else put.uid
            found.append(put._replace(dedup_id=dedup_id))
        with self._lock:
            self._recent_ids.extend([put.dedup_id for put in found if put.dedup_id])
        return found

    def _consume(self, client: RecordedClient, rng: random.Random) -> None:
        """Mostly ack; else nack, hold on to the item with an extended lease, or come back when the lease is over."""
        held = self._held.setdefault(client.name, [])
        while held and held[0][0] < time.monotonic():
            _, verb, receipts = held.pop(0)
            self._end(client, verb, receipts, rng)
        call = client.dequeue(
            self._shape.topics, _TOPIC_ITEMS, lease_ms=LEASE_MS + rng.randrange(200), wait_ms=rng.choice([0, 200])
        )
        self._done("answered", call)
        kinds: dict[str, list[str]] = {"ack": [], "nack": [], "extend": [], "late": [], "never": []}
        for taken in call.taken:
            kind = "ack" if self._draining.is_set() else rng.choices(list(kinds), [82, 8, 4, 4, 2])[0]
            kinds[kind].append(taken.receipt)
        if kinds["extend"]:
            self._done("extended", client.extend(kinds["extend"], 3 * LEASE_MS))
            held.append((time.monotonic() + 1.5 * LEASE_MS / 1000, Verb.ACK, kinds["extend"]))
        if kinds["late"]:
            verb = rng.choice([Verb.ACK, Verb.NACK, Verb.EXTEND])
            held.append((time.monotonic() + 1.5 * LEASE_MS / 1000, verb, kinds["late"]))
        self._end(client, Verb.NACK, kinds["nack"], rng)
        self._end(client, Verb.ACK, kinds["ack"], rng)

    def _end(self, client: RecordedClient, verb: Verb, receipts: list[str], rng: random.Random) -> None:
        if not receipts:
            return
        if verb is Verb.ACK:
            self._done("settled", client.ack(receipts))
        elif verb is Verb.NACK:
            self._done("nacked", client.nack([_nack(receipt, rng) for receipt in receipts]))
        else:
            self._done("extended", client.extend(receipts, LEASE_MS))


def _join(threads: Sequence[threading.Thread]) -> None:
    for thread in threads:
        thread.join(PATIENCE_S)
        if thread.is_alive():
            raise FaultError(f"{thread.name} does not end")


def _nack(receipt: str, rng: random.Random) -> Nack:
    kind = rng.choices(["delay", "release", "now", "dead"], [4, 3, 2, 1])[0]
    return Nack(
        receipt,
        delay_ms=rng.randrange(1, 1_000) if kind == "delay" else 0,
        metadata=rng.randbytes(4) if rng.random() < 0.5 else None,
        release=kind == "release",
        dead_letter=kind == "dead",
    )


def stored_rows(shard_urls: Mapping[int, str]) -> list[Stored]:
    """What is stored, read past any host."""
    found = []
    for shard_id, url in shard_urls.items():
        rows, names = item_rows(url), topic_names(url)
        for row in rows:
            state = ItemState.DEAD if row.lane < 0 else ItemState.READY if row.lane else ItemState.DELAYED
            group = parts(names.get(row.topic, ""))[1]
            found.append(Stored(item_id(shard_id, row.key), uid_of(row.content.payload), state, group))
    return found

"""Enqueues with dedup ids by clients that lose responses and repeat, while the host is killed again and again.

Consumers take and ack meanwhile, so that most repeats come after their items are gone. In the end every number must
have made one item: by what was delivered, by what the tables still have, and by what every enqueue was answered.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from math import nan
from pathlib import Path
from statistics import median
from typing import Any

from foqs import AdminClient
from foqs.dev.local_server import LocalServer
from foqs.model import limits
from foqs.model.errors import ErrorCode, FoqsError
from foqs.model.ids import item_id
from foqs.wire.codec import structs
from loadtest.bench.usage import memory_mib, usage
from loadtest.bench.wire import Wire
from loadtest.stress.seen_ids import dedup_id
from loadtest.stress.stand import NO_QUOTA
from loadtest.stress.verdict import Bound, Verdict
from tests.histories.stored import item_rows
from tests.support.faults import FaultError
from tests.support.faults.cluster import Databases, audit, make_databases, wait_until_owned
from tests.support.faults.load import NAMESPACE
from tests.support.faults.programs import HostProgram, free_port

FLAT_FACTOR_MAX = 1.5
_SHARDS = 2
"""The ids of the namespace are on one of them."""
_TOPICS = [f"topic-{number}" for number in range(4)]
_PAYLOAD_BYTES = 100
_CALL_ITEMS = 250
_PRODUCERS, _CONSUMERS = 6, 4
_LOST_SHARE, _REPEATED_SHARE = 0.05, 0.05
_LOST_AFTER_S_MAX = 0.05
"""So long after the call was sent its client hangs up, at the latest: before or after it is done."""
_PAUSE_S = 0.05
_PARTS = 10
_PATIENCE_S = 120.0


@dataclass(slots=True)
class Balance:
    """What became of each number: the ids that enqueues were answered, and those that were delivered."""

    count: int
    answered: list[str] = field(init=False)
    delivered: list[str] = field(init=False)
    more: list[tuple[int, str]] = field(default_factory=list)
    """Ids of numbers that have another one already."""
    misanswered: list[tuple[int, str]] = field(default_factory=list)
    tally: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.answered, self.delivered = [""] * self.count, [""] * self.count

    def note_answer(self, number: int, item_id: str) -> None:
        before = self.answered[number]
        if not before:
            self.answered[number] = item_id
        elif before != item_id:
            self.misanswered.append((number, item_id))

    def note_item(self, number: int, item_id: str) -> None:
        """It was delivered, maybe again, or is stored."""
        before = self.delivered[number]
        if not before:
            self.delivered[number] = item_id
        elif before != item_id:
            self.more.append((number, item_id))

    def bounds(self) -> list[Bound]:
        lost = sum(not found for found in self.delivered)
        unanswered = sum(not found for found in self.answered)
        pairs = zip(self.answered, self.delivered, strict=True)
        others = sum(bool(one and other) and one != other for one, other in pairs)
        return [
            Bound("numbers without an item", lost, 0),
            Bound("numbers with two items", len({number for number, _ in self.more}), 0),
            Bound("numbers that no enqueue was answered", unanswered, 0),
            Bound("enqueues that were answered another id than the first", len(self.misanswered), 0),
            Bound("numbers that were answered another id than their item's", others, 0),
            Bound("repeats of answered calls that were not called duplicates", self.tally["not called duplicates"], 0),
        ]


@dataclass(frozen=True, slots=True)
class Course:
    """`kills` of the host, spread over the enqueues of `ids` items."""

    ids: int = 1_000_000
    kills: int = 4
    seed: int = 1


def run(course: Course) -> Verdict:
    verdict = Verdict("enqueues with dedup ids through kill -9")
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="foqs-dedup-")))
        server = stack.enter_context(LocalServer(home / "mysql", buffer_pool_mib=512, log_file_mib=512))
        databases = make_databases(server, dict.fromkeys(range(_SHARDS), server))
        load = _Load(server, databases, course)
        stack.callback(load.close)
        asyncio.run(load.run())
        load.close()
        for shard, url in databases.shard_urls.items():
            for row in item_rows(url):
                load.balance.note_item(_number_of(row.content.payload), item_id(shard, row.key))
        problems = list(audit(databases.shard_urls))
    verdict.rows, tally = load.parts, load.balance.tally
    verdict.facts = {
        **{name: tally[name] for name in sorted(tally)},
        "memory of the host at the end, MiB": load.memory_mib,
        "found in the tables": "; ".join(problems) or "nothing",
        "items, kills, seed": f"{course.ids:,}, {course.kills}, {course.seed}",
    }
    verdict.bounds = [*load.balance.bounds(), Bound("unsound tables", len(problems), 0), *_flatness(load.parts)]
    verdict.bounds.append(
        Bound("items of calls without a response that were done", tally[_DONE_UNANSWERED], 1, is_least=True)
    )
    return verdict


def _flatness(parts: list[dict[str, Any]]) -> list[Bound]:
    """Medians of the second half of the run by those of the first."""
    half = len(parts) // 2
    bounds = []
    for name in (_MYSQL_US, _WRITTEN):
        first, second = (median(part[name] for part in some) for some in (parts[:half], parts[half:]))
        bounds.append(Bound(f"{name}, second half by first", second / first if first else nan, FLAT_FACTOR_MAX))
    return bounds


_DONE_UNANSWERED = "items of calls without a response that were done, and repeated"
_MYSQL_US, _WRITTEN = "MySQL µs an item", "written B an item"


class _Load:
    def __init__(self, server: LocalServer, databases: Databases, course: Course) -> None:
        self.balance = Balance(course.ids)
        self.parts: list[dict[str, Any]] = []
        self.memory_mib = 0.0
        self._server, self._databases = server, databases
        self._ids_count, self._kills = course.ids, course.kills
        self._chance = random.Random(course.seed)
        self._port = free_port()
        self._host = self._new_host()
        self._next = self._answered_count = 0
        self._progress = asyncio.Condition()
        self._is_over = False
        with AdminClient(self._host.address) as admin:
            wait_until_owned(self._host.address)
            admin.create_namespace(
                NAMESPACE, enqueues_per_minute_max=NO_QUOTA, dedup_ids=max(limits.DEDUP_IDS_MIN, course.ids)
            )

    def close(self) -> None:
        self._host.close()

    def _new_host(self) -> HostProgram:
        return HostProgram("host-1", self._port, self._databases.meta_url, self._databases.shard_urls)

    async def run(self) -> None:
        consumers = [asyncio.create_task(self._consume(number)) for number in range(_CONSUMERS)]
        killer, watcher = asyncio.create_task(self._kill()), asyncio.create_task(self._watch())
        async with asyncio.timeout(_PATIENCE_S + self._ids_count / 500):
            await asyncio.gather(*[self._produce() for _ in range(_PRODUCERS)])
            await killer
            await watcher
            self._is_over = True
            await asyncio.gather(*consumers)
        self.memory_mib = memory_mib(self._host.pid)

    async def _reached(self, count: int) -> None:
        async with self._progress:
            await self._progress.wait_for(lambda: self._answered_count >= count)

    async def _kill(self) -> None:
        for kill in range(1, self._kills + 1):
            await self._reached(self._ids_count * kill // (self._kills + 1))
            self._host.kill()
            self._host = await asyncio.to_thread(self._new_host)

    async def _watch(self) -> None:
        """A row for each tenth of the run."""
        before, count_before, began_s = usage(self._server.pid), 0, time.monotonic()
        for part in range(1, _PARTS + 1):
            await self._reached(self._ids_count * part // _PARTS)
            now, count, now_s = usage(self._server.pid), self._answered_count, time.monotonic()
            spent, items = now.since(before), max(1, count - count_before)
            self.parts.append({
                "items": count,
                "items a second": items / (now_s - began_s),
                _MYSQL_US: spent.cpu_s * 1e6 / items,
                _WRITTEN: spent.written_bytes / items,
            })  # fmt: skip
            before, count_before, began_s = now, count, now_s

    async def _produce(self) -> None:
        wire = await self._connect()
        while self._next < self._ids_count:
            numbers = range(self._next, min(self._next + _CALL_ITEMS, self._ids_count))
            self._next = numbers.stop
            wire = await self._enqueue(wire, numbers, again=False)
            async with self._progress:
                self._answered_count += len(numbers)
                self._progress.notify_all()
            if self._chance.random() < _REPEATED_SHARE:
                older = range(start := self._chance.randrange(numbers.stop), min(start + _CALL_ITEMS, numbers.stop))
                wire = await self._enqueue(wire, older, again=True)
        wire.close()

    async def _enqueue(self, wire: Wire, numbers: range, *, again: bool) -> Wire:
        """Until all of it is answered; the connection that works then. `again`: all of it was enqueued before."""
        news = [
            structs.NewItem(_TOPICS[number % len(_TOPICS)], _payload(number), dedup_id=dedup_id(number))
            for number in numbers
        ]
        request = structs.EnqueueRequest(NAMESPACE, news)
        was_answered = {position for position, number in enumerate(numbers) if self.balance.answered[number]}
        is_repeated = False
        while True:
            answer = await self._send(wire, request)
            if wire.is_closed:
                wire = await self._connect()
            if answer is not None:
                self._note(numbers, answer, was_answered if again else set(), is_repeat=is_repeated and not again)
                if not answer.errors:
                    return wire
                await asyncio.sleep(_PAUSE_S)
            is_repeated = True

    async def _send(self, wire: Wire, request: Any) -> Any:
        """The response, or None where there is none or this client does not wait for it."""
        tally = self.balance.tally
        tally["enqueues sent"] += 1
        try:
            sent = wire.call("enqueue", request)
            if self._chance.random() >= _LOST_SHARE:
                return await sent
            await asyncio.sleep(self._chance.random() * _LOST_AFTER_S_MAX)
            sent.cancel()
            wire.abort()
            tally["responses lost"] += 1
        except FoqsError as error:
            tally[f"answered {error.code.name}"] += 1
            await asyncio.sleep(_PAUSE_S)
        except ConnectionError:
            tally["connections lost"] += 1
        return None

    def _note(self, numbers: range, answer: Any, due: set[int], *, is_repeat: bool) -> None:
        """`due`: positions that must be called duplicates."""
        tally = self.balance.tally
        for position, number in enumerate(numbers):
            if position not in answer.errors:
                self.balance.note_answer(number, answer.ids[position])
        tally["items called duplicates"] += len(answer.duplicates)
        tally["not called duplicates"] += len(due - {*answer.duplicates, *answer.errors})
        if is_repeat:
            tally[_DONE_UNANSWERED] += len(answer.duplicates)
        for refused in answer.errors.values():
            tally[f"positions answered {ErrorCode(refused.code).name}"] += 1

    async def _consume(self, number: int) -> None:
        """As long as there are producers, and then until nothing comes."""
        wire = await self._connect()
        demand = [structs.TopicDemand(topic, _CALL_ITEMS) for topic in _TOPICS]
        while True:
            was_over = self._is_over
            try:
                taken = (await wire.call("dequeue", structs.DequeueRequest(NAMESPACE, demand, None, 200))).items
                for item in taken:
                    self.balance.note_item(_number_of(item.payload), item.receipt.partition(":")[0])
                if taken:
                    await wire.call("ack", structs.AckRequest(NAMESPACE, [item.receipt for item in taken]))
                elif was_over:
                    wire.close()
                    return
            except FoqsError:
                await asyncio.sleep(_PAUSE_S)
            except ConnectionError:
                wire = await self._connect()

    async def _connect(self) -> Wire:
        until_s = time.monotonic() + _PATIENCE_S
        while True:
            try:
                return await Wire.connect(self._port)
            except OSError as error:
                if time.monotonic() > until_s:
                    raise FaultError(f"the host does not come back: {error}") from error
                await asyncio.sleep(_PAUSE_S)


def _payload(number: int) -> bytes:
    return number.to_bytes(8, "big").ljust(_PAYLOAD_BYTES, b".")


def _number_of(payload: bytes) -> int:
    return int.from_bytes(payload[:8], "big")

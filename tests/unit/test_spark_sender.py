"""How the rows of a task are sent, with a client that plays a script."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import repeat

import pyarrow as pa
import pytest

from foqs import NewItem
from foqs.client import verbs
from foqs.client.flows import Pause
from foqs.client.retry import Repeat
from foqs.model.calls import EnqueueResult, PositionErrors
from foqs.model.errors import (
    FoqsError,
    InternalError,
    InvalidArgumentError,
    OverloadedError,
    RateLimitedError,
    TooLargeError,
    UnavailableError,
)
from foqs.spark.options import WriteOptions
from foqs.spark.sender import REASONS_MAX, Sender, Sent, client_of
from foqs.wire import codec as wire

Judge = Callable[[NewItem], FoqsError | None]


class FakeClient:
    """Answers once `limit` calls are there, so that as many are seen in flight."""

    def __init__(self, judge: Judge = lambda _: None, *, together: int = 1) -> None:
        self.judge = judge
        self.together = together
        self.calls: list[list[NewItem]] = []
        self.in_flight_count = self.in_flight_most = 0
        self._room = asyncio.Condition()

    async def enqueue_many(
        self, namespace: str, items: Sequence[NewItem], *, retry_unknown: bool, bulk: bool, return_errors: bool
    ) -> EnqueueResult:
        assert (namespace, retry_unknown, bulk, return_errors) == ("jobs", True, True, True)
        self.calls.append(list(items))
        self.in_flight_count += 1
        self.in_flight_most = max(self.in_flight_most, self.in_flight_count)
        async with self._room:
            self._room.notify_all()
            await self._room.wait_for(lambda: len(self.calls) >= self.together)
        self.in_flight_count -= 1
        errors: PositionErrors = {n: error for n, item in enumerate(items) if (error := self.judge(item)) is not None}
        return EnqueueResult(["" if n in errors else str(n) for n in range(len(items))], errors)


def batches(*sizes: int) -> Iterator[pa.RecordBatch]:
    start = 0
    for size in sizes:
        yield pa.record_batch({"payload": pa.array([b"%d" % n for n in range(start, start + size)], pa.binary())})
        start += size


def options(**changes: int) -> WriteOptions:
    return WriteOptions(**{"addresses": "h", "namespace": "jobs", "topic": "t", "batch_items": 10, **changes})  # type: ignore[arg-type]


async def send(client: FakeClient, rows: Iterator[pa.RecordBatch], **changes: int) -> Sent:
    return await Sender(options(**changes), client).send(rows)


async def test_every_row_is_sent_once_in_calls_of_the_batch_size() -> None:
    client = FakeClient()
    sent = await send(client, batches(25, 0, 7))
    assert (sent.rows_count, sent.items_count, sent.refused_count) == (32, 32, 0)
    assert sorted(len(call) for call in client.calls) == [5, 7, 10, 10]
    assert sorted(int(item.payload) for call in client.calls for item in call) == list(range(32))


async def test_so_many_calls_are_in_flight_as_the_option_says_and_no_more() -> None:
    client = FakeClient(together=3)
    await send(client, batches(100), calls_in_flight=3)
    assert client.in_flight_most == 3


async def test_refused_rows_are_counted_with_their_numbers_and_the_others_go_on() -> None:
    bad = {b"3", b"27"}
    client = FakeClient(lambda item: TooLargeError("too large") if item.payload in bad else None)
    sent = await send(client, batches(20, 20), invalid_rows_max=5)
    assert (sent.items_count, sent.refused_count) == (38, 2)
    assert sorted(sent.reasons) == ["row 27: too large", "row 3: too large"]


async def test_nothing_more_is_sent_once_more_rows_are_refused_than_the_job_may_have() -> None:
    client = FakeClient(lambda _: InvalidArgumentError("no"))
    sent = await send(client, batches(*[100] * 50), invalid_rows_max=15, calls_in_flight=1)
    assert len(client.calls) == 2
    assert (sent.items_count, sent.refused_count) == (0, 20)
    assert len(sent.reasons) == REASONS_MAX


@pytest.mark.parametrize("error", [UnavailableError("away"), OverloadedError("full")])
async def test_a_row_that_could_not_be_stored_in_time_fails_the_task(error: FoqsError) -> None:
    client = FakeClient(lambda item: error if item.payload == b"7" else None)
    with pytest.raises(type(error)):
        await send(client, batches(100), invalid_rows_max=1_000)
    assert client.in_flight_count == 0


class StrictClient(FakeClient):
    """Refuses a call as a whole when one of its items cannot be encoded, as the encoder does."""

    async def enqueue_many(
        self, namespace: str, items: Sequence[NewItem], *, retry_unknown: bool, bulk: bool, return_errors: bool
    ) -> EnqueueResult:
        if any(abs(item.priority) > 2**31 for item in items):
            raise InvalidArgumentError("an argument has a wrong range")
        return await super().enqueue_many(
            namespace, items, retry_unknown=retry_unknown, bulk=bulk, return_errors=return_errors
        )


async def test_an_item_that_spoils_its_call_is_found_and_the_others_go_without_it() -> None:
    priorities = pa.array([0, 2**40, 0, 0], pa.int64())
    rows = pa.record_batch({"payload": pa.array([b"a", b"b", b"c", b"d"]), "priority": priorities})
    client = StrictClient()
    sent = await send(client, iter([rows]), invalid_rows_max=1)
    assert (sent.items_count, sent.refused_count) == (3, 1)
    assert "row 1: new item: priority 1099511627776 is not within" in sent.reasons[0]


class NarrowClient(FakeClient):
    """Takes no call of more than 100 bytes of topics, as a frame has room for so many."""

    async def enqueue_many(
        self, namespace: str, items: Sequence[NewItem], *, retry_unknown: bool, bulk: bool, return_errors: bool
    ) -> EnqueueResult:
        if sum(len(item.topic) for item in items) > 100:
            raise TooLargeError("the frame is too large")
        return await super().enqueue_many(
            namespace, items, retry_unknown=retry_unknown, bulk=bulk, return_errors=return_errors
        )


async def test_a_row_that_makes_its_call_too_large_is_found_and_the_others_go_without_it() -> None:
    topics = pa.array(["a", "b" * 200, "c", "d", "e" * 60, "f" * 60])
    rows = pa.record_batch({"topic": topics, "payload": pa.array([b"x"] * 6, pa.binary())})
    client = NarrowClient()
    sent = await Sender(replace(options(invalid_rows_max=1), topic=None), client).send(iter([rows]))
    assert (sent.rows_count, sent.items_count) == (6, 5)
    assert sent.reasons == ["row 1: the frame is too large"]


class ForgetfulClient(FakeClient):
    """Answers for one item less than it got."""

    async def enqueue_many(
        self, namespace: str, items: Sequence[NewItem], *, retry_unknown: bool, bulk: bool, return_errors: bool
    ) -> EnqueueResult:
        return await super().enqueue_many(
            namespace, items[1:], retry_unknown=retry_unknown, bulk=bulk, return_errors=return_errors
        )


async def test_a_row_of_which_nothing_is_known_fails_the_task() -> None:
    with pytest.raises(InternalError, match="10 rows were read, and 9 are enqueued, 0 refused"):
        await send(ForgetfulClient(), batches(10))


def waited_ms(options_: WriteOptions, refusals: Iterator[FoqsError]) -> int:
    """For how long one call is repeated after these refusals until it is done; the clock moves by the pauses alone."""
    now_ms = 0
    terms = replace(client_of(options_).options.terms(), clock_ms=lambda: now_ms)
    flow = verbs.enqueue_limited(terms, "jobs", [NewItem("t", b"")], Repeat.ALWAYS, bulk=True)
    try:
        step = next(flow)
        while True:
            if isinstance(step, Pause):
                now_ms += step.pause_ms
                step = next(flow)
            elif (refusal := next(refusals, None)) is not None:
                step = flow.throw(refusal)
            else:
                step = flow.send(wire.structs.EnqueueResponse(["1-1"], {}, []))
    except StopIteration:
        return now_ms


def test_busy_hosts_and_a_quota_are_waited_for_for_minutes() -> None:
    quota = [RateLimitedError("over its limit", retry_after_ms=60_000)] * 5
    busy = [OverloadedError("full", retry_after_ms=1_000)] * 50
    away = [UnavailableError("no answer")] * 20
    assert waited_ms(options(), iter([*quota, *busy, *away])) >= 5 * 60_000 + 50 * 1_000


def test_nobody_is_waited_for_longer_than_the_option_says() -> None:
    with pytest.raises(RateLimitedError):
        waited_ms(options(retry_timeout_ms=120_000), repeat(RateLimitedError("over", retry_after_ms=60_000)))


async def test_rows_of_many_bytes_go_in_more_calls() -> None:
    rows = pa.record_batch({"payload": pa.array([bytes(1 << 20)] * 20)})
    client = FakeClient()
    await send(client, iter([rows]), batch_items=1_000)
    assert len(client.calls) > 2
    assert sum(map(len, client.calls)) == 20

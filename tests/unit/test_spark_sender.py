"""How the rows of a task are sent, with a client that plays a script."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import repeat
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from foqs.client.encoded import EncodedItems
from foqs.client.encoded_enqueue import EncodedResult, enqueue_encoded
from foqs.client.flows import Flow, Pause, Send
from foqs.model.errors import (
    FoqsError,
    InternalError,
    InvalidArgumentError,
    OverloadedError,
    PermissionDeniedError,
    RateLimitedError,
    TooLargeError,
    UnavailableError,
)
from foqs.model.slots import SLOTS_COUNT, slot_of
from foqs.spark import rejects
from foqs.spark.options import WriteOptions
from foqs.spark.plan import WritePlan
from foqs.spark.rejects import REASON_COLUMN, Attempt, Rejects
from foqs.spark.sender import REASONS_MAX, Sender, Sent
from foqs.spark.task_client import TaskClient
from foqs.wire import codec as wire

Read = Any
"""An item as a host reads it."""
Judge = Callable[[Read], FoqsError | None]
ATTEMPT = Attempt("job", 3, 17)


def read(items: EncodedItems) -> list[Read]:
    codec = wire.Codec()
    frame = codec.join_call("enqueue", wire.structs.EnqueueRequest(namespace_name="jobs"), len(items), items.parts(), 1)
    read_items: list[Read] = codec.decode_call(frame[wire.LENGTH_BYTES :])[2].items
    return read_items


class FakeClient:
    """Answers once `together` calls are there, so that as many are seen in flight. An id is made once."""

    def __init__(self, judge: Judge = lambda _: None, *, together: int = 1) -> None:
        self.judge = judge
        self.together = together
        self.calls: list[list[Read]] = []
        self.ids: set[str] = set()
        self.in_flight_count = self.in_flight_most = 0
        self._room = asyncio.Condition()

    async def enqueue(self, items: EncodedItems) -> EncodedResult:
        call = read(items)
        self.calls.append(call)
        self.in_flight_count += 1
        self.in_flight_most = max(self.in_flight_most, self.in_flight_count)
        async with self._room:
            self._room.notify_all()
            await self._room.wait_for(lambda: len(self.calls) >= self.together)
        self.in_flight_count -= 1
        result = EncodedResult()
        for position, item in enumerate(call):
            if (error := self.judge(item)) is not None:
                result.errors[position] = error
                continue
            result.stored_count += 1
            if item.dedup_id in self.ids:
                result.duplicates_count += 1
            elif item.dedup_id is not None:
                self.ids.add(item.dedup_id)
        return result


def batches(*sizes: int) -> Iterator[pa.RecordBatch]:
    start = 0
    for size in sizes:
        yield pa.record_batch({"payload": pa.array([b"%d" % n for n in range(start, start + size)], pa.binary())})
        start += size


def plan(**changes: Any) -> WritePlan:
    options = {"addresses": "h", "namespace": "jobs", "topic": "t", "batch_items": 10, "dedup": "none"}
    if "invalid_rows_max" in changes:
        options["on_invalid_row"] = "skip"
    return WritePlan(options=WriteOptions(**{**options, **changes}), job_id="job")  # type: ignore[arg-type]


def sender(plan: WritePlan, client: FakeClient, directory: str | None = None) -> Sender:
    return Sender(plan, plan.encoder("job", 3), client, Rejects(directory, ATTEMPT))


async def send(client: FakeClient, rows: Iterator[pa.RecordBatch], **changes: Any) -> Sent:
    return await sender(plan(**changes), client).send(rows)


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


async def test_rows_whose_items_were_there_before_are_counted_apart() -> None:
    client = FakeClient()
    first = await send(client, batches(20), dedup="content")
    assert (first.items_count, first.duplicates_count) == (20, 0)
    again = await send(client, batches(25), dedup="content")
    assert (again.rows_count, again.items_count, again.duplicates_count) == (25, 5, 20)


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


async def test_any_number_of_rows_is_left_out_where_no_bound_is_set() -> None:
    client = FakeClient(lambda _: InvalidArgumentError("no"))
    sent = await send(client, batches(*[100] * 5), invalid_rows_max=None)
    assert (sent.rows_count, sent.refused_count) == (500, 500)


@pytest.mark.parametrize("error", [UnavailableError("away"), OverloadedError("full")])
async def test_a_row_that_could_not_be_stored_in_time_fails_the_task(error: FoqsError) -> None:
    client = FakeClient(lambda item: error if item.payload == b"7" else None)
    with pytest.raises(type(error)):
        await send(client, batches(100), invalid_rows_max=1_000)
    assert client.in_flight_count == 0


@pytest.mark.parametrize("is_whole", [True, False])
async def test_a_job_that_is_refused_stops_and_returns_that_so_that_spark_does_not_repeat_the_task(
    is_whole: bool, tmp_path: Any
) -> None:
    class Denying(FakeClient):
        async def enqueue(self, items: EncodedItems) -> EncodedResult:
            if is_whole and len(self.calls) == 2:
                raise PermissionDeniedError("mailer lacks ENQUEUE")
            return await super().enqueue(items)

    def judge(item: Read) -> FoqsError | None:
        if item.payload == b"1":
            return InvalidArgumentError("no")
        return PermissionDeniedError("mailer lacks ENQUEUE") if item.payload == b"25" and not is_whole else None

    client = Denying(judge)
    own = sender(plan(calls_in_flight=1, invalid_rows_max=None), client, str(tmp_path))
    sent = await own.send(batches(*[10] * 50))
    assert sent.denial == "mailer lacks ENQUEUE"
    assert (sent.items_count, sent.refused_count) == (19 if is_whole else 28, 1)
    assert len(client.calls) <= 3, "the other rows are not sent"
    assert sent.attempt is None
    assert not list(tmp_path.rglob("*.parquet")), "another run writes the rejected rows"


class NarrowClient(FakeClient):
    """Takes no call of more than 100 bytes of topics, as a frame has room for so many."""

    async def enqueue(self, items: EncodedItems) -> EncodedResult:
        if sum(len(item.topic) for item in read(items)) > 100:
            raise TooLargeError("the frame is too large")
        return await super().enqueue(items)


async def test_a_row_that_makes_its_call_too_large_is_found_and_the_others_go_without_it() -> None:
    topics = pa.array(["a", "b" * 200, "c", "d", "e" * 60, "f" * 60])
    rows = pa.record_batch({"topic": topics, "payload": pa.array([b"x"] * 6, pa.binary())})
    sent = await send(NarrowClient(), iter([rows]), invalid_rows_max=1, topic=None)
    assert (sent.rows_count, sent.items_count) == (6, 5)
    assert sent.reasons == ["row 1: the frame is too large"]


class ShrunkClient(FakeClient):
    """Does two items of a call; then no more than three in a call are taken, and the rest is refused by position.

    So it is when a call is done in parts, and the namespace is changed between them.
    """

    async def enqueue(self, items: EncodedItems) -> EncodedResult:
        if len(items) <= 3:
            return await super().enqueue(items)
        result = await super().enqueue(items[:2])
        result.errors |= dict.fromkeys(range(2, len(items)), TooLargeError("can never fit"))
        return result


async def test_rows_that_are_too_many_for_what_is_left_of_their_call_are_sent_in_smaller_ones() -> None:
    bad = {b"5", b"17"}
    client = ShrunkClient(lambda item: TooLargeError("the payload is too large") if item.payload in bad else None)
    sent = await send(client, batches(25), invalid_rows_max=5, dedup="content")
    assert (sent.rows_count, sent.items_count, sent.duplicates_count, sent.refused_count) == (25, 23, 0, 2)
    assert sorted(sent.reasons) == ["row 17: the payload is too large", "row 5: the payload is too large"]
    stored = [int(item.payload) for call in client.calls for item in call if item.payload not in bad]
    assert sorted(stored) == sorted({*range(25)} - {5, 17})


async def test_no_halves_are_sent_once_more_rows_are_refused_than_the_job_may_have() -> None:
    client = FakeClient(lambda _: TooLargeError("no"))
    sent = await send(client, batches(1_000), invalid_rows_max=3, calls_in_flight=1, batch_items=1_000)
    assert sent.refused_count == 4
    assert len(client.calls) < 30


class ForgetfulClient(FakeClient):
    """Answers for one item less than it got."""

    async def enqueue(self, items: EncodedItems) -> EncodedResult:
        return await super().enqueue(items[1:])


async def test_a_row_of_which_nothing_is_known_fails_the_task() -> None:
    with pytest.raises(
        InternalError, match="10 rows were read, and 9 are enqueued, 0 were there before, 0 are refused"
    ):
        await send(ForgetfulClient(), batches(10))


async def test_rows_of_many_bytes_go_in_more_calls() -> None:
    rows = pa.record_batch({"payload": pa.array([bytes(1 << 20)] * 80)})
    client = FakeClient()
    await send(client, iter([rows]), batch_items=1_000)
    assert len(client.calls) > 8
    assert sum(map(len, client.calls)) == 80


# ---- rows by shard ----


async def test_each_call_has_rows_of_one_shard_where_ids_go_to_several() -> None:
    shard_by_slot = tuple(slot % 3 for slot in range(SLOTS_COUNT))
    keyed = pa.record_batch(
        {"payload": pa.array([b"%d" % n for n in range(100)]), "dedup_id": pa.array([f"k{n}" for n in range(100)])}
    )
    spread_plan = replace(plan(), key_column="dedup_id", key_spread=8, shard_by_slot=shard_by_slot)
    client = FakeClient(lambda item: InvalidArgumentError("no") if item.payload == b"50" else None)
    sent = await sender(replace(spread_plan, options=replace(spread_plan.options, on_invalid_row="skip")), client).send(
        iter([keyed])
    )
    assert sorted(int(item.payload) for call in client.calls for item in call) == list(range(100))
    shards = [{shard_by_slot[slot_of("jobs", item.dedup_id, 8)] for item in call} for call in client.calls]
    assert all(len(of_call) == 1 for of_call in shards)
    assert set.union(*shards) == {0, 1, 2}
    assert sent.reasons == ["row 50: no"], "rows keep their numbers"


# ---- the side output ----


def rows_in(directory: Any, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = parquet.read_table(directory / name).to_pylist()
    return found


async def test_rejected_rows_are_written_whole_with_the_reason_and_named_by_the_commit(tmp_path: Any) -> None:
    rows = pa.record_batch({"Payload": pa.array([b"1", None, b"3"]), "priority": pa.array([1, 2, 3], pa.int32())})
    client = FakeClient(lambda item: InvalidArgumentError("no") if item.payload == b"3" else None)
    side_plan = plan(on_invalid_row="sideOutput", rejected_rows_path=str(tmp_path))
    sent = await sender(side_plan, client, str(tmp_path)).send(iter([rows]))
    assert (sent.items_count, sent.refused_count, sent.attempt) == (1, 2, ATTEMPT)
    assert [path.name for path in tmp_path.iterdir()] == ["_job-00003-17.parquet"]
    (tmp_path / "_job-00003-16.parquet").write_bytes(b"of an attempt that failed")
    (tmp_path / "_other-00003-16.parquet").write_bytes(b"of another job")
    assert rejects.commit(str(tmp_path), "job", [ATTEMPT]) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["_other-00003-16.parquet", "job-00003.parquet"]
    assert rows_in(tmp_path, "job-00003.parquet") == [
        {"Payload": None, "priority": 2, REASON_COLUMN: "payload is null"},
        {"Payload": b"3", "priority": 3, REASON_COLUMN: "no"},
    ]


def test_the_commit_of_a_job_leaves_the_files_of_jobs_whose_names_begin_alike(tmp_path: Any) -> None:
    mine = [Attempt("daily", 0, 4), Attempt("daily", 1, 5), Attempt("daily", 123_456, 6)]
    others = [Attempt("daily-eu", 0, 3), Attempt("daily-00000", 0, 3), Attempt("Xdaily", 0, 3), Attempt("dai.y", 0, 3)]
    for attempt in mine + others:
        (tmp_path / attempt.hidden_name).write_bytes(b"")
    assert rejects.commit(str(tmp_path), "daily", mine[:1]) == []
    assert rejects.commit(str(tmp_path), "dai.y", []) == []
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {mine[0].name, *(attempt.hidden_name for attempt in others[:3])}


async def test_a_task_without_rejected_rows_writes_no_file(tmp_path: Any) -> None:
    side_plan = plan(on_invalid_row="sideOutput", rejected_rows_path=str(tmp_path))
    sent = await sender(side_plan, FakeClient(), str(tmp_path)).send(batches(10))
    assert sent.attempt is None
    assert not list(tmp_path.iterdir())


async def test_many_rejected_rows_are_written_on_the_way_and_all_of_them(tmp_path: Any) -> None:
    client = FakeClient(lambda _: InvalidArgumentError("no"))
    side_plan = plan(on_invalid_row="sideOutput", rejected_rows_path=str(tmp_path), batch_items=1_000)
    await sender(side_plan, client, str(tmp_path)).send(batches(*[1_500] * 4))
    rejects.commit(str(tmp_path), "job", [ATTEMPT])
    found = rows_in(tmp_path, ATTEMPT.name)
    assert sorted(int(row["payload"]) for row in found) == list(range(6_000))
    assert parquet.ParquetFile(tmp_path / ATTEMPT.name).num_row_groups > 1


def test_a_commit_that_cannot_name_the_files_says_so_and_raises_nothing(tmp_path: Any) -> None:
    [problem] = rejects.commit(str(tmp_path), "job", [ATTEMPT])
    assert "rejected rows stay in files _job-*.parquet" in problem


def test_a_directory_that_cannot_be_is_refused_before_the_job(tmp_path: Any) -> None:
    (tmp_path / "file").write_text("")
    # The last one is there, and takes no files.
    for directory in (str(tmp_path / "file" / "below"), "nowhere://bucket/x", "relative/path", "/proc/self"):
        with pytest.raises(InvalidArgumentError, match=r"rejectedRowsPath .* cannot be used"):
            rejects.check_directory(directory)
    rejects.check_directory(str(tmp_path / "made"))
    assert not list((tmp_path / "made").iterdir())


SECRET_PATHS = [
    "s3://AKID:s3cr3tword@bucket/x?endpoint_override=127.0.0.1:1&scheme=http&unknown=0therS3cret",
    "s3://AKID:s3cr3tword/with-a-slash@bucket/x",
    "nowhere://user:s3cr3tword@bucket/x",
    "gs://user:s3cr3t%20word@bucket/x",
    "nowhere://user:s3cr3tword@bucket/x?sig=0therS3cret&s3cr3t",
    "nowhere://user:s3cr3t?word@bucket/x",
    "nowhere://bucket/x?sig=s3cr3t@0therS3cret",
]


@pytest.mark.parametrize("path", SECRET_PATHS)
def test_a_password_in_the_path_of_rejected_rows_is_told_to_nobody(path: str) -> None:
    with pytest.raises(InvalidArgumentError, match="cannot be used") as raised:
        rejects.check_directory(path)
    told = "".join(traceback.format_exception(raised.value))
    [problem] = rejects.commit(path, "job", [])
    for text in (told, problem, repr(WriteOptions(rejected_rows_path=path))):
        assert "s3cr3t" not in text
        assert "0therS3cret" not in text
    if "@" not in path.partition("?")[2]:
        assert "@bucket/x" in problem, "it is told which one"


async def test_a_task_tells_nobody_either() -> None:
    client = FakeClient(lambda _: InvalidArgumentError("no"))
    side_plan = plan(on_invalid_row="sideOutput", rejected_rows_path=SECRET_PATHS[1])
    with pytest.raises(InvalidArgumentError, match="cannot be used") as raised:
        await sender(side_plan, client, SECRET_PATHS[1]).send(batches(10))
    assert "s3cr3t" not in "".join(traceback.format_exception(raised.value))


# ---- patience ----


def run(flow: Flow[EncodedResult], answer: Callable[[Send | Pause], Any]) -> EncodedResult:
    """Take the steps of an enqueue; `answer` gives the response of each, None after a pause, or the error to raise."""
    try:
        step = next(flow)
        while True:
            told = answer(step)
            step = flow.throw(told) if isinstance(told, FoqsError) else flow.send(told)
    except StopIteration as end:
        result: EncodedResult = end.value
        return result


def waited_ms(of: WritePlan, refusals: Iterator[FoqsError]) -> int:
    """For how long one call is repeated after these refusals until it is done; the clock moves by the pauses alone."""
    now_ms = 0
    terms = replace(TaskClient(of).options.terms(), clock_ms=lambda: now_ms)

    def answer(step: Send | Pause) -> Any:
        nonlocal now_ms
        if isinstance(step, Pause):
            now_ms += step.pause_ms
            return None
        return next(refusals, None) or wire.structs.EnqueueResponse(["1-1"], {}, [])

    run(enqueue_encoded(terms, "jobs", EncodedItems(b"x", [0, 1])), answer)
    return now_ms


def test_busy_hosts_and_a_quota_are_waited_for_for_minutes() -> None:
    quota = [RateLimitedError("over its limit", retry_after_ms=60_000)] * 5
    busy = [OverloadedError("full", retry_after_ms=1_000)] * 50
    away = [UnavailableError("no answer")] * 20
    assert waited_ms(plan(), iter([*quota, *busy, *away])) >= 5 * 60_000 + 50 * 1_000


def test_nobody_is_waited_for_longer_than_the_option_says() -> None:
    with pytest.raises(RateLimitedError):
        waited_ms(plan(retry_timeout_ms=120_000), repeat(RateLimitedError("over", retry_after_ms=60_000)))


def test_what_failed_is_repeated_alone_with_the_same_bytes_and_duplicates_are_counted() -> None:
    terms = TaskClient(plan()).options.terms()
    answers = [
        wire.structs.EnqueueResponse(
            ["1-1", "", ""],
            {
                1: wire.structs.ItemError(6, "away", 10, True),
                2: wire.structs.ItemError(1, "no", None, None),
            },
            [0],
        ),
        wire.structs.EnqueueResponse(["1-2"], {}, []),
    ]
    sends = []

    def answer(step: Send | Pause) -> Any:
        if isinstance(step, Pause):
            return None
        assert step.call.encoded is not None
        sends.append(b"".join(step.call.encoded.parts()))
        return answers.pop(0)

    result = run(enqueue_encoded(terms, "jobs", EncodedItems.of([b"aa", b"b", b"ccc"])), answer)
    assert sends == [b"aabccc", b"b"]
    assert (result.stored_count, result.duplicates_count, list(result.errors)) == (2, 1, [2])


def test_a_repeat_that_is_refused_as_a_whole_is_told_by_position_so_that_no_row_of_it_is_at_fault_by_that() -> None:
    """The sender takes such rows for good ones until they are refused alone."""
    terms = TaskClient(plan()).options.terms()
    away = {position: wire.structs.ItemError(6, "away", 10, True) for position in (1, 2)}
    answers: list[Any] = [wire.structs.EnqueueResponse(["1-1", "", ""], away, []), TooLargeError("can never fit")]
    items = EncodedItems.of([b"aa", b"b", b"ccc"])
    result = run(
        enqueue_encoded(terms, "jobs", items), lambda step: None if isinstance(step, Pause) else answers.pop(0)
    )
    assert (result.stored_count, result.errors.keys()) == (1, {1, 2})
    assert {type(error) for error in result.errors.values()} == {TooLargeError}

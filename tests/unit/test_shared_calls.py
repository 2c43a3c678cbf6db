"""Callers that share a call do not feel each other: each is told as soon as there is something to tell."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from foqs.client.addresses import Address
from foqs.client.client_errors import NotSentError, OutcomeUnknownError
from foqs.client.queue_items import NewItem
from foqs.client.retry import RetryPolicy
from foqs.model.errors import ErrorCode, OverloadedError, PausedError, RateLimitedError, TooLargeError, UnavailableError
from tests.support.scripted_pools import AsyncScriptedClient, S, ScriptedClient, enqueue_all, item_error
from tests.support.waiting import PATIENCE_S, until_soon

NS = "ns"
ADDRESSES = (Address("a", 1), Address("b", 2))
TO_REPEAT = [
    pytest.param(item_error(ErrorCode.PAUSED), id="paused"),
    pytest.param(item_error(ErrorCode.RATE_LIMITED, 500), id="rate_limited"),
    pytest.param(item_error(ErrorCode.OVERLOADED, 200), id="overloaded"),
    pytest.param(item_error(ErrorCode.UNAVAILABLE, 1_000), id="shard_away"),
]


class Host:
    """Refuses items of the topic "sick" while it is sick; the first call waits for its permit."""

    def __init__(self, error: Any) -> None:
        self.error = error
        self.batches: list[list[str]] = []
        self.began = threading.Event()
        self.permit = threading.Event()

    def answer(self, method: str, request: Any) -> Any:
        assert method == "enqueue"
        self.batches.append(topics := [item.topic for item in request.items])
        if len(self.batches) == 1:
            self.began.set()
            assert self.permit.wait(PATIENCE_S)
        sick = {position for position, topic in enumerate(topics) if topic == "sick" and self.error is not None}
        return enqueue_all(request, dict.fromkeys(sick, self.error))


def together(
    client: ScriptedClient, host: Host, threads: ThreadPoolExecutor, topics: Sequence[str]
) -> list[Future[str]]:
    """Enqueue one item of each topic: all of them in one call, behind a first one."""
    first = threads.submit(client.enqueue, NS, "first", b"")
    assert host.began.wait(PATIENCE_S)
    coalescer = client._coalescer
    others = []
    for count, topic in enumerate(topics, 1):
        others.append(threads.submit(client.enqueue, NS, topic, b""))
        until_soon(lambda count=count: coalescer._queues._waiting_count == count)  # type: ignore[misc]
    host.permit.set()
    assert first.result(PATIENCE_S) == "first"
    return others


@pytest.mark.parametrize("error", TO_REPEAT)
def test_what_has_an_outcome_is_told_while_another_item_of_the_call_waits_to_be_repeated(error: Any) -> None:
    host = Host(error)
    client = ScriptedClient(host.answer, random=lambda: 0.5)
    with ThreadPoolExecutor(6) as threads:
        well, sick, other = together(client, host, threads, ["well", "sick", "other"])
        assert well.result(PATIENCE_S) == "well"
        assert other.result(PATIENCE_S) == "other"
        assert client.pool.pauses.acquire(timeout=PATIENCE_S)
        assert not sick.done()
        assert threads.submit(client.enqueue, NS, "later", b"").result(PATIENCE_S) == "later"
        host.error = None
        client.pool.goes_on.set()
        assert sick.result(PATIENCE_S) == "sick"
    assert host.batches == [["first"], ["well", "sick", "other"], ["later"], ["sick"]]
    assert not client._coalescer._queues._lanes


@pytest.mark.parametrize("error", TO_REPEAT)
async def test_tasks_are_told_while_another_item_of_the_call_waits_to_be_repeated(error: Any) -> None:
    host = Host(error)
    host.permit.set()
    client = AsyncScriptedClient(host.answer, random=lambda: 0.5)
    topics = ["well", "sick", "other"]
    well, sick, other = [asyncio.create_task(client.enqueue(NS, topic, b"")) for topic in topics]
    async with asyncio.timeout(PATIENCE_S):
        assert await asyncio.gather(well, other) == ["well", "other"]
        await client.pool.pauses.acquire()
        assert await client.enqueue(NS, "later", b"") == "later"
        assert not sick.done()
        host.error = None
        client.pool.goes_on.set()
        assert await sick == "sick"
        await client.close()
    assert host.batches == [["well", "sick", "other"], ["later"], ["sick"]]


def test_a_caller_with_a_deadline_is_told_what_became_of_its_own_item() -> None:
    """The item was stored, so nobody may say that this is not known."""
    host = Host(item_error(ErrorCode.PAUSED))
    client = ScriptedClient(host.answer, random=lambda: 0.5)
    with ThreadPoolExecutor(4) as threads:
        sick, _ = together(client, host, threads, ["sick", "other"])
        assert client.pool.pauses.acquire(timeout=PATIENCE_S)
        well = threads.submit(client.enqueue, NS, "well", b"", deadline_ms=int(PATIENCE_S * 1_000))
        assert well.result(PATIENCE_S) == "well"
        host.error = None
        client.pool.goes_on.set()
        sick.result(PATIENCE_S)


class Quota:
    """A host that lets in so many items, and no call with more than are left."""

    def __init__(self, left_count: int) -> None:
        self.left_count = left_count
        self.calls_count = 0
        self.permit = threading.Event()
        self.began = threading.Event()

    def answer(self, method: str, request: Any) -> Any:
        self.calls_count += 1
        if request.items[0].topic == "first":
            self.began.set()
            assert self.permit.wait(PATIENCE_S)
            return enqueue_all(request)
        count = len(request.items)
        if count > self.left_count:
            raise RateLimitedError("over the quota", retry_after_ms=100 * count)
        self.left_count -= count
        return enqueue_all(request)


@pytest.mark.parametrize("left_count", [0, 1, 3, 7, 8])
def test_near_a_quota_as_many_get_in_as_fit_though_their_call_as_a_whole_does_not(left_count: int) -> None:
    host = Quota(left_count)
    client = ScriptedClient(host.answer, retry=RetryPolicy(deadline_ms=0))
    with ThreadPoolExecutor(9) as threads:
        others = together(client, host, threads, [f"t{n}" for n in range(8)])  # type: ignore[arg-type]
        outcomes = [other.exception(PATIENCE_S) or other.result() for other in others]
    refused = [outcome for outcome in outcomes if not isinstance(outcome, str)]
    assert len(refused) == 8 - left_count
    assert all(isinstance(error, RateLimitedError) and error.retry_after_ms == 100 for error in refused)
    assert host.calls_count <= 12


async def test_tasks_near_a_quota_get_in_as_many_as_fit() -> None:
    host = Quota(3)
    client = AsyncScriptedClient(host.answer, retry=RetryPolicy(deadline_ms=0))
    outcomes = await asyncio.gather(*[client.enqueue(NS, f"t{n}", b"") for n in range(8)], return_exceptions=True)
    assert [outcome for outcome in outcomes if isinstance(outcome, str)] == ["t0", "t1", "t2"]
    await client.close()


def test_each_is_repeated_as_its_own_error_asks_for() -> None:
    """One that is to pause for long does not hold up one that is not."""
    errors = {"soon": item_error(ErrorCode.OVERLOADED, 1), "late": item_error(ErrorCode.RATE_LIMITED, 14_000)}
    pauses: dict[str, list[int]] = {}
    client = AsyncScriptedClient(
        lambda _, request: enqueue_all(
            request, {at: errors[item.topic] for at, item in enumerate(request.items) if item.topic in errors}
        ),
        random=lambda: 0.0,
    )

    async def scenario() -> None:
        async def pause(pause_ms: int) -> None:
            task = asyncio.current_task()
            assert task is not None
            pauses.setdefault(task.get_name(), []).append(pause_ms)
            errors.pop(task.get_name(), None)

        client._coalescer._pause = pause
        tasks = [asyncio.create_task(client.enqueue(NS, name, b""), name=name) for name in ("soon", "late", "well")]
        assert await asyncio.gather(*tasks) == ["soon", "late", "well"]
        await client.close()

    asyncio.run(scenario())
    assert pauses == {"soon": [1], "late": [14_000]}


def test_an_enqueue_that_may_have_been_stored_is_not_said_to_be_refused() -> None:
    """First nobody knows, then its turn does not come: that it was not sent this time does not matter any more."""
    told = iter([OutcomeUnknownError("lost"), PausedError("paused", retry_after_ms=10**6)])

    def answer(method: str, request: Any) -> Any:
        raise next(told)

    client = ScriptedClient(answer)
    client.pool.goes_on.set()
    with pytest.raises(OutcomeUnknownError, match="paused"):
        client.enqueue(NS, "t", b"", retry_unknown=True)


@pytest.mark.parametrize("refusal", [UnavailableError("standby", nothing_done=True), OverloadedError("full")])
def test_what_one_host_did_not_do_goes_to_the_next_at_once(refusal: Exception) -> None:
    asked: list[Any] = []

    client = ScriptedClient(lambda method, request: enqueue_all(request), addresses="a:1,b:2", random=lambda: 0.0)
    exchange = client.pool.exchange

    def at_one_of_two(step: Any) -> Any:
        step.address = next(address for address in ADDRESSES if address not in step.avoided)
        asked.append(step.address)
        if step.address == ADDRESSES[0]:
            raise refusal
        return exchange(step)

    client.pool.exchange = at_one_of_two  # type: ignore[method-assign]
    assert client.enqueue(NS, "t", b"") == "t"
    assert asked == list(ADDRESSES)
    assert not client._coalescer._queues._lanes


def test_a_call_that_failed_says_so_to_each_and_those_behind_it_were_not_sent() -> None:
    """The namespace allows calls of two: the first of them is lost, so the second is not tried at once."""

    def answer(method: str, request: Any) -> Any:
        if method == "getNamespace":
            return S.Namespace(settings=S.NamespaceSettings(batch_items_max=2, enqueues_per_minute_max=1_000))
        if request.items[0].topic == "first":
            return gate.answer(method, request)
        if len(request.items) > 2:
            raise TooLargeError("2 at most")
        raise OutcomeUnknownError("lost")

    gate = Host(None)
    client = ScriptedClient(answer, retry=RetryPolicy(deadline_ms=0))
    with ThreadPoolExecutor(5) as threads:
        others = together(client, gate, threads, list("abcd"))
        errors = [type(other.exception(PATIENCE_S)) for other in others]
    assert errors == [OutcomeUnknownError] * 2 + [NotSentError] * 2


# --- many items of one caller ---


class Shop:
    """Refuses what is of the topic "sick" while it is sick."""

    def __init__(self) -> None:
        self.is_sick = True
        self.batches: list[list[str]] = []

    def answer(self, method: str, request: Any) -> Any:
        self.batches.append(topics := [item.topic for item in request.items])
        sick = [at for at, topic in enumerate(topics) if topic == "sick" and self.is_sick]
        return enqueue_all(request, dict.fromkeys(sick, item_error(ErrorCode.PAUSED)))


@pytest.mark.parametrize("calls_in_flight", [1, 2])
def test_items_of_a_paused_topic_hold_up_no_other_batch_of_enqueue_many(calls_in_flight: int) -> None:
    shop = Shop()
    client = ScriptedClient(shop.answer, batch_items_max=2, random=lambda: 0.5)
    items = [NewItem(topic, b"") for topic in ("a", "sick", "b", "sick", "c", "d")]
    with ThreadPoolExecutor(1) as threads:
        work = threads.submit(client.enqueue_many, NS, items, calls_in_flight=calls_in_flight)
        assert client.pool.pauses.acquire(timeout=PATIENCE_S)
        until_soon(lambda: ["c", "d"] in shop.batches)
        assert not work.done()
        shop.is_sick = False
        client.pool.goes_on.set()
        assert work.result(PATIENCE_S).ids == ["a", "sick", "b", "sick", "c", "d"]


def test_items_that_stay_refused_have_their_error_and_all_others_are_stored() -> None:
    shop = Shop()
    client = ScriptedClient(shop.answer, batch_items_max=2, retry=RetryPolicy(deadline_ms=30))
    client.pool.goes_on.set()
    items = [NewItem(topic, b"") for topic in ("a", "sick", "b", "c")]
    result = client.enqueue_many(NS, items, return_errors=True)
    assert result.ids == ["a", "", "b", "c"]
    assert {at: type(error) for at, error in result.errors.items()} == {1: PausedError}


async def test_tasks_of_enqueue_many_send_others_while_some_items_wait() -> None:
    shop = Shop()
    client = AsyncScriptedClient(shop.answer, batch_items_max=1, random=lambda: 0.5)
    work = asyncio.create_task(client.enqueue_many(NS, [NewItem(topic, b"") for topic in ("sick", "a", "b")]))
    async with asyncio.timeout(PATIENCE_S):
        await client.pool.pauses.acquire()
        # On a busy machine the sick one is tried again between the others: its time has come.
        assert shop.batches[:2] == [["sick"], ["a"]]
        assert [batch for batch in shop.batches if batch != ["sick"]] == [["a"], ["b"]]
        shop.is_sick = False
        client.pool.goes_on.set()
        assert (await work).ids == ["sick", "a", "b"]
        await client.close()

"""Wrong arguments of the clients: each raises InvalidArgumentError that names it, and nothing is done."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from foqs import (
    AdminClient,
    AsyncLeasedItem,
    AsyncWorker,
    Client,
    InvalidArgumentError,
    LeasedItem,
    Nack,
    NewItem,
    RetryPolicy,
    Worker,
)
from foqs.client.checks import check_request
from foqs.client.durations import duration_ms
from foqs.model.calls import ExportSplit, ItemState
from foqs.testing import MemoryQueue
from foqs.wire import codec as wire

NS = "default"
NOT_A_NUMBER = float("nan")
S = wire.structs


CALLS: list[tuple[str, Callable[[Client], object]]] = [
    ("count 1.5", lambda client: client.dequeue(NS, "t", 1.5)),  # type: ignore[arg-type]
    ("count True", lambda client: client.dequeue(NS, "t", True)),
    ("count nan", lambda client: client.dequeue(NS, "t", NOT_A_NUMBER)),  # type: ignore[arg-type]
    ("count 2147483648", lambda client: client.dequeue(NS, "t", 2**31)),
    ("lease_ms 1500.9", lambda client: client.dequeue(NS, "t", lease_ms=1_500.9)),  # type: ignore[arg-type]
    ("wait_ms True", lambda client: client.dequeue(NS, "t", wait_ms=True)),
    ("namespace b'default'", lambda client: client.dequeue(b"default", "t")),  # type: ignore[arg-type]
    ("one of topics is b't'", lambda client: client.dequeue(NS, [b"t"])),  # type: ignore[list-item]
    ("topic b't'", lambda client: client.dequeue(NS, [(b"t", 1)])),  # type: ignore[list-item]
    ("topics is bytes", lambda client: client.dequeue(NS, b"t")),  # type: ignore[arg-type]
    ("topics is NoneType", lambda client: client.dequeue(NS, None)),  # type: ignore[arg-type]
    ("one of topics is 5", lambda client: client.dequeue(NS, ("t", 5))),  # type: ignore[arg-type]
    ("one of topics is ()", lambda client: client.dequeue(NS, [()])),  # type: ignore[list-item]
    ("receipts is NoneType", lambda client: client.ack(NS, None)),  # type: ignore[arg-type]
    ("receipts is bytes", lambda client: client.ack(NS, b"")),  # type: ignore[arg-type]
    ("receipts is int", lambda client: client.nack(NS, 5)),  # type: ignore[arg-type]
    ("receipts is int", lambda client: client.release(NS, 5)),  # type: ignore[arg-type]
    ("receipts is int", lambda client: client.extend(NS, 5, 5_000)),  # type: ignore[arg-type]
    ("receipt 5", lambda client: client.nack(NS, [Nack(5)])),  # type: ignore[arg-type]
    ("receipt None", lambda client: client.nack(NS, Nack(None))),  # type: ignore[arg-type]
    ("release 'no'", lambda client: client.nack(NS, Nack("r", release="no"))),  # type: ignore[arg-type]
    ("dead_letter 'no'", lambda client: client.nack(NS, "r", dead_letter="no")),  # type: ignore[arg-type]
    ("lease_ms nan", lambda client: client.extend(NS, "r", NOT_A_NUMBER)),  # type: ignore[arg-type]
    ("namespace b'default'", lambda client: client.enqueue(b"default", "t", b"")),  # type: ignore[arg-type]
    ("namespace []", lambda client: client.enqueue([], "t", b"")),  # type: ignore[arg-type]
    ("job_id {}", lambda client: client.enqueue(NS, "t", b"", job_id={})),  # type: ignore[arg-type]
    ("retry_unknown []", lambda client: client.enqueue(NS, "t", b"", retry_unknown=[])),  # type: ignore[arg-type]
    ("lie apart", lambda client: client.enqueue(NS, "t", memoryview(b"abcd")[::2])),  # type: ignore[arg-type]
    ("namespace {}", lambda client: client.enqueue_many({}, [])),  # type: ignore[arg-type]
    ("items is NewItem", lambda client: client.enqueue_many(NS, NewItem("t", b""))),  # type: ignore[arg-type]
    ("bulk 'no'", lambda client: client.enqueue_many(NS, [NewItem("t", b"")], bulk="no")),  # type: ignore[arg-type]
    ("calls_in_flight True", lambda client: client.enqueue_many(NS, [NewItem("t", b"")], calls_in_flight=True)),
    ("prefix b''", lambda client: list(client.topics(NS, b""))),  # type: ignore[arg-type]
    ("deadline_ms", lambda client: client.enqueue(NS, "t", b"", deadline_ms=10**15)),
    ("deadline_ms", lambda client: client.enqueue(NS, "t", b"", deadline=timedelta.max)),
    ("delay_ms", lambda client: client.enqueue(NS, "t", b"", delay=timedelta.max)),
]
ADMIN_CALLS: list[tuple[str, Callable[[AdminClient], object]]] = [
    ("enqueue_paused 'false'", lambda admin: admin.set_topic_policy(NS, "t", enqueue_paused="false")),  # type: ignore[arg-type]
    ("dequeue_paused 1", lambda admin: admin.update_namespace(NS, dequeue_paused=1)),  # type: ignore[arg-type]
    ("weight 1.5", lambda admin: admin.set_topic_policy(NS, "t", weight=1.5)),  # type: ignore[arg-type]
    ("deliveries_per_second_max True", lambda admin: admin.set_topic_policy(NS, "t", deliveries_per_second_max=True)),
    ("attempts_max 1.5", lambda admin: admin.update_namespace(NS, attempts_max=1.5)),  # type: ignore[arg-type]
    ("shard_id 0.5", lambda admin: admin.update_shard(0.5, pinned_to="x")),  # type: ignore[arg-type]
    ("limit 1.5", lambda admin: admin.purge_dead_letters(NS, "t", limit=1.5)),  # type: ignore[arg-type]
    ("ids is bytes", lambda admin: admin.purge_dead_letters(NS, "t", ids=b"")),  # type: ignore[arg-type]
    ("ids is NoneType", lambda admin: admin.delete_items(NS, None)),  # type: ignore[arg-type]
    ("split is list", lambda admin: admin.export_items(NS, [])),  # type: ignore[arg-type]
    ("from_key 0.5", lambda admin: admin.export_items(NS, ExportSplit(0, 0.5, 9, 0))),  # type: ignore[arg-type]
    ("one of states 'READY'", lambda admin: list(admin.iterate_items(NS, states=["READY"]))),  # type: ignore[list-item]
    ("states is NoneType", lambda admin: list(admin.iterate_items(NS, states=None))),  # type: ignore[arg-type]
    ("one of topics b't'", lambda admin: list(admin.iterate_items(NS, topics=[b"t"]))),  # type: ignore[list-item]
    ("topics is int", lambda admin: list(admin.iterate_items(NS, topics=5))),  # type: ignore[arg-type]
    ("with_payload 'no'", lambda admin: list(admin.iterate_items(NS, with_payload="no"))),  # type: ignore[arg-type]
    ("detail b'x'", lambda admin: admin.create_job(NS, "j", detail=b"x")),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("named", "call"), CALLS)
def test_a_wrong_argument_of_the_client_is_named(
    queue: MemoryQueue, named: str, call: Callable[[Client], object]
) -> None:
    client = queue.client()
    with pytest.raises(InvalidArgumentError) as raised:
        call(client)
    assert named in raised.value.message
    assert not list(client.topics(NS)), "nothing was stored"


@pytest.mark.parametrize(("named", "call"), ADMIN_CALLS)
def test_a_wrong_argument_of_the_admin_client_is_named(
    queue: MemoryQueue, named: str, call: Callable[[AdminClient], object]
) -> None:
    admin = queue.admin()
    queue.client().enqueue(NS, "t", b"")
    before = admin.get_namespace(NS)
    with pytest.raises(InvalidArgumentError) as raised:
        call(admin)
    assert named in raised.value.message
    assert admin.get_namespace(NS) == before
    assert not list(admin.list_topic_policies(NS))


def test_one_callers_item_that_cannot_be_encoded_spoils_no_call_of_others(queue: MemoryQueue) -> None:
    client = queue.client()

    def enqueue(payload: Any, outcomes: list[object]) -> None:
        try:
            outcomes.append(client.enqueue(NS, "t", payload))
        except Exception as error:
            outcomes.append(error)

    outcomes: list[object] = []
    payloads: list[Any] = [b"x", memoryview(b"abcd")[::2]] * 10
    threads = [threading.Thread(target=enqueue, args=(payload, outcomes)) for payload in payloads]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(isinstance(outcome, str) for outcome in outcomes) == 10
    assert sum(isinstance(outcome, InvalidArgumentError) for outcome in outcomes) == 10


def test_requests_are_checked_to_their_last_field() -> None:
    check_request(S.EnqueueRequest(namespace_name="n", items=["not looked at"], bulk=True))
    check_request(S.AckRequest(namespace_name="n", receipts=["a", "b"]))
    check_request(S.ExportItemsRequest(namespace_name="n", states=[ItemState.READY], topics=[]))
    check_request(S.SetTopicPolicyRequest(namespace_name="n", topic="t", deliveries_per_second_max=3))
    with pytest.raises(InvalidArgumentError, match=r"one of receipts b'b' is bytes, not str"):
        check_request(S.AckRequest(namespace_name="n", receipts=["a", b"b"]))
    with pytest.raises(InvalidArgumentError, match=r"count 1\.0 is not a whole number"):
        check_request(S.DequeueRequest(namespace_name="n", topics=[S.TopicDemand(topic="t", count=1.0)]))


def test_a_duration_may_be_as_long_as_they_come() -> None:
    assert duration_ms("delay_ms", None, timedelta.max) == 86_399_999_999_999_999 + 1
    assert duration_ms("delay_ms", None, timedelta(microseconds=1)) == 1
    assert duration_ms("delay_ms", None, timedelta(microseconds=-1)) == 0


@pytest.mark.parametrize("name", ["timeout", "connect_timeout"])
def test_what_a_lock_or_a_socket_cannot_wait_for_is_refused_when_the_client_is_made(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match=rf"{name}_ms 8640000\d+ is not .* within 1\.\.86400000"):
        Client(**{name: timedelta(days=1000)})  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="deadline_ms"):
        RetryPolicy(deadline=timedelta(days=40_000))
    RetryPolicy(deadline=timedelta(days=36_500))


def test_many_threads_may_have_the_latest_deadline(queue: MemoryQueue) -> None:
    client = queue.client()
    ids: list[str] = []

    def enqueue() -> None:
        ids.append(client.enqueue(NS, "t", b"", deadline=timedelta(days=36_500)))

    threads = [threading.Thread(target=enqueue) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(ids)) == 20


def test_numbers_that_stand_for_whole_ones_are_taken(queue: MemoryQueue) -> None:
    class Whole:
        def __index__(self) -> int:
            return 3

        def __int__(self) -> int:
            return 3

        def __eq__(self, other: object) -> bool:
            return other == 3

        def __le__(self, other: int) -> bool:
            return other >= 3

        def __ge__(self, other: int) -> bool:
            return other <= 3

        __hash__ = None  # type: ignore[assignment]

    client = queue.client()
    client.enqueue(NS, "t", array("b", [1]).tobytes(), priority=Whole())  # type: ignore[arg-type]
    client.enqueue_many(NS, [NewItem("t", b"", priority=Whole())])  # type: ignore[arg-type]
    assert [item.priority for item in client.dequeue(NS, "t", 2)] == [3, 3]


def handle(item: LeasedItem) -> None:
    """Be done at once."""


async def handle_async(item: AsyncLeasedItem) -> None:
    """Be done at once."""


def test_a_worker_refuses_the_client_of_the_other_kind(queue: MemoryQueue) -> None:
    for wrong in (queue.async_client(), queue.admin(), None):
        with pytest.raises(InvalidArgumentError, match=rf"client is {type(wrong).__name__}: a Worker needs"):
            Worker(wrong, NS, "t", handle)  # type: ignore[arg-type]
    for other in (queue.client(), queue.async_admin(), None):
        with pytest.raises(InvalidArgumentError, match=rf"client is {type(other).__name__}: an AsyncWorker needs"):
            AsyncWorker(other, NS, "t", handle_async)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"namespace": b"default"}, "namespace b'default'"),
        ({"topics": b"t"}, "topics is bytes"),
        ({"topics": 5}, "topics is int"),
        ({"topics": ["t", 5]}, "one of topics 5"),
        ({"drain_ms": 10**18}, "drain_ms"),
        ({"concurrency": True}, "concurrency True"),
        ({"backoff": 0}, "backoff 0"),
    ],
)
def test_a_wrong_argument_of_a_worker_is_named_before_it_runs(
    queue: MemoryQueue, arguments: dict[str, Any], named: str
) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        Worker(**{"client": queue.client(), "namespace": NS, "topics": "t", "handler": handle, **arguments})
    assert named in raised.value.message


def test_a_worker_that_has_run_says_so_when_it_is_run_again(queue: MemoryQueue) -> None:
    worker = Worker(queue.client(), NS, "t", handle)
    worker.stop()
    worker.run()
    with pytest.raises(RuntimeError, match="a worker runs once: make another one"):
        worker.run()


def test_a_consumer_that_was_iterated_says_so_when_it_is_again(queue: MemoryQueue) -> None:
    client = queue.client()
    client.enqueue_many(NS, [NewItem("t", b"")] * 2)
    with client.consume(NS, "t") as items:
        next(iter(items))
        with pytest.raises(RuntimeError, match="one is iterated once: make another one"):
            next(iter(items))
    assert items.stats.released == 2


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"addresses": None}, "addresses is NoneType"),
        ({"addresses": b"h:1"}, "addresses is bytes"),
        ({"retry": 0}, "retry is int"),
        ({"idempotent": "no"}, "idempotent 'no'"),
        ({"to_owners": 0}, "to_owners 0"),
        ({"timeout_ms": True}, "timeout_ms True"),
    ],
)
def test_a_wrong_argument_of_a_client_that_is_made_is_named(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        Client(**arguments)
    assert named in raised.value.message

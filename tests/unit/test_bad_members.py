"""A batch with one bad member is the others alone and one error, and whatever is within the limits fits."""

from __future__ import annotations

import asyncio
import threading
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foqs.client.aio.settler import AsyncSettler
from foqs.client.client_errors import BatchError
from foqs.client.leases import BaseLeasedItem
from foqs.client.queue_items import ENQUEUE_BYTES_MAX, Nack, NewItem, item_bytes
from foqs.client.retry import RetryPolicy
from foqs.client.sync.settler import Settler
from foqs.model import limits
from foqs.model.errors import ErrorCode, FoqsError, InvalidArgumentError, TooLargeError
from tests.support.scripted_pools import AsyncScriptedClient, S, ScriptedClient, enqueue_all, item_error
from tests.support.waiting import PATIENCE_S

NS = "ns"
QUICK = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
LARGE = 17 * limits.MIB


def released() -> memoryview:
    view = memoryview(b"x")
    view.release()
    return view


def altered(entry: Any, **values: Any) -> Any:
    """Past the checks of its constructor: a caller may change what it has given."""
    for name, value in values.items():
        setattr(entry, name, value)
    return entry


BAD_RECEIPTS: list[Any] = ["\ud800", "r" * LARGE, 5, None, b"r", ("r",)]
BAD_NACKS: list[Any] = [
    *BAD_RECEIPTS,
    Nack("r", metadata=bytes(LARGE)),
    Nack("\ud800"),
    altered(Nack("r"), metadata=memoryview(b"abcd")[::2]),
    altered(Nack("r"), metadata=released()),
    altered(Nack("r"), metadata="text"),
    altered(Nack("r"), delay_ms=2**70),
    altered(Nack("r"), delay_ms=1.5),
    altered(Nack("r"), release="no"),
    Nack("r", metadata=memoryview(array("d", [0.0] * (3 * limits.MIB)))),
]
BAD_ITEMS: list[Any] = [
    None,
    "x",
    NewItem("t" * LARGE, b""),
    NewItem("t", bytes(LARGE)),
    NewItem("t", b"", metadata=bytes(LARGE)),
    NewItem("t", b"", trace_context="c" * LARGE),
    NewItem("t", b"", dedup_id="d" * LARGE),
    NewItem("t", b"", ordering_key="k" * LARGE),
    NewItem("t", b"", fairness_key="k" * LARGE),
    NewItem("\ud800", b""),
    NewItem("t", b"", dedup_id="\ud800"),
    NewItem("t", b"", priority=2**31),
    NewItem("t", b"", delay_ms=2**63),
    NewItem("t", b"", deliver_after_ms=-(2**63) - 1),
    NewItem("t", memoryview(b"abcd")[::2]),
    NewItem("t", released()),
    NewItem("t", memoryview(array("d", [0.0] * (3 * limits.MIB)))),
    NewItem("t", 5),  # type: ignore[arg-type]
]


class Host:
    """Keeps what it got, and refuses receipts that begin with "stale"."""

    def __init__(self) -> None:
        self.got: list[Any] = []

    def answer(self, method: str, request: Any) -> Any:
        if method == "enqueue":
            self.got += [item.payload for item in request.items]
            return enqueue_all(request)
        if method == "getShardMap":
            raise InvalidArgumentError("this host is older than shard maps")
        if method == "getNamespace":
            raise InvalidArgumentError("this host knows of no namespaces")
        entries = request.nacks if method == "nack" else request.ids if method == "deleteItems" else request.receipts
        receipts = [entry.receipt if method == "nack" else entry for entry in entries]
        self.got += receipts
        errors = {at: item_error(ErrorCode.STALE_LEASE) for at, one in enumerate(receipts) if one.startswith("stale")}
        return S.BatchResponse(errors=errors or None)


RECEIPTS = st.lists(st.sampled_from(["a.1", "b.2", "stale.3", "ö.4"]), min_size=1, max_size=8)
VERBS: dict[str, tuple[Callable[[Any, Sequence[Any]], Any], list[Any]]] = {
    "ack": (lambda client, some: client.ack(NS, some, return_errors=True), BAD_RECEIPTS),
    "extend": (lambda client, some: client.extend(NS, some, 5_000, return_errors=True), BAD_RECEIPTS),
    "release": (lambda client, some: client.release(NS, some, return_errors=True), BAD_RECEIPTS),
    "nack": (lambda client, some: client.nack(NS, some, return_errors=True), BAD_NACKS),
}


def outcome_of(
    flavour: str, call: Callable[[Any, Sequence[Any]], Any], some: Sequence[Any], **options: Any
) -> tuple[Any, list[Any]]:
    host = Host()
    if flavour == "blocking":
        return call(ScriptedClient(host.answer, **options), some), host.got

    async def scenario() -> Any:
        client = AsyncScriptedClient(host.answer, **options)
        try:
            return await call(client, some)
        finally:
            await client.close()

    return asyncio.run(scenario()), host.got


def kinds(errors: dict[int, FoqsError]) -> dict[int, type]:
    return {position: type(error) for position, error in errors.items()}


@pytest.mark.parametrize("flavour", ["blocking", "asyncio"])
@pytest.mark.parametrize("verb", VERBS)
@QUICK
@given(receipts=RECEIPTS, data=st.data())
def test_a_settlement_that_cannot_be_sent_spoils_no_other(
    flavour: str, verb: str, receipts: list[str], data: st.DataObject
) -> None:
    call, wrongs = VERBS[verb]
    at = data.draw(st.integers(0, len(receipts)))
    wrong = data.draw(st.sampled_from(range(len(wrongs))))
    alone, got_alone = outcome_of(flavour, call, receipts)
    errors, got = outcome_of(flavour, call, [*receipts[:at], wrongs[wrong], *receipts[at:]])
    assert got == got_alone
    assert isinstance(errors.pop(at), InvalidArgumentError | TooLargeError)
    assert kinds({place - (place > at): error for place, error in errors.items()}) == kinds(alone)


@pytest.mark.parametrize("flavour", ["blocking", "asyncio"])
@pytest.mark.parametrize("with_ids", [False, True])
@QUICK
@given(count=st.integers(1, 8), data=st.data())
def test_an_item_that_cannot_be_sent_spoils_no_other_of_enqueue_many(
    flavour: str, with_ids: bool, count: int, data: st.DataObject
) -> None:
    def call(client: Any, some: Sequence[Any]) -> Any:
        return client.enqueue_many(NS, some, return_errors=True)

    items_max = data.draw(st.integers(1, 5))
    items = [NewItem("t", b"%d" % n, dedup_id=f"id-{n}" if with_ids else None) for n in range(count)]
    at = data.draw(st.integers(0, count))
    wrong = data.draw(st.sampled_from(range(len(BAD_ITEMS))))
    some = [*items[:at], BAD_ITEMS[wrong], *items[at:]]
    result, got = outcome_of(flavour, call, some, batch_items_max=items_max)
    assert sorted(got) == [item.payload for item in items]
    assert result.ids == ["t"] * at + [""] + ["t"] * (count - at)
    assert list(result.errors) == [at]
    assert isinstance(result.errors[at], InvalidArgumentError | TooLargeError)


def test_an_item_that_cannot_be_sent_is_refused_alone_among_the_enqueues_of_others() -> None:
    host = Host()
    client = ScriptedClient(host.answer, retry=RetryPolicy(deadline_ms=0))
    outcomes: list[Any] = []

    def enqueue(item: Any) -> None:
        try:
            outcomes.append(client.enqueue(NS, item.topic, item.payload, priority=item.priority))
        except FoqsError as error:
            outcomes.append(error)

    bad = [item for item in BAD_ITEMS if isinstance(item, NewItem) and item.dedup_id is None]
    plain = [
        item
        for item in bad
        if item.metadata is item.trace_context is item.ordering_key is item.fairness_key is item.delay_ms is None
    ]
    plain = [item for item in plain if item.deliver_after_ms is None]
    with ThreadPoolExecutor(16) as threads:
        list(threads.map(enqueue, [one for item in plain for one in (NewItem("t", b"well"), item, NewItem("t", b"w"))]))
    assert len(plain) >= 6
    assert outcomes.count("t") == 2 * len(plain)
    assert sum(isinstance(outcome, InvalidArgumentError | TooLargeError) for outcome in outcomes) == len(plain)


def test_where_no_entry_can_be_sent_the_caller_is_told_why_and_no_call_is_made() -> None:
    client = ScriptedClient(Host().answer)
    for call in (client.ack, client.nack, client.release):
        with pytest.raises(InvalidArgumentError, match="UTF-8"):
            call(NS, ["\ud800"])
    with pytest.raises(InvalidArgumentError, match=r"position 0: .*UTF-8"):
        client.enqueue_many(NS, [NewItem("\ud800", b"")])
    with pytest.raises(BatchError, match=r"position 1: .*UTF-8"):
        client.ack(NS, ["a.1", "\ud800"])


SIZES = st.lists(st.sampled_from([0, 1, 60_000, limits.METADATA_BYTES_MAX]), min_size=1, max_size=400)


@pytest.mark.parametrize("flavour", ["blocking", "asyncio"])
@settings(QUICK, max_examples=15)
@given(sizes=SIZES)
def test_any_nacks_within_the_limits_fit(flavour: str, sizes: list[int]) -> None:
    nacks = [Nack(f"{n:x}.1", metadata=bytes(size)) for n, size in enumerate(sizes)]
    errors, got = outcome_of(flavour, VERBS["nack"][0], nacks)
    assert errors == {}
    assert sorted(got) == sorted(nack.receipt for nack in nacks)


def test_three_hundred_nacks_of_60_kb_and_thousands_of_receipts_are_settled() -> None:
    for verb, some in (
        ("nack", [Nack(f"{n}.1", metadata=bytes(60_000)) for n in range(300)]),
        ("ack", [f"{n}.1" for n in range(2_500)]),
        ("extend", ["r" * 20_000 + str(n) for n in range(900)]),
    ):
        errors, got = outcome_of("blocking", VERBS[verb][0], some)
        assert errors == {}
        assert len(got) == len(some)


@settings(QUICK, max_examples=20)
@given(sizes=st.lists(st.sampled_from([0, 10_000, limits.PAYLOAD_BYTES_MAX]), min_size=1, max_size=30))
def test_any_items_within_the_limits_fit(sizes: list[int]) -> None:
    text = "ü" * 127
    items = [
        NewItem(text, bytes(size), metadata=bytes(limits.METADATA_BYTES_MAX), dedup_id=f"{n}{text[:120]}")
        for n, size in enumerate(sizes)
    ]
    result, got = outcome_of("blocking", lambda client, some: client.enqueue_many(NS, some), items)
    assert not result.errors
    assert len(got) == len(items)


def test_the_size_of_an_item_is_that_of_its_bytes() -> None:
    view = memoryview(array("d", [1.0] * 1_000))
    assert item_bytes(NewItem("t", view)) >= 8_000
    assert item_bytes(NewItem("t", b"", metadata=view)) >= 8_000
    for name in ("topic", "dedup_id", "ordering_key", "fairness_key", "trace_context"):
        item = NewItem("t", b"")
        setattr(item, name, "ü" * 5_000)
        assert item_bytes(item) >= 10_000, name
    assert item_bytes(NewItem("t", bytes(ENQUEUE_BYTES_MAX))) > ENQUEUE_BYTES_MAX


# --- what consumers and workers settle ---


class Sick(Host):
    """The shard of receipts that begin with "sick" is away for a while."""

    is_sick = True

    def answer(self, method: str, request: Any) -> Any:
        response = super().answer(method, request)
        entries = [getattr(entry, "receipt", entry) for entry in (getattr(request, "nacks", None) or request.receipts)]
        sick = [at for at, receipt in enumerate(entries) if receipt.startswith("sick") and self.is_sick]
        if sick:
            response.errors = dict.fromkeys(sick, item_error(ErrorCode.UNAVAILABLE, 1))
        return response


def leased(settler: Any, receipt: str) -> BaseLeasedItem:
    return BaseLeasedItem(receipt, receipt, "t", 0, b"", b"", 0, 0, 0, 1, None, settler, 5_000)


def wait_until(predicate: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(int(PATIENCE_S * 1_000)):
        if predicate():
            return
        pause.wait(0.001)
    raise AssertionError("it did not come about in time")


def test_settlements_of_a_shard_that_is_away_hold_up_no_others() -> None:
    host = Sick()
    client = ScriptedClient(host.answer)
    settler = Settler(client, NS)
    settler.start()
    leased(settler, "sick.1").ack()
    leased(settler, "sick.2").nack(delay_ms=5)
    wait_until(lambda: {"sick.1", "sick.2"} <= set(host.got))
    leased(settler, "well.1").ack()
    leased(settler, "well.2").nack(delay_ms=5)
    wait_until(lambda: (settler.stats.acked, settler.stats.nacked) == (1, 1))
    assert not client.pool.pauses.acquire(timeout=0), "nothing paused in a call"
    host.is_sick = False
    settler.close(int(PATIENCE_S * 1_000))
    assert (settler.stats.acked, settler.stats.nacked, settler.stats.unsettled) == (2, 2, 0)


def test_what_cannot_be_settled_for_long_is_counted_as_unsettled() -> None:
    client = ScriptedClient(Sick().answer, retry=RetryPolicy(deadline_ms=100))
    settler = Settler(client, NS)
    settler.start()
    leased(settler, "sick.1").ack()
    wait_until(lambda: settler.stats.unsettled == 1)
    leased(settler, "sick.2").ack()
    settler.close(0)
    assert settler.stats.unsettled == 2


def test_one_bad_nack_of_a_consumer_leaves_the_others_settled() -> None:
    async def scenario() -> None:
        host = Host()
        client = AsyncScriptedClient(host.answer)
        settler = AsyncSettler(client, NS)
        settler.start()
        leased(settler, "a.1").nack()
        leased(settler, "bad.1").nack(metadata=bytes(LARGE))
        for n in range(300):
            leased(settler, f"{n}.1").nack(metadata=bytes(60_000))
        await settler.close(int(PATIENCE_S * 1_000))
        assert (settler.stats.nacked, settler.stats.unsettled) == (302, 0), "the bad one without its metadata"
        await client.close()

    asyncio.run(scenario())

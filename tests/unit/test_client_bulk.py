"""A bulk enqueue of a client: how items become calls, and how their answers are put together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from foqs.client import verbs
from foqs.client.bulk import Bulk
from foqs.client.errors import NotSentError, OutcomeUnknownError
from foqs.client.items import ENQUEUE_BYTES_MAX, NewItem, check_new_item
from foqs.client.retry import Repeat
from foqs.model.calls import EnqueueResult
from foqs.model.errors import (
    FoqsError,
    InvalidArgumentError,
    RateLimitedError,
    StaleLeaseError,
    TooLargeError,
    UnknownNamespaceError,
)
from foqs.wire import codec as wire
from tests.support.flow_bench import Bench, enqueued

S = wire.structs


def enqueue_many(
    bench: Bench, items: Iterable[NewItem], items_max: int, *, retry_unknown: bool = False
) -> EnqueueResult:
    """As the clients do it with one call in flight."""
    work = Bulk(items, items_max)
    repeat = Repeat.ALWAYS if retry_unknown else Repeat.UNLESS_UNKNOWN
    while (taken := work.next()) is not None:
        offset, batch = taken
        try:
            work.done(offset, bench.run_on(verbs.enqueue_limited(bench.terms, "ns", batch, repeat)))
        except FoqsError as error:
            work.failed(offset, batch, error)
    assert not bench.answers, "fewer calls than expected"
    return work.result()


def test_an_enqueue_of_unknown_outcome_is_repeated_only_when_asked_for() -> None:
    items = [NewItem("t", b"p")]
    bench = Bench(OutcomeUnknownError("lost"))
    with pytest.raises(OutcomeUnknownError):
        enqueue_many(bench, items, 1_000)
    bench = Bench(OutcomeUnknownError("lost"), enqueued(["1-1"]))
    assert enqueue_many(bench, items, 1_000, retry_unknown=True).ids == ["1-1"]


def test_items_are_cut_into_calls_by_count_and_by_bytes() -> None:
    big = NewItem("t", bytes(ENQUEUE_BYTES_MAX // 3))
    bench = Bench(enqueued(["a", "b"]), enqueued(["c", "d"]), enqueued(["e"]))
    result = enqueue_many(bench, [big] * 5, 1_000)
    assert result.ids == ["a", "b", "c", "d", "e"]
    bench = Bench(enqueued(["a", "b"]), enqueued(["c"]))
    small = (NewItem("t", b"") for _ in range(3))
    assert enqueue_many(bench, small, 2).ids == ["a", "b", "c"]


def test_no_items_make_no_call() -> None:
    bench = Bench()
    assert enqueue_many(bench, [], 1_000).ids == []


def test_when_a_later_batch_fails_as_a_whole_the_ids_so_far_are_kept() -> None:
    bench = Bench(enqueued(["a", "b"]), UnknownNamespaceError("gone"))
    result = enqueue_many(bench, [NewItem("t", b"")] * 6, 2)
    assert result.ids == ["a", "b", "", "", "", ""]
    assert [type(result.errors[p]) for p in range(2, 6)] == [UnknownNamespaceError] * 2 + [NotSentError] * 2


def namespace_of(**settings: int) -> Any:
    return S.Namespace(name="ns", settings=S.NamespaceSettings(**settings))


def test_a_batch_that_the_namespace_never_takes_is_cut_to_what_it_takes() -> None:
    too_large = TooLargeError("5 items in one call can never fit")
    limits_of = namespace_of(batch_items_max=1_000, enqueues_per_minute_max=2)
    bench = Bench(too_large, limits_of, *[enqueued(["a", "b"])] * 2, enqueued(["e"]))
    result = enqueue_many(bench, [NewItem("t", b"")] * 5, 1_000)
    assert (result.ids, result.errors) == (["a", "b", "a", "b", "e"], {})
    assert [call.method for call in bench.calls] == ["enqueue", "getNamespace", "enqueue", "enqueue", "enqueue"]
    bench.answers = [enqueued(["f", "g"])]
    result = bench.run(verbs.enqueue_limited(bench.terms, "ns", [NewItem("t", b"")] * 2, Repeat.ALWAYS))
    assert result.ids == ["f", "g"], "it is remembered"


def test_when_a_part_of_a_cut_batch_fails_the_rest_is_not_sent() -> None:
    limits_of = namespace_of(batch_items_max=2, enqueues_per_minute_max=1_000)
    full = RateLimitedError("full", retry_after_ms=10**6)
    bench = Bench(TooLargeError("x"), limits_of, enqueued(["a", "b"]), full)
    items = (NewItem("t", b"") for _ in range(5))
    result = enqueue_many(bench, items, 1_000)
    assert result.ids == ["a", "b", "", "", ""]
    assert [type(result.errors[p]) for p in (2, 3, 4)] == [RateLimitedError, RateLimitedError, NotSentError]


@pytest.mark.parametrize("known", [namespace_of(batch_items_max=9, enqueues_per_minute_max=9), NotSentError("away")])
def test_what_is_too_large_for_another_reason_is_refused_as_it_was(known: Any) -> None:
    bench = Bench(TooLargeError("a frame"), known, deadline_ms=0)
    with pytest.raises(TooLargeError, match="a frame"):
        enqueue_many(bench, [NewItem("t", b"")] * 3, 1_000)


def test_an_item_that_cannot_be_encoded_is_named_by_its_position_and_its_limit() -> None:
    items = [NewItem("t", b""), NewItem("t", b""), NewItem("t", b"", priority=2**31)]
    bench = Bench(InvalidArgumentError("cannot encode"))
    with pytest.raises(InvalidArgumentError, match=r"position 2: .*priority 2147483648 is not within -2147483648\.\.2"):
        enqueue_many(bench, items, 10)
    bench = Bench(enqueued(["a", "b"]), InvalidArgumentError("cannot encode"))
    errors = enqueue_many(bench, items, 2).errors
    assert errors[2].message.startswith("position 2: ")


def test_a_refusal_by_the_host_of_items_that_can_be_encoded_stands_as_it_is() -> None:
    bench = Bench(InvalidArgumentError("the batch is refused"))
    with pytest.raises(InvalidArgumentError, match=r"^the batch is refused$"):
        enqueue_many(bench, [NewItem("t", b"")], 10)


def test_text_that_utf8_cannot_hold_is_refused_before_it_shares_a_call_with_others() -> None:
    with pytest.raises(InvalidArgumentError, match=r"topic .* UTF-8"):
        check_new_item(NewItem("\ud800", b""))
    check_new_item(NewItem("\u00e4\U0001f600", b""))


def test_what_is_no_item_is_refused_by_name() -> None:
    bench = Bench()
    with pytest.raises(InvalidArgumentError, match="payload is int"):
        enqueue_many(bench, [NewItem("t", 5)], 10)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="str is not a NewItem"):
        enqueue_many(bench, ["x"], 10)  # type: ignore[list-item]


def test_batches_that_end_in_another_order_are_put_together_in_that_of_the_items() -> None:
    work = Bulk([NewItem("t", b"%d" % number) for number in range(5)], 2)
    taken = [work.next(), work.next(), work.next()]
    assert work.next() is None
    for batch in reversed(taken):
        assert batch is not None
        offset, items = batch
        error = {1: StaleLeaseError("x")} if offset == 2 else {}
        work.done(offset, EnqueueResult([item.payload.decode() for item in items], dict(error)))
    result = work.result()
    assert result.ids == ["0", "1", "2", "3", "4"]
    assert list(result.errors) == [3]


def test_after_a_batch_that_failed_as_a_whole_what_is_in_flight_counts_and_nothing_more_is_given_out() -> None:
    work = Bulk([NewItem("t", b"")] * 6, 2)
    first, second = work.next(), work.next()
    assert first is not None
    assert second is not None
    work.failed(*first, UnknownNamespaceError("gone"))
    assert work.next() is None
    work.done(second[0], EnqueueResult(["c", "d"]))
    result = work.result()
    assert result.ids == ["", "", "c", "d", "", ""]
    kinds = {position: type(error) for position, error in result.errors.items()}
    assert kinds == {0: UnknownNamespaceError, 1: UnknownNamespaceError, 4: NotSentError, 5: NotSentError}


def test_what_the_items_raise_reaches_the_caller() -> None:
    def broken() -> Iterator[NewItem]:
        yield NewItem("t", b"")
        raise ValueError("no more rows")

    work = Bulk(broken(), 1)
    assert work.next() is not None
    assert work.next() is None
    with pytest.raises(ValueError, match="no more rows"):
        work.result()


def test_a_bulk_enqueue_says_so_to_the_host() -> None:
    bench = Bench(enqueued(["a"]), enqueued(["b"]))
    bench.run_on(verbs.enqueue_batch(bench.terms, "ns", [NewItem("t", b"")], Repeat.ALWAYS, bulk=True))
    bench.run_on(verbs.enqueue_batch(bench.terms, "ns", [NewItem("t", b"")], Repeat.ALWAYS))
    assert [call.request.bulk for call in bench.calls] == [True, False]

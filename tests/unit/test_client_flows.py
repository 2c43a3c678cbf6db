"""One call of a client as a flow: what it repeats, where it goes next, what it says of what was not done."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from foqs.client import queue_verbs
from foqs.client.addresses import COOLDOWN_MS
from foqs.client.client_errors import BatchError, NotSentError, OutcomeUnknownError
from foqs.client.flows import HOP_MS, Call, call_flow
from foqs.client.queue_items import Item, Nack, NewItem
from foqs.client.retry import Pauses, Repeat, RetryPolicy, may_repeat
from foqs.model.calls import PositionErrors
from foqs.model.errors import (
    ErrorCode,
    FoqsError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    OverloadedError,
    PausedError,
    RateLimitedError,
    StaleLeaseError,
    TooLargeError,
    UnavailableError,
    UnknownNamespaceError,
)
from foqs.wire import codec as wire
from tests.support.flow_bench import A, B, Bench, enqueued, failed

S = wire.structs
DONE = failed()
READ = Call("getActiveTopics", None, Repeat.READ)
WRITE = Call("createNamespace", None, Repeat.UNLESS_UNKNOWN)


@pytest.mark.parametrize(
    ("error", "when_always", "unless_unknown"),
    [
        (NotSentError("x"), True, True),
        (RateLimitedError("x"), True, True),
        (OverloadedError("x"), True, True),
        (PausedError("x"), True, True),
        (OutcomeUnknownError("x"), True, False),
        (UnavailableError("x"), True, False),
        (UnavailableError("x", nothing_done=True), True, True),
        (InternalError("x"), False, False),
        (InvalidArgumentError("x"), False, False),
        (UnknownNamespaceError("x"), False, False),
        (TooLargeError("x"), False, False),
        (NotFoundError("x"), False, False),
        (StaleLeaseError("x"), False, False),
    ],
)
def test_only_what_cannot_happen_twice_is_repeated(error: FoqsError, when_always: bool, unless_unknown: bool) -> None:
    assert may_repeat(error, Repeat.ALWAYS) is when_always
    assert may_repeat(error, Repeat.UNLESS_UNKNOWN) is unless_unknown
    for call, repeated in ((READ, when_always), (WRITE, unless_unknown)):
        bench = Bench(error, *(["answer"] if repeated else []))
        if repeated:
            assert bench.run(call_flow(bench.terms, call)) == "answer"
        else:
            with pytest.raises(type(error)):
                bench.run(call_flow(bench.terms, call))
        assert len(bench.calls) == 1 + repeated


def test_pauses_are_drawn_from_a_doubling_range_up_to_its_bound() -> None:
    bench = Bench(*[OverloadedError("x")] * 5, "answer", random=0.5, backoff_ms=20, backoff_ms_max=100)
    bench.run(call_flow(bench.terms, READ))
    assert bench.pauses_ms == [10, 20, 40, 50, 50]


def test_the_host_s_retry_after_comes_on_top_of_the_jitter() -> None:
    bench = Bench(RateLimitedError("x", retry_after_ms=700), "answer", random=0.5, backoff_ms=20)
    bench.run(call_flow(bench.terms, WRITE))
    assert bench.pauses_ms == [710]


def test_no_attempt_starts_past_the_deadline() -> None:
    bench = Bench(
        RateLimitedError("x", retry_after_ms=400),
        RateLimitedError("y", retry_after_ms=700),
        random=0,
        deadline_ms=1_000,
    )
    with pytest.raises(RateLimitedError, match="y"):
        bench.run(call_flow(bench.terms, READ))
    assert bench.pauses_ms == [400]


def test_a_deadline_of_zero_means_one_attempt() -> None:
    bench = Bench(NotSentError("x"), random=0, deadline_ms=0)
    with pytest.raises(NotSentError):
        bench.run(call_flow(bench.terms, READ))


def test_pauses_stay_bounded_after_very_many_failures() -> None:
    pauses = Pauses(RetryPolicy(deadline_ms=10**9), lambda: 0, lambda: 0.999)
    assert max(pauses.next_ms(0) or 0 for _ in range(200)) <= RetryPolicy().backoff_ms_max


def test_nothing_was_done_is_not_claimed_after_an_attempt_that_may_have_been_done() -> None:
    bench = Bench(OutcomeUnknownError("lost"), RateLimitedError("busy", retry_after_ms=10**6))
    with pytest.raises(OutcomeUnknownError, match="busy"):
        bench.run(queue_verbs.enqueue_batch(bench.terms, "ns", [NewItem("t", b"")], Repeat.ALWAYS))
    bench = Bench(OutcomeUnknownError("lost"), PausedError("paused", retry_after_ms=10**6))
    with pytest.raises(OutcomeUnknownError, match="paused"):
        bench.run(call_flow(bench.terms, Call("updateNamespace", None, Repeat.ALWAYS)))


def test_a_long_poll_gets_its_wait_on_top_of_the_timeout() -> None:
    bench = Bench(S.DequeueResponse(items=[]))
    assert bench.run(queue_verbs.dequeue(bench.terms, "ns", "t", 1, None, 20_000)) == []
    assert bench.timeouts_ms == [30_000]


def test_only_the_positions_that_failed_safely_are_sent_again() -> None:
    items = [NewItem("t", str(n).encode()) for n in range(4)]
    first = enqueued(
        ["a", "", "", ""], (1, ErrorCode.OVERLOADED), (2, ErrorCode.TOO_LARGE), (3, ErrorCode.RATE_LIMITED)
    )
    second = enqueued(["", "d"], (0, ErrorCode.OVERLOADED))
    bench = Bench(first, second, enqueued(["b"]))
    result = bench.run(queue_verbs.enqueue_batch(bench.terms, "ns", items, Repeat.UNLESS_UNKNOWN))
    assert result.ids == ["a", "b", "", "d"]
    assert {p: type(e) for p, e in result.errors.items()} == {2: TooLargeError}
    assert [[item.payload for item in call.request.items] for call in bench.calls] == [
        [b"0", b"1", b"2", b"3"],
        [b"1", b"3"],
        [b"1"],
    ]


def test_an_item_of_unknown_outcome_is_not_sent_again() -> None:
    bench = Bench(enqueued(["a", ""], (1, ErrorCode.UNAVAILABLE)))
    items = [NewItem("t", b""), NewItem("t", b"")]
    result = bench.run(queue_verbs.enqueue_batch(bench.terms, "ns", items, Repeat.UNLESS_UNKNOWN))
    assert isinstance(result.errors[1], OutcomeUnknownError)


def test_positions_keep_their_error_when_a_repetition_fails_as_a_whole() -> None:
    first = enqueued(["a", ""], (1, ErrorCode.OVERLOADED))
    bench = Bench(first, UnknownNamespaceError("gone"))
    result = bench.run(queue_verbs.enqueue_batch(bench.terms, "ns", [NewItem("t", b"")] * 2, Repeat.UNLESS_UNKNOWN))
    assert result.ids == ["a", ""]
    assert isinstance(result.errors[1], UnknownNamespaceError)


def test_an_ack_that_finds_the_item_gone_after_an_unknown_outcome_counts_as_done() -> None:
    bench = Bench(OutcomeUnknownError("lost"), failed((0, ErrorCode.NOT_FOUND), (1, ErrorCode.STALE_LEASE)))
    errors = bench.run(queue_verbs.ack(bench.terms, "ns", ["a.1", "b.1", "c.1"], return_errors=True))
    assert {p: type(e) for p, e in errors.items()} == {1: StaleLeaseError}


def test_only_an_ack_that_may_have_been_done_says_that_it_is_repeated() -> None:
    bench = Bench(OverloadedError("busy"), OutcomeUnknownError("lost"), OverloadedError("busy"), DONE)
    assert bench.run(queue_verbs.ack(bench.terms, "ns", ["a.1"])) == {}
    assert [call.request.repeated for call in bench.calls] == [None, None, True, True]
    bench = Bench(
        failed((0, ErrorCode.OVERLOADED), (1, ErrorCode.UNAVAILABLE)), failed((1, ErrorCode.OVERLOADED)), DONE
    )
    assert bench.run(queue_verbs.ack(bench.terms, "ns", ["a.1", "b.1"])) == {}
    assert [call.request.repeated for call in bench.calls] == [None, True, True]


def not_here(*positions: int, retry_after_ms: int | None = None) -> Any:
    return S.BatchResponse(
        errors={p: S.ItemError(ErrorCode.UNAVAILABLE, "not here", retry_after_ms, True) for p in positions}
    )


STANDBY = UnavailableError("a standby", retry_after_ms=500, nothing_done=True)


def test_what_one_host_certainly_did_not_do_goes_to_the_next_at_once_and_the_first_cools_down() -> None:
    bench = Bench(STANDBY, enqueued(["1-1"]), enqueued(["1-2"]), addresses=(A, B))
    for item_id in ("1-1", "1-2"):
        flow = queue_verbs.enqueue_batch(bench.terms, "ns", [NewItem("t", b"")], Repeat.UNLESS_UNKNOWN)
        assert bench.run_on(flow).ids == [item_id]
    assert bench.asked == [A, B, B]
    assert bench.pauses_ms == []
    assert bench.book.preferred(bench.now_ms + COOLDOWN_MS) == [A, B]


def test_when_no_address_did_it_the_round_begins_anew_after_a_pause() -> None:
    bench = Bench(STANDBY, STANDBY, STANDBY, "answer", addresses=(A, B), random=0)
    assert bench.run(call_flow(bench.terms, WRITE)) == "answer"
    assert bench.pauses_ms == [500]
    assert set(bench.asked[:2]) == set(bench.asked[2:]) == {A, B}


def test_no_host_is_asked_again_before_its_own_time_whatever_the_others_said() -> None:
    full = OverloadedError("full", retry_after_ms=200)
    bench = Bench(full, STANDBY, full, full, "answer", addresses=(A, B), random=0)
    assert bench.run(call_flow(bench.terms, WRITE)) == "answer"
    assert bench.asked == [A, B, A, A, B]
    assert bench.pauses_ms == [200, 200, 100]


def test_a_standby_that_names_no_time_does_not_cut_the_pause_of_a_busy_owner_short() -> None:
    full, standby = OverloadedError("full", retry_after_ms=3_000), UnavailableError("a standby", nothing_done=True)
    bench = Bench(full, *[standby] * 9, "answer", addresses=(A, B))
    began_ms = bench.now_ms
    assert bench.run(call_flow(bench.terms, WRITE)) == "answer"
    assert bench.asked == [A, *[B] * 9, A]
    assert bench.now_ms - began_ms >= 3_000


def test_going_on_to_another_address_is_no_repetition() -> None:
    bench = Bench(STANDBY, STANDBY, addresses=(A, B), deadline_ms=0)
    with pytest.raises(UnavailableError, match="standby") as refused:
        bench.run(call_flow(bench.terms, WRITE))
    assert refused.value.nothing_done
    assert bench.asked == [A, B]


def test_a_quota_and_a_pause_hold_on_every_host() -> None:
    for refusal in (RateLimitedError("x"), PausedError("x")):
        bench = Bench(refusal, "answer", addresses=(A, B), random=0.5)
        bench.run(call_flow(bench.terms, WRITE))
        assert bench.pauses_ms == [10]


def test_positions_of_a_shard_that_is_not_there_are_done_at_the_other_host() -> None:
    bench = Bench(not_here(1), DONE, addresses=(A, B))
    assert bench.run(queue_verbs.nack(bench.terms, "ns", ["a.1", "b.1"], Nack)) == {}
    assert bench.asked == [A, B]
    assert [len(call.request.nacks) for call in bench.calls] == [2, 1]
    assert bench.pauses_ms == []
    assert bench.book.preferred(bench.now_ms) == [A, B], "a host that did some of it does not cool down"


def test_a_standby_that_did_none_of_a_batch_cools_down() -> None:
    bench = Bench(not_here(0, 1), DONE, addresses=(A, B))
    assert bench.run(queue_verbs.ack(bench.terms, "ns", ["a.1", "b.1"])) == {}
    assert bench.book.preferred(bench.now_ms) == [B]


def test_a_refusal_after_an_attempt_that_may_have_been_done_is_of_unknown_outcome() -> None:
    bench = Bench(OutcomeUnknownError("lost"), not_here(0, retry_after_ms=10**6), random=0)
    errors = bench.run(queue_verbs.ack(bench.terms, "ns", ["a.1"] * 2, return_errors=True))
    assert isinstance(errors[0], OutcomeUnknownError)


def test_a_certain_refusal_is_not_called_unknown() -> None:
    bench = Bench(not_here(0), random=0, deadline_ms=0)
    errors = bench.run(queue_verbs.ack(bench.terms, "ns", ["a.1"] * 2, return_errors=True))
    assert not isinstance(errors[0], OutcomeUnknownError)
    assert errors[0].nothing_done


def test_an_ack_that_finds_the_item_gone_at_once_has_not_done_it() -> None:
    bench = Bench(failed((0, ErrorCode.NOT_FOUND)))
    assert isinstance(bench.run(queue_verbs.ack(bench.terms, "ns", ["a.1"], return_errors=True))[0], NotFoundError)


def test_gone_counts_as_done_only_for_the_position_whose_outcome_was_unknown() -> None:
    first = failed((0, ErrorCode.UNAVAILABLE), (1, ErrorCode.OVERLOADED))
    bench = Bench(first, failed((0, ErrorCode.NOT_FOUND), (1, ErrorCode.NOT_FOUND)))
    errors = bench.run(queue_verbs.ack(bench.terms, "ns", ["a.1", "b.1"], return_errors=True))
    assert {p: type(e) for p, e in errors.items()} == {1: NotFoundError}


def test_a_nack_of_unknown_outcome_is_not_repeated() -> None:
    bench = Bench(OutcomeUnknownError("lost"))
    with pytest.raises(OutcomeUnknownError):
        bench.run(queue_verbs.nack(bench.terms, "ns", ["a.1"], Nack))


def test_the_error_of_a_single_delivery_is_raised_and_those_of_many_together() -> None:
    stale = failed((0, ErrorCode.STALE_LEASE))
    item = Item("a", "a.1", "t", 0, b"", b"", 0, 0, 0, 1, None)
    for single in ("a.1", item):
        bench = Bench(stale)
        with pytest.raises(StaleLeaseError):
            bench.run(queue_verbs.ack(bench.terms, "ns", single))
        bench = Bench(stale)
        assert list(bench.run(queue_verbs.ack(bench.terms, "ns", single, return_errors=True))) == [0]
    bench = Bench(stale)
    with pytest.raises(BatchError) as caught:
        bench.run(queue_verbs.ack(bench.terms, "ns", [item, "b.1"]))
    assert (list(caught.value.errors), caught.value.total_count, caught.value.done_count) == ([0], 2, 1)
    assert bench.calls[0].request.receipts == ["a.1", "b.1"]


def test_a_batch_error_says_what_a_caller_must_know() -> None:
    errors: PositionErrors = {n: RateLimitedError("full", retry_after_ms=n * 10) for n in (1, 3, 5, 7)}
    error = BatchError("enqueue_many", errors, 9, ["a", ""])
    assert error.message == (
        "enqueue_many: 4 of 9 positions failed, see `errors`: position 1: RateLimitedError: full; "
        "position 3: RateLimitedError: full; position 5: RateLimitedError: full; and 1 more"
    )
    assert (error.code, error.retry_after_ms, error.nothing_done, error.retryable) == (
        ErrorCode.RATE_LIMITED,
        70,
        False,
        False,
    )
    again = pickle.loads(pickle.dumps(error))
    assert (again.message, list(again.errors), again.ids) == (error.message, [1, 3, 5, 7], ["a", ""])
    assert BatchError("ack", {0: StaleLeaseError("x")}, 1).nothing_done
    assert not BatchError("ack", {0: OutcomeUnknownError("x")}, 1).nothing_done


def test_a_nack_entry_stands_for_itself_beside_the_arguments() -> None:
    bench = Bench(DONE)
    bench.run(queue_verbs.nack(bench.terms, "ns", ["a.1", Nack("b.1", 7)], lambda receipt: Nack(receipt, 5, b"m")))
    assert bench.calls[0].request.nacks == [Nack("a.1", 5, b"m"), Nack("b.1", 7)]


def test_receipts_go_in_batches_and_errors_keep_their_positions() -> None:
    bench = Bench(DONE, failed((1, ErrorCode.STALE_LEASE)))
    errors = bench.run(queue_verbs.ack(bench.terms, "ns", [str(n) for n in range(1_002)], return_errors=True))
    assert [len(call.request.receipts) for call in bench.calls] == [1_000, 2]
    assert list(errors) == [1_001]


def test_a_batch_of_acks_that_fails_as_a_whole_keeps_no_other_from_being_sent() -> None:
    bench = Bench(InternalError("x"), DONE)
    errors = bench.run(queue_verbs.ack(bench.terms, "ns", [str(n) for n in range(1_001)], return_errors=True))
    assert list(errors) == list(range(1_000))


def test_an_answer_with_too_few_ids_is_a_defect_of_the_host() -> None:
    bench = Bench(enqueued(["a"]))
    with pytest.raises(InternalError, match="1 ids for 2"):
        bench.run(queue_verbs.enqueue_batch(bench.terms, "ns", [NewItem("t", b"")] * 2, Repeat.ALWAYS))


@pytest.mark.parametrize(
    ("topics", "demands"),
    [
        ("a", [("a", 3)]),
        (["a", "b"], [("a", 3), ("b", 3)]),
        ([("a", 1), "b"], [("a", 1), ("b", 3)]),
        ({"a": 1, "b": 2}, [("a", 1), ("b", 2)]),
    ],
)
def test_topics_can_be_named_in_several_ways(topics: Any, demands: list[tuple[str, int]]) -> None:
    bench = Bench(S.DequeueResponse(items=[]))
    bench.run(queue_verbs.dequeue(bench.terms, "ns", topics, 3, None, 0))
    assert [(d.topic, d.count) for d in bench.calls[0].request.topics] == demands


@pytest.mark.parametrize("topics", [[], {}, [str(n) for n in range(1_001)]])
def test_no_topic_or_too_many_are_refused_before_any_call(topics: Any) -> None:
    bench = Bench()
    with pytest.raises(InvalidArgumentError):
        bench.run(queue_verbs.dequeue(bench.terms, "ns", topics, 3, None, 0))


def test_a_deadline_cuts_the_timeouts_and_ends_the_repetitions() -> None:
    bench = Bench(OverloadedError("full", retry_after_ms=700), OverloadedError("full", retry_after_ms=700), random=0.0)
    bench.terms = bench.terms.within(1_000)
    with pytest.raises(OverloadedError):
        bench.run(queue_verbs.enqueue_batch(bench.terms, "ns", [NewItem("t", b"")], Repeat.ALWAYS))
    assert bench.timeouts_ms == [1_000, 300]
    assert bench.pauses_ms == [700]


def test_past_the_deadline_nothing_is_sent_any_more() -> None:
    bench = Bench()
    bench.terms = bench.terms.within(5)
    bench.now_ms += 5
    with pytest.raises(NotSentError, match="deadline has passed"):
        bench.run(queue_verbs.enqueue_batch(bench.terms, "ns", [NewItem("t", b"")], Repeat.ALWAYS))
    with pytest.raises(InvalidArgumentError, match="deadline_ms 0"):
        bench.terms.within(0)


def test_no_receipts_make_no_call() -> None:
    bench = Bench()
    assert bench.run(queue_verbs.ack(bench.terms, "ns", [])) == {}


def test_what_is_neither_an_item_nor_a_receipt_is_refused_by_name() -> None:
    bench = Bench()
    with pytest.raises(InvalidArgumentError, match="neither an Item nor a receipt"):
        bench.run(queue_verbs.ack(bench.terms, "ns", [5]))  # type: ignore[list-item]


POLL_MS = 5_000


def dequeue_within(bench: Bench, deadline_ms: int) -> list[Item]:
    return bench.run(queue_verbs.dequeue(bench.terms.within(deadline_ms), "ns", "t", 1, None, POLL_MS))


def test_a_long_poll_leaves_time_for_its_response_before_the_deadline() -> None:
    bench = Bench(OverloadedError("x", retry_after_ms=2_000), S.DequeueResponse(items=[]), random=0.0)
    dequeue_within(bench, 6_000)
    assert [call.request.wait_ms for call in bench.calls] == [5_000, 3_000], "the response has 1 s in both"
    assert bench.timeouts_ms == [6_000, 4_000]


def test_a_long_poll_that_waits_past_the_deadline_is_refused() -> None:
    bench = Bench()
    with pytest.raises(InvalidArgumentError, match=r"wait_ms 5000 leaves no time .* deadline in 5000 ms"):
        dequeue_within(bench, 5_000)


def test_a_long_poll_with_time_to_spare_waits_as_long_as_it_was_told_every_time() -> None:
    bench = Bench(OverloadedError("x", retry_after_ms=2_000), S.DequeueResponse(items=[]), random=0.0)
    dequeue_within(bench, 60_000)
    assert [call.request.wait_ms for call in bench.calls] == [5_000, 5_000]


HUNG = OutcomeUnknownError("no answer")


def test_a_read_goes_on_to_the_next_address_when_a_host_hangs_and_soon() -> None:
    bench = Bench(HUNG, "answer", addresses=(A, B), deadline_ms=0)
    assert bench.run(call_flow(bench.terms, READ)) == "answer"
    assert bench.asked == [A, B]
    assert bench.timeouts_ms == [HOP_MS, 10_000], "the last one has all of the time"
    assert bench.pauses_ms == []
    assert bench.book.preferred(bench.now_ms) == [B]


def test_a_read_that_no_address_answers_ends_with_the_policy() -> None:
    bench = Bench(HUNG, HUNG, addresses=(A, B), deadline_ms=0)
    with pytest.raises(OutcomeUnknownError, match="no answer"):
        bench.run(call_flow(bench.terms, READ))
    assert bench.asked == [A, B]


def test_a_long_read_has_all_of_the_time_at_each_address() -> None:
    bench = Bench(HUNG, "answer", addresses=(A, B), deadline_ms=0)
    assert bench.run(call_flow(bench.terms, Call("exportItems", None, Repeat.READ, is_long=True))) == "answer"
    assert bench.timeouts_ms == [10_000, 10_000]


@pytest.mark.parametrize("repeat", [Repeat.ALWAYS, Repeat.UNLESS_UNKNOWN])
def test_what_may_have_been_done_is_not_asked_of_another_host_without_a_deadline(repeat: Repeat) -> None:
    bench = Bench(HUNG, addresses=(A, B), deadline_ms=0)
    with pytest.raises(OutcomeUnknownError):
        bench.run(call_flow(bench.terms, Call("ack", None, repeat)))
    assert bench.timeouts_ms == [10_000]


@pytest.mark.parametrize("call", [READ, WRITE])
def test_an_answer_is_told_together_with_the_address_that_was_not_reached(call: Call) -> None:
    serves_nothing = OverloadedError("it serves nothing", retry_after_ms=500)
    bench = Bench(serves_nothing, NotSentError("no connection: b:2"), addresses=(A, B), deadline_ms=0)
    with pytest.raises(OverloadedError, match=r"^a:1: it serves nothing; no connection: b:2$") as told:
        bench.run(call_flow(bench.terms, call))
    assert told.value.nothing_done
    assert told.value.retry_after_ms == 500


def test_an_answer_to_a_batch_is_told_together_with_the_address_that_was_not_reached() -> None:
    for answer, heard in (
        (UnavailableError("it is a standby", nothing_done=True), "a:1: it is a standby"),
        (not_here(0), "a:1: not here"),
    ):
        bench = Bench(answer, NotSentError("no connection: b:2"), addresses=(A, B), deadline_ms=0)
        with pytest.raises(UnavailableError) as told:
            bench.run(queue_verbs.ack(bench.terms, "ns", "1-1-1"))
        assert told.value.message == f"{heard}; no connection: b:2"
        assert told.value.nothing_done

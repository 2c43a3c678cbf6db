"""A bulk enqueue of a client: how items become calls, and how their answers are put together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from foqs.client import queue_verbs
from foqs.client.bulk import GROUPS_BYTES_MAX, Batch, Bulk
from foqs.client.client_errors import NotSentError, OutcomeUnknownError
from foqs.client.queue_items import ENQUEUE_BYTES_MAX, NewItem, check_new_item
from foqs.client.retry import Repeat
from foqs.client.slot_groups import DOUBT_MS, MAP_MS_MAX, MAP_PAUSE_MS, SlotGroups, groups_of
from foqs.model.calls import EnqueueResult
from foqs.model.errors import (
    FoqsError,
    InvalidArgumentError,
    RateLimitedError,
    StaleLeaseError,
    TooLargeError,
    UnknownNamespaceError,
)
from foqs.model.slots import SLOTS_COUNT, slot_of
from foqs.wire import codec as wire
from tests.support.flow_bench import Bench, enqueued

S = wire.structs


def enqueue_many(
    bench: Bench, items: Iterable[NewItem], items_max: int, *, retry_unknown: bool = False, makes_ids: bool = False
) -> EnqueueResult:
    """As the clients do it with one call in flight."""
    work = Bulk(items, items_max, makes_ids=makes_ids)
    if work.begins_with_id():
        work.group_by(bench.run_on(groups_of(bench.terms, "ns")))
    while (batch := work.next()) is not None:
        repeat = batch.repeat(retry_unknown=retry_unknown)
        try:
            work.done(batch, bench.run_on(queue_verbs.enqueue_limited(bench.terms, "ns", batch.items, repeat)))
        except FoqsError as error:
            work.failed(batch, error)
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
    result = bench.run(queue_verbs.enqueue_limited(bench.terms, "ns", [NewItem("t", b"")] * 2, Repeat.ALWAYS))
    assert result.ids == ["f", "g"], "it is remembered"


def test_a_batch_with_too_many_copies_is_cut_to_what_the_error_names_and_this_is_remembered() -> None:
    copies = TooLargeError("5 items are 50 copies, and the limit of a call is 20: send 2 items at a time")
    bench = Bench(copies, *[enqueued(["a", "b"])] * 2, enqueued(["e"]))
    result = enqueue_many(bench, [NewItem("t", b"")] * 5, 1_000)
    assert (result.ids, result.errors) == (["a", "b", "a", "b", "e"], {})
    assert [call.method for call in bench.calls] == ["enqueue"] * 4
    assert bench.terms.batch_limits == {"ns": 2}


def test_a_batch_with_too_many_bytes_of_copies_is_halved_and_one_item_is_refused() -> None:
    large = TooLargeError("the copies of these 4 items have 9 bytes, and the limit is 8: send fewer items at a time")
    bench = Bench(large, enqueued(["a", "b"]), enqueued(["c", "d"]))
    assert enqueue_many(bench, [NewItem("t", b"")] * 4, 1_000).ids == ["a", "b", "c", "d"]
    assert bench.terms.batch_limits == {}, "other items can be smaller"
    with pytest.raises(TooLargeError):
        enqueue_many(Bench(large), [NewItem("t", b"")], 1_000)


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
    with pytest.raises(InvalidArgumentError, match=r"position 0: .*priority 2147483648 is not within -2147483648\.\.2"):
        enqueue_many(Bench(InvalidArgumentError("cannot encode")), items[2:], 10)
    for items_max in (2, 10):
        bad = InvalidArgumentError("cannot encode")
        answers = [enqueued(["a", "b"]), bad] if items_max == 2 else [bad, enqueued(["a", "b"])]
        errors = enqueue_many(Bench(*answers), items, items_max).errors
        assert errors[2].message.startswith("new item: priority 2147483648 is not within -2147483648..2")


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
        error = {1: StaleLeaseError("x")} if batch.positions[0] == 2 else {}
        work.done(batch, EnqueueResult([item.payload.decode() for item in batch.items], dict(error)))
    result = work.result()
    assert result.ids == ["0", "1", "2", "3", "4"]
    assert list(result.errors) == [3]


def test_after_a_batch_that_failed_as_a_whole_what_is_in_flight_counts_and_nothing_more_is_given_out() -> None:
    work = Bulk([NewItem("t", b"")] * 6, 2)
    first, second = work.next(), work.next()
    assert first is not None
    assert second is not None
    work.failed(first, UnknownNamespaceError("gone"))
    assert work.next() is None
    work.done(second, EnqueueResult(["c", "d"]))
    result = work.result()
    assert result.ids == ["", "", "c", "d", "", ""]
    kinds = {position: type(error) for position, error in result.errors.items()}
    assert kinds == {0: UnknownNamespaceError, 1: UnknownNamespaceError, 4: NotSentError, 5: NotSentError}


def test_what_the_items_raise_says_how_many_are_enqueued() -> None:
    def broken() -> Iterator[NewItem]:
        yield from [NewItem("t", b"")] * 4
        raise ValueError("no more rows")

    work = Bulk(broken(), 2)
    for ids in (["a", "b"], ["c", ""]):
        batch = work.next()
        assert batch is not None
        work.done(batch, EnqueueResult(ids, {1: TooLargeError("too large")} if "" in ids else {}))
    assert work.next() is None
    with pytest.raises(ValueError, match="no more rows") as raised:
        work.result()
    assert raised.value.__notes__ == ["enqueue_many had enqueued 3 items before"]


def test_a_bulk_enqueue_says_so_to_the_host() -> None:
    bench = Bench(enqueued(["a"]), enqueued(["b"]))
    bench.run_on(queue_verbs.enqueue_batch(bench.terms, "ns", [NewItem("t", b"")], Repeat.ALWAYS, bulk=True))
    bench.run_on(queue_verbs.enqueue_batch(bench.terms, "ns", [NewItem("t", b"")], Repeat.ALWAYS))
    assert [call.request.bulk for call in bench.calls] == [True, False]


def of_shards(*shards: int) -> Any:
    """The map of a namespace whose key_spread is the number of these shards, which its slots lead to."""
    first = slot_of("ns", "", 1)
    by_slot = [shards[(slot - first) % SLOTS_COUNT % len(shards)] for slot in range(SLOTS_COUNT)]
    return S.ShardMap(version=1, shard_by_slot=by_slot, addresses=[], key_spread=len(shards))


def with_ids(count: int, size_bytes: int = 0) -> list[NewItem]:
    return [NewItem("t", bytes(size_bytes), dedup_id=f"id-{number}") for number in range(count)]


def sent_ids(bench: Bench) -> list[list[str | None]]:
    return [[item.dedup_id for item in call.request.items] for call in bench.calls if call.method == "enqueue"]


def test_items_with_ids_go_in_calls_of_one_shard_and_the_result_keeps_their_order() -> None:
    items = with_ids(40)
    shards = {item.dedup_id: slot_of("ns", item.dedup_id or "", 2) % 2 for item in items}

    class Host(list[Any]):
        """Each item's id is its dedup id, and the third of each call is a repeat."""

        def pop(self, index: Any = -1) -> Any:
            if not self:
                (names,) = sent_ids(bench)[-1:]
                return S.EnqueueResponse(ids=[f"i-{name}" for name in names], errors={}, duplicates=[2])
            return super().pop(index)

    bench = Bench(of_shards(7, 4))
    bench.answers = Host(bench.answers)
    work = Bulk(items, 15)
    work.group_by(bench.run_on(groups_of(bench.terms, "ns")))
    batches: list[Batch] = []
    while (batch := work.next()) is not None:
        batches.append(batch)
    for batch in reversed(batches):
        work.done(batch, bench.run_on(queue_verbs.enqueue_limited(bench.terms, "ns", batch.items, Repeat.ALWAYS)))
    result = work.result()
    assert result.ids == [f"i-id-{number}" for number in range(40)]
    sent = sent_ids(bench)
    assert all(len({shards[name] for name in names}) == 1 for names in sent)
    assert all(names == sorted(names, key=lambda name: int(name[3:])) for names in sent), "in their order"
    assert max(map(len, sent)) == 15
    assert [items[position].dedup_id for position in result.duplicates] == sorted(
        [names[2] for names in sent], key=lambda name: int((name or "")[3:])
    )


def test_items_with_ids_are_not_grouped_where_all_go_to_one_shard_or_no_map_is_told() -> None:
    for told in (of_shards(3), of_shards(3, 3), NotSentError("away"), InvalidArgumentError("no such method")):
        bench = Bench(told, enqueued(["a", "b"]), enqueued(["c"]))
        assert enqueue_many(bench, with_ids(3), 2).ids == ["a", "b", "c"]
        assert sent_ids(bench) == [["id-0", "id-1"], ["id-2"]]


def test_the_map_is_asked_for_once_then_after_a_while_and_soon_after_a_shard_was_away() -> None:
    def asked() -> int:
        return [call.method for call in bench.calls].count("getShardMap")

    bench = Bench(of_shards(1, 2), deadline_ms=0)
    for _ in range(3):
        assert bench.run_on(groups_of(bench.terms, "ns")).shards == [1, 2]
    assert asked() == 1
    bench.now_ms += MAP_MS_MAX
    bench.answers = [of_shards(1, 3)]
    assert bench.run_on(groups_of(bench.terms, "ns")).shards == [1, 3]
    away = S.EnqueueResponse(ids=[""], errors={0: S.ItemError(code=6, message="away", nothing_done=True)})
    bench.answers = [away]
    bench.run_on(queue_verbs.enqueue_batch(bench.terms, "ns", with_ids(1), Repeat.ALWAYS))
    assert bench.run_on(groups_of(bench.terms, "ns")).shards == [1, 3], "not in each call"
    bench.now_ms += DOUBT_MS
    bench.answers = [NotSentError("away"), of_shards(4, 3)]
    assert bench.run_on(groups_of(bench.terms, "ns")).shards == [1, 3], "better than none"
    bench.now_ms += MAP_PAUSE_MS
    assert bench.run_on(groups_of(bench.terms, "ns")).shards == [4, 3]
    assert asked() == 4


def test_calls_whose_items_all_have_ids_are_repeated_after_an_unknown_outcome() -> None:
    lost = OutcomeUnknownError("lost")
    bench = Bench(of_shards(0), lost, S.EnqueueResponse(ids=["a"], errors={}, duplicates=[0]))
    result = enqueue_many(bench, with_ids(1), 10)
    assert (result.ids, result.duplicates) == (["a"], [0])
    assert sent_ids(bench) == [["id-0"], ["id-0"]]
    bench = Bench(of_shards(0), lost)
    with pytest.raises(OutcomeUnknownError):
        enqueue_many(bench, [*with_ids(1), NewItem("t", b"")], 10)


def test_an_idempotent_client_gives_each_item_an_id_of_its_own_and_leaves_the_callers_item_alone() -> None:
    item = NewItem("t", b"", 3, delay_ms=5, metadata=b"m", trace_context="c")
    named = with_ids(1)[0]
    lost = OutcomeUnknownError("lost")
    repeats = S.EnqueueResponse(ids=["a", "b", "c"], errors={}, duplicates=[0, 1, 2])
    bench = Bench(of_shards(0), lost, repeats)
    result = enqueue_many(bench, [item, named, item], 10, makes_ids=True)
    first, second = sent_ids(bench)
    assert first == second, "a repetition has the same ids"
    assert len(set(first)) == 3
    assert first[1] == "id-0"
    assert [len(str(first[place])) for place in (0, 2)] == [32, 32]
    assert item.dedup_id is None
    sent = bench.calls[-1].request.items[0]
    assert (sent.priority, sent.delay_ms, sent.metadata, sent.trace_context) == (3, 5, b"m", "c")
    assert result.duplicates == [1], "the others are known from this very call"


def test_a_batch_with_ids_that_fails_leaves_the_others_alone_until_some_fail_in_a_row() -> None:
    bad = InvalidArgumentError("cannot encode")
    items = with_ids(10)
    items[3].priority = 2**31
    rest = [enqueued(["c", "d"])] * 2
    bench = Bench(of_shards(0), enqueued(["a", "b"]), bad, enqueued(["e"]), NotSentError("away"), *rest, deadline_ms=0)
    result = enqueue_many(bench, items, 2)
    assert result.ids == ["a", "b", "e", "", "", "", "c", "d", "c", "d"]
    assert {at: type(error) for at, error in result.errors.items()} == {
        3: InvalidArgumentError, 4: NotSentError, 5: NotSentError
    }  # fmt: skip
    bench = Bench(of_shards(0), enqueued(["a", "b"]), *[NotSentError("away")] * 3, deadline_ms=0)
    result = enqueue_many(bench, with_ids(10), 2)
    assert result.ids == ["a", "b", *[""] * 8]
    assert ["not sent: an earlier" in result.errors[at].message for at in range(2, 10)] == [False] * 6 + [True] * 2
    bench = Bench(of_shards(0), enqueued(["a", "b"]), UnknownNamespaceError("gone"))
    assert len(enqueue_many(bench, with_ids(10), 2).errors) == 8, "no batch would go through"


def test_items_that_were_read_for_other_groups_are_told_as_not_sent() -> None:
    bench = Bench(of_shards(1, 2), UnknownNamespaceError("gone"), deadline_ms=0)
    work = Bulk(iter(with_ids(9)), 2)
    work.group_by(bench.run_on(groups_of(bench.terms, "ns")))
    first, second = work.next(), work.next()
    assert first is not None
    assert second is not None
    work.done(first, EnqueueResult(["a", "b"]))
    work.failed(second, UnknownNamespaceError("gone"))
    result = work.result()
    assert [at for at, item_id in enumerate(result.ids) if item_id] == list(first.positions)
    assert set(result.errors) == set(range(len(result.ids))) - set(first.positions)


def test_groups_hold_no_more_bytes_than_two_calls() -> None:
    size = ENQUEUE_BYTES_MAX // 4
    groups = SlotGroups([1, 2, 3, 4], 0, 0)
    work = Bulk((item for item in with_ids(40, size)), 6)
    work.group_by(groups)
    seen: list[int] = []
    while (batch := work.next()) is not None:
        assert sum(len(item.payload) for item in batch.items) <= ENQUEUE_BYTES_MAX
        assert len(set(groups.of(batch.items))) == 1
        seen += batch.positions
        assert (work._read_count - len(seen)) * size <= GROUPS_BYTES_MAX + 6 * size, "and what is read at a time"
    assert sorted(seen) == list(range(40))


def test_an_id_that_cannot_be_encoded_is_refused_and_leaves_the_others_alone() -> None:
    items = with_ids(3)
    items[2].dedup_id = "\ud800"
    bench = Bench(of_shards(1, 1), InvalidArgumentError("cannot encode"), enqueued(["a", "b"]))
    result = enqueue_many(bench, items, 10)
    assert result.ids == ["a", "b", ""]
    assert "dedup_id" in result.errors[2].message


@pytest.mark.parametrize("wrong", [None, "x", NewItem("t", b""), b"", {}, 5])
def test_a_batch_with_an_item_that_cannot_be_sent_is_the_others_alone(wrong: Any) -> None:
    faulty = wrong if not isinstance(wrong, NewItem) else NewItem("t", None)  # type: ignore[arg-type]
    bench = Bench(enqueued(["a", "b"]), enqueued(["c"]), enqueued(["d"]))
    result = enqueue_many(bench, [*[NewItem("t", b"")] * 2, faulty, NewItem("t", b""), NewItem("t", b"")], 2)
    assert result.ids == ["a", "b", "", "c", "d"]
    assert {at: type(error) for at, error in result.errors.items()} == {2: InvalidArgumentError}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("priority", 1.9),
        ("priority", True),
        ("priority", float("nan")),
        ("lease_ms", 1_500.9),
        ("delay_ms", float("nan")),
        ("ttl_ms", 5e3),
        ("deliver_after_ms", 1e3),
        ("topic", b"t"),
        ("payload", "text"),
        ("payload", memoryview(b"abcd")[::2]),
        ("metadata", "text"),
        ("delivery", 1.7),
        ("delivery", True),
        ("dedup_id", b"id"),
        ("trace_context", b"c"),
    ],
)
def test_what_the_encoder_would_change_in_silence_is_refused_in_a_batch_as_it_is_alone(field: str, value: Any) -> None:
    item = NewItem("t", b"")
    setattr(item, field, value)
    with pytest.raises(InvalidArgumentError, match=field):
        check_new_item(item)
    result = enqueue_many(Bench(enqueued(["a"])), [NewItem("t", b""), item], 10)
    assert result.ids == ["a", ""]
    assert result.errors[1].message.startswith(f"new item: {field}")


@pytest.mark.parametrize("value", [bytearray(b"ab"), memoryview(b"ab"), b"ab"])
def test_bytes_of_other_kinds_can_be_encoded(value: Any) -> None:
    assert enqueue_many(Bench(enqueued(["a"])), [NewItem("t", value, metadata=value)], 10).ids == ["a"]


@pytest.mark.parametrize("items", [None, 5, "text", b"bytes", b"", NewItem("t", b"")])
def test_what_is_not_many_items_is_refused(items: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=rf"items is {type(items).__name__}: give a list"):
        Bulk(items, 10)

"""Filters of items against a second reading of each condition, and definitions of bulk jobs as they are stored."""

from __future__ import annotations

import json
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.client.bulk_jobs import bulk_request, bulk_state
from foqs.contract import requests as of
from foqs.contract.permissions import NOTHING, Permission, needed_by_bulk, needed_by_job
from foqs.host.verbs.bulk_calls import checked_work
from foqs.model import item_filter, limits
from foqs.model.bulk_work import (
    BulkAction,
    BulkPart,
    BulkState,
    BulkWork,
    PartBeginning,
    bulk_job_id,
    free_time,
    granted,
    is_bulk_job,
    state_of,
    taken,
    work_of,
)
from foqs.model.calls import ItemContent, ItemState
from foqs.model.errors import InvalidArgumentError
from foqs.model.failures import entry
from foqs.model.item_filter import CONTENT_BYTES_MAX, EVERYTHING, ItemFilter
from foqs.shard.port import ItemRow
from foqs.wire.codec import structs

FEW = st.integers(0, 4)
TEXTS = st.text(alphabet="abé☃", max_size=3)


@st.composite
def rows(draw: st.DrawFn) -> tuple[ItemRow, ItemState, list[str]]:
    """A row, its state, and the texts of its errors."""
    state = draw(st.sampled_from(ItemState))
    failures = draw(st.lists(TEXTS, max_size=3))
    reason = draw(TEXTS) if state is ItemState.DEAD else draw(st.none() | TEXTS)
    errors = b"".join(entry(1, 1, text) for text in failures)
    lane = {ItemState.DEAD: -1, ItemState.DELAYED: 0}.get(state, 1)
    content = ItemContent(draw(st.binary(max_size=4)), draw(st.binary(max_size=4)))
    row = ItemRow(
        7, lane, 0, draw(FEW), 1, draw(FEW) - 2, draw(FEW), 0, 0, 0, 0, draw(FEW),
        None if reason is None else reason.encode(), None, content, errors,
    )  # fmt: skip
    texts = [*failures, *([reason] if reason is not None and state is ItemState.DEAD else [])]
    return row, state, texts


FILTERS = st.builds(
    ItemFilter,
    enqueued_after_ms=st.none() | FEW,
    enqueued_before_ms=st.none() | FEW,
    died_after_ms=st.none() | FEW,
    died_before_ms=st.none() | FEW,
    priority_min=st.none() | FEW.map(lambda n: n - 2),
    priority_max=st.none() | FEW.map(lambda n: n - 2),
    attempts_min=st.none() | FEW,
    attempts_max=st.none() | FEW,
    error_contains=TEXTS,
    metadata_contains=st.binary(max_size=1),
    payload_contains=st.binary(max_size=1),
    deliver_after_ms=st.none() | FEW,
)


@given(FILTERS, rows())
def test_an_item_matches_if_each_condition_holds(
    chosen: ItemFilter, made: tuple[ItemRow, ItemState, list[str]]
) -> None:
    row, state, texts = made
    is_dead = state is ItemState.DEAD
    conditions = {
        "enqueued_after_ms": lambda value: row.enqueued_at >= value,
        "enqueued_before_ms": lambda value: row.enqueued_at < value,
        "died_after_ms": lambda value: is_dead and row.due_at >= value,
        "died_before_ms": lambda value: is_dead and row.due_at < value,
        "priority_min": lambda value: row.priority >= value,
        "priority_max": lambda value: row.priority <= value,
        "attempts_min": lambda value: row.failed_attempts >= value,
        "attempts_max": lambda value: row.failed_attempts <= value,
        "error_contains": lambda value: any(value in text for text in texts),
        "metadata_contains": lambda value: value in row.content.metadata,
        "payload_contains": lambda value: value in row.content.payload,
        "deliver_after_ms": lambda value: state is ItemState.DELAYED and row.due_at == value,
    }
    given_ones = {name: getattr(chosen, name) for name in conditions if getattr(chosen, name) not in (None, "", b"")}
    expected = all(conditions[name](value) for name, value in given_ones.items())
    assert chosen.matches(row, state) == expected


HOSTILE = st.sampled_from([b"a" * 40, b"a" * 9 + b"b", b"b" + b"a" * 9, b"ab", b"a", b"aab" * 5, b"c"])


@given(HOSTILE, st.lists(HOSTILE, max_size=8).map(b"".join))
def test_bytes_are_found_in_any_part_of_a_content(wanted: bytes, content: bytes) -> None:
    row = ItemRow(7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, None, None, ItemContent(content, content))
    with patch.object(item_filter, "FOUND_BYTES_MAX", 7), patch.object(item_filter, "COMPARED_BYTES_MAX", 60):
        for name in ("payload_contains", "metadata_contains"):
            assert ItemFilter(**{name: wanted}).matches(row, ItemState.READY) == (wanted in content)


@pytest.mark.parametrize("size", [1, 5, 99, 500, CONTENT_BYTES_MAX])
def test_no_step_of_a_search_compares_more_than_its_bound(size: int) -> None:
    """The time of a step is bounded by the product of both lengths, whatever the bytes are."""
    found: list[int] = []

    class Content(bytes):
        def find(self, wanted: bytes, first: int, end: int) -> int:  # type: ignore[override]
            found.append((min(end, len(self)) - first - len(wanted) + 1) * len(wanted))
            return super().find(wanted, first, end)

    content = Content(bytes(limits.PAYLOAD_BYTES_MAX))
    row = ItemRow(7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, None, None, ItemContent(content, b""))
    steps = ItemFilter(payload_contains=b"x" * size).text_steps(row, ItemState.READY)
    assert len(list(steps)) == len(found) - 1
    assert max(found) <= item_filter.COMPARED_BYTES_MAX


def test_a_topic_is_named_or_begins_with_the_prefix() -> None:
    assert EVERYTHING.has_topic("t", "t")
    named = ItemFilter(topics=("t",))
    assert named.has_topic("t\x00k", "t")
    assert not named.has_topic("tu", "tu")
    assert ItemFilter(topic_prefix="t").has_topic("tu", "tu")
    assert not ItemFilter(topic_prefix="u").has_topic("tu", "tu")


def test_ids_are_keys_of_their_shards() -> None:
    chosen = ItemFilter(ids=("2-1f", "1-7", "2-3", "2-3"))
    assert (chosen.keys_on(2), chosen.keys_on(1), chosen.keys_on(3)) == ([3, 31], [7], [])


WORKS = st.builds(
    BulkWork,
    filter=st.builds(
        ItemFilter,
        topics=st.lists(TEXTS, max_size=2).map(tuple),
        states=st.lists(st.sampled_from(ItemState), max_size=2).map(tuple),
        priority_min=st.none() | st.integers(-5, 5),
        attempts_max=st.none() | FEW,
        died_after_ms=st.none() | FEW,
        error_contains=TEXTS,
        metadata_contains=st.binary(max_size=3),
        payload_contains=st.binary(max_size=3),
        ids=st.lists(TEXTS, max_size=2).map(tuple),
    ),
    action=st.sampled_from(BulkAction),
    deliver_after_ms=FEW,
    items_max=FEW,
    undoes=TEXTS,
)


@given(WORKS)
def test_a_definition_is_read_as_it_was_stored(work: BulkWork) -> None:
    assert work_of(work.text()) == work
    assert work_of(work.text().encode()) == work


def test_a_definition_of_a_later_version_is_not_done_in_part() -> None:
    stored = json.loads(BulkWork(filter=ItemFilter(topics=("t",))).text())
    for change in ({"filter": {"topics": ["t"], "moon": "full"}}, {"action": 5}):
        with pytest.raises(InvalidArgumentError, match="does not know"):
            work_of(json.dumps({**stored, **change}))


def test_a_zero_is_a_condition() -> None:
    chosen = ItemFilter(attempts_max=0, priority_min=0)
    assert work_of(BulkWork(filter=chosen).text()).filter == chosen
    request = bulk_request("ns", "", BulkWork(filter=chosen), 0, "")
    assert checked_work(request.bulk, 0, 0).filter == chosen


def test_a_filter_comes_over_the_wire_as_it_was() -> None:
    chosen = ItemFilter(
        topics=("t", "u"), states=(ItemState.READY, ItemState.DEAD), enqueued_after_ms=0, died_before_ms=9,
        priority_min=-3, priority_max=4, attempts_min=0, attempts_max=5, error_contains="☃", metadata_contains=b"\xff",
        payload_contains=b"x", deliver_after_ms=7, ids=("0-1",),
    )  # fmt: skip
    work = BulkWork(filter=chosen, action=BulkAction.DELETE, items_max=3)
    request = bulk_request("ns", "", work, 0, "")
    assert is_bulk_job(request.id)
    assert checked_work(request.bulk, 0, 0) == work
    shown = bulk_state(structs.BulkState(work=request.bulk, matched=3, is_recounted=True, waiting_shards=[4]))
    assert shown == BulkState(work=work, matched=3, is_recounted=True, waiting_shards=[4])


def test_the_states_of_an_action() -> None:
    assert BulkWork(action=BulkAction.REDRIVE).states == {ItemState.DEAD}
    assert ItemState.LEASED not in BulkWork(action=BulkAction.DELETE).states
    assert BulkWork(filter=ItemFilter(states=(ItemState.LEASED,))).states == {ItemState.LEASED}


def test_a_part_is_taken_by_the_latest_owner_and_begins_once() -> None:
    begin = PartBeginning(5, 100, 7)
    first = taken(BulkPart(shard_id=1), 3, begin)
    assert first == BulkPart(shard_id=1, epoch=3, version=1, as_of_ms=5, to_key=100, of_items=7)
    later = taken(first, 4, PartBeginning(9, 200, 8))
    assert later == BulkPart(shard_id=1, epoch=4, version=2, as_of_ms=5, to_key=100, of_items=7)
    assert taken(later, 3, begin) is None


def test_items_are_granted_up_to_the_most_of_all_parts() -> None:
    parts = [BulkPart(shard_id=1, matched=4), BulkPart(shard_id=2, matched=5)]
    assert granted(BulkWork(), parts, 50) == 50
    assert [granted(BulkWork(items_max=most), parts, 3) for most in (8, 9, 10, 12, 13)] == [0, 0, 1, 3, 3]


def test_the_state_of_a_job_is_the_sum_of_its_parts() -> None:
    parts = {
        1: BulkPart(shard_id=1, examined=9, matched=4, done=3, skipped=1, of_items=20, is_done=True),
        2: BulkPart(shard_id=2, examined=2, matched=2, failed=1, is_recounted=True, error="full"),
    }
    state = state_of(BulkWork(), parts, [2], "", is_over=False)
    assert state == BulkState(
        work=BulkWork(), examined=11, matched=6, done=3, skipped=1, failed=1, error="shard 2: full", of_items=20,
        waiting_shards=[2], is_recounted=True, shards_done=1, shards=2,
    )  # fmt: skip
    assert state_of(BulkWork(), parts, [], "too many", is_over=False).error == "too many"
    assert state_of(BulkWork(), parts, [], "", is_over=True).error == ""


def test_the_first_free_time_is_taken() -> None:
    assert [free_time(5, used) for used in (set(), {4, 6}, {5, 6, 8})] == [5, 5, 7]


def test_a_bulk_job_is_known_by_its_id() -> None:
    job_id = bulk_job_id(bytes(range(10)))
    assert job_id == "bulk-00010203040506070809"
    for other in ("bulk-", f"{job_id}0", job_id.upper(), "copy-" + "0" * 20, 7, None):
        assert not is_bulk_job(other)
    assert needed_by_job(of.UpdateJobRequest("ns", job_id)) is Permission.ALTER
    assert needed_by_job(of.UpdateJobRequest("ns", "load")) is NOTHING


@pytest.mark.parametrize("name", ["error_contains", "payload_contains", "metadata_contains"])
def test_a_filter_that_looks_into_contents_needs_to_read(name: str) -> None:
    plain = of.ItemFilter(topic_prefix="x", attempts_min=3)
    assert needed_by_bulk(of.CreateBulkJobRequest("ns", bulk=of.BulkWork(plain, 1))) is NOTHING
    assert needed_by_bulk(of.CreateBulkJobRequest("ns", bulk=of.BulkWork(None, 1))) is NOTHING
    values: list[str | bytes] = ["x", ""] if name == "error_contains" else [b"x", b""]
    for value in values:
        chosen = of.ItemFilter(**{name: value})
        assert needed_by_bulk(of.CreateBulkJobRequest("ns", bulk=of.BulkWork(chosen, 1))) is Permission.READ

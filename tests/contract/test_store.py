"""What every store of a shard must hold: rows, lanes and counts, as transactions leave them."""

from __future__ import annotations

import asyncio
import time

import pytest

from foqs.model import limits, order
from foqs.model.calls import NO_CONTENT, ItemContent
from foqs.shard.port import (
    TIMER_LANE,
    ClaimEntries,
    DeadlockError,
    FetchedRow,
    ItemRow,
    OwnershipLostError,
    Refill,
    Rewrite,
    TransactionFailedError,
)
from tests.contract.owner import LIFE_MS, Owner, new_item, new_topic, sort_key_of
from tests.support.waiting import PATIENCE_S

CONTENT = ItemContent(b"p", b"")
"""What a new item has."""
HOSTILE = [
    b"",
    b"'",
    b'"',
    b"\\",
    b"\\'",
    b"\x00",
    b"\xff\xfe",
    b"%s %d %(x)s %%",
    b"'); DROP TABLE item; --",
    b"\r\n\t\x1a;#",
    "é 😀 e\u0301".encode(),
    bytes(range(256)) * 4,
]
HOSTILE_TOPICS = ["'", '"', "\\", "a%sb", "_", "; --", "é 😀", "e\u0301", " a ", "a ", "A", "a", "x" * 255, "é" * 127]


def keys_of(rows: list[tuple[int, int, int, int, int]]) -> list[int]:
    return [row[2] for row in rows]


# ---- what goes in comes out ----


def test_a_new_shard_is_empty(shard):
    image = Owner(shard).image
    assert (image.transaction_number, image.topics, image.claims, image.claimed_rows) == (0, [], [], {})
    counts = image.count()
    assert (counts.lanes, counts.delayed) == ([], [])


@pytest.mark.parametrize("reopened", [False, True])
def test_payload_and_metadata_come_back_byte_for_byte(shard, reopened):
    owner = Owner(shard)
    items = [new_item(n + 1, payload=data, metadata=data[:512]) for n, data in enumerate(HOSTILE)]
    owner.run(inserts=items)
    if reopened:
        owner.store.close()
        owner = Owner(shard)
    rows = owner.look_up(*range(1, len(HOSTILE) + 1))
    assert [rows[n + 1].content for n in range(len(HOSTILE))] == [ItemContent(data, data[:512]) for data in HOSTILE]


def test_a_trace_context_comes_back_and_stays_when_its_row_is_rewritten(shard):
    owner = Owner(shard)
    traced = new_item(1, due_at=2_000, enqueued_at=1_000, metadata=b"m", trace_context=b"t" * 128)
    owner.run(inserts=[traced, new_item(2)])
    assert [row.content.trace_context for row in owner.look_up(1, 2).values()] == [b"t" * 128, b""]
    owner.run(wakes=[1])
    owner.run(rewrites=[Rewrite(1, -1, 0, 3_000, 1, 1, b"new", b"failed")])
    owner.store.close()
    owner = Owner(shard)
    assert owner.look_up(1)[1].content == ItemContent(b"p", b"new", b"t" * 128)
    owner.run(rewrites=[Rewrite(1, 1, 0, 4_000, 1, 0)])
    read = owner.run(refills=[Refill(1, order.FIRST, 10, with_payload=True)]).read_ahead
    assert read[1].content == ItemContent(b"p", b"new", b"t" * 128)


def test_the_largest_items_come_back_byte_for_byte(shard):
    owner = Owner(shard)
    payload = bytes(range(256)) * (limits.PAYLOAD_BYTES_MAX // 256)
    metadata = (bytes(reversed(range(256))) * 256)[: limits.METADATA_BYTES_MAX]
    owner.run(inserts=[new_item(n, payload=payload, metadata=metadata) for n in range(1, 9)])
    for key, row in owner.look_up(*range(1, 9)).items():
        assert (row.key, row.content) == (key, ItemContent(payload, metadata))


def test_topics_come_back_letter_by_letter_after_a_take_over(shard):
    owner = Owner(shard)
    topics = [new_topic(n + 1, name, namespace=n % 3) for n, name in enumerate(HOSTILE_TOPICS)]
    owner.run(topics_new=topics, inserts=[new_item(topic.number, topic=topic) for topic in topics])
    owner.store.close()
    image = Owner(shard).image
    assert sorted(image.topics) == [(n + 1, n % 3, name.encode()) for n, name in enumerate(HOSTILE_TOPICS)]


def test_every_field_of_a_row_comes_back_at_its_bounds(shard):
    owner = Owner(shard)
    low = new_item(1, topic=new_topic(1), priority=-(1 << 31), due_at=0)
    high = new_item((1 << 64) - 1, topic=new_topic((1 << 31) - 1), priority=(1 << 31) - 1, due_at=(1 << 48) - 1)
    high.lease_ms = limits.LEASE_MS_MAX
    high.at_most_once = True
    owner.run(inserts=[low, high])
    rows = owner.look_up(low.key, high.key)
    assert rows[low.key] == ItemRow(1, 1, -(1 << 31), 0, 1, -(1 << 31), 0, LIFE_MS, 0, 0, 0, 0, None, None, CONTENT)
    top = (1 << 31) - 1
    due = (1 << 48) - 1
    assert rows[high.key] == ItemRow(
        (1 << 64) - 1, top, top, due, top, top, due, due + LIFE_MS, limits.LEASE_MS_MAX, 1, 0, 0, None, None, CONTENT
    )


def test_a_delayed_item_stands_in_the_timer_lane(shard):
    owner = Owner(shard)
    owner.run(inserts=[new_item(1, topic=new_topic(7), priority=-4, due_at=2_000, enqueued_at=1_999)])
    row = owner.look_up(1)[1]
    assert (row.lane, row.urgency, row.due_at, row.topic, row.priority) == (TIMER_LANE, 0, 2_000, 7, -4)


def test_a_transaction_of_many_packets_is_whole(shard):
    owner = Owner(shard)
    count = limits.TRANSACTION_INSERTS_MAX
    owner.run(inserts=[new_item(n, payload=b"x" * 5_000) for n in range(1, count + 1)])
    owner.run(deletes=list(range(1, count + 1, 2)), wakes=[count])
    found = owner.run(refills=[Refill(1, order.FIRST, count)]).refilled[0]
    assert keys_of(found) == list(range(2, count + 1, 2))


# ---- lanes ----


def filled_lane(shard) -> tuple[Owner, list[int]]:
    """Rows of lane 1 in an order that is not the order of their keys; and their keys in the lane's order."""
    owner = Owner(shard)
    sort_keys = [(n * 7 % 5 - 2, 1_000 + n * 3 % 4) for n in range(60)]
    items = [new_item(n + 1, priority=urgency, due_at=due_at) for n, (urgency, due_at) in enumerate(sort_keys)]
    others = [new_item(1_000 + n, topic=new_topic(2), due_at=1_001) for n in range(5)]
    timers = [new_item(2_000 + n, due_at=1_001, enqueued_at=0) for n in range(5)]
    owner.run(inserts=[*items, *others, *timers])
    return owner, [item.key for item in sorted(items, key=lambda item: item.sort_key)]


def test_a_refill_from_the_start_gives_a_lane_in_order(shard):
    owner, expected = filled_lane(shard)
    (found,) = owner.run(refills=[Refill(1, order.FIRST, 1_000)]).refilled
    assert keys_of(found) == expected
    assert [row[:2] for row in found] == sorted(row[:2] for row in found)
    assert {row[3:] for row in found} == {(0, 0)}


@pytest.mark.parametrize("lane", [1, -1])
def test_a_whole_refill_gives_the_same_places_and_what_a_fetch_gives(shard, lane):
    owner, _ = filled_lane(shard)
    owner.run(inserts=[new_item(3_000 + n, payload=data, metadata=data[:512]) for n, data in enumerate(HOSTILE)])
    owner.run(rewrites=[Rewrite(7, lane, -9, 5, 3, 2, b"m", b"r")])
    thin, with_payload = Refill(lane, order.FIRST, 1_000), Refill(lane, order.FIRST, 1_000, with_payload=True)
    result = owner.run(refills=[thin, with_payload, thin])
    sort_keys = result.refilled[0]
    assert [list(map(tuple, found)) for found in result.refilled] == [list(map(tuple, sort_keys))] * 3
    assert set(result.read_ahead) == set(keys_of(sort_keys))
    fetched = owner.run(fetches=[new_item(key) for key in keys_of(sort_keys)]).fetched
    for key, row in result.read_ahead.items():
        assert {name: getattr(fetched[key], name) for name in FetchedRow._fields} == row._asdict()


@pytest.mark.parametrize("fit_count", [0, 3, 5, 8, 9])
def test_contents_are_read_up_to_a_bound_by_what_is_there_and_whole_or_not_at_all(shard, monkeypatch, fit_count):
    owner, size_bytes = Owner(shard), 1_000
    owner.run(inserts=[new_item(key, payload=b"x" * (size_bytes - 1), metadata=b"m") for key in range(1, 9)])
    monkeypatch.setattr(limits, "TRANSACTION_CONTENTS_BYTES_MAX", fit_count * size_bytes)
    with_payload, fetches = Refill(1, order.FIRST, 1_000, with_payload=True), [new_item(key) for key in range(1, 9)]
    result = owner.run(refills=[with_payload], fetches=fetches)
    assert result.unread == set(range(fit_count + 1, 9))
    assert keys_of(result.refilled[0]) == list(range(1, 9))
    for rows in (result.read_ahead, result.fetched):
        assert list(rows) == list(range(1, 9))
        for key, row in rows.items():
            is_read = key <= fit_count
            assert row.content == (ItemContent(b"x" * (size_bytes - 1), b"m") if is_read else NO_CONTENT)
            assert row.expires_at == fetches[0].expires_at


def test_the_place_of_a_row_is_found_by_its_number_from_an_edge(shard):
    owner = Owner(shard)
    owner.run(
        inserts=[new_item(n, priority=n % 3, due_at=n // 2) for n in range(1, 9)] + [new_item(9, topic=new_topic(2))]
    )
    (found,) = owner.run(refills=[Refill(1, order.FIRST, 100)]).refilled
    sort_keys = [sort_key_of(row) for row in found]
    assert [owner.store.sort_key_after(1, order.FIRST, n + 1) for n in range(8)] == sort_keys
    assert [owner.store.sort_key_after(1, sort_keys[2], n + 1) for n in range(5)] == sort_keys[3:]
    assert owner.store.sort_key_after(1, order.FIRST, 9) is None
    assert owner.store.sort_key_after(1, sort_keys[-1], 1) is None


@pytest.mark.parametrize("limit", [1, 7, 59, 60, 61])
def test_refills_from_edge_to_edge_leave_nothing_out_and_repeat_nothing(shard, limit):
    owner, expected = filled_lane(shard)
    seen, edge = [], order.FIRST
    while True:
        (found,) = owner.run(refills=[Refill(1, edge, limit)]).refilled
        assert len(found) <= limit
        seen += keys_of(found)
        if len(found) < limit:
            break
        edge = sort_key_of(found[-1])
    assert seen == expected


def test_an_edge_need_not_be_a_row(shard):
    owner, _ = filled_lane(shard)
    with_payload = owner.run(refills=[Refill(1, order.FIRST, 1_000)]).refilled[0]
    for edge in (
        order.sort_key(-2, 0, 0, 0),
        order.sort_key(-1, 1_001, 30, 0),
        order.sort_key(0, (1 << 48) - 1, (1 << 64) - 1, 0),
        order.sort_key(1, 1_002, 0, (1 << 16) - 1),
        order.sort_key(1 << 20, 0, 0, 0),
    ):
        (found,) = owner.run(refills=[Refill(1, edge, 1_000)]).refilled
        before = (order.urgency_of(edge), order.due_at_of(edge), order.key_of(edge))
        assert found == [row for row in with_payload if row[:3] > before]


def test_the_timer_lane_gives_topic_and_priority_by_due_time(shard):
    owner = Owner(shard)
    topics = {number: new_topic(number) for number in (1, 2)}
    items = [
        new_item(n, topic=topics[n % 2 + 1], priority=-n, due_at=5_000 - n % 10, enqueued_at=0) for n in range(1, 41)
    ]
    owner.run(inserts=items)
    expected = [(0, item.due_at, item.key, item.topic.number, item.priority) for item in items]
    expected.sort()
    seen, edge = [], order.FIRST
    while True:
        (found,) = owner.run(refills=[Refill(TIMER_LANE, edge, 7)]).refilled
        seen += [tuple(row) for row in found]
        if len(found) < 7:
            break
        edge = sort_key_of(found[-1])
    assert seen == expected


def test_several_refills_answer_in_their_order(shard):
    owner, expected = filled_lane(shard)
    found = owner.run(
        refills=[Refill(2, order.FIRST, 9), Refill(99, order.FIRST, 9), Refill(1, order.FIRST, 3)]
    ).refilled
    assert [keys_of(rows) for rows in found] == [[1_000, 1_001, 1_002, 1_003, 1_004], [], expected[:3]]


def test_a_refill_sees_no_row_of_its_own_transaction(shard):
    owner = Owner(shard)
    owner.run(inserts=[new_item(1), new_item(2)])
    result = owner.run(refills=[Refill(1, order.FIRST, 9)], inserts=[new_item(3)], deletes=[1])
    assert keys_of(result.refilled[0]) == [1, 2]
    assert keys_of(owner.run(refills=[Refill(1, order.FIRST, 9)]).refilled[0]) == [2, 3]


# ---- changes of rows ----


@pytest.mark.parametrize("data", HOSTILE)
def test_a_rewrite_gives_a_row_its_place_and_texts(shard, data):
    owner = Owner(shard)
    owner.run(inserts=[new_item(1, metadata=b"old"), new_item(2, metadata=b"old")])
    owner.run(
        rewrites=[
            Rewrite(2, TIMER_LANE, 0, 9_000, 4, 3, metadata=data),
            Rewrite(1, -1, 0, 8_000, 5, 2, metadata=None, death_reason=data[:255]),
        ]
    )
    rows = owner.look_up(1, 2)
    assert (rows[1].lane, rows[1].urgency, rows[1].due_at) == (-1, 0, 8_000)
    assert (rows[1].deliveries, rows[1].failed_attempts) == (5, 2)
    assert (rows[1].content.metadata, rows[1].death_reason) == (b"old", data[:255])
    assert (rows[2].lane, rows[2].due_at, rows[2].content.metadata, rows[2].death_reason) == (0, 9_000, data, None)
    owner.run(rewrites=[Rewrite(1, 1, 0, 8_500, 5, 0)])
    row = owner.look_up(1)[1]
    assert (row.lane, row.failed_attempts, row.content.metadata, row.death_reason) == (1, 0, b"old", data[:255])


@pytest.mark.parametrize("count", [1, 2_500])
def test_a_rewrite_in_place_leaves_the_place_alone(shard, count):
    owner = Owner(shard)
    owner.run(inserts=[new_item(n, priority=n % 5, metadata=b"old") for n in range(1, count + 3)])
    rewrites = [Rewrite(n, 1, n % 5, 1_000, n % 3 + 1, n % 2, is_in_place=True) for n in range(1, count + 1)]
    rewrites += [Rewrite(count + 1, 1, (count + 1) % 5, 1_000, 3, 2, b"new", is_in_place=True)]
    before = owner.look_up(*range(1, count + 3))
    owner.run(rewrites=rewrites)
    after = owner.look_up(*range(1, count + 3))
    for n in range(1, count + 1):
        assert after[n] == before[n]._replace(deliveries=n % 3 + 1, failed_attempts=n % 2)
    changed = before[count + 1]._replace(deliveries=3, failed_attempts=2, content=ItemContent(b"p", b"new"))
    assert after[count + 1] == changed
    assert after[count + 2] == before[count + 2]


def test_a_wake_puts_a_delayed_row_where_its_topic_and_priority_say(shard):
    owner = Owner(shard)
    items = [new_item(n, topic=new_topic(7), priority=n % 5 - 2, due_at=2_000, enqueued_at=0) for n in range(1, 2_501)]
    owner.run(inserts=items[:2_000])
    owner.run(inserts=items[2_000:])
    owner.run(wakes=[item.key for item in reversed(items)])
    (woken,) = owner.run(refills=[Refill(7, order.FIRST, 3_000)]).refilled
    assert [row[:3] for row in woken] == sorted((item.priority, 2_000, item.key) for item in items)
    assert owner.run(refills=[Refill(TIMER_LANE, order.FIRST, 10)]).refilled == [[]]


def test_a_wake_in_place_puts_a_delayed_row_before_all_of_its_priority(shard):
    owner = Owner(shard)
    due = {1: 2_000, 2: 2_000, 3: 2_000, 4: 0}
    topic = new_topic(7)
    owner.run(inserts=[new_item(n, topic=topic, priority=n % 2, due_at=at, enqueued_at=0) for n, at in due.items()])
    owner.run(wakes=[3], wakes_in_place=[2, 1])
    (woken,) = owner.run(refills=[Refill(7, order.FIRST, 10)]).refilled
    assert [row[:3] for row in woken] == [(0, 0, 2), (0, 0, 4), (1, 0, 1), (1, 2_000, 3)]


def test_a_delete_takes_what_it_names_in_any_order_and_nothing_in_between(shard):
    owner = Owner(shard)
    owner.run(inserts=[new_item(n) for n in range(1, 11)])
    owner.run(deletes=[9, 3, 1])
    assert sorted(owner.look_up(*range(1, 100))) == [2, 4, 5, 6, 7, 8, 10]


def test_a_delete_of_what_is_not_there_does_nothing_and_the_owner_has_to_read_the_shard_anew(shard):
    """An owner names rows that it knows. One that is gone was taken by somebody else, and others may be as well."""
    owner = Owner(shard)
    owner.run(inserts=[new_item(n) for n in (1, 2, 3)])
    with pytest.raises(OwnershipLostError, match="does not have all rows"):
        owner.run(deletes=[3, 77, 1])
    owner.store.close()
    assert sorted(Owner(shard).look_up(1, 2, 3)) == [1, 2, 3]


def test_topics_come_and_go(shard):
    owner = Owner(shard)
    owner.run(topics_new=[new_topic(1, "a"), new_topic(2, "b")], topic_number_last=2)
    owner.run(topics_gone=[1], topics_new=[new_topic(3, "a")], topic_number_last=3)
    owner.store.close()
    image = Owner(shard).image
    assert sorted(image.topics) == [(2, 1, b"b"), (3, 1, b"a")]
    assert image.topic_number_last == 3


def test_look_ups_see_their_own_transaction(shard):
    owner = Owner(shard)
    owner.run(inserts=[new_item(n) for n in (1, 2, 3)])
    result = owner.run(
        inserts=[new_item(4)],
        rewrites=[Rewrite(2, -1, 0, 9, 1, 1, death_reason=b"why")],
        deletes=[3],
        look_ups=[4, 3, 2, 1, 99],
        look_ups_with_payload=True,
    )
    assert sorted(result.looked_up) == [1, 2, 4]
    assert (result.looked_up[2].lane, result.looked_up[2].death_reason) == (-1, b"why")
    assert result.looked_up[4].content.payload == b"p"


def test_look_ups_that_are_not_whole_read_no_contents(shard):
    owner = Owner(shard)
    owner.run(inserts=[new_item(1, payload=b"p", metadata=b"m")])
    (with_payload,) = owner.look_up(1).values()
    (head,) = owner.run(look_ups=[1]).looked_up.values()
    assert with_payload.content == ItemContent(b"p", b"m")
    assert head == with_payload._replace(content=NO_CONTENT)


def test_look_ups_of_more_than_one_statement_all_answer(shard):
    owner = Owner(shard)
    count = limits.TRANSACTION_INSERTS_MAX
    owner.run(inserts=[new_item(n) for n in range(1, count + 1)])
    assert sorted(owner.look_up(*range(count, 0, -1))) == list(range(1, count + 1))


# ---- counts, clock, failures ----


def test_the_counts_are_those_of_the_take_over_whenever_they_are_asked(shard):
    owner = Owner(shard)
    topics = [new_topic(1), new_topic(2)]
    ready = [new_item(n, topic=topics[n % 2]) for n in range(1, 31)]
    delayed = [new_item(n, topic=topics[0], enqueued_at=0) for n in range(31, 38)]
    owner.run(inserts=[*ready, *delayed])
    owner.run(rewrites=[Rewrite(1, -2, 0, 9, 1, 1)])
    owner.store.close()
    owner = Owner(shard)
    owner.run(inserts=[new_item(100)], deletes=[2, 4, 31])
    counts = owner.image.count()
    assert sorted(counts.lanes) == [(-2, 1), (0, 7), (1, 15), (2, 14)]
    assert sorted(counts.delayed) == [(1, 7)]


def test_a_page_of_the_ttl_scan_has_what_has_expired_and_what_will_dead_letters_excepted(shard, monkeypatch):
    monkeypatch.setattr(limits, "EXPIRY_SCAN_ITEMS", 4)
    owner = Owner(shard)
    topic = new_topic(1)
    # By key: ready, delayed, dead, ready; then two more.
    items = [new_item(key, topic=topic, enqueued_at=0 if key == 2 else None) for key in range(1, 7)]
    for item, expires_at in zip(items, [5_000, 4_000, 3_000, 6_000, 9_000, 8_000], strict=True):
        item.expires_at = expires_at
    owner.run(inserts=items)
    owner.run(rewrites=[Rewrite(3, -1, 0, 9, 1, 1)])
    with shard.reader(owner.store) as reader:
        assert reader.expired_page(0, 3_999)() == ([], 4, 4_000)
        assert reader.expired_page(0, 4_000)() == ([2], 4, 4_000)
        assert reader.expired_page(0, 5_999)() == ([1, 2], 4, 4_000)
        assert reader.expired_page(4, 5_999)() == ([], 6, 8_000)
        assert reader.expired_page(6, 5_999)() == ([], 0, limits.NEVER_MS)
        assert reader.expired_page(2, 5_999)() == ([], 6, 6_000)
        owner.run(deletes=[1, 2, 4, 5, 6])
        assert reader.expired_page(0, 99_000)() == ([], 3, limits.NEVER_MS)


def test_a_transaction_tells_how_long_its_refills_and_fetches_took(shard):
    owner = Owner(shard)
    items = [new_item(n) for n in range(1, 6)]
    owner.run(topics_new=[new_topic(1)], topic_number_last=1, inserts=items)
    for reads in ({"refills": [Refill(1, order.FIRST, 10)]}, {"fetches": items[:1]}):
        assert 0 < owner.run(**reads).read_us < 60_000_000


def test_the_clock_is_the_time_of_day_and_does_not_stand_still(shard):
    owner = Owner(shard)
    first = asyncio.run(owner.store.now_ms())
    assert abs(first - time.time_ns() // 1_000_000) < 60_000
    assert abs(owner.image.now_ms - first) < 60_000
    deadline = time.monotonic() + PATIENCE_S
    while asyncio.run(owner.store.now_ms()) == first:
        assert time.monotonic() < deadline


def test_a_sound_server_has_no_problems(shard):
    assert Owner(shard).store.check() == []


@pytest.mark.parametrize("large", [False, True])
def test_a_transaction_that_fails_leaves_nothing_and_the_next_one_works(shard, large):
    owner = Owner(shard)
    owner.run(topics_new=[new_topic(1)], inserts=[new_item(n) for n in range(1, 6)], topic_number_last=1)
    before = owner.look_up(*range(1, 6))
    payload = b"x" * (limits.PACKET_BYTES_MAX // 4) if large else b"x"
    inserts = [new_item(n, payload=payload) for n in range(10, 20)]
    with pytest.raises(TransactionFailedError):
        owner.run(
            topics_new=[new_topic(2)],
            topic_number_last=2,
            inserts=[*inserts, new_item(5)],
            rewrites=[Rewrite(1, -1, 0, 9, 1, 1)],
            deletes=[2],
            claims=[ClaimEntries(10_001, 5, [new_item(3)])],
        )
    with pytest.raises(TransactionFailedError):
        owner.run(deletes=[3, 4], claims=[ClaimEntries(9, 1, []), ClaimEntries(9, 1, [])])
    with pytest.raises(TransactionFailedError):
        owner.run(topics_gone=[1], topics_new=[new_topic(8, "same"), new_topic(9, "same")])
    assert owner.look_up(*range(1, 20)) == before
    owner.store.close()
    image = Owner(shard).image
    assert (image.transaction_number, image.topic_number_last) == (owner.number, 0)
    assert (image.topics, image.claims) == ([(1, 1, b"t")], [])


def test_a_transaction_that_met_a_deadlock_has_left_nothing_and_may_be_run_again(shard):
    owner = Owner(shard)
    owner.run(topics_new=[new_topic(1)], inserts=[new_item(n) for n in range(1, 6)], topic_number_last=1)
    before = owner.look_up(*range(1, 6))
    parts = {
        "inserts": [new_item(n) for n in range(10, 20)],
        "rewrites": [Rewrite(1, -1, 0, 9, 1, 1)],
        "deletes": [2, 3],
        "claims": [ClaimEntries(10_001, 5, [new_item(4)])],
    }
    with shard.deadlock(3), pytest.raises(DeadlockError):
        owner.run(**parts)
    assert owner.look_up(*range(1, 20)) == before
    owner.run(**parts)
    assert sorted(owner.look_up(*range(1, 20))) == [1, 4, 5, *range(10, 20)]


def test_a_transaction_that_waited_too_long_for_a_lock_has_left_nothing(shard):
    owner = Owner(shard)
    owner.run(topics_new=[new_topic(1)], inserts=[new_item(n) for n in range(1, 6)], topic_number_last=1)
    before = owner.look_up(*range(1, 6))
    with shard.row_locked(owner.store, 3):
        with pytest.raises(TransactionFailedError) as caught:
            owner.run(inserts=[new_item(10)], rewrites=[Rewrite(1, -1, 0, 9, 1, 1)], deletes=[2, 3])
        assert not isinstance(caught.value, DeadlockError)
    assert owner.look_up(*range(1, 20)) == before
    owner.store.close()
    assert Owner(shard).image.transaction_number == owner.number

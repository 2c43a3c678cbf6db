"""What every reader must hold of exports: rows and packed items by their keys, each once, whatever moves meanwhile."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

import pytest

from foqs.model import limits
from foqs.model.calls import ItemContent, ItemState
from foqs.shard.port import ItemRow, Rewrite
from foqs.storage.shard import export_pages
from foqs.storage.shard.export_pages import ExportCriteria, KeyPage, even_bounds
from foqs.storage.shard.packs import pack_index
from tests.contract.owner import Owner, Reader, new_item, new_topic

END = 1 << 50
ALL = frozenset(ItemState)
HELD = frozenset({ItemState.READY, ItemState.LEASED})


def criteria(after_key: int = 0, to_key: int = END, **changes: object) -> ExportCriteria:
    whole = ExportCriteria(
        after_key, to_key, 1_000, limits.PAGE_BYTES_MAX, ALL, frozenset({1}), 1, b"", False, True, True
    )
    return whole._replace(**changes)  # type: ignore[arg-type]


def no_topic(_: int) -> bool:
    raise AssertionError("the criteria name the topics")


def walk(reader: Reader, first: ExportCriteria, between: Callable[[], None] = lambda: None) -> Iterator[ItemRow]:
    """All pages, one after the other."""
    after_key = first.after_key
    while after_key < first.to_key:
        page = reader.export_page(first._replace(after_key=after_key), no_topic)()
        assert after_key < page.up_to <= first.to_key, "each page gets on"
        yield from page.rows
        after_key = page.up_to
        between()


def walk_named(reader: Reader, first: ExportCriteria) -> Iterator[ItemRow]:
    """The same of criteria that name their keys, which are fewer with each page."""
    assert first.keys is not None
    keys, up_to = first.keys
    after_key = 0
    while after_key < up_to:
        rest = ([key for key in keys if key > after_key], up_to)
        page = reader.export_page(first._replace(after_key=after_key, keys=rest), no_topic)()
        assert after_key < page.up_to
        yield from page.rows
        after_key = page.up_to


def keys_of(reader: Reader, first: ExportCriteria) -> list[int]:
    return [row.key for row in walk(reader, first)]


@contextmanager
def mixed(shard) -> Iterator[tuple[Owner, Reader]]:
    """Topic 1: rows 1, 4, ... and packed items 2, 5, ...; topic 2: 3, 6, ... up to 60; then one delayed, one dead."""
    owner = Owner(shard)
    owner.run(
        topics_new=[new_topic(1), new_topic(2, "other", namespace=2)],
        inserts=[new_item(key, due_at=2_000 - key) for key in range(1, 60, 3)],
    )
    items = [new_item(key, due_at=2_000 - key) for key in range(2, 60, 3)]
    assert owner.run(inserts_short_lived=items).packed_count == len(items)
    owner.run(inserts=[new_item(key, topic=new_topic(2)) for key in range(3, 61, 3)])
    owner.run(
        inserts=[new_item(70, due_at=9_000, enqueued_at=1_000), new_item(71)],
        rewrites=[Rewrite(4, -1, 0, 5_000, 1, 1, death_reason=b"why")],
    )
    with shard.reader(owner.store) as reader:
        yield owner, reader


IN_ALL = sorted([*range(1, 60, 3), *range(2, 60, 3), 70, 71])


@pytest.mark.parametrize("by_lane", [False, True])
@pytest.mark.parametrize("limit", [1, 7, 1_000])
def test_rows_and_packed_items_come_by_their_keys_each_once(shard, by_lane, limit):
    with mixed(shard) as (_, reader):
        assert keys_of(reader, criteria(limit=limit, by_lane=by_lane)) == IN_ALL
        assert keys_of(reader, criteria(limit=limit, by_lane=by_lane, topics=frozenset({2}))) == [*range(3, 61, 3)]
        assert keys_of(reader, criteria(10, 50, limit=limit, by_lane=by_lane)) == [k for k in IN_ALL if 10 < k <= 50]


@pytest.mark.parametrize("by_lane", [False, True])
def test_only_the_states_that_are_wanted_come(shard, by_lane):
    with mixed(shard) as (_, reader):

        def of(*states: ItemState) -> list[int]:
            return keys_of(reader, criteria(states=frozenset(states), by_lane=by_lane))

        assert of(ItemState.DELAYED) == [70]
        assert of(ItemState.DEAD) == [4]
        assert of(ItemState.DEAD, ItemState.DELAYED) == [4, 70]
        # Who has which of them under lease, the shard's state alone knows.
        assert of(ItemState.READY) == of(ItemState.LEASED) == [key for key in IN_ALL if key not in (4, 70)]


def test_only_the_keys_that_are_named_come_from_rows_and_packs(shard):
    with mixed(shard) as (_, reader):
        named = criteria(keys=([2, 7, 8, 50, 200], 60))
        page = reader.export_page(named, no_topic)()
        assert ([row.key for row in page.rows], page.up_to) == ([2, 7, 8, 50], 60)
        small = criteria(keys=([2, 7, 8], 8), bytes_max=1)
        assert [row.key for row in walk_named(reader, small)] == [2, 7, 8]
        assert reader.export_page(criteria(keys=([], END)), no_topic)() == KeyPage([], END)


def test_a_whole_namespace_comes_without_the_numbers_of_its_topics(shard):
    with mixed(shard) as (owner, reader):
        owner.run(
            topics_new=[new_topic(3, "u"), new_topic(4, "tea")],
            inserts=[new_item(80, topic=new_topic(3)), new_item(81, topic=new_topic(4))],
        )
        packed = [new_item(key, topic=new_topic(4)) for key in range(90, 99)]
        assert owner.run(inserts_short_lived=packed).packed_count == len(packed)

        def of(prefix: bytes, *numbers: int) -> list[int]:
            of_namespace = criteria(topics=None, namespace=1, prefix=prefix)
            return [row.key for row in reader.export_page(of_namespace, numbers.__contains__)().rows]

        assert of(b"", 1, 3, 4) == [*IN_ALL, 80, 81, *range(90, 99)]
        assert of(b"t", 1, 4) == [*IN_ALL, 81, *range(90, 99)]
        assert of(b"te", 4) == [81, *range(90, 99)]
        assert of(b"tea!") == []


def test_contents_come_as_far_as_they_are_wanted(shard):
    owner = Owner(shard)
    give = {"payload": b"p" * 50, "metadata": b"m" * 5, "trace_context": b"t"}
    owner.run(inserts=[new_item(key, **give) for key in range(1, 10)])
    owner.run(inserts_short_lived=[new_item(key, **give) for key in range(11, 20)])
    with shard.reader(owner.store) as reader:
        for payload, metadata in ((b"p" * 50, b"m" * 5), (b"", b"m" * 5), (b"p" * 50, b""), (b"", b"")):
            first = criteria(with_payload=bool(payload), with_metadata=bool(metadata))
            rows = reader.export_page(first, no_topic)().rows
            assert {row.content for row in rows} == {ItemContent(payload, metadata, b"t")}
            assert len(rows) == 18


def test_every_field_of_a_row_comes(shard):
    with mixed(shard) as (owner, reader):
        rows = {row.key: row for row in walk(reader, criteria())}
        assert rows == owner.look_up(*IN_ALL)
        assert rows[4].death_reason == b"why"


@pytest.mark.parametrize("by_lane", [False, True])
def test_a_page_has_no_more_bytes_than_it_may_but_for_one_large_item(shard, by_lane):
    owner = Owner(shard)
    owner.run(inserts=[new_item(key, payload=b"x" * 100) for key in range(1, 21, 2)])
    owner.run(inserts_short_lived=[new_item(key, payload=b"x" * 100) for key in range(2, 21, 2)])
    with shard.reader(owner.store) as reader:
        pages = []
        for bytes_max in (350, 1):
            page = reader.export_page(criteria(bytes_max=bytes_max, by_lane=by_lane), no_topic)()
            pages.append(([row.key for row in page.rows], page.up_to))
            assert keys_of(reader, criteria(bytes_max=bytes_max, by_lane=by_lane)) == list(range(1, 21))
        assert pages == [([1, 2, 3], 3), ([1], 1)]


def test_a_page_looks_at_few_of_the_items_that_it_does_not_want(shard, monkeypatch):
    monkeypatch.setattr(export_pages, "SCAN_ROWS", 10)
    monkeypatch.setattr(pack_index, "EXPORT_SCANNED_MAX", 10)
    owner = Owner(shard)
    for first in range(100, 1_000, 100):
        owner.run(inserts=[new_item(key, topic=new_topic(2)) for key in range(first, first + 20)])
        owner.run(inserts_short_lived=[new_item(key, topic=new_topic(2)) for key in range(first + 20, first + 40)])
    owner.run(inserts=[new_item(2_000)])
    with shard.reader(owner.store) as reader:
        assert keys_of(reader, criteria()) == [2_000]
        assert len(keys_of(reader, criteria(topics=frozenset({2})))) == 9 * 40


def test_an_item_that_gets_its_row_while_a_page_is_read_comes_once_as_it_is_now(shard):
    owner = Owner(shard)
    owner.run(inserts_short_lived=[new_item(key) for key in range(1, 10)])
    with shard.reader(owner.store) as reader:
        read = reader.export_page(criteria(), no_topic)
        owner.run(rewrites=[Rewrite(key, 1, 0, 1_000, 1, 1, is_in_place=True) for key in (3, 4)])
        rows = read().rows
        assert [(row.key, row.deliveries) for row in rows] == [(n, int(n in (3, 4))) for n in range(1, 10)]


def test_a_new_owner_goes_on_where_the_last_one_was(shard):
    owner = Owner(shard)
    owner.run(inserts_short_lived=[new_item(key) for key in range(1, 30)])
    with shard.reader(owner.store) as reader:
        first = reader.export_page(criteria(limit=10), no_topic)()
    owner.store.close()
    owner = Owner(shard)
    with shard.reader(owner.store) as reader:
        rest = keys_of(reader, criteria(first.up_to, limit=10))
    assert [*[row.key for row in first.rows], *rest] == list(range(1, 30))


@pytest.mark.parametrize("seed", range(4))
def test_what_stays_comes_exactly_once_and_nothing_new_comes_whatever_happens_meanwhile(shard, monkeypatch, seed):
    chance = random.Random(seed)
    monkeypatch.setattr(export_pages, "SCAN_ROWS", 30)
    monkeypatch.setattr(pack_index, "EXPORT_SCANNED_MAX", 20)
    monkeypatch.setattr(pack_index, "PACKED_ITEMS_KEPT_MAX", 0)
    monkeypatch.setattr(pack_index, "PACK_MS_MAX", 200)
    monkeypatch.setattr(pack_index, "PROMOTE_OLD_ITEMS", 3)
    owner, keys, there, step = Owner(shard), count(1), dict[int, int](), count(1)
    owner.run(topics_new=[new_topic(1)])

    def insert() -> None:
        items = [new_item(next(keys), due_at=chance.randrange(1_000, 2_000)) for _ in range(chance.choice([5, 25]))]
        owner.run(**{chance.choice(["inserts", "inserts_short_lived"]): items}, steady_ms=10 * next(step))
        there.update({item.key: 1 for item in items})

    for _ in range(8):
        insert()
    stay = set(chance.sample(sorted(there), len(there) // 2))
    last_key, gone = max(there), set[int]()

    def happen() -> None:
        if chance.random() < 0.5:
            insert()
        moved = chance.sample(sorted(there), min(len(there), 6))
        deletes = [key for key in moved[:3] if key not in stay]
        # Delayed, dead, ready again, and in another place of the order.
        lanes = {key: chance.choice([0, -1, 1]) for key in moved[3:]}
        rewrites = [Rewrite(key, lane, 0, chance.randrange(3_000), 1, 1) for key, lane in lanes.items()]
        owner.run(deletes=deletes, rewrites=rewrites, steady_ms=10 * next(step))
        for key in deletes:
            del there[key]
        gone.update(deletes)

    with shard.reader(owner.store) as reader:
        first = criteria(to_key=last_key, limit=chance.choice([3, 8, 50]), by_lane=seed % 2 == 1)
        found = [row.key for row in walk(reader, first, happen)]
    assert found == sorted(set(found)), "each once, in order"
    assert stay <= set(found)
    assert max(found) <= last_key
    assert set(found) <= stay | gone | set(there)


def test_a_page_of_nothing_ends_the_walk(shard):
    owner = Owner(shard)
    owner.run(inserts=[new_item(5)])
    with shard.reader(owner.store) as reader:
        for nothing in (
            criteria(topics=frozenset()),
            criteria(topics=frozenset({9})),
            criteria(5),
            criteria(to_key=4),
            criteria(7, 7),
        ):
            assert reader.export_page(nothing, no_topic)() == KeyPage([], nothing.to_key)


# ---- splits ----


def test_splits_have_about_as_many_items_each_wherever_the_keys_are(shard):
    owner = Owner(shard)
    epoch = 1 << 40
    owner.run(inserts=[new_item(epoch + n) for n in range(1, 1_001)])
    owner.run(inserts=[new_item(3 * epoch + 50 * n) for n in range(1, 1_001)])
    for first in range(0, 400, 40):
        packed = [new_item(4 * epoch + n) for n in range(first + 1, first + 41)]
        assert owner.run(inserts_short_lived=packed).packed_count == len(packed)
    end = 4 * epoch + 400
    with shard.reader(owner.store) as reader:
        cells = reader.sample_keys(end)()
        bounds = even_bounds(cells, end, 6)
        assert [low for low, _, _ in bounds] == [0, *[high for _, high, _ in bounds[:-1]]]
        assert bounds[-1][1] == end
        assert sum(share for _, _, share in bounds) == pytest.approx(1)
        counts = [len(keys_of(reader, criteria(low, high))) for low, high, _ in bounds]
    assert (len(counts), sum(counts)) == (6, 2_400)
    assert all(300 <= found <= 500 for found in counts), counts


def test_an_empty_shard_has_one_split(shard):
    owner = Owner(shard)
    with shard.reader(owner.store) as reader:
        assert even_bounds(reader.sample_keys(END)(), END, 8) == [(0, END, 1.0)]

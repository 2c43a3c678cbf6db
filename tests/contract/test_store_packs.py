"""What every store of a shard must hold of packs: items without rows, until they leave or another owner comes."""

from __future__ import annotations

import pytest

from foqs.model import limits, order
from foqs.model.calls import ItemContent
from foqs.shard.port import (
    ClaimEntries,
    ItemRow,
    NewPack,
    OwnershipLostError,
    PackRead,
    Refill,
    Rewrite,
    SessionLostError,
    Tombstone,
    TransactionFailedError,
)
from tests.contract.owner import LIFE_MS, Owner, new_item, new_topic, opened
from tests.contract.test_store import CONTENT, HOSTILE


def packed(owner: Owner, keys: range, pack_id: int = 100) -> list:
    items = [new_item(key, payload=b"p%d" % key, metadata=b"m%d" % key, trace_context=b"t%d" % key) for key in keys]
    owner.run(packs_new=[NewPack(pack_id, items)])
    return items


def ready_keys(owner: Owner) -> list[int]:
    return [row[2] for row in owner.run(refills=[Refill(1, order.FIRST, 10_000)]).refilled[0]]


def taken_over(shard, owner: Owner) -> Owner:
    owner.store.close()
    return Owner(shard)


def test_packed_items_come_back_byte_for_byte_when_they_are_read(shard):
    owner = Owner(shard)
    items = [new_item(n + 1, payload=data, metadata=data[:512]) for n, data in enumerate(HOSTILE)]
    owner.run(packs_new=[NewPack(100, items)])
    keys = [item.key for item in items]
    rows = owner.run(packs_read=[PackRead(100, keys)]).fetched
    assert [rows[key].content for key in keys] == [ItemContent(data, data[:512]) for data in HOSTILE]


def test_every_field_of_a_packed_item_comes_back_at_its_bounds(shard):
    owner = Owner(shard)
    low = new_item(1, priority=-(1 << 31), due_at=0)
    high = new_item(
        (1 << 64) - 1, topic=new_topic((1 << 31) - 1), priority=(1 << 31) - 1, due_at=(1 << 48) - 1,
        metadata=b"m" * limits.METADATA_BYTES_MAX,
    )  # fmt: skip
    high.lease_ms = limits.LEASE_MS_MAX
    high.at_most_once = True
    owner.run(packs_new=[NewPack((1 << 64) - 2, [low, high])])
    rows = owner.run(packs_read=[PackRead((1 << 64) - 2, [low.key, high.key])]).fetched
    assert rows[low.key] == ItemRow(1, 1, -(1 << 31), 0, 1, -(1 << 31), 0, LIFE_MS, 0, 0, 0, 0, None, CONTENT)
    top, due = (1 << 31) - 1, (1 << 48) - 1
    assert rows[high.key] == ItemRow(
        (1 << 64) - 1, top, top, due, top, top, due, due + LIFE_MS, limits.LEASE_MS_MAX, 1, 0, 0, None,
        high.content,
    )  # fmt: skip


def test_no_query_on_rows_finds_a_packed_item(shard):
    owner = Owner(shard)
    packed(owner, range(1, 10))
    assert owner.look_up(*range(1, 10)) == {}
    assert ready_keys(owner) == []
    with shard.reader() as reader:
        assert reader.expired_page(0, 10 * LIFE_MS).keys == []


def test_an_unpacked_item_has_a_row_for_all_that_follows_in_its_transaction(shard):
    owner = Owner(shard)
    packed(owner, range(1, 10))
    result = owner.run(
        packs_read=[PackRead(100, [2, 3, 4])],
        promoted=[2, 3, 4],
        tombstone=Tombstone(101, [2, 3, 4]),
        rewrites=[Rewrite(3, 1, 7, 900, 1, 1, b"other")],
        deletes=[4],
        look_ups=[2, 3, 4, 5],
        look_ups_with_payload=True,
    )
    assert list(result.promoted) == [2, 3, 4]
    rows = result.looked_up
    assert sorted(rows) == [2, 3]
    assert (rows[2].content, rows[2].deliveries) == (ItemContent(b"p2", b"m2", b"t2"), 0)
    assert (rows[3].content, rows[3].deliveries, rows[3].due_at) == (ItemContent(b"p3", b"other", b"t3"), 1, 900)
    assert ready_keys(owner) == [2, 3]


def test_a_new_owner_finds_rows_of_all_that_has_not_left(shard):
    owner = Owner(shard)
    packed(owner, range(1, 10), 100)
    packed(owner, range(11, 20), 101)
    packed(owner, range(21, 30), 102)
    owner.run(tombstone=Tombstone(103, [1, 11, 12]))
    owner.run(packs_read=[PackRead(101, [13])], promoted=[13], tombstone=Tombstone(104, [13, 14]), packs_gone=[102])
    owner = taken_over(shard, owner)
    left = [*range(2, 10), 13, *range(15, 20)]
    assert ready_keys(owner) == left
    assert owner.image.count().lanes == [(1, len(left))]
    assert owner.look_up(9)[9].content == ItemContent(b"p9", b"m9", b"t9")
    owner.run(deletes=left)
    assert ready_keys(taken_over(shard, owner)) == []


def test_a_tombstone_goes_when_its_packs_are_gone_and_nothing_comes_back(shard):
    owner = Owner(shard)
    packed(owner, range(1, 10), 100)
    owner.run(tombstone=Tombstone(101, [1, 2]))
    packed(owner, range(11, 20), 102)
    owner.run(packs_gone=[100], tombstone=Tombstone(103, [11]))
    owner.run(tombstones_gone=[101], deletes=[999])
    assert ready_keys(taken_over(shard, owner)) == list(range(12, 20))


def test_a_new_owners_name_is_there_before_packs_are_unpacked_and_who_dies_meanwhile_leaves_them(shard, monkeypatch):
    one = Owner(shard, "one")
    packed(one, range(1, 10))
    one.run(tombstone=Tombstone(200, [3]))
    one.store.close()
    two = shard.store("two")

    def die() -> None:
        """As by kill -9, after somebody else had a look."""
        with pytest.raises(OwnershipLostError, match="is owned by 'two'"):
            shard.store("three").open()
        raise SessionLostError("killed")

    monkeypatch.setattr(two, "_promote_all", die)
    with pytest.raises(SessionLostError):
        opened(two)
    three = Owner(shard, "three")
    assert three.image.epoch > two.epoch
    assert ready_keys(three) == [1, 2, *range(4, 10)]
    assert three.look_up(1)[1].content.payload == b"p1"


def test_the_claim_of_a_packed_item_is_honoured_by_the_next_owner(shard):
    owner = Owner(shard)
    items = packed(owner, range(1, 10))
    owner.run(claims=[ClaimEntries(101, 5_000, items[:2])])
    image = taken_over(shard, owner).image
    assert image.claims == [(101, 5_000, False, [(1, 1), (2, 1)])]
    assert sorted(image.claimed_rows) == [1, 2]


def test_nothing_of_a_transaction_is_done_when_its_pack_is_refused(shard):
    owner = Owner(shard)
    items = packed(owner, range(1, 10))
    owner.run(inserts=[new_item(50)])
    with pytest.raises(TransactionFailedError):
        owner.run(
            packs_new=[NewPack(100, [new_item(key) for key in range(60, 70)])],
            tombstone=Tombstone(101, [items[0].key]),
            deletes=[50],
        )
    owner = taken_over(shard, owner)
    assert ready_keys(owner) == [*range(1, 10), 50]


def test_many_packs_of_many_items_are_taken_over(shard):
    owner = Owner(shard)
    count = 900
    for number in range(4):
        first = number * 10_000 + 1
        items = [new_item(key, payload=b"x" * 600) for key in range(first, first + count)]
        owner.run(
            packs_new=[NewPack(first + count, items)],
            tombstone=Tombstone(first + count + 1, [first]) if number else None,
        )
    owner = taken_over(shard, owner)
    firsts = {number * 10_000 + 1 for number in range(1, 4)}
    expected = [key for number in range(4) for key in range(number * 10_000 + 1, number * 10_000 + 1 + count)]
    assert ready_keys(owner) == [key for key in expected if key not in firsts]

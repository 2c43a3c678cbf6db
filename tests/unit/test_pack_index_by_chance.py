"""An index of packs by chance: items are in a row or in a pack, and are read as if all had rows."""

from __future__ import annotations

import random
from itertools import islice

import pytest

from foqs.model import limits, order
from foqs.model.item import ShardItem
from foqs.shard.port import Refill, Transaction, TransactionResult
from foqs.storage.shard.packs import pack_index
from foqs.storage.shard.packs.pack import PackPlan
from foqs.storage.shard.packs.pack_index import add_looked_up, merged_pages
from tests.support.deep import deep_but
from tests.support.packed_shard import PackedShard, in_order, is_empty, keys, nack, place, sort_key


def pages_agree(shard: PackedShard, chance: random.Random, topic: int) -> None:
    """A walk through all pages of a topic gives its items, each once."""
    limit, bytes_max = chance.choice([1, 3, 10, 100]), chance.choice([1, 50, 10_000])
    edge, seen, more = order.FIRST, [], True
    while more:
        packed = shard.index.page(topic, edge, limit, bytes_max)
        found = in_order(shard.rows.values(), topic, edge)
        rows = list(islice(found, chance.randrange(1, limit + 1)))
        page, more = merged_pages(packed, (rows, len(rows) < len(found)), limit, bytes_max)
        assert page or not more, "a page without items leads nowhere"
        assert len(page) <= limit
        assert len(page) <= 1 or sum([row.content.size_bytes for row in page]) <= bytes_max
        seen += page
        if page:
            edge = sort_key(page[-1])
    assert seen == in_order(shard.model.values(), topic)


def some_items(shard: PackedShard, chance: random.Random) -> list[ShardItem]:
    items: list[ShardItem] = []
    for _ in range(chance.choice([0, 0, 1, 5, 30])):
        shard.now_ms += chance.randrange(3)
        payload = bytes(chance.choice([0, 1, 30, 200]))
        items += shard.items(
            1, topic=chance.randrange(1, 6), priority=chance.randrange(-1, 2), payload=payload,
            life_ms=chance.choice([5, 500, 10**6]),
        )  # fmt: skip
        if chance.random() < 0.1:
            items[-1].due_at += 1
    return items


def some_transaction(shard: PackedShard, chance: random.Random) -> Transaction:
    ready = [row for row in shard.model.values() if row.lane > 0]
    chance.shuffle(ready)
    delayed = [row.key for row in shard.model.values() if row.lane == 0]
    deleted_count = chance.choice([0, 0, 2, 20, len(ready) // 2])
    deleted, others = ready[:deleted_count], ready[deleted_count:]
    nacked = others[: chance.choice([0, 0, 1, 5])]
    young, lasting = some_items(shard, chance), some_items(shard, chance)
    named = [row.key for row in ready[:3] + others[-3:]] + keys(young[:2]) + [0]
    return shard.transaction(
        young,
        inserts=lasting,
        deletes=[row.key for row in deleted],
        rewrites=[nack(row, delay_ms=chance.choice([0, 0, 100])) for row in nacked],
        wakes=delayed[: chance.choice([0, 3])],
        look_ups=named,
        look_ups_with_payload=True,
        refills=[
            Refill(topic, chance.choice([order.FIRST, *map(sort_key, others[:2])]), chance.choice([1, 4, 50]),
                   with_payload=chance.random() < 0.5)
            for topic in chance.sample(range(1, 6), chance.randrange(3))
        ],
    )  # fmt: skip


def check_reads(shard: PackedShard, transaction: Transaction) -> None:
    result = shard.read(transaction.refills)
    for refill, found in zip(transaction.refills, result.refilled, strict=True):
        expected = in_order(shard.model.values(), refill.lane, refill.edge)[: refill.limit]
        assert [row[:3] for row in found] == list(map(place, expected))
        if refill.with_payload:
            packed = shard.packed_keys()
            assert {row.key for row in expected if row.key in packed} <= result.read_ahead.keys()


def check_look_ups(shard: PackedShard, transaction: Transaction, plan: PackPlan) -> None:
    found = {key: shard.rows[key] for key in plan.look_ups if key in shard.rows}
    result = TransactionResult(looked_up=found)
    add_looked_up(shard.index, transaction, result)
    assert result.looked_up == {key: shard.model[key] for key in transaction.look_ups if key in shard.model}


def check_expired(shard: PackedShard) -> None:
    packed = [shard.model[key] for key in shard.packed_keys()]
    expired, first_ms = shard.index.expired(shard.now_ms, 1_000)
    assert sorted(expired) == sorted(row.key for row in packed if row.expires_at <= shard.now_ms)
    first = min([row.expires_at for row in packed], default=limits.NEVER_MS)
    assert first_ms == first if expired else shard.now_ms < first_ms <= first


def check_tombstones(shard: PackedShard) -> None:
    """Those are there that an existing pack needs, and no others."""
    stored, known = shard.stored.tombstones, shard.index._tombstones
    assert [*known] == [*stored]
    assert all(shard.stored.needs([one]) for one in stored)
    assert known.keys_count == sum(map(len, stored.values()))


SIZES = {
    "PACK_ITEMS_MIN": [1, 2, 8],
    "PACK_BYTES_MAX": [300, 3_000, 64 * limits.KIB],
    "PACK_ITEM_BYTES_MAX": [260, 4 * limits.KIB],
    "PACK_MS_MAX": [20, 300],
    "PACKS_OF_SHARD_BYTES_MAX": [3_000, 16 * limits.MIB],
    "PACKS_OF_SHARD_MAX": [3, 4_000],
    "PACKED_ITEMS_KEPT_MAX": [0, 30, 20_000],
    "TOMBSTONES_KEPT_MAX": [0, 3, 2_000],
    "TOMBSTONE_KEYS_KEPT_MAX": [5, 200_000],
    "PROMOTE_OLD_ITEMS_MAX": [1, 5, 500],
    "PROMOTE_OLD_ITEMS": [1, 10],
    "PROMOTE_OLD_EVERY_MS": [5, 50],
    "PROMOTE_OLD_RATIO": [1, 4],
}


@pytest.mark.parametrize("seed", deep_but(range(10), range(40)))
def test_items_are_in_a_row_or_in_a_pack_and_are_read_as_if_all_had_rows(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    for limit, values in SIZES.items():
        monkeypatch.setattr(limits if hasattr(limits, limit) else pack_index, limit, chance.choice(values))
    shard = PackedShard()
    for _ in range(150):
        shard.now_ms += chance.randrange(10)
        transaction = some_transaction(shard, chance)
        check_reads(shard, transaction)
        plan = shard.index.plan(transaction)
        while chance.random() < 0.2:
            shard.index.fail(plan)
            plan = chance.choice([plan, shard.index.plan(transaction)])
        if chance.random() < 0.1:
            shard.index.fail(plan)
            continue
        shard.commit(plan, transaction)
        assert shard.items_of_a_new_owner() == shard.model
        assert shard.index.stored_bytes == sum(pack.size_bytes for pack in shard.index._packs.values())
        check_tombstones(shard)
        check_look_ups(shard, transaction, plan)
        check_expired(shard)
        pages_agree(shard, chance, chance.randrange(1, 6))
    shard.run(deletes=list(shard.model))
    assert (shard.rows, shard.stored.packs, len(shard.index)) == ({}, {}, 0)
    assert is_empty(shard.stored)
    assert not shard.index._of_topic

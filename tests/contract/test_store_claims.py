"""What every store of a shard must hold of the claim journal: what is claimed, and what a new owner reads of it."""

from __future__ import annotations

from foqs.model.calls import ItemContent
from foqs.shard.port import ClaimEntries, Rewrite
from tests.contract.owner import Owner, new_item


def test_claims_come_back_after_a_take_over_with_their_rows(shard):
    owner = Owner(shard)
    items = [new_item(n, payload=b"x" * 1_000, metadata=b"m") for n in range(1, 2_001)]
    items[0].deliveries = 4
    owner.run(inserts=items)
    owner.run(
        claims=[
            ClaimEntries(10_001, 5_000, items[:1_500]),
            ClaimEntries(10_002, 6_000, items[1_500:1_501], is_ahead=True),
        ]
    )
    owner.store.close()
    image = Owner(shard).image
    assert [(claim.id, claim.due_at, claim.is_ahead, len(claim.entries)) for claim in image.claims] == [
        (10_001, 5_000, False, 1_500),
        (10_002, 6_000, True, 1),
    ]
    assert image.claims[0].entries[:2] == [(1, 5), (2, 1)]
    assert sorted(image.claimed_rows) == list(range(1, 1_502))
    row = image.claimed_rows[1_501]
    assert (row.key, row.lane, row.due_at, row.topic, row.deliveries) == (1_501, 1, 1_000, 1, 0)


def test_a_claim_of_fetched_items_names_the_delivery_that_the_row_knows(shard):
    owner = Owner(shard)
    owner.run(inserts=[new_item(1, payload=b"big", metadata=b"m"), new_item(2)])
    owner.run(rewrites=[Rewrite(1, 1, 0, 1_000, 6, 2)])
    stub = new_item(1)
    stub.content = None
    result = owner.run(fetches=[stub], claims=[ClaimEntries(10_001, 5_000, [stub, new_item(2)])])
    assert result.fetched[1].content == ItemContent(b"big", b"m")
    assert (result.fetched[1].deliveries, result.fetched[1].failed_attempts) == (6, 2)
    owner.store.close()
    assert Owner(shard).image.claims == [(10_001, 5_000, False, [(1, 7), (2, 1)])]


def test_an_item_may_be_inserted_and_claimed_at_once(shard):
    owner = Owner(shard)
    item = new_item(1)
    owner.run(inserts=[item], claims=[ClaimEntries(10_001, 5_000, [item])])
    owner.store.close()
    image = Owner(shard).image
    assert (image.claims, list(image.claimed_rows)) == ([(10_001, 5_000, False, [(1, 1)])], [1])


def test_a_claim_may_be_rewritten_and_goes(shard):
    owner = Owner(shard)
    items = [new_item(n) for n in range(1, 101)]
    claims = [ClaimEntries(10_000 + n, 5_000, items, is_ahead=True) for n in (1, 2, 3)]
    owner.run(inserts=items, claims=claims)
    owner.run(claims_rewritten=[ClaimEntries(10_002, 5_000, items[40:42])], claims_gone=[10_001], deletes=[1])
    owner.store.close()
    image = Owner(shard).image
    assert [claim.id for claim in image.claims] == [10_002, 10_003]
    assert image.claims[0] == (10_002, 5_000, True, [(41, 1), (42, 1)])
    assert 1 not in image.claimed_rows


def test_claims_below_the_checkpoint_are_not_read(shard):
    owner = Owner(shard)
    item = new_item(1)
    owner.run(inserts=[item], claims=[ClaimEntries(10_000 + n, n, [item]) for n in range(5)])
    owner.run(claim_checkpoint=10_003, delay_checkpoint=777)
    owner.store.close()
    image = Owner(shard).image
    assert [claim.id for claim in image.claims] == [10_003, 10_004]
    assert image.delay_checkpoint == 777

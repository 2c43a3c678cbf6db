"""The contract of a store for held dedup ids: who holds an id, and what a new owner and other shards read of that."""

from __future__ import annotations

import pytest

from foqs.model.held import FREED, HeldChanges, HeldId, Holder, NamespaceDigest
from foqs.shard.port import SessionLostError, TransactionFailedError
from tests.contract.owner import SHARD_ID, Owner, new_item, new_topic
from tests.contract.test_store_dedup import NAMESPACES, digest, opened_anew

ELSEWHERE = SHARD_ID + 1


def held(key: int, number: int = 1, *, first: int = 0, shard_id: int = SHARD_ID, namespace: int = 1) -> HeldId:
    return HeldId(key, shard_id, namespace, digest(number), first or key)


def one(number: int = 1, namespace: int = 1) -> NamespaceDigest:
    return NamespaceDigest(namespace, digest(number))


@pytest.fixture
def owner(shard):
    owner = Owner(shard)
    owner.run(namespaces_new=NAMESPACES, topics_new=[new_topic(n, f"t{n}", n) for n, _ in NAMESPACES])
    return owner


def holders(owner: Owner, *numbers: int, namespace: int = 1) -> dict[int, Holder]:
    """Return the holders of these ids by their numbers."""
    found = owner.run(held=HeldChanges(reads=[one(number, namespace) for number in numbers])).held
    return {number: found[one(number, namespace)] for number in numbers if one(number, namespace) in found}


def test_an_id_is_held_from_the_transaction_of_its_item_to_the_one_of_its_end(owner):
    topic = new_topic(1, "t1")
    owner.run(inserts=[new_item(key, topic=topic) for key in (5, 6)], held=HeldChanges(new=[held(5), held(6, 2)]))
    assert holders(owner, 1, 2, 3) == {1: Holder(SHARD_ID, 5), 2: Holder(SHARD_ID, 6)}
    assert holders(owner, 1, namespace=2) == {}
    owner.run(deletes=[5], held=HeldChanges(ended=[5, 7, 10**12]))
    assert holders(owner, 1, 2) == {2: Holder(SHARD_ID, 6)}


def test_an_id_with_copies_is_held_until_the_last_one_ends(owner):
    owner.run(held=HeldChanges(new=[held(5), held(6, first=5), held(7, first=5)]))
    for key in (5, 7, 6):
        assert holders(owner, 1) == {1: Holder(SHARD_ID, 5)}
        owner.run(held=HeldChanges(ended=[key]))
    assert holders(owner, 1) == {}


def test_a_transaction_does_not_read_what_it_writes(owner):
    assert owner.run(held=HeldChanges(reads=[one()], new=[held(5)])).held == {}
    assert owner.run(held=HeldChanges(reads=[one()], ended=[5])).held == {one(): Holder(SHARD_ID, 5)}
    assert holders(owner, 1) == {}


def test_what_fails_changes_nothing_and_a_lost_answer_shows_what_was_done(shard, owner):
    topic = new_topic(1, "t1")
    owner.run(inserts=[new_item(5, topic=topic)], held=HeldChanges(new=[held(5)]))
    with shard.deadlock(5), pytest.raises(TransactionFailedError):
        owner.run(deletes=[5], held=HeldChanges(ended=[5], new=[held(6, 2)]))
    assert holders(owner, 1, 2) == {1: Holder(SHARD_ID, 5)}
    with shard.losing_answers(owner.store), pytest.raises(SessionLostError):
        owner.run(deletes=[5], held=HeldChanges(ended=[5]))
    owner.store.reopen()
    assert (holders(owner, 1), bool(owner.look_up(5))) in (({}, False), ({1: Holder(SHARD_ID, 5)}, True))


def test_ids_that_are_made_free_are_held_by_nobody_and_stay_so_elsewhere(owner):
    owner.run(held=HeldChanges(new=[held(5), held(6, first=5), held(5, 2, shard_id=ELSEWHERE), held(8, 3)]))
    owner.run(held=HeldChanges(freed=[one(1), one(2), one(9)]))
    assert holders(owner, 1, 2, 3) == {3: Holder(SHARD_ID, 8)}
    owner.run(held=HeldChanges(new=[held(5, 2, shard_id=ELSEWHERE)]))
    assert holders(owner, 2) == {}, "a copy of it that comes once more does not take it again"
    owner.run(held=HeldChanges(new=[held(9, 2)]))
    assert holders(owner, 2) == {2: Holder(SHARD_ID, 9)}


def test_items_elsewhere_are_released_one_by_one(owner):
    owner.run(held=HeldChanges(new=[held(5, shard_id=ELSEWHERE), held(5, 2)]))
    for wrong in (Holder(ELSEWHERE, 6), Holder(SHARD_ID, 5)):
        owner.run(held=HeldChanges(released=[(one(1), wrong)]))
    assert holders(owner, 1, 2) == {1: Holder(ELSEWHERE, 5), 2: Holder(SHARD_ID, 5)}
    owner.run(held=HeldChanges(released=[(one(1), Holder(ELSEWHERE, 5))]))
    assert holders(owner, 1, 2) == {2: Holder(SHARD_ID, 5)}


def test_a_new_owner_knows_in_which_namespaces_items_hold_ids(shard, owner):
    assert owner.image.holding == []
    owner.run(held=HeldChanges(new=[held(5), held(6, 2), held(7, namespace=2)]))
    owner = opened_anew(shard, owner)
    assert owner.image.holding == [1, 2]
    assert holders(owner, 1, 2) == {1: Holder(SHARD_ID, 5), 2: Holder(SHARD_ID, 6)}
    owner.run(held=HeldChanges(ended=[5, 6]))
    assert opened_anew(shard, owner).image.holding == [2]


def test_another_shard_reads_all_rows_in_pages_and_who_lives(shard, owner):
    rows = [held(key, key) for key in range(1, 8)] + [held(3, 20, shard_id=ELSEWHERE), held(9, 21, shard_id=ELSEWHERE)]
    rows[2] = rows[2]._replace(copies_count=16)
    owner.run(held=HeldChanges(new=rows))
    owner.run(held=HeldChanges(freed=[one(21)]))
    found, after = [], (0, 0)
    with shard.source() as source:
        while page := source.held(after, 2):
            found += page
            after = page[-1].key, page[-1].shard_id
        assert source.holders([one(3), one(20), one(99)]) == {one(3): Holder(SHARD_ID, 3, 16)}
    rows[-1] = rows[-1]._replace(first=FREED)
    assert found == sorted(rows)


def test_many_ids_end_at_once(owner):
    keys = [*range(1, 2_001), *range(10_000, 30_000, 10)]
    owner.run(held=HeldChanges(new=[held(key, key) for key in keys]))
    assert len(owner.run(held=HeldChanges(reads=[one(key) for key in keys])).held) == len(keys)
    owner.run(held=HeldChanges(ended=keys[1:]))
    assert list(owner.run(held=HeldChanges(reads=[one(key) for key in keys])).held) == [one(1)]

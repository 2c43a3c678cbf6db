"""What every store of a shard must hold: one owner, and no doubt about what became of a transaction."""

from __future__ import annotations

import asyncio
import time

import pytest

from foqs.storage.transaction import OwnershipLostError, SessionLostError, Transaction
from tests.contract.owner import Owner, new_item, new_topic, opened
from tests.support.waiting import until

LOST = (OwnershipLostError, SessionLostError)


def take_over(shard, name: str) -> Owner:
    """Open as another owner; the attempts that only free the lock are bounded in time."""
    deadline = time.monotonic() + 10
    while True:
        try:
            return Owner(shard, name)
        except LOST:
            assert time.monotonic() < deadline


def reopen(owner: Owner) -> int:
    deadline = time.monotonic() + 10
    while True:
        try:
            return owner.store.reopen()
        except SessionLostError:
            assert time.monotonic() < deadline


# ---- one owner ----


def test_every_opening_has_a_higher_epoch_than_all_before(shard):
    epochs = []
    for name in ("one", "two", "one"):
        owner = Owner(shard, name)
        epochs.append(owner.image.epoch)
        owner.store.close()
    assert epochs == sorted(set(epochs)) == shard.epochs


def test_a_shard_that_has_seen_a_higher_epoch_gets_one_above_it(shard):
    shard.set_epoch(1_000)
    assert Owner(shard).image.epoch == 1_001


def test_while_an_owner_lives_nobody_else_opens_the_shard(shard):
    one = Owner(shard, "one")
    two = shard.store("two")
    for _ in range(3):
        with pytest.raises(OwnershipLostError, match="one"):
            two.open()
    one.run(inserts=[new_item(1)])
    assert len(shard.epochs) == 1, "a refused opening takes no epoch"
    one.store.close()
    assert opened(two).transaction_number == 1


def test_a_closed_store_gives_the_shard_free_and_may_be_closed_again(shard):
    one = Owner(shard, "one")
    one.store.close()
    one.store.close()
    two = Owner(shard, "two")
    assert two.run(inserts=[new_item(1)]).looked_up == {}
    two.store.close()
    assert opened(one.store).transaction_number == 1


def test_a_dead_owner_is_put_out_and_changes_nothing_any_more(shard):
    one = Owner(shard, "one")
    one.run(topics_new=[new_topic(1)], inserts=[new_item(1)], topic_number_last=1)
    shard.dead_owners.add("one")
    two = take_over(shard, "two")
    assert (two.image.transaction_number, two.image.topics) == (1, [(1, 1, b"t")])
    for _ in range(2):
        with pytest.raises(LOST):
            one.run(inserts=[new_item(2)], deletes=[1])
        with pytest.raises(OwnershipLostError):
            one.store.reopen()
    assert list(two.look_up(1, 2)) == [1]
    two.run(inserts=[new_item(3)])
    assert sorted(two.look_up(1, 2, 3)) == [1, 3]


def test_an_owner_that_was_overtaken_while_it_was_away_stays_away(shard):
    one = Owner(shard, "one")
    one.run(inserts=[new_item(1)])
    shard.cut(one.store)
    two = take_over(shard, "two")
    two.store.close()
    with pytest.raises(LOST):
        one.run(deletes=[1])
    with pytest.raises(OwnershipLostError):
        reopen(one)
    assert list(take_over(shard, "three").look_up(1)) == [1]


def test_a_restarted_host_of_the_same_name_puts_its_own_old_session_out(shard):
    old = Owner(shard, "one")
    old.run(inserts=[new_item(1)])
    new = take_over(shard, "one")
    assert new.image.epoch > old.image.epoch
    with pytest.raises(LOST):
        old.run(deletes=[1])
    with pytest.raises(OwnershipLostError):
        reopen(old)
    assert list(new.look_up(1)) == [1], "the old session's end puts nobody else out"


def test_with_another_epoch_in_the_shard_a_transaction_changes_nothing(shard):
    one = Owner(shard, "one")
    one.run(inserts=[new_item(1)])
    shard.set_epoch(one.image.epoch + 1)
    with pytest.raises(OwnershipLostError):
        one.run(topics_new=[new_topic(1)], inserts=[new_item(2)], deletes=[1])
    one.store.close()
    two = Owner(shard, "two")
    assert two.image.epoch > one.image.epoch + 1
    assert (two.image.transaction_number, two.image.topics) == (1, [])
    assert list(two.look_up(1, 2)) == [1]


# ---- lost sessions ----


def test_after_a_lost_session_the_number_tells_what_happened(shard):
    owner = Owner(shard)
    for n in range(1, 4):
        owner.run(inserts=[new_item(n)])
        shard.cut(owner.store)
        with pytest.raises(SessionLostError):
            owner.run(inserts=[new_item(100 + n)], deletes=[n])
        assert reopen(owner) == owner.number == n
    assert sorted(owner.look_up(*range(1, 200))) == [1, 2, 3]


def test_a_reopened_store_keeps_its_epoch_and_its_shard(shard):
    one = Owner(shard, "one")
    shard.cut(one.store)
    assert reopen(one) == 0
    with pytest.raises(OwnershipLostError):
        shard.store("two").open()
    one.run(inserts=[new_item(1)])
    assert len(shard.epochs) == 1
    one.store.close()
    assert Owner(shard, "two").image.epoch == one.image.epoch + 1


def test_a_store_whose_session_was_lost_says_so_by_every_method_until_it_is_reopened(shard):
    owner = Owner(shard)

    def now_ms() -> int:
        return asyncio.run(owner.store.now_ms())

    for first in (now_ms, owner.store.check):
        shard.cut(owner.store)
        for method in (first, now_ms, owner.store.check):
            with pytest.raises(SessionLostError):
                method()
        with pytest.raises(SessionLostError):
            owner.run(inserts=[new_item(1)])
        assert reopen(owner) == owner.number
    assert owner.look_up(1) == {}


def test_a_session_that_was_ended_is_noticed_without_being_used(shard):
    owner = Owner(shard)
    owner.run(inserts=[new_item(1)])
    assert not owner.store.is_session_lost()
    shard.cut(owner.store)
    asyncio.run(until(owner.store.is_session_lost))
    assert reopen(owner) == 1
    assert not owner.store.is_session_lost()


def test_an_interrupted_session_is_lost_and_comes_back(shard):
    owner = Owner(shard)
    owner.run(inserts=[new_item(1)])
    owner.store.interrupt()
    with pytest.raises(SessionLostError):
        owner.run(deletes=[1])
    assert reopen(owner) == 1
    assert list(owner.look_up(1)) == [1]


def test_the_number_in_the_shard_is_that_of_the_transaction(shard):
    one = Owner(shard, "one")
    asyncio.run(one.store.run(Transaction(41, inserts=[new_item(1)])))
    one.store.close()
    two = Owner(shard, "two")
    assert two.image.transaction_number == 41
    shard.cut(two.store)
    assert reopen(two) == 41

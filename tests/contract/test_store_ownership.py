"""What every store of a shard must hold: one owner, and no doubt about what became of a transaction."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from foqs.model import ids
from foqs.model.errors import UnavailableError
from foqs.model.shard_place import Tenure
from foqs.shard.port import (
    BeingTakenError,
    OwnedError,
    OwnershipLostError,
    SessionLostError,
    Transaction,
)
from tests.contract.owner import Owner, new_item, new_topic, opened
from tests.support.waiting import PATIENCE_S, until

LOST = (OwnershipLostError, SessionLostError)


def take_over(shard, name: str) -> Owner:
    """Open as another owner; the attempts that only free the lock are bounded in time."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return Owner(shard, name)
        except LOST:
            assert time.monotonic() < deadline


def reopen(owner: Owner) -> int:
    deadline = time.monotonic() + PATIENCE_S
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


# ---- contests ----


def test_a_contender_that_has_the_lock_and_no_name_yet_is_not_killed(shard):
    """The writer row still names the dead owner, whose session the lock's holder is not."""
    one = Owner(shard, "one")
    one.run(inserts=[new_item(1)])
    shard.dead_owners.add("one")
    beaten = shard.store("three")

    def contend() -> None:
        with pytest.raises(OwnershipLostError, match="is being taken over"):
            beaten.open()

    shard.on_epoch = contend
    two = take_over(shard, "two")
    shard.on_epoch = None
    with pytest.raises(OwnershipLostError, match="is owned by"):
        beaten.open()
    two.run(inserts=[new_item(2)])
    assert sorted(two.look_up(1, 2)) == [1, 2]


def test_a_dead_owners_shard_is_had_by_the_first_opening(shard):
    """It waits for the lock of the session that it kills."""
    one = Owner(shard, "one")
    shard.dead_owners.add("one")
    two = shard.store("two")
    assert two.open().epoch > one.image.epoch


def test_two_hosts_that_want_a_dead_ones_shard_settle_it_at_once(shard):
    one = Owner(shard, "one")
    one.run(inserts=[new_item(1)])
    shard.dead_owners.add("one")
    stores = [shard.store("two"), shard.store("three")]
    start = threading.Barrier(2)

    def contend(store) -> object:
        start.wait(PATIENCE_S)
        try:
            return store.open()
        except OwnershipLostError as error:
            return error

    with ThreadPoolExecutor(2) as threads:
        ended = list(threads.map(contend, stores))
    beaten = [result for result in ended if isinstance(result, OwnershipLostError)]
    assert len(beaten) == 1, ended
    winner = stores[1 - ended.index(beaten[0])]
    asyncio.run(winner.run(Transaction(2, inserts=[new_item(2)])))
    with pytest.raises(OwnershipLostError, match="is owned by"):
        stores[ended.index(beaten[0])].open()


def test_a_waiting_host_takes_nothing_and_returns_when_the_owner_has_gone(shard):
    one = Owner(shard, "one")
    two = shard.store("two")
    with pytest.raises(OwnedError):
        two.open()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(two.wait_for_owner)
        one.store.close()
        waiting.result(PATIENCE_S)
    reopen(one)
    with pytest.raises(OwnedError):
        two.open()


def test_a_host_that_is_handed_the_shard_has_it_before_anybody_else_can_take_it(shard):
    one = Owner(shard, "one")
    one.run(inserts=[new_item(1)])
    two, three = shard.store("two"), shard.store("three")
    with pytest.raises(OwnedError):
        two.open()
    one.store.close()
    assert two.wait_for_owner(stay=True)
    with pytest.raises(OwnershipLostError):
        three.open()
    assert two.open().epoch > one.image.epoch
    two.close()
    assert three.open().epoch > one.image.epoch + 1


def test_a_host_that_is_not_handed_the_shard_in_time_asks_anew(shard):
    one = Owner(shard, "one")
    two = shard.store("two")
    assert not two.wait_for_owner(stay=True)
    with pytest.raises(OwnedError):
        two.open()
    one.run(inserts=[new_item(1)])


def test_after_a_reopening_a_dead_owner_is_put_out_all_the_same(shard):
    """The session that may be killed is the one that it had last."""
    one = Owner(shard, "one")
    shard.cut(one.store)
    reopen(one)
    shard.dead_owners.add("one")
    assert shard.store("two").open().epoch > one.image.epoch


# ---- opened again by the process that had it ----


def tenure_of(owner: Owner) -> Tenure:
    return Tenure(owner.image.epoch, owner.number, owner.image.last_key + 77, owner.store.server)


def test_a_process_opens_its_own_shard_again_without_a_new_epoch(shard):
    one = Owner(shard, "one")
    one.run(topics_new=[new_topic(1)], inserts=[new_item(1)], topic_number_last=1)
    one.store.close()
    image = opened(one.store, tenure_of(one))
    assert (image.epoch, image.last_key) == (one.image.epoch, one.image.last_key + 77)
    assert (image.transaction_number, image.topics) == (1, [(1, 1, b"t")])
    one.run(inserts=[new_item(2)])
    assert sorted(one.look_up(1, 2)) == [1, 2]
    assert len(shard.epochs) == 1


def test_it_does_so_too_with_a_new_store_after_a_host_that_had_the_lock_and_got_no_epoch(shard):
    """The shard was handed on while the meta database went away: who let go of it goes on as if nothing had been."""
    one = Owner(shard, "one")
    one.run(inserts=[new_item(1)])
    one.store.close()
    seen: list[type[Exception]] = []

    def away() -> None:
        try:
            shard.store("one").open(tenure_of(one))
        except OwnershipLostError as error:
            seen.append(type(error))
        raise UnavailableError("the meta database is away")

    shard.on_epoch = away
    with pytest.raises(UnavailableError):
        opened(shard.store("two"))
    assert seen == [BeingTakenError], "the other one has the lock meanwhile"
    again = shard.store("one")
    image = opened(again, tenure_of(one))
    assert (image.epoch, image.last_key) == (one.image.epoch, one.image.last_key + 77)
    with pytest.raises(LOST):
        one.run(inserts=[new_item(2)])
    with pytest.raises(OwnedError):
        shard.store("two").open()


def test_it_does_so_too_when_a_transaction_of_unknown_outcome_has_happened(shard):
    one = Owner(shard, "one")
    tenure = tenure_of(one)
    one.run(inserts=[new_item(1)])
    one.store.close()
    image = opened(one.store, tenure)
    assert (image.epoch, image.transaction_number) == (one.image.epoch, 1)


def test_with_fewer_transactions_than_it_saw_committed_it_needs_a_new_epoch(shard):
    """A replica that was behind: keys of the old epoch stand for items that are not there, and were handed out."""
    one = Owner(shard, "one")
    one.run(inserts=[new_item(1)])
    one.store.close()
    image = opened(one.store, tenure_of(one)._replace(transaction_number=2))
    assert image.epoch > one.image.epoch
    assert image.last_key == image.epoch << ids.SEQUENCE_BITS


def test_the_contract_finds_an_opening_that_does_not_look_at_the_number(fake_shard, monkeypatch):
    monkeypatch.setattr(Tenure, "goes_on", lambda self, found: found.epoch == self.epoch)
    with pytest.raises(AssertionError):
        test_with_fewer_transactions_than_it_saw_committed_it_needs_a_new_epoch(fake_shard)


def test_on_another_server_it_needs_a_new_epoch(shard):
    """Others may have it on the one where it was left."""
    one = Owner(shard, "one")
    one.store.close()
    tenure = tenure_of(one)._replace(server="another one")
    assert opened(one.store, tenure).epoch > one.image.epoch


def test_after_another_owner_it_needs_a_new_epoch(shard):
    one = Owner(shard, "one")
    one.store.close()
    two = Owner(shard, "two")
    two.store.close()
    assert opened(one.store, tenure_of(one)).epoch > two.image.epoch > one.image.epoch


def test_while_another_owner_lives_it_does_not_get_the_shard(shard):
    one = Owner(shard, "one")
    shard.cut(one.store)
    two = take_over(shard, "two")
    with pytest.raises(OwnershipLostError, match="two"):
        one.store.open(tenure_of(one))
    assert two.look_up(1) == {}


def test_without_a_new_epoch_nothing_changes(shard):
    one = Owner(shard, "one")
    one.run(inserts=[new_item(1)])
    one.store.close()

    def away() -> None:
        raise UnavailableError("the meta database is away")

    shard.on_epoch = away
    two = shard.store("two")
    with pytest.raises(UnavailableError):
        opened(two)
    assert opened(one.store, tenure_of(one)).epoch == one.image.epoch
    with pytest.raises(UnavailableError):
        one.store.renew_epoch()
    one.run(inserts=[new_item(2)])
    assert sorted(one.look_up(1, 2)) == [1, 2]


def test_an_owner_goes_on_under_a_new_epoch(shard):
    one = Owner(shard, "one")
    one.run(inserts=[new_item(1)])
    epoch = one.store.renew_epoch()
    assert epoch > one.image.epoch
    one.run(inserts=[new_item(2)])
    shard.cut(one.store)
    assert reopen(one) == 2
    one.run(inserts=[new_item(3)])
    one.store.close()
    assert opened(one.store, Tenure(epoch, 3, epoch << ids.SEQUENCE_BITS, one.store.server)).epoch == epoch
    assert sorted(one.look_up(1, 2, 3)) == [1, 2, 3]


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
    with pytest.raises(SessionLostError) as caught:
        owner.run(deletes=[1])
    assert caught.value.nothing_done, "the transaction was not sent"
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

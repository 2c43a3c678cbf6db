"""What every store of a shard must hold: a database is that of one shard of one cluster, and others leave it alone."""

from __future__ import annotations

import pytest

from foqs.model.cluster import ShardIdentity
from foqs.model.errors import UnavailableError
from foqs.model.shard_place import Tenure
from foqs.shard.port import OwnershipLostError
from tests.contract.owner import SHARD_ID, Owner, new_item, opened


def test_the_first_owner_makes_an_id_and_writes_whose_the_database_is(shard):
    assert shard.identity() is None
    Owner(shard).store.close()
    assert shard.identity() == (b"made 1", SHARD_ID)
    Owner(shard, "two").store.close()
    assert (shard.meta.id, shard.meta.made_count) == (b"made 1", 1)


def test_the_first_owner_writes_the_id_that_the_cluster_has(shard):
    shard.meta.id = b"ours"
    Owner(shard).store.close()
    assert shard.identity() == (b"ours", SHARD_ID)


def test_no_id_is_made_where_other_shards_have_one(shard):
    shard.meta.told_by_shards = b"ours"
    Owner(shard).store.close()
    assert (shard.identity(), shard.meta.id, shard.meta.made_count) == ((b"ours", SHARD_ID), b"ours", 0)


@pytest.mark.parametrize(
    ("identity", "words"),
    [
        (ShardIdentity(b"ours", 8), "its database is that of shard 8, and two shards need two databases"),
        (ShardIdentity(b"theirs", SHARD_ID), f"that of shard {SHARD_ID} of another cluster, {b'theirs'.hex()}"),
        (ShardIdentity(b"theirs", 8), "that of shard 8 of another cluster"),
    ],
)
def test_the_database_of_another_shard_is_left_alone(shard, identity, words):
    shard.meta.id = b"ours"
    shard.set_identity(identity)
    store = shard.store("one")
    for _ in range(2):
        with pytest.raises(OwnershipLostError, match=words):
            store.open()
    assert (shard.epochs, shard.identity()) == ([], identity), "nothing has changed"


def test_the_session_of_another_shards_owner_is_not_ended(shard):
    """Also where the owner seems to be dead: the hosts of another cluster are not in this one's meta database."""
    one = Owner(shard, "one")
    shard.dead_owners.add("one")
    shard.meta.id = b"another"
    with pytest.raises(OwnershipLostError, match="of another cluster"):
        shard.store("two").open()
    one.run(inserts=[new_item(1)])
    assert list(one.look_up(1)) == [1]


def test_nobody_waits_for_the_owner_of_another_shard(shard):
    shard.meta.id = b"ours"
    shard.set_identity(ShardIdentity(b"ours", 8))
    with pytest.raises(OwnershipLostError, match="that of shard 8"):
        shard.store("one").wait_for_owner(stay=True)


def test_whoever_is_faster_has_the_database(shard):
    """Two shards have two locks: both may find that the database says nothing yet."""
    store = shard.store("one")
    shard.meta.id = b"ours"
    # It finds nothing, asks for the id of the cluster, and writes then.
    shard.meta.on_ask = lambda: shard.set_identity(ShardIdentity(b"ours", 8))
    with pytest.raises(OwnershipLostError, match="that of shard 8"):
        store.open()
    assert shard.epochs == []


def test_a_database_says_whose_it_is_before_an_epoch_is_asked_for(shard):
    """Else an owner that dies in between would leave one of which an epoch was given, and that looks lost."""

    def away() -> None:
        raise UnavailableError("the meta database is away")

    shard.on_epoch = away
    with pytest.raises(UnavailableError):
        shard.store("one").open()
    assert shard.identity() == (b"made 1", SHARD_ID)


def test_a_meta_database_that_has_lost_the_id_gets_it_back_from_the_shard(shard):
    Owner(shard).store.close()
    shard.meta.id = b""
    Owner(shard, "two").store.close()
    assert (shard.meta.id, shard.meta.made_count) == (b"made 1", 1)


def test_an_owner_that_goes_on_needs_no_meta_database(shard):
    one = Owner(shard, "one")
    one.store.close()
    shard.meta.is_away = True
    tenure = Tenure(one.image.epoch, 0, one.image.last_key, one.store.server)
    assert opened(one.store, tenure).epoch == one.image.epoch


def test_where_the_id_is_not_known_and_cannot_be_asked_for_nothing_is_written(shard):
    store = shard.store("one")
    shard.meta.is_away = True
    with pytest.raises(UnavailableError):
        store.open()
    assert (shard.identity(), shard.epochs) == (None, [])


def test_no_dedup_ids_are_read_from_the_database_of_another_shard(shard):
    shard.set_identity(ShardIdentity(b"ours", 8))
    with shard.source() as source:
        for read in (source.slots, source.logs):
            with pytest.raises(UnavailableError):
                read()
    shard.set_identity(ShardIdentity(b"ours", SHARD_ID))
    with shard.source() as source:
        assert source.logs() == []


def test_a_new_database_of_a_shard_that_was_served_is_refused_and_stays_as_it_is(shard):
    """Somebody has restored nothing, or the URL leads elsewhere: its items are not gone for that."""
    shard.meta.given_epoch = 7
    store = shard.store("one")
    for _ in range(2):
        with pytest.raises(OwnershipLostError, match=f"restore the database.*--new-shard {SHARD_ID}"):
            store.open()
    assert (shard.epochs, shard.identity()) == ([], None)


def test_a_new_database_that_was_said_to_be_the_shards_is_served(shard):
    """As `foqs schema apply --new-shard` does."""
    shard.meta.id, shard.meta.given_epoch = b"ours", 7
    shard.set_identity(ShardIdentity(b"ours", SHARD_ID))
    Owner(shard).run(inserts=[new_item(1)])


def test_an_owner_that_dies_between_its_epoch_and_its_name_leaves_a_shard_that_can_be_served(shard):
    def die():
        shard.meta.given_epoch = 1
        raise UnavailableError("the process died")

    shard.on_epoch = die
    with pytest.raises(UnavailableError):
        shard.store("one").open()
    shard.on_epoch = None
    Owner(shard, "two").run(inserts=[new_item(1)])

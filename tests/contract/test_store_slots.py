"""The contract of a store for slots that move: a step goes with its transaction, and others read what it has left."""

from __future__ import annotations

import pytest

from foqs.model.seen import digest_of
from foqs.model.slot_changes import SlotChanges, SlotIds
from foqs.model.slots import NO_SLOTS, SlotMove, first_table, moved
from foqs.shard.port import SeenIds, SeenName, SeenRow, SlotArrival, TransactionFailedError
from tests.contract.owner import SHARD_ID, Owner, new_item, new_topic

OTHER = 9
TABLE = first_table([SHARD_ID, OTHER])
HITHER = SlotMove(2, OTHER, SHARD_ID, (1, 3, 1023))


def ids(first: int, count: int, shard_ids: list[int] | None = None) -> SeenIds:
    numbers = range(first, first + count)
    digests = [digest_of(1, b"", 3, f"id-{at}") for at in numbers]
    return SeenIds(1, first, 5, digests, [100 + at for at in numbers], shard_ids)


@pytest.fixture
def owner(shard):
    owner = Owner(shard)
    owner.run(namespaces_new=[(1, b"one")], topics_new=[new_topic(1, "t1")])
    return owner


def test_a_copy_is_written_by_the_owner_and_never_replaced_by_an_older_one(shard, owner):
    with shard.source() as source, shard.reader(owner.store) as reader:
        assert source.slots() == NO_SLOTS
        owner.run(slot_changes=SlotChanges(kept=moved(TABLE, HITHER)))
        assert source.slots() == reader.keep_slots(NO_SLOTS) == moved(TABLE, HITHER)
        owner.run(slot_changes=SlotChanges(kept=TABLE))
        assert source.slots() == moved(TABLE, HITHER)


def test_a_step_is_committed_with_its_transaction_or_not_at_all(shard, owner):
    owner.run(inserts=[new_item(5, topic=new_topic(1, "t1"))])
    with shard.deadlock(5), pytest.raises(TransactionFailedError):
        owner.run(deletes=[5], slot_changes=SlotChanges(kept=TABLE, arriving=HITHER))
    with shard.source() as source, shard.reader(owner.store) as reader:
        assert (source.slots(), reader.read_arrival()) == (NO_SLOTS, None)


def test_slots_that_are_on_their_way_are_known_with_how_far_they_have_come_until_they_are_there(shard, owner):
    owner.run(slot_changes=SlotChanges(arriving=HITHER))
    appended = SlotIds(1, HITHER.version, HITHER.slots, 77, 0, 2)
    owner.run(seen_new=[ids(0, 2, [OTHER, 4])], slot_changes=SlotChanges(appended=appended))
    owner.run(slot_changes=SlotChanges(appended=appended._replace(read_to=99, first=2, moved_end=4)))
    # A host that does not know whether it has begun begins again.
    owner.run(slot_changes=SlotChanges(arriving=HITHER))
    with shard.reader(owner.store) as reader:
        assert reader.read_arrival() == SlotArrival(HITHER, {1: 99})
        owner.run(slot_changes=SlotChanges(kept=moved(TABLE, HITHER), has_arrived=True))
        assert reader.read_arrival() is None
    rows = owner.run(seen_reads=[(1, 0)]).seen[1, 0]
    assert rows == [SeenRow(1, 0, 5, ids(0, 2).digests, [(OTHER, 100), (4, 101)])]


def test_a_new_owner_finds_up_to_where_ids_came_with_slots(shard, owner):
    changes = SlotChanges(appended=SlotIds(1, 2, HITHER.slots, 5, 0, 4))
    owner.run(seen_new=[ids(0, 4, [OTHER] * 4)], slot_changes=changes)
    owner.run(seen_new=[ids(4, 1)])
    owner.store.close()
    (extent,) = Owner(shard).image.seen
    assert (extent.end, extent.moved_end) == (5, 4)


def test_what_came_with_slots_is_forgotten_with_the_log_of_its_namespace(shard, owner):
    owner.run(
        seen_new=[ids(0, 1, [OTHER])],
        slot_changes=SlotChanges(arriving=HITHER, appended=SlotIds(1, 2, HITHER.slots, 5, 0, 1)),
    )
    owner.run(seen_gone=[(1, 0, 1)])
    with shard.reader(owner.store) as reader:
        assert reader.read_arrival() == SlotArrival(HITHER, {1: 5})
    owner.store.close()
    later = Owner(shard)
    with shard.reader(later.store) as reader:
        assert reader.read_arrival() == SlotArrival(HITHER, {})


def test_what_came_with_slots_is_forgotten_in_the_transaction_that_deletes_the_last_of_a_log(shard, owner):
    for namespace in (1, 2):
        owner.run(
            namespaces_new=[(2, b"two")] if namespace == 2 else [],
            seen_new=[ids(0, 1, [OTHER])._replace(namespace=namespace)],
            slot_changes=SlotChanges(arriving=HITHER, appended=SlotIds(namespace, 2, HITHER.slots, 5, 0, 1)),
        )
    owner.run(seen_gone=[(1, 0, 1)], seen_over=[1])
    with shard.reader(owner.store) as reader:
        assert reader.read_arrival() == SlotArrival(HITHER, {2: 5})


def test_another_shard_reads_logs_from_any_number_on_and_what_came_there_before(shard, owner):
    with shard.source() as source:
        assert source.logs() == []
        owner.run(seen_new=[ids(0, 2), ids(2, 3)], steady_ms=12)
        assert source.logs() == [SeenName(1, b"one", 0, 5)]
        steady_ms, rows = source.read(1, 1, 10)
        assert steady_ms == 12
        assert rows == [SeenRow(1, 2, 5, ids(2, 3).digests, [(SHARD_ID, key) for key in (102, 103, 104)])]
        assert [row.first for row in source.read(1, 0, 1)[1]] == [0]
        assert source.read(2, 0, 10)[1] == []
        appended = SlotIds(1, 2, HITHER.slots, 5, 5, 6)
        owner.run(seen_new=[ids(5, 1, [OTHER])], slot_changes=SlotChanges(appended=appended))
        assert source.logs() == [SeenName(1, b"one", 0, 6, frozenset(HITHER.slots), 5)]

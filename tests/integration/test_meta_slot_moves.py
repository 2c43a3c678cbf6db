"""The move of slots in the meta database: begun on the word of all shards, and one at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from foqs.model.census import CensusAnswer
from foqs.model.cluster import ShardUse
from foqs.model.errors import InvalidArgumentError, UnavailableError
from foqs.model.slots import MovePhase, SlotMove, first_table, moved
from foqs.storage.meta.meta_store import MetaStore

TABLE = first_table([1, 2])
MOVE = SlotMove(2, 1, 2, (0, 2, 1022))

pytestmark = pytest.mark.database


@pytest.fixture
def store(meta_url: str) -> Iterator[MetaStore]:
    with closing(MetaStore(meta_url)) as meta:
        for shard_id in (1, 2):
            meta.shards.take_epoch(shard_id, f"h{shard_id}", 1, at_least=0)
        meta.slots.restore(TABLE)
        yield meta


def move_of(store: MetaStore) -> SlotMove | None:
    return store.namespaces.read().slot_move


def begin(store: MetaStore, move: SlotMove, *versions: int) -> list[int]:
    """Begin it on the answers of shards 1, 2 and so on, each of which knows the table of this version."""
    census = store.slots.begin()
    answers = [CensusAnswer(shard_id, 1, 0, 0, version) for shard_id, version in enumerate(versions, 1)]
    store.censuses.answer(census, answers)
    return store.slots.begin_move(census, move)


def test_a_move_begins_once_all_shards_have_said_that_they_know_its_table(store: MetaStore) -> None:
    assert begin(store, MOVE, 1) == [2]
    assert move_of(store) is None
    assert begin(store, MOVE, 1, 1) == []
    assert move_of(store) == MOVE
    assert store.namespaces.read().slots == TABLE


def test_a_second_move_and_one_for_another_table_do_not_begin(store: MetaStore) -> None:
    with pytest.raises(UnavailableError) as raised:
        begin(store, MOVE._replace(version=3), 1, 1)
    assert raised.value.nothing_done
    assert begin(store, MOVE, 1, 1) == []
    with pytest.raises(UnavailableError):
        begin(store, MOVE, 1, 1)
    assert move_of(store) == MOVE


def test_no_move_begins_where_a_shard_knows_a_newer_table_or_waits_for_one(store: MetaStore) -> None:
    with pytest.raises(UnavailableError, match="shard 2 knows another table"):
        begin(store, MOVE, 1, 2)
    assert move_of(store) is None


def test_no_move_begins_to_a_shard_that_drains_and_none_is_removed_that_slots_come_to(store: MetaStore) -> None:
    store.shards.update(2, ShardUse.DRAINING, None, None)
    with pytest.raises(UnavailableError, match="takes no slots"):
        begin(store, MOVE, 1, 1)
    store.shards.update(2, ShardUse.SERVING, None, None)
    assert begin(store, MOVE, 1, 1) == []
    store.shards.update(2, ShardUse.DRAINING, None, None)
    with pytest.raises(InvalidArgumentError, match="slots of shard 1 are on their way to shard 2"):
        store.shards.remove(2, 1)
    store.slots.restore(moved(TABLE, MOVE))
    store.shards.remove(2, 1)
    assert store.namespaces.read().epochs[2] == 1, "its owner may not have heard of it yet"


def test_no_shard_is_removed_whose_ids_another_one_still_reads(store: MetaStore) -> None:
    """It has given its slots, so that none leads to it any more; an operator would drop its database."""
    assert begin(store, MOVE, 1, 1) == []
    assert store.slots.set_phase(MOVE._replace(phase=MovePhase.GIVING))
    store.shards.update(1, ShardUse.DRAINING, None, None)
    with pytest.raises(InvalidArgumentError, match="slots of shard 1 are on their way to shard 2"):
        store.shards.remove(1, 1)
    store.slots.restore(moved(TABLE, MOVE))
    store.shards.remove(1, 1)


def test_a_phase_is_that_of_the_move_that_is_under_way(store: MetaStore) -> None:
    giving = MOVE._replace(phase=MovePhase.GIVING)
    assert not store.slots.set_phase(giving)
    assert begin(store, MOVE, 1, 1) == []
    assert not store.slots.set_phase(giving._replace(slots=(0,)))
    assert move_of(store) == MOVE
    assert store.slots.set_phase(giving)
    assert store.slots.set_phase(giving)
    assert move_of(store) == giving


def test_a_move_ends_with_the_table_that_it_leads_to(store: MetaStore) -> None:
    assert begin(store, MOVE, 1, 1) == []
    store.slots.restore(TABLE)
    assert move_of(store) == MOVE
    store.slots.restore(moved(TABLE, MOVE))
    assert (move_of(store), store.namespaces.read().slots) == (None, moved(TABLE, MOVE))


def test_a_move_that_was_lost_comes_back_unless_another_one_is_there_or_it_has_ended(store: MetaStore) -> None:
    store.slots.restore_move(MOVE)
    assert move_of(store) == MOVE
    store.slots.restore_move(MOVE._replace(slots=(4,)))
    assert move_of(store) == MOVE
    store.slots.restore(moved(TABLE, MOVE))
    store.slots.restore_move(MOVE)
    assert move_of(store) is None

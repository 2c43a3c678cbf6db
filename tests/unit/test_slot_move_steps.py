"""The steps of a move of slots in a shard's state: what is refused when, what is known afterwards, what is stored."""

from __future__ import annotations

import pytest

from foqs.model import limits
from foqs.model.errors import UnavailableError
from foqs.model.seen import BLOCK_IDS, digest_of
from foqs.model.slots import SlotMove, first_table, moved
from foqs.shard.state.events import Completion
from foqs.shard.state.ops import forget
from foqs.shard.state.ops.slot_move import MovedId, MovedIds
from tests.support.dedup_shard import NUMBER, OneShard

pytestmark = pytest.mark.interpreted

OTHER = 5
SLOT = 8
"""A slot of shard 0 among the shards 0 and OTHER."""
TABLE = first_table([0, OTHER])
AWAY = SlotMove(2, 0, OTHER, (SLOT,))
HITHER = SlotMove(2, OTHER, 0, (SLOT + 1,))


@pytest.fixture
def shard() -> OneShard:
    shard = OneShard()
    shard.stored.tables.slots = TABLE
    return shard


def asked() -> Completion:
    return Completion(lambda _: None)


def from_elsewhere(first: int, count: int, read_to: int, age_ms: int = 0) -> MovedIds:
    """Ids that another shard has, each with an item there."""
    slot = HITHER.slots[0]
    found = [
        MovedId(age_ms, digest_of(NUMBER, b"", slot, f"id-{at}"), (OTHER, 1_000 + at), at % 17)
        for at in range(first, first + count)
    ]
    return MovedIds(NUMBER, b"n7", found, read_to, HITHER)


def expect(shard: OneShard) -> None:
    shard.state.slot_moves.expect(HITHER, asked())
    assert shard.commit()


def test_slots_are_given_once_their_ids_on_the_way_are_written(shard):
    shard.new_ids(0, 3)
    shard.call("on its way", slot=SLOT)
    transaction = shard.state.take(shard.now, {})
    given = asked()
    shard.state.slot_moves.give(moved(TABLE, AWAY), frozenset(AWAY.slots), given)
    with pytest.raises(UnavailableError) as refused:
        shard.call("late", slot=SLOT)
    assert refused.value.nothing_done
    assert not shard.state.slot_moves.is_due()
    shard.state.committed(shard.stored.apply(transaction), shard.now)
    assert shard.stored.tables.slots == TABLE
    shard.rest()
    assert (given.open_count, given.failure) == (0, None)
    assert shard.stored.tables.slots == moved(TABLE, AWAY)
    with pytest.raises(UnavailableError):
        shard.call("late", slot=SLOT)
    assert shard.call("of another slot", slot=SLOT + 2) is not None
    shard.rest()


def test_ids_that_wait_for_their_log_hold_up_the_giving(shard):
    shard.new_ids(0, 3)
    shard.open_unread()
    shard.call("id-0", slot=SLOT)
    shard.state.slot_moves.give(moved(TABLE, AWAY), frozenset(AWAY.slots), asked())
    assert not shard.state.slot_moves.is_due()


def test_slots_whose_giving_failed_for_certain_are_taken_on(shard):
    given = asked()
    shard.state.slot_moves.give(moved(TABLE, AWAY), frozenset(AWAY.slots), given)
    assert shard.state.take(shard.now, {}) is not None
    shard.state.failed("full")
    assert given.failure is not None
    assert given.failure.nothing_done
    outcome = shard.call("id", slot=SLOT)
    shard.rest()
    assert len(outcome.made) == 1
    assert shard.stored.tables.slots == TABLE


def test_a_giving_of_which_nobody_knows_is_unknown(shard):
    given = asked()
    shard.state.slot_moves.give(moved(TABLE, AWAY), frozenset(AWAY.slots), given)
    shard.state.take(shard.now, {})
    shard.state.abandon("gone")
    assert given.failure is not None
    assert not given.failure.nothing_done


def test_a_shard_takes_no_ids_of_slots_before_they_have_come_and_knows_them_then(shard):
    expect(shard)
    slot = HITHER.slots[0]
    with pytest.raises(UnavailableError):
        shard.call("id-0", slot=slot)
    shard.state.slot_moves.append(from_elsewhere(0, 200, 200), asked())
    shard.rest()
    with pytest.raises(UnavailableError):
        shard.call("id-0", slot=slot)
    shard.state.slot_moves.arrived(moved(TABLE, HITHER), frozenset(HITHER.slots), asked())
    shard.rest()
    outcome = shard.call("id-0", "id-199", "new", slot=slot)
    shard.rest()
    assert sorted(outcome.firsts.values()) == [(OTHER, 1_000), (OTHER, 1_199)]
    assert len(outcome.made) == 1
    assert (shard.stored.tables.arrival, shard.stored.tables.slots) == (None, moved(TABLE, HITHER))


def test_the_next_owner_knows_what_has_come_so_far_and_where_to_go_on(shard):
    expect(shard)
    shard.state.slot_moves.append(from_elsewhere(0, 200, 230), asked())
    shard.rest()
    shard.open()
    assert shard.stored.tables.arrival == HITHER
    assert shard.stored.tables.moved[NUMBER].read_to == 230
    shard.state.slot_moves.close(frozenset(HITHER.slots))
    with pytest.raises(UnavailableError):
        shard.call("id-0", slot=HITHER.slots[0])
    shard.state.slot_moves.append(from_elsewhere(200, 50, 280), asked())
    shard.state.slot_moves.arrived(moved(TABLE, HITHER), frozenset(HITHER.slots), asked())
    shard.rest()
    outcome = shard.call("id-0", "id-249", slot=HITHER.slots[0])
    shard.rest()
    assert sorted(outcome.firsts.values()) == [(OTHER, 1_000), (OTHER, 1_249)]
    assert [*outcome.first_copies.values()] == [249 % 17], "the first has no copy"
    told = shard.stored.tables.moved[NUMBER]
    assert (told.read_to, told.first, told.moved_end) == (280, 0, 250)


def test_ids_that_come_stand_behind_those_of_the_same_transaction(shard):
    shard.call(*[f"own-{at}" for at in range(BLOCK_IDS - 3)])
    shard.state.slot_moves.expect(HITHER, asked())
    shard.state.slot_moves.append(from_elsewhere(0, 10, 10), asked())
    shard.rest()
    window = shard.state.dedup.windows[NUMBER]
    assert (window.end, window.moved_end) == (BLOCK_IDS + 7, BLOCK_IDS + 7)


def test_ids_that_come_push_no_younger_ids_of_the_shard_out_of_its_window(shard):
    shard.set_window(ids=1_000)
    for at in range(0, 900, 300):
        shard.new_ids(at, 300)
    expect(shard)
    for at in range(0, 1_000, 500):
        shard.state.slot_moves.append(from_elsewhere(at, 500, at), asked())
        shard.rest()
    assert shard.state.dedup.windows[NUMBER].edge == 0
    assert shard.knows(0)
    shard.open()
    assert shard.knows(0)
    for at in range(10_000, 11_100, 550):
        shard.new_ids(at, 550)
    assert shard.state.dedup.windows[NUMBER].edge == shard.state.dedup.windows[NUMBER].end - 1_000
    assert not shard.knows(0)


def test_what_came_is_forgotten_with_the_log_of_a_namespace_that_is_deleted(shard):
    expect(shard)
    shard.state.slot_moves.append(from_elsewhere(0, 200, 230), asked())
    shard.state.slot_moves.arrived(moved(TABLE, HITHER), frozenset(HITHER.slots), asked())
    shard.rest()
    all_of_them = dict(shard.settings.by_number)
    shard.settings.replace({number: one for number, one in all_of_them.items() if number != NUMBER})
    shard.rest()
    shard.rest(forget.UNKNOWN_NAMESPACE_MS)
    assert not shard.stored.tables.seen
    assert shard.stored.tables.moved == {}
    # It is recovered: the log begins anew, and nothing of it counts as come from elsewhere.
    shard.settings.replace(all_of_them)
    shard.new_ids(0, 3)
    shard.open()
    assert shard.state.dedup.windows[NUMBER].moved_end == 0


def test_ids_that_come_are_forgotten_at_the_age_that_they_have(shard):
    shard.set_window(ms=10_000)
    expect(shard)
    shard.state.slot_moves.append(from_elsewhere(0, 5, 5, age_ms=9_000), asked())
    shard.state.slot_moves.arrived(moved(TABLE, HITHER), frozenset(HITHER.slots), asked())
    shard.rest()
    known = shard.call("id-0", slot=HITHER.slots[0])
    shard.rest()
    assert known.firsts
    shard.rest(pass_ms=2 * limits.SECOND_MS)
    forgotten = shard.call("id-0", slot=HITHER.slots[0])
    shard.rest()
    assert forgotten.made


def test_the_namespace_of_ids_that_come_has_its_name_even_without_an_item(shard):
    expect(shard)
    shard.state.slot_moves.append(from_elsewhere(0, 5, 5), asked())
    assert shard.state.take(shard.now, {}) is not None
    shard.state.failed("full")
    shard.state.slot_moves.append(from_elsewhere(0, 5, 5), asked())
    shard.rest()
    assert shard.stored.tables.namespaces == {NUMBER: b"n7"}

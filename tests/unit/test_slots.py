"""The way from a dedup id to its slot is part of the contract: clients in any language compute it."""

from collections import Counter
from itertools import pairwise

import pytest

from foqs.model.slots import (
    NO_SLOTS,
    SLOTS_COUNT,
    SLOTS_MOVED_MAX,
    SlotMove,
    SlotTable,
    first_table,
    moved,
    next_move,
    pack_slots,
    slot_of,
    unpack_slots,
    unpacked,
)


@pytest.mark.parametrize(
    ("namespace", "dedup_id", "key_spread", "slot"),
    [("jobs", "order-1", 1, 453), ("jobs", "order-2", 1, 453), ("jobs", "order-1", 4, 456), ("jobs", "größe", 64, 462)],
)
def test_a_slot_is_what_other_clients_compute(namespace: str, dedup_id: str, key_spread: int, slot: int) -> None:
    assert slot_of(namespace, dedup_id, key_spread) == slot


@pytest.mark.parametrize("key_spread", [1, 2, 64, SLOTS_COUNT])
def test_a_namespace_has_as_many_slots_in_a_row_as_its_spread(key_spread: int) -> None:
    first = slot_of("jobs", "", 1)
    slots = {slot_of("jobs", f"id-{number}", key_spread) for number in range(20 * key_spread)}
    assert slots == {(first + at) % SLOTS_COUNT for at in range(key_spread)}


def test_neighbouring_slots_lead_to_different_shards_and_all_shards_get_slots() -> None:
    table = first_table([7, 2, 5])
    assert table.shards[:7] == (2, 5, 7, 2, 5, 7, 2)
    assert len(table.shards) == SLOTS_COUNT
    assert table == first_table([5, 7, 2])


@pytest.mark.parametrize("shards", [[0], [65_535, 0, 300], range(2_000)])
def test_a_copy_of_a_table_is_the_table(shards: list[int]) -> None:
    table = first_table(shards)
    assert unpacked(table.version, table.packed()) == table
    assert len(table.packed()) == 2 * SLOTS_COUNT


# ---- which slots move next ----


def come_to_rest(table: SlotTable, serving: list[int], draining: list[int]) -> tuple[SlotTable, list[SlotMove]]:
    """The table after all moves."""
    moves: list[SlotMove] = []
    while (move := next_move(table, serving, draining)) is not None:
        assert 0 < len(move.slots) <= SLOTS_MOVED_MAX
        assert {table.shards[slot] for slot in move.slots} == {move.from_shard}
        table = moved(table, move)
        moves.append(move)
    return table, moves


def test_a_shard_that_comes_gets_as_many_slots_as_the_others_from_all_of_them() -> None:
    table, moves = come_to_rest(first_table([0, 1, 2]), [0, 1, 2, 7], [])
    assert Counter(table.shards) == {0: 256, 1: 256, 2: 256, 7: 256}
    assert {move.to_shard for move in moves} == {7}
    assert {move.from_shard for move in moves} == {0, 1, 2}
    assert sum([len(move.slots) for move in moves]) == 256, "no slot moves twice"


def test_a_shard_that_drains_gives_all_its_slots_evenly_and_gets_none() -> None:
    table, moves = come_to_rest(first_table([0, 1, 2]), [0, 2], [1])
    assert Counter(table.shards) == {0: 512, 2: 512}
    assert {move.from_shard for move in moves} == {1}
    assert {move.to_shard for move in moves} == {0, 2}


def test_the_slots_of_a_shard_that_nobody_serves_stay() -> None:
    table, _ = come_to_rest(first_table([0, 1, 2]), [0, 1], [])
    assert Counter(table.shards) == Counter(first_table([0, 1, 2]).shards)


@pytest.mark.parametrize("serving", [[0, 1, 2], []])
def test_nothing_moves_where_all_have_as_many_or_nobody_takes_any(serving: list[int]) -> None:
    assert next_move(first_table([0, 1, 2]), serving, []) is None
    assert next_move(NO_SLOTS, serving, [5]) is None


def test_the_slots_of_a_move_are_far_from_each_other() -> None:
    move = next_move(first_table([0, 1]), [0, 1, 2], [])
    assert move is not None
    gaps = {second - first for first, second in pairwise(move.slots)}
    assert min(gaps) >= SLOTS_COUNT // SLOTS_MOVED_MAX


def test_the_slots_of_a_move_are_stored_and_read() -> None:
    assert unpack_slots(pack_slots([0, 258, 1023])) == (0, 258, 1023)

"""The turn of the shards of a slot: for its serial topics one of them delivers, at most."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from foqs.model.slot_gates import ALL_SLOTS, GateState, SlotGate, shut_slots
from foqs.model.slots import NO_SLOTS, SLOTS_COUNT, SlotTable

SLOT = 7
TABLE = SlotTable(1, tuple([2 if slot == SLOT else 0 for slot in range(SLOTS_COUNT)]))
"""The slot leads to shard 2, and all others to shard 0."""


def gate(from_shard: int, to_shard: int, state: GateState = GateState.OPEN) -> SlotGate:
    return SlotGate(SLOT, from_shard, to_shard, from_shard, state, 0)


def delivering(*gates: SlotGate, shards: int = 4) -> list[int]:
    return [shard_id for shard_id in range(shards) if SLOT not in shut_slots(shard_id, TABLE, gates)]


@pytest.mark.parametrize("table", [None, NO_SLOTS])
def test_a_shard_whose_copy_is_unknown_delivers_nothing(table: SlotTable | None) -> None:
    assert shut_slots(2, table, [gate(2, 1)]) == ALL_SLOTS


def test_the_shard_of_a_slot_delivers_and_a_shard_that_has_given_it_does_not() -> None:
    assert delivering() == [2]
    assert shut_slots(0, TABLE, ()) == {SLOT}


def test_an_open_gate_gives_the_turn_to_the_earlier_shard() -> None:
    assert delivering(gate(1, 2)) == [1]
    assert delivering(gate(3, 1), gate(1, 2)) == [3], "one after the other"


@pytest.mark.parametrize("state", [GateState.ASKED, GateState.SHUT])
def test_no_shard_that_knows_of_a_gate_delivers_until_it_is_open(state: GateState) -> None:
    assert delivering(gate(1, 2, state)) == []


def test_never_two_shards_deliver_whatever_the_chain() -> None:
    chance = random.Random(1)
    for _ in range(500):
        chain = [*chance.sample([0, 1, 3], chance.randint(0, 3)), 2]
        states = [GateState.OPEN, GateState.ASKED, GateState.SHUT]
        gates = [gate(a, b, chance.choice(states)) for a, b in pairwise(chain)]
        assert set(delivering(*gates)) <= {chain[0]}

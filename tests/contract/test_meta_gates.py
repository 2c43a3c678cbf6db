"""Gates of slots, as the meta database keeps them: the real one, and the one in memory, which does the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from sqlalchemy import text

from foqs.model.census import Census, CensusAnswer, bits_of
from foqs.model.cluster import ShardUse
from foqs.model.errors import InvalidArgumentError, SlotsBusyError, UnavailableError
from foqs.model.slot_gates import GateState, SlotGate
from foqs.model.slots import MovePhase, SlotMove, first_table, moved
from foqs.storage.meta.meta_store import MetaStore
from foqs.testing.fake_meta import memory_meta

TABLE = first_table([1, 2, 3])
"""Slot 0 leads to shard 1, slot 1 to shard 2, and so on."""
MOVE = SlotMove(2, 1, 2, (0, 3))
EPOCH = 1

Rows = list[tuple[int, int, int, GateState]]


@pytest.fixture(params=[pytest.param("mysql", marks=pytest.mark.database), "memory"])
def meta(request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param == "memory":
        store: Any = memory_meta(lambda: 1_700_000_000_000)
        begin(store)
        yield store
    else:
        with closing(MetaStore(request.getfixturevalue("meta_url"))) as store:
            begin(store)
            yield store


def begin(store: Any) -> None:
    for shard_id in (1, 2, 3):
        store.shards.take_epoch(shard_id, f"h{shard_id}", 1, at_least=0)
    store.slots.restore(TABLE)


def rows(meta: Any) -> Rows:
    assert meta.gates.read() == meta.namespaces.read().gates
    return [(gate.slot, gate.from_shard, gate.to_shard, gate.state) for gate in meta.gates.read()]


def gates(meta: Any, *slots: int) -> list[SlotGate]:
    return [gate for gate in meta.gates.read() if gate.slot in slots]


def answered(meta: Any, move: SlotMove, held_by: dict[int, set[int]] | None = None) -> Census:
    """A census of the slots of a move, with the slots that shards hold."""
    census: Census = meta.slots.begin(move.slots)
    for shard_id in (1, 2, 3):
        held = (held_by or {}).get(shard_id, set())
        bits = bits_of([int(one.name) in held for one in census.closes])
        meta.censuses.answer(census, [CensusAnswer(shard_id, EPOCH, 0, 0, move.version - 1, bits)])
    return census


def start(meta: Any, move: SlotMove, held_by: dict[int, set[int]] | None = None) -> None:
    assert meta.slots.begin_move(answered(meta, move, held_by), move) == []
    assert meta.slots.set_phase(move._replace(phase=MovePhase.GIVING))


def end(meta: Any, move: SlotMove) -> None:
    meta.slots.restore(moved(meta.namespaces.read().slots, move))


def test_a_move_makes_gates_of_the_slots_with_items_and_repeated_calls_make_no_others(meta: Any) -> None:
    start(meta, MOVE, {1: {0}})
    meta.gates.make(MOVE, {0, 77})
    made = meta.gates.read()
    assert rows(meta) == [(0, 1, 2, GateState.OPEN)]
    assert made[0].since_ms > 0
    meta.gates.make(MOVE, {0})
    assert meta.gates.read() == made
    with pytest.raises(UnavailableError, match="another move"):
        meta.gates.make(MOVE._replace(slots=(0,)), {0})


def test_a_slot_that_moves_on_has_a_gate_also_without_items_of_its_last_shard(meta: Any) -> None:
    start(meta, MOVE)
    meta.gates.make(MOVE, {0})
    end(meta, MOVE)
    onward = SlotMove(3, 2, 3, (0, 3))
    start(meta, onward)
    meta.gates.make(onward, set())
    assert rows(meta) == [(0, 1, 2, GateState.OPEN), (0, 2, 3, GateState.OPEN)]
    meta.gates.end(2, EPOCH, gates(meta, 0))
    assert len(rows(meta)) == 2, "shard 2 still waits for shard 1"
    meta.gates.end(1, EPOCH, gates(meta, 0)[:1])
    assert rows(meta) == [(0, 2, 3, GateState.OPEN)]
    meta.gates.end(2, EPOCH, gates(meta, 0))
    assert rows(meta) == []


@pytest.mark.parametrize("has_items", [True, False], ids=["with items", "without items"])
def test_no_slot_moves_back_to_a_shard_with_older_items_or_a_gate(meta: Any, has_items: bool) -> None:
    start(meta, MOVE)
    meta.gates.make(MOVE, {0})
    end(meta, MOVE)
    back = SlotMove(3, 2, 1, (0, 3))
    if has_items:
        meta.gates.end(1, EPOCH, gates(meta, 0))
    with pytest.raises(SlotsBusyError) as raised:
        meta.slots.begin_move(answered(meta, back, {1: {0}} if has_items else None), back)
    assert raised.value.slots == {0}
    alone = back._replace(slots=(3,))
    assert meta.slots.begin_move(answered(meta, alone, {2: {3}}), alone) == [], "its giver has them"


def test_an_earlier_shard_asks_for_a_gate_and_the_later_one_opens_it(meta: Any) -> None:
    meta.gates.ask(3, EPOCH, [0, 1, 2])
    assert rows(meta) == [(0, 3, 1, GateState.ASKED), (1, 3, 2, GateState.ASKED)], "slot 2 leads to shard 3 itself"
    meta.gates.ask(2, EPOCH, [0])
    assert len(rows(meta)) == 2, "a slot has one earlier shard, unless it moves on"
    meta.gates.advance(1, EPOCH, gates(meta, 0), GateState.SHUT)
    meta.gates.advance(2, EPOCH, gates(meta, 1), GateState.OPEN)
    assert [state for *_, state in rows(meta)] == [GateState.SHUT, GateState.OPEN]
    meta.gates.end(3, EPOCH, gates(meta, 0, 1))
    assert rows(meta) == []


def test_no_gate_is_asked_for_while_its_slot_moves(meta: Any) -> None:
    start(meta, MOVE)
    meta.gates.ask(3, EPOCH, [0, 1])
    assert rows(meta) == [(1, 3, 2, GateState.ASKED)]


def test_an_owner_that_has_lost_its_shard_changes_no_gate(meta: Any) -> None:
    meta.gates.ask(3, EPOCH, [0])
    before = meta.gates.read()
    for shard_id in (1, 3):
        meta.shards.take_epoch(shard_id, "next", 1, at_least=0)
    meta.gates.ask(3, EPOCH, [1])
    meta.gates.advance(1, EPOCH, before, GateState.OPEN)
    meta.gates.end(3, EPOCH, before)
    assert meta.gates.read() == before
    meta.gates.end(3, EPOCH + 1, before)
    assert meta.gates.read() == ()


def test_a_gate_that_was_made_anew_is_another_one(meta: Any) -> None:
    meta.gates.ask(3, EPOCH, [0])
    first = meta.gates.read()
    meta.gates.end(3, EPOCH, first)
    meta.gates.ask(3, EPOCH, [0])
    meta.gates.end(3, EPOCH, first)
    meta.gates.advance(1, EPOCH, first, GateState.OPEN)
    assert rows(meta) == [(0, 3, 1, GateState.ASKED)]


def test_an_operator_removes_all_gates_of_a_slot(meta: Any) -> None:
    meta.gates.ask(3, EPOCH, [0, 1])
    assert [gate.slot for gate in meta.gates.remove(0)] == [0]
    assert meta.gates.remove(0) == ()
    assert [slot for slot, *_ in rows(meta)] == [1]


def test_a_shard_with_a_gate_is_not_removed(meta: Any) -> None:
    meta.gates.ask(3, EPOCH, [0])
    for shard_id in (1, 3):
        meta.shards.update(shard_id, ShardUse.DRAINING, None, None)
        with pytest.raises(InvalidArgumentError, match="shard 1 waits for items of serial topics of shard 3"):
            meta.shards.remove(shard_id, EPOCH)
    meta.gates.remove(0)
    meta.shards.remove(3, EPOCH)


@pytest.mark.database
def test_statements_read_by_their_keys(meta_url: str) -> None:
    """The hosts read all gates twice a second, and a gate is found by its slot."""
    with closing(MetaStore(meta_url)) as store, store._sessions.transaction() as connection:
        for slot in range(500):
            connection.execute(text(f"INSERT INTO slot_gate VALUES ({slot}, 1, 2, {slot}, 2, 0)"))
        connection.exec_driver_sql("ANALYZE TABLE slot_gate").all()
        for statement in (
            "SELECT * FROM slot_gate ORDER BY slot, from_shard",
            "UPDATE slot_gate SET state = 2 WHERE slot = 7 AND from_shard = 1 AND id = 7",
            "DELETE FROM slot_gate WHERE slot = 7 AND from_shard = 1 AND id = 7",
            "DELETE FROM slot_gate WHERE slot = 7",
        ):
            (plan,) = connection.execute(text(f"EXPLAIN {statement}")).mappings()
            assert plan["key"] == "PRIMARY", statement
            assert "filesort" not in (plan["Extra"] or "")

"""Slots of serial topics move with their items in simulated clusters (tests.sim.gate_runs)."""

from __future__ import annotations

import pytest

from tests.sim.gate_runs import run_gates
from tests.support.deep import deep_but

SEEDS = 24
CHUNK = 4


@pytest.mark.parametrize("first", deep_but([0], range(0, SEEDS, CHUNK), range(3 * CHUNK, SEEDS)))
def test_serial_topics_keep_their_order_while_their_slots_move_with_items(first: int) -> None:
    for seed in range(first, first + CHUNK):
        outcome = run_gates(seed)
        assert not outcome.complaints, str(outcome)

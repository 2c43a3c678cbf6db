"""A planned move of a shard that meets the end of the meta database: who let go of the shard has it again."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest

from foqs.model.errors import UnavailableError
from foqs.model.shard_place import EpochGiven
from tests.sim.cluster import ClusterWorld
from tests.sim.host import SimHost
from tests.sim.ownership import SimShards
from tests.sim.run import run_seed

SEED = 4
"""A run of it has no faults but those of the script, and hosts of one tier."""
OWNED_S_MAX = 3.0
_PATIENCE_S = 20.0


async def _until(condition: Callable[[], bool], within_s: float, world: ClusterWorld, what: str) -> None:
    until_s = world.loop.time() + within_s
    while not condition():
        if world.loop.time() > until_s:
            world.complain(f"not within {within_s} s: {what}; {world.owners()}")
        await asyncio.sleep(0.01)


def _is_owned(world: ClusterWorld) -> bool:
    return all(len(names) == 1 for names in world.owners().values())


def _is_even(world: ClusterWorld) -> bool:
    counts = [sum(name in names for names in world.owners().values()) for name in [host.name for host in world.ready]]
    return _is_owned(world) and len(counts) > 1 and max(counts) - min(counts) <= 1


async def _interrupt_a_move(world: ClusterWorld, second: SimHost, *, is_for_both: bool, is_noted: bool) -> int:
    """The shard whose next owner has its lock and no epoch: the meta database has gone away a moment before.

    With `is_noted` it has gone away a moment later: it says that the next owner has an epoch, which that does not know.
    """
    met: list[int] = []
    take_epoch = SimShards.take_epoch

    def go_away() -> None:
        if is_for_both:
            world.meta.away_count += 1
        else:
            world.meta.cut_off[second.name] = math.inf

    def take_nothing(self: Any, shard_id: int, owner: str, *others: Any, **named: Any) -> EpochGiven:
        if owner != second.host.id or met:
            return take_epoch(self, shard_id, owner, *others, **named)
        met.append(shard_id)
        if is_noted:
            take_epoch(self, shard_id, owner, *others, **named)
        go_away()
        raise UnavailableError("the meta database does not answer")

    with patch.object(SimShards, "take_epoch", take_nothing):
        await _until(lambda: bool(met), _PATIENCE_S, world, "a shard moves")
    return met[0]


@pytest.mark.parametrize("is_noted", [False, True], ids=["no epoch is given", "the epoch is lost"])
@pytest.mark.parametrize("is_for_both", [True, False], ids=["away for all hosts", "away for the next owner"])
def test_a_shard_whose_move_meets_the_end_of_the_meta_database_is_served_all_the_same(
    is_for_both: bool, is_noted: bool
) -> None:
    async def script(world: ClusterWorld) -> None:
        assert world.is_orderly
        first = world.start_host("first")
        await _until(lambda: _is_owned(world), _PATIENCE_S, world, "all shards have owners")
        second = world.start_host("second")
        shard_id = await _interrupt_a_move(world, second, is_for_both=is_for_both, is_noted=is_noted)
        assert world.owners()[shard_id] == [], "its owner has let go of it"
        await _until(lambda: _is_owned(world), OWNED_S_MAX, world, "the shard has an owner")
        assert world.owners()[shard_id] == ["first"]
        if is_for_both:
            await asyncio.sleep(_PATIENCE_S)
            assert world.owners()[shard_id] == ["first"], "nothing moves"
        world.meta.away_count = 0
        world.meta.cut_off.clear()
        await _until(lambda: _is_even(world), _PATIENCE_S, world, "loads are even")
        await world.drain_host(second)
        await world.drain_host(first)

    outcome = run_seed(SEED, is_cluster=True, script=script)
    assert not outcome.complaints, str(outcome)


def test_a_host_that_leaves_serves_what_it_could_not_hand_on_as_long_as_it_waits() -> None:
    async def script(world: ClusterWorld) -> None:
        second = world.start_host("second")
        await _until(lambda: _is_owned(world), _PATIENCE_S, world, "all shards have owners")
        first = world.start_host("first")
        await _until(lambda: _is_even(world), _PATIENCE_S, world, "loads are even")
        leaving = first.shut_down(drain=True)
        first.ended = False  # It serves on, and is to be looked at.
        shard_id = await _interrupt_a_move(world, second, is_for_both=True, is_noted=False)
        await _until(lambda: _is_owned(world), OWNED_S_MAX, world, "the shard has an owner")
        assert world.owners()[shard_id] == ["first"]
        assert not leaving.done()
        world.meta.away_count = 0
        await _until(lambda: world.owners()[shard_id] == ["second"], OWNED_S_MAX, world, "the next owner has it")
        await leaving
        world.hosts.remove(first)
        await world.drain_host(second)

    outcome = run_seed(SEED, is_cluster=True, script=script)
    assert not outcome.complaints, str(outcome)

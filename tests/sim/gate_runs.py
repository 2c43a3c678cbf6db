"""Clusters in which slots of serial topics move without rest, with their items, while hosts and databases fail.

A run of its own kind, without the histories of other clients: only the load of serial topics, with slow consumers in
most runs, so that slots move with items and often on before their gates are gone.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from functools import partial

from tests.sim.cluster import ClusterNemesis, ClusterWorld
from tests.sim.groups import GroupLoad
from tests.sim.keeper import Keeper
from tests.sim.run import Outcome, run_seed, work_off

LOAD_S = 4.0
"""Longer than the load of most other runs, because gates stand for seconds."""


def run_gates(seed: int, *, verbose: bool = False) -> Outcome:
    """Repeatable by the seed."""
    outcome = run_seed(seed, is_cluster=True, is_serial=True, script=partial(_live, seed), verbose=verbose)
    return replace(outcome, kinds=("gates",))


async def _live(seed: int, world: ClusterWorld) -> None:
    chance = random.Random(f"{seed}/gates")
    world.profile = replace(world.profile, load_s=LOAD_S)
    for _ in range(chance.choice([1, 2, 3])):
        world.start_host()
    world.complete()
    nemesis, keeper = ClusterNemesis(world, chance), Keeper(world, chance)
    await asyncio.gather(nemesis.run(LOAD_S), keeper.run(LOAD_S), world.serials.run(LOAD_S))
    world.trace("sim", "load is over")
    await work_off(world, keeper, GroupLoad(world))
    world.serials.check()
    for host in world.ready:
        await world.slots.settled(host)
    for host in world.ready:
        await world.drain_host(host)

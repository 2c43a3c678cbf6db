"""Copies of shards' databases appear, and hosts are led to them: of the copies of one shard one is served at a time.

A run of its own kind, without the histories of clients: what a copy lacks that is served after a loss is lost for them.
Instead it knows what was committed on each copy, and holds hosts against two promises: no two copies of a shard take
transactions of hosts that could know of each other, and the hosts tell of exactly the transactions that were lost.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import patch

from foqs.client.queue_items import NewItem
from foqs.cluster.ownership import owner_word
from foqs.model.errors import FoqsError
from foqs.shard.writer import place
from foqs.testing.fake_server import FakeServer, Script
from tests.histories.history import make_payload
from tests.sim.caller import NAMESPACE
from tests.sim.cluster import ClusterWorld
from tests.sim.host import SimHost
from tests.sim.loop import ProcessState
from tests.sim.ownership import SteppingStore
from tests.sim.run import Outcome, run_seed

if TYPE_CHECKING:
    from tests.sim.host import FakeDoor

_BASE_SEED = 13
"""A run of it has no faults but those of the script, and hosts of one tier."""
_FAULTS = 4
_OWNED_S_MAX = 8.0
_PATIENCE_S = 1.0
_LEAVE_SERVER_MS = 400
_QUIET_S = 0.6
"""What was committed is told of within this time."""
_KNOWS_S = 1.0
"""Who reaches the meta database, and runs, knows within this time what others have noted there."""


def run_copies(seed: int, *, verbose: bool = False) -> Outcome:
    """Repeatable by the seed."""

    async def script(world: ClusterWorld) -> None:
        await Copies(world, random.Random(f"{seed}/copies")).run()

    with patch.object(place, "LEAVE_SERVER_MS", _LEAVE_SERVER_MS), patch.object(owner_word, "NUMBERS_MS", 0):
        outcome = run_seed(_BASE_SEED, is_cluster=True, script=script, verbose=verbose)
    return replace(outcome, seed=seed)


class Copies:
    """One run: what is done to the shards, and what all-knowing eyes see of it."""

    def __init__(self, world: ClusterWorld, chance: random.Random) -> None:
        self._world = world
        self._chance = chance
        self._count = 0
        self._histories: dict[str, list[tuple[int, int]]] = {}
        """By server, epoch and number of each transaction that its database has."""
        self._committed: dict[int, set[tuple[int, int]]] = {shard_id: set() for shard_id in world.servers}
        for server in world.servers.values():
            self._watch(server, [])

    async def run(self) -> None:
        world = self._world
        for _ in range(3):
            world.start_host()
        # What is lost with a copy is no matter of the history.
        world.stored = list  # type: ignore[method-assign]
        await self._until(self._is_even, "all shards have owners")
        faults: list[Callable[[int], Any]] = [
            self._others_are_led_to_a_copy, self._a_copy_is_promoted, self._a_name_moves, self._owner_hangs,
            self._owner_is_cut_off, self._owner_is_killed,
        ]  # fmt: skip
        for _ in range(_FAULTS):
            await self._load(6)
            fault, shard_id = self._chance.choice(faults), self._chance.choice(list(world.servers))
            world.trace("copies", f"{fault.__name__.strip('_')} of shard {shard_id}")
            await fault(shard_id)
            self._heal()
            await self._until(self._is_even, f"after {fault.__name__.strip('_')} all shards have owners")
            world.counts[f"copies: {fault.__name__.strip('_')}"] += 1
        await self._load(6)
        await asyncio.sleep(_QUIET_S)
        self._check_losses()
        for host in list(world.ready):
            await world.drain_host(host)

    # ---- what happens ----

    async def _others_are_led_to_a_copy(self, shard_id: int) -> None:
        """The owner is well: nobody takes the shard from it, or has two copies served."""
        copy, owner = await self._copy(shard_id), self._owner(shard_id)
        self._lead(shard_id, copy, [host for host in self._world.ready if host is not owner])
        for host in self._world.ready:
            if shard_id not in host.host.shards_run:
                await self._begin_to_take(host, shard_id)
        for _ in range(4):
            await self._load(2)
            await asyncio.sleep(0.4)
        if self._world.owners()[shard_id] != [owner.name]:
            self._world.complain(f"{owner.name} is well, and shard {shard_id} is had by {self._world.owners()}")

    async def _a_copy_is_promoted(self, shard_id: int) -> None:
        """The server is lost; others are led to the copy, and the owner to its old server, which comes back."""
        copy, owner = await self._copy(shard_id), self._owner(shard_id)
        self._lead(shard_id, copy, [host for host in self._world.ready if host is not owner])
        old = self._world.servers[shard_id]
        old.crash()
        await asyncio.sleep(self._chance.choice([0.1, 1.5]))
        old.restart()
        for _ in range(12):
            await self._load(1)
            await asyncio.sleep(0.1)

    async def _a_name_moves(self, shard_id: int) -> None:
        """Sessions end, and new ones of all hosts lead to the copy."""
        copy = await self._copy(shard_id)
        self._lead(shard_id, copy, self._world.ready)
        self._world.servers[shard_id].kill_sessions()
        await self._load(4)
        await asyncio.sleep(1.0)

    async def _owner_hangs(self, shard_id: int) -> None:
        """For so long that it is dead, and a copy is served; then it goes on."""
        copy, owner = await self._copy(shard_id), self._owner(shard_id)
        self._lead(shard_id, copy, [host for host in self._world.ready if host is not owner])
        owner.process.stop()
        await asyncio.sleep(4.0)
        owner.process.resume()
        await self._load(8)
        await asyncio.sleep(1.5)

    async def _owner_is_cut_off(self, shard_id: int) -> None:
        """From the meta database: it serves on, as it has to, and tells of the loss when it knows of the other one."""
        world = self._world
        copy, owner = await self._copy(shard_id), self._owner(shard_id)
        self._lead(shard_id, copy, [host for host in world.ready if host is not owner])
        world.meta.cut_off[owner.name] = math.inf
        for _ in range(5):
            await self._load(2)
            await asyncio.sleep(0.7)
        world.meta.cut_off[owner.name] = world.loop.time()
        await asyncio.sleep(_KNOWS_S + 1.0)
        await self._load(4)

    async def _owner_is_killed(self, shard_id: int) -> None:
        copy, owner = await self._copy(shard_id), self._owner(shard_id)
        self._lead(shard_id, copy, [host for host in self._world.ready if host is not owner])
        await asyncio.sleep(_QUIET_S)
        self._world.kill_host(owner, sockets_closed=self._chance.random() < 0.5)
        host = self._world.start_host()
        self._lead(shard_id, copy, [host])
        await self._until(lambda: bool(self._world.owners()[shard_id]), f"shard {shard_id} has an owner again")
        await self._load(4)

    def _heal(self) -> None:
        """All are led to the copy that is served, or was last."""
        self._world.led.clear()

    # ---- parts of it ----

    async def _copy(self, shard_id: int) -> FakeServer:
        """A copy, which is behind in half of the cases; nothing is under way when it is needed."""
        self._count += 1
        old = self._world.servers[shard_id]
        copy = old.clone(f"copy {self._count} of shard {shard_id}")
        self._watch(copy, self._histories[old.name])
        if self._chance.random() < 0.5:
            await self._load(3)
        await asyncio.sleep(_QUIET_S)
        if old.tables.writer.transaction_number != copy.tables.writer.transaction_number:
            self._world.counts["copies that are behind"] += 1
        return copy

    def _lead(self, shard_id: int, server: FakeServer, hosts: list[SimHost]) -> None:
        self._world.led.update({(host.name, shard_id): server for host in hosts})

    async def _begin_to_take(self, host: SimHost, shard_id: int) -> None:
        """Whoever is planned for it, this host tries."""
        task = self._world.loop.create_task(host.host.gain_shard(shard_id, ""), context=host.process.context)
        await task

    async def _load(self, count: int) -> None:
        for _ in range(count):
            ready = [host for host in self._world.ready if host.process.state is ProcessState.RUNNING]
            if not ready:
                return
            self._count += 1
            item = NewItem(f"t{self._count % 3}", make_payload(f"copies:{self._count}", 40))
            try:
                await self._world.send(self._chance.choice(ready), partial(_put_one, item), _PATIENCE_S)
            except FoqsError:
                self._world.counts["copies: calls that failed"] += 1

    def _owner(self, shard_id: int) -> SimHost:
        (name,) = self._world.owners()[shard_id]
        return next(host for host in self._world.ready if host.name == name)

    def _is_even(self) -> bool:
        """Each shard has one owner, and none is about to move."""
        owners = self._world.owners()
        counts = [sum(names == [host.name] for names in owners.values()) for host in self._world.ready]
        return all(len(names) == 1 for names in owners.values()) and max(counts) - min(counts) <= 1

    async def _until(self, condition: Callable[[], bool], what: str) -> None:
        until_s = self._world.loop.time() + _OWNED_S_MAX
        while not condition():
            if self._world.loop.time() > until_s:
                self._world.complain(f"not within {_OWNED_S_MAX} s: {what}; {self._world.owners()}")
            await asyncio.sleep(0.05)

    # ---- what is seen ----

    def _watch(self, server: FakeServer, history: list[tuple[int, int]]) -> None:
        self._histories[server.name] = list(history)
        server.on_commit = partial(self._committed_on, server)

    def _committed_on(self, server: FakeServer, script: Script) -> None:
        """No host that could know better has the shard on another server."""
        world, shard_id = self._world, server.shard_id
        transaction = script.epoch, script.mark.transaction_number
        self._histories[server.name].append(transaction)
        world.slots.committed(shard_id, script)
        world.tiers.committed(shard_id, script)
        self._committed[shard_id].add(transaction)
        holders = self._holders(shard_id)
        mine = next((at for at in holders if at[1]._server is server and at[1].epoch == script.epoch), None)
        if mine is None or not self._knows(*mine):
            return
        self._world.servers[shard_id] = server
        for host, store in holders:
            if store._server is not server and self._knows(host, store):
                world.complain(f"{mine[0].name} writes to {server.name}, and {host.name} has {store._server.name}")

    def _holders(self, shard_id: int) -> list[tuple[SimHost, SteppingStore]]:
        return [
            (host, cast(SteppingStore, writer._store))
            for host in self._world.ready
            for writer, _ in host.host._shards.owned()
            if writer.shard_id == shard_id and cast(SteppingStore, writer._store)._session is not None
        ]

    def _knows(self, host: SimHost, store: SteppingStore) -> bool:
        """Whether the host had the time to learn of others. Who was stopped asks before its next transaction."""
        now_s, process = self._world.loop.time(), host.process
        if process.state is not ProcessState.RUNNING or self._world.meta.cut_off.get(host.name, -math.inf) > now_s:
            return False
        if now_s - self._world.meta.cut_off.get(host.name, -math.inf) < _KNOWS_S:
            return False
        return now_s - process.resumed_s > _KNOWS_S or store.asked_s > process.resumed_s

    def _check_losses(self) -> None:
        lost = {
            shard_id: sorted(self._committed[shard_id].difference(self._histories[server.name]))
            for shard_id, server in self._world.servers.items()
        }
        told, count = self._world.counts["transactions lost"], sum(map(len, lost.values()))
        if told != count:
            self._world.complain(f"{count} transactions were lost, and hosts told of {told}: {lost}")
        self._world.counts["copies: transactions lost"] = count


async def _put_one(item: NewItem, door: FakeDoor) -> SimpleNamespace:
    await door.queue.enqueue(NAMESPACE, [item], False)
    return SimpleNamespace()

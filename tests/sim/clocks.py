"""The clocks of a simulated world: those of its servers, which step, and what must hold of them.

The world's own time never steps. Leases are held against that, and so is the steady clock of each shard.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from foqs.host.dispatch.topic_queue import DequeueCall
from foqs.model import limits
from foqs.model.calls import Delivery
from foqs.model.item import ShardItem
from foqs.shard.mysql_server import SLOT_MS_MAX
from foqs.testing.fake_server import Script
from tests.histories.clocks import ClockSteps

if TYPE_CHECKING:
    from foqs.shard.port import Transaction
    from foqs.shard.state.engine import ShardState
    from foqs.shard.writer.shard_writer import ShardWriter
    from tests.sim.world import World

_STOPPED_MS_MAX = 3_000
"""A host may be stopped for so long between its look and what it puts together then (tests.sim.nemesis)."""


class SimClocks:
    def __init__(self, world: World) -> None:
        self.skews_ms: dict[int, int] = {}
        self.steps = ClockSteps(world.profile.limits["CLOCK_PROBE_MS"] + world.profile.tolerance_ms)
        self._world = world
        self._stepped_ms: dict[int, int] = {}
        self._greatest_ms: dict[int, int] = {}
        self._least_ms: dict[int, int] = {}
        self._lease_ends_ms: dict[str, float] = {}
        """By receipt, when the lease ends that its host has to keep."""
        self._taken: dict[tuple[int, int, int], tuple[ShardState, float]] = {}
        """By shard, epoch and number, who put a transaction together and when."""
        self._committed: dict[int, tuple[ShardState, int, float]] = {}
        """By shard, of its last transaction: who put it together, what its steady clock showed, and when."""
        self._undurable_since_ms: dict[int, float] = {}

    def of(self, shard_id: int) -> Callable[[], int]:
        return lambda: self._shown_ms(shard_id)

    def _shown_ms(self, shard_id: int) -> int:
        return int(self._world.exact_now_ms()) + self.skews_ms[shard_id] + self._stepped_ms.get(shard_id, 0)

    def latest_ms(self, shard_id: int, at_ms: int) -> int:
        """What the server's clock may have shown at that time at most."""
        return at_ms + self.skews_ms[shard_id] + self._greatest_ms.get(shard_id, 0)

    # ---- what happens to them ----

    def step(self, shard_id: int, stepped_ms: int) -> None:
        """The server's clock is so far from where it would be from now on."""
        self._world.trace(f"shard-{shard_id}", f"clock is {stepped_ms} ms off")
        self._stepped_ms[shard_id] = stepped_ms
        self._greatest_ms[shard_id] = max(self._greatest_ms.get(shard_id, 0), stepped_ms)
        self._least_ms[shard_id] = min(self._least_ms.get(shard_id, 0), stepped_ms)
        self.steps.note(shard_id, self._world.now_ms(), stepped_ms)

    def go_on(self) -> None:
        """Every server's clock is where it ever was at most, so that nothing is due long after the run."""
        for shard_id, greatest_ms in self._greatest_ms.items():
            if self._stepped_ms[shard_id] != greatest_ms:
                self.step(shard_id, greatest_ms)

    def durable(self, shard_id: int, *, durable: bool) -> None:
        if durable:
            self._undurable_since_ms.pop(shard_id, None)
        else:
            self._undurable_since_ms[shard_id] = self._world.exact_now_ms()

    # ---- leases, by the world's own time ----

    def handed_out(self, call: DequeueCall, items: list[ShardItem]) -> None:
        now_ms = self._world.exact_now_ms()
        for item in items:
            self._lease_ends_ms[item.receipt] = now_ms + (call.lease_ms or item.lease_ms or call.lease_ms_default)

    def lease_end_ms(self, receipt: str) -> int:
        return int(self._lease_ends_ms[receipt])

    def problems_of_delivery(self, shard_id: int, item: Delivery) -> Iterator[str]:
        """The end of a lease is told by the server's clock."""
        told_ms = item.lease_expires_at_ms - self.lease_end_ms(item.receipt) - self.skews_ms[shard_id]
        least_ms, greatest_ms = self._least_ms.get(shard_id, 0), self._greatest_ms.get(shard_id, 0)
        bound_ms = self._world.profile.tolerance_ms
        if not least_ms - bound_ms <= told_ms <= greatest_ms + bound_ms:
            yield f"the lease of {item.receipt} is told to end {told_ms} ms after its time"

    # ---- the steady clock ----

    def taken(self, shard: ShardState, transaction: Transaction) -> None:
        key = (shard.shard_id, shard.epoch, transaction.number)
        self._taken[key] = (shard, self._world.exact_now_ms())

    def problems_of_commit(self, shard_id: int, script: Script) -> Iterator[str]:
        """The steady clock goes as the world's time under one owner, and stands still between two."""
        owner, taken_ms = self._taken_by(shard_id, script.epoch, script.mark.transaction_number)
        before, self._committed[shard_id] = self._committed.get(shard_id), (owner, script.mark.steady_ms, taken_ms)
        if before is not None:
            owner_before, steady_before_ms, taken_before_ms = before
            steady_ms = script.mark.steady_ms
            gone_ms, passed_ms = steady_ms - steady_before_ms, taken_ms - taken_before_ms
            if not 0 <= gone_ms <= passed_ms + 1:
                yield f"P3: the steady clock of shard {shard_id} went by {gone_ms} ms in {passed_ms:.3f} ms"
            elif owner is owner_before and gone_ms < passed_ms - 1:
                yield f"P7: the steady clock of shard {shard_id} went by {gone_ms} ms only in {passed_ms:.3f} ms"
        yield from self._problems_of_durability(shard_id, taken_ms)

    def _taken_by(self, shard_id: int, epoch: int, number: int) -> tuple[ShardState, float]:
        """The state takes up an epoch only between two transactions, and the store can have a later one before."""
        return next(
            self._taken[shard_id, taken, number]
            for taken in range(epoch, -1, -1)
            if (shard_id, taken, number) in self._taken
        )

    def _problems_of_durability(self, shard_id: int, taken_ms: float) -> Iterator[str]:
        """An owner that looks in time puts nothing together for a server that has not been durable for long."""
        undurable_ms = taken_ms - self._undurable_since_ms.get(shard_id, math.inf)
        profile = self._world.profile
        stopped_ms = _STOPPED_MS_MAX if profile.host_fault_rate else 0
        slots_ms = SLOT_MS_MAX * profile.shard_count
        bound_ms = limits.DURABILITY_CHECK_MS + 2 * profile.tolerance_ms + stopped_ms + slots_ms
        if undurable_ms > bound_ms:
            yield f"P1: shard {shard_id} is written to {undurable_ms:.0f} ms after its server stopped being durable"

    # ---- what hosts take for their servers' clocks ----

    def problems_of_host(self, writer: ShardWriter) -> Iterator[str]:
        """Never ahead of the server but by a step back, behind by no more than answers may be slow, and a step."""
        shard_id = writer.shard_id
        ahead_ms = writer.now_ms() - self._shown_ms(shard_id)
        stepped_ms = self._stepped_ms.get(shard_id, 0)
        if ahead_ms > self._greatest_ms.get(shard_id, 0) - stepped_ms + 1:
            yield f"the host takes the clock of shard {shard_id} to be {ahead_ms} ms ahead of what it is"
        late_ms = -ahead_ms - (stepped_ms - self._least_ms.get(shard_id, 0))
        if late_ms > self._world.profile.tolerance_ms:
            yield f"the host takes the clock of shard {shard_id} to be {late_ms} ms behind what it is"

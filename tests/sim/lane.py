"""The bulk lane of simulated hosts, checked: bulk gives way to interactive calls, and is never starved by them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from unittest.mock import patch

from foqs.host.admission import bulk_lane
from foqs.host.admission.bulk_lane import SHARED_PAUSE_FACTOR, SHARED_PAUSE_MS_MAX, SLICE_MS_MAX, BulkLane, Slice
from foqs.model import limits
from foqs.model.errors import OverloadedError
from tests.sim.loop import current_process

if TYPE_CHECKING:
    from tests.sim.world import World

_SLACK_S = 0.01
"""Timers are late by less than a millisecond each."""
IDLE_S_MAX = (SLICE_MS_MAX + SHARED_PAUSE_MS_MAX) / 1000 + _SLACK_S
"""While slices wait, one is let in at least so often: what is under way counts for half a second at most."""


@contextmanager
def tuned_lane() -> Iterator[None]:
    """Calls of a few items come in several slices, and wait for each other."""
    with (
        patch.object(bulk_lane, "SHARED_SLICE_ITEMS_MAX", 3),
        patch.object(limits, "BULK_SHARED_ITEMS_MAX", 3),
        patch.object(limits, "BULK_ITEMS_MAX", 12),
    ):
        yield


def checked_lane(world_of: Callable[[], World]) -> type[BulkLane]:
    """The bulk lane, checked whenever a slice is let in or refused."""

    class CheckedLane(BulkLane):
        pause_until_s = 0.0
        """No slice may be let in before, as far as interactive calls can rely on it."""
        last_in_s = 0.0
        before_s = 0.0
        """When the slice before the last one was let in."""

        async def enter(self, count: int, size_bytes: int) -> Slice:
            asked_s = self._loop.time()
            try:
                entered = await super().enter(count, size_bytes)
            except OverloadedError:
                world_of().counts["bulk slices refused"] += 1
                self._check_idle(max(asked_s, self.last_in_s), self._loop.time())
                raise
            self._check_idle(max(asked_s, self.before_s), self.last_in_s)
            return entered

        def left(self, one: Slice) -> None:
            if self.is_shared:
                now_s = self._loop.time()
                took_s = SHARED_PAUSE_FACTOR * (now_s - self.last_in_s)
                self.pause_until_s = now_s + min(took_s, SHARED_PAUSE_MS_MAX / 1000)
            super().left(one)

        def _let_in(self, one: Slice) -> None:
            world, now_s = world_of(), self._loop.time()
            if self.is_shared:
                if now_s < self.pause_until_s - 1e-9:
                    world.complain(f"a bulk slice is let in {self.pause_until_s - now_s:.4f} s before its pause ends")
                if self.items_count and self.items_count + one.count > limits.BULK_SHARED_ITEMS_MAX:
                    world.complain(f"{one.count} bulk items are let in beside {self.items_count} and interactive calls")
            self.before_s, self.last_in_s = self.last_in_s, now_s
            super()._let_in(one)
            world.counts["bulk slices"] += 1
            world.counts["bulk slices that others wait behind"] += bool(self._waiting)

        def _check_idle(self, since_s: float, until_s: float) -> None:
            """A slice has waited all the while, and none was let in."""
            process = current_process()
            awake_s = process.resumed_s if process is not None else 0.0
            idle_s = until_s - max(since_s, awake_s)
            if idle_s > IDLE_S_MAX:
                world_of().complain(f"bulk is starved: no slice was let in for {idle_s:.3f} s, and one has waited")

    return CheckedLane

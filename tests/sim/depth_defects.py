"""Defects of the limit on the depth of a topic, and of its backoff."""

from __future__ import annotations

from typing import Any

from foqs.cluster.homes.other_depths import OtherDepths
from foqs.host.admission.depths import Room
from foqs.model.stocks import Topic
from foqs.shard.state.events import Completion
from foqs.shard.state.ops.settle import Settlements
from tests.sim.depth_runs import run_depths
from tests.sim.planting import in_place_of, runs_with

runs_with(__name__, run_depths)

_failed_attempt = Settlements.failed_attempt


@in_place_of(OtherDepths, "count")
def counts_this_host_alone(self: OtherDepths, topic: Topic) -> int:
    return 0


@in_place_of(Room, "hold_until")
def keeps_the_room_of_ended_calls(self: Room, completion: Completion) -> None:
    """It counts what is stored a second time, and what has failed for ever."""


@in_place_of(Settlements, "failed_attempt")
def delays_no_nack(self: Settlements, item: Any, now_ms: int, **how: Any) -> Any:
    return _failed_attempt(self, item, now_ms, **({**how, "delay_ms": 1} if how.get("cause") == "nacked" else how))

"""Defects of waits that are given up, and of what is said of items that were begun."""

from __future__ import annotations

from typing import Any

from foqs.client.aio.connections import AsyncClientConnection
from foqs.client.aio.late import AsyncLateAnswers
from foqs.client.aio.settler import AsyncLeaseKeeper
from foqs.client.aio.worker import AsyncWorker
from foqs.shard.state.lease_table import LeaseTable
from foqs.transport.call_table import CallTable
from tests.sim.planting import in_place_of

_seen: dict[str, Any] = {"give_up": AsyncClientConnection._give_up}


@in_place_of(AsyncLateAnswers, "came")
def drops_what_comes_late(self: AsyncLateAnswers, call: Any, response: Any) -> None:
    self._changed.set()


@in_place_of(AsyncClientConnection, "_give_up")
def drops_what_comes_as_its_caller_gives_up(self: AsyncClientConnection, seqid: int, call: Any, future: Any) -> None:
    if seqid in self._waiting:
        _seen["give_up"](self, seqid, call, future)


@in_place_of(CallTable, "_end_wait")
def lets_calls_wait_for_whom_nobody_waits(self: CallTable, seqid: int) -> None:
    return None


@in_place_of(LeaseTable, "hand_over")
def counts_what_was_handed_over_as_tried(self: LeaseTable, items: Any) -> None:
    return None


@in_place_of(LeaseTable, "work_begins")
def forgets_what_was_begun(self: LeaseTable, item: Any) -> None:
    return None


@in_place_of(LeaseTable, "ended_in_work")
def takes_everything_for_not_begun(self: LeaseTable, item: Any) -> bool:
    self.unbegun.discard(item.key)
    return False


@in_place_of(AsyncLeaseKeeper, "begin")
async def begins_before_the_host_knows(self: AsyncLeaseKeeper, item: Any) -> None:
    self.begin_later(item)


@in_place_of(AsyncWorker, "_has_turn")
def handles_suspects_beside_others(self: AsyncWorker, item: Any) -> bool:
    return True

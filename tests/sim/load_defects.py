"""Defects of bulk calls and of the counts of jobs."""

from __future__ import annotations

import asyncio

from foqs.host.admission.bulk_lane import BulkLane, Slice
from foqs.host.admission.hosted_jobs import HostedJob, Jobs
from foqs.model.calls import EnqueueResult
from tests.sim.chance import Profile
from tests.sim.planting import in_place_of


def _keeps_counts(profile: Profile) -> bool:
    return not (profile.host_fault_rate or profile.meta_fault_rate or profile.undurable_rate)


@in_place_of(Jobs, "note")
def counts_what_was_refused(self: Jobs, job: HostedJob, result: EnqueueResult) -> None:
    job.items += len(result.ids)
    job.is_unwritten = True


@in_place_of(Jobs, "write_all", _keeps_counts)
async def drops_counts_when_it_drains(self: Jobs, tries: int = 1) -> None:
    return None


@in_place_of(BulkLane, "_resume")
def does_not_go_on_after_a_pause(self: BulkLane) -> None:
    self._is_scheduled = False


@in_place_of(BulkLane, "left")
def does_not_pause_after_a_slice(self: BulkLane, one: Slice) -> None:
    self.items_count -= one.count
    self.size_bytes -= one.size_bytes
    self._schedule()


@in_place_of(BulkLane, "_has_room")
def lets_in_whatever_comes(self: BulkLane, one: Slice) -> bool:
    return True


@in_place_of(Slice, "begin", lambda profile: bool(profile.slow_share or profile.server_fault_rate))
def waits_for_a_slice_of_a_sick_shard(self: Slice, timer: asyncio.TimerHandle) -> None:
    timer.cancel()
    self.is_under_way = True

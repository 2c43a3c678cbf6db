"""Defects of bulk calls and of the counts of jobs."""

from __future__ import annotations

from foqs.host import bulk_lane
from foqs.host.jobs import HostedJob, Jobs
from foqs.model.calls import EnqueueResult
from foqs.model.errors import FoqsError, OverloadedError
from tests.sim.chance import Profile
from tests.sim.planting import in_place_of


def _keeps_counts(profile: Profile) -> bool:
    return not (profile.host_fault_rate or profile.meta_fault_rate or profile.undurable_rate)


@in_place_of(Jobs, "note")
def counts_what_was_refused(self: Jobs, job: HostedJob, result: EnqueueResult) -> None:
    job.items += len(result.ids)
    job.has_news = True


@in_place_of(Jobs, "write_all", _keeps_counts)
async def drops_counts_when_it_drains(self: Jobs) -> None:
    return None


@in_place_of(bulk_lane, "_refuse_rest", lambda profile: bool(sum(profile.fates)))
def says_that_a_slice_of_unknown_outcome_was_not_done(
    result: EnqueueResult, total: int, part_count: int, error: FoqsError
) -> None:
    first = len(result.ids)
    result.errors.update(dict.fromkeys(range(first, total), OverloadedError("not done", retry_after_ms=1)))
    result.ids += [""] * (total - first)

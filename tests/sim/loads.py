"""The job that clients load for: what hosts have counted of it is held against what its calls were told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from foqs.model.errors import FoqsError
from foqs.model.jobs import Job
from foqs.storage.meta.meta_jobs import JobKey
from foqs.testing.fake_meta_tables import JobTables

if TYPE_CHECKING:
    from foqs.model.calls import EnqueueResult
    from tests.sim.world import World

JOB = JobKey(1, "load")
"""Its namespace is the first one, which nobody deletes."""


def tables_with_job() -> JobTables:
    return JobTables({JOB: Job(id=JOB.id, namespace_name="jobs", created_at_ms=0, updated_at_ms=1 << 60)})


class Loads:
    """What the calls that named the job were told."""

    has_bundles = False
    """True if most calls have items that hosts keep in bundles, which they do only without an event log."""

    def __init__(self) -> None:
        self.made_count = 0
        self.unknown_count = 0
        """Positions of which nobody knows whether they were done."""

    def answered(self, result: EnqueueResult) -> None:
        self.made_count += len(result.ids) - len(result.errors) - len(result.duplicates)
        self.unknown_count += sum([not error.nothing_done for error in result.errors.values()])

    def failed(self, error: FoqsError, count: int) -> None:
        if not error.nothing_done:
            self.unknown_count += count

    def problems(self, world: World) -> Iterator[str]:
        """What is wrong with the counts, after all hosts were drained."""
        tables = world.meta.tables.jobs
        if JOB not in tables.jobs:
            return  # Lost with its database.
        counted = tables.jobs[JOB].items_count
        counted += sum([counts.items for (key, _, _), (_, counts) in tables.hosts.items() if key == JOB])
        world.counts["items counted for a job"] += counted
        if counted > self.made_count + self.unknown_count:
            told = f"{self.made_count} were answered and {self.unknown_count} may have been done"
            yield f"the job has {counted} items, and {told}"
        profile = world.profile
        loses_counts = profile.host_fault_rate or profile.meta_fault_rate or profile.undurable_rate or world.restored
        if counted < self.made_count and not loses_counts:
            yield f"the job has {counted} items, and {self.made_count} were answered; no host was killed"

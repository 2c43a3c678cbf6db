"""The client of service FoqsAdmin. Verbs are defined in `foqs.client.admin_verbs`; here they get names and types."""

from __future__ import annotations

from datetime import timedelta

from foqs.client import admin_verbs
from foqs.client.aio.admin_items import AsyncItemVerbs
from foqs.client.aio.admin_namespaces import AsyncNamespaceVerbs
from foqs.model.calls import (
    ClusterShard,
    HostStatus,
)
from foqs.model.cluster import ShardUse
from foqs.model.cluster_calls import ClusterHost
from foqs.model.jobs import Job, JobPage, JobState


class AsyncAdminClient(AsyncNamespaceVerbs, AsyncItemVerbs):
    """A client of service FoqsAdmin for one event loop, used by operators and by tests to set up namespaces.

    Its arguments and errors are those of `AsyncClient`, and so is what deadline, deadline_ms and return_errors mean.
    """

    async def create_job(
        self,
        namespace: str,
        job_id: str,
        *,
        items_per_second_max: int = 0,
        detail: str = "",
        deadline_ms: int | None = None,
        deadline: timedelta | None = None,
    ) -> Job:
        """Make the record of a load of many enqueues, which then name it by `job_id`.

        job_id: 1 to 128 characters of A-Z a-z 0-9 . _ -.  detail: a text for people, up to 4 KiB.
        items_per_second_max (0): the most that all hosts together enqueue of the job; 0 is no limit.
        Raises AlreadyExistsError when the namespace has a job of that id, InvalidArgumentError when there are too many.
        """
        terms = self._within(deadline_ms, deadline)
        return await self._run(admin_verbs.create_job(terms, namespace, job_id, items_per_second_max, detail))

    async def update_job(
        self,
        namespace: str,
        job_id: str,
        *,
        state: JobState | None = None,
        items_per_second_max: int | None = None,
        rows_count: int | None = None,
        detail: str | None = None,
        deadline_ms: int | None = None,
        deadline: timedelta | None = None,
    ) -> Job:
        """Change what is given of a job record, leave the rest, and return the record. Raises NotFoundError.

        A new rate holds on every host within about 2 s. state, rows_count: what the caller knows of the end of the job.
        """
        flow = admin_verbs.update_job(
            self._within(deadline_ms, deadline), namespace, job_id, state, items_per_second_max, rows_count, detail
        )
        return await self._run(flow)

    async def get_job(
        self, namespace: str, job_id: str, *, deadline_ms: int | None = None, deadline: timedelta | None = None
    ) -> Job:
        """Return a job record, with what hosts have counted until about 2 s ago. Raises NotFoundError."""
        return await self._run(admin_verbs.get_job(self._within(deadline_ms, deadline), namespace, job_id))

    async def list_jobs(
        self,
        namespace: str,
        limit: int = 100,
        page_token: str = "",
        *,
        deadline_ms: int | None = None,
        deadline: timedelta | None = None,
    ) -> JobPage:
        """Return one page of a namespace's jobs, the newest first. page_token: as with `peek_items`."""
        terms = self._within(deadline_ms, deadline)
        return await self._run(admin_verbs.job_page(terms, namespace, limit, page_token))

    async def list_shards(
        self, *, deadline_ms: int | None = None, deadline: timedelta | None = None
    ) -> list[ClusterShard]:
        """Return all shards that the cluster has or had, by id."""
        return await self._run(admin_verbs.list_shards(self._within(deadline_ms, deadline)))

    async def add_shard(
        self,
        shard_id: int,
        place: str,
        *,
        tier: str = "",
        deadline_ms: int | None = None,
        deadline: timedelta | None = None,
    ) -> ClusterShard:
        """Let the hosts of a tier serve one more shard, whose database has the tables of the hosts' version.

        place: its URL without user and password. Raises AlreadyExistsError, and InvalidArgumentError when no shard can
        be served there.
        """
        terms = self._within(deadline_ms, deadline)
        return await self._run(admin_verbs.add_shard(terms, shard_id, place, tier))

    async def update_shard(
        self,
        shard_id: int,
        *,
        state: ShardUse | None = None,
        pinned_to: str | None = None,
        tier: str | None = None,
        last: bool = False,
        deadline_ms: int | None = None,
        deadline: timedelta | None = None,
    ) -> ClusterShard:
        """Change what is given, and return the shard. Raises NotFoundError.

        state: SERVING or DRAINING. pinned_to: the host that is to serve it while it is there, or "" for any.
        last (False): drain it also if no other shard of its tier takes items, so that enqueues are refused; without it
        that raises InvalidArgumentError.
        """
        terms = self._within(deadline_ms, deadline)
        return await self._run(admin_verbs.update_shard(terms, shard_id, state, pinned_to, tier, last))

    async def remove_shard(
        self, shard_id: int, *, deadline_ms: int | None = None, deadline: timedelta | None = None
    ) -> None:
        """Let nobody serve a shard any more that is drained and empty. Any host asks its owner.

        Raises InvalidArgumentError when it still holds items, dead letters included, or has slots of dedup ids, and
        NotFoundError when there is no such shard, or it was removed.
        """
        return await self._run(admin_verbs.remove_shard(self._within(deadline_ms, deadline), shard_id))

    async def list_hosts(
        self, *, deadline_ms: int | None = None, deadline: timedelta | None = None
    ) -> list[ClusterHost]:
        """Return the hosts that live as far as the one that answers knows, by name. It asks all, for 2 s at most."""
        return await self._run(admin_verbs.list_hosts(self._within(deadline_ms, deadline)))

    async def host_status(self, *, deadline_ms: int | None = None, deadline: timedelta | None = None) -> HostStatus:
        """Return the status of the host that answers, and of its shards."""
        return await self._run(admin_verbs.host_status(self._within(deadline_ms, deadline)))

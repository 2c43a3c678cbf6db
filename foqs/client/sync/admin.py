# Generated from foqs/client/aio/admin.py by scripts/generate_sync.py: edit that one.
"""The client of service FoqsAdmin. It adds names and types to the verbs of `foqs.client.admin_verbs`."""

from __future__ import annotations

from datetime import datetime, timedelta

from foqs.client import admin_verbs
from foqs.client.sync.admin_access import AccessVerbs
from foqs.client.sync.admin_consumers import ConsumerVerbs
from foqs.client.sync.admin_explain import ExplainVerbs
from foqs.client.sync.admin_groups import GroupVerbs
from foqs.client.sync.admin_items import ItemVerbs
from foqs.client.sync.admin_jobs import BulkVerbs
from foqs.client.sync.admin_namespaces import NamespaceVerbs
from foqs.client.sync.admin_rates import RateVerbs
from foqs.model.audit import AuditFilter, AuditPage
from foqs.model.calls import (
    ClusterShard,
    HostStatus,
    Identity,
)
from foqs.model.cluster import ShardUse
from foqs.model.cluster_calls import ClusterHost
from foqs.model.given_times import time_ms
from foqs.model.jobs import Job, JobPage, JobState


class AdminClient(
    NamespaceVerbs,
    GroupVerbs,
    ItemVerbs,
    ConsumerVerbs,
    ExplainVerbs,
    BulkVerbs,
    RateVerbs,
    AccessVerbs,
):
    """A blocking client of service FoqsAdmin, used by operators and by tests to set up namespaces.

    Its arguments, errors, deadlines and return_errors are those of `Client`.
    """

    def create_job(
        self,
        namespace: str,
        job_id: str,
        *,
        items_per_second_max: int = 0,
        detail: str = "",
        deadline_ms: int | None = None,
        deadline: timedelta | None = None,
    ) -> Job:
        """Create the record of a load of many enqueues, which then name it by `job_id`.

        job_id: 1 to 128 characters of A-Z a-z 0-9 . _ -.  detail: a text for people, up to 4 KiB.
        items_per_second_max (0): highest enqueue rate of the job on all hosts together; 0 for no limit.
        Raises AlreadyExistsError if the namespace has a job with this id, InvalidArgumentError if it has too many jobs.
        """
        terms = self._within(deadline_ms, deadline)
        return self._run(admin_verbs.create_job(terms, namespace, job_id, items_per_second_max, detail))

    def update_job(
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
        """Change the given fields of a job record and return the record. Raises NotFoundError.

        A new rate applies on every host within about 2 s. state, rows_count: the caller's knowledge of the end of the
        job.
        """
        flow = admin_verbs.update_job(
            self._within(deadline_ms, deadline), namespace, job_id, state, items_per_second_max, rows_count, detail
        )
        return self._run(flow)

    def get_job(
        self, namespace: str, job_id: str, *, deadline_ms: int | None = None, deadline: timedelta | None = None
    ) -> Job:
        """Return a job record, with the counts of the hosts up to about 2 s ago. Raises NotFoundError."""
        return self._run(admin_verbs.get_job(self._within(deadline_ms, deadline), namespace, job_id))

    def list_jobs(
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
        return self._run(admin_verbs.job_page(terms, namespace, limit, page_token))

    def who_am_i(self, *, deadline_ms: int | None = None, deadline: timedelta | None = None) -> Identity:
        """Return the principal that the host takes this client for, with its grants and the end of its token."""
        return self._run(admin_verbs.who_am_i(self._within(deadline_ms, deadline)))

    def list_audit(
        self,
        *,
        since_ms: int | None = None,
        since: datetime | None = None,
        until_ms: int | None = None,
        until: datetime | None = None,
        principal: str | None = None,
        namespace: str | None = None,
        verb: str | None = None,
        limit: int = 100,
        page_token: str = "",
        deadline_ms: int | None = None,
        deadline: timedelta | None = None,
    ) -> AuditPage:
        """Return one page of the audit, the oldest records first: those from `since` to before `until`.

        A page can be empty though more follow: the last one has no next_page_token. Needs ACCESS.
        """
        since_ms, until_ms = time_ms("since_ms", since_ms, since), time_ms("until_ms", until_ms, until)
        wanted = AuditFilter(principal, namespace, verb)
        terms = self._within(deadline_ms, deadline)
        return self._run(admin_verbs.audit_page(terms, since_ms, until_ms, wanted, limit, page_token))

    def list_shards(self, *, deadline_ms: int | None = None, deadline: timedelta | None = None) -> list[ClusterShard]:
        """Return all present and former shards of the cluster, by id."""
        return self._run(admin_verbs.list_shards(self._within(deadline_ms, deadline)))

    def add_shard(
        self,
        shard_id: int,
        place: str,
        *,
        tier: str = "",
        deadline_ms: int | None = None,
        deadline: timedelta | None = None,
    ) -> ClusterShard:
        """Add a shard to a tier. Its database must have the tables of the hosts' version.

        place: its URL without user and password. Raises AlreadyExistsError, and InvalidArgumentError if no shard can be
        served there.
        """
        terms = self._within(deadline_ms, deadline)
        return self._run(admin_verbs.add_shard(terms, shard_id, place, tier))

    def update_shard(
        self,
        shard_id: int,
        *,
        state: ShardUse | None = None,
        pinned_to: str | None = None,
        tier: str | None = None,
        last: bool = False,
        place: str | None = None,
        allow_older: bool = False,
        deadline_ms: int | None = None,
        deadline: timedelta | None = None,
    ) -> ClusterShard:
        """Change the given fields of a shard and return it. Raises NotFoundError.

        state: SERVING, DRAINING or PARKED. pinned_to: the host that serves it while that host is alive, or "" for any.
        last (False): True to drain or park the last shard of its tier that takes items too, so that enqueues are
        refused; otherwise that raises InvalidArgumentError. place: the new database of a parked shard, by itself;
        raises UnavailableError until its last owner has left it. allow_older (False): True for a database that lacks
        transactions, which are then lost.
        """
        terms = self._within(deadline_ms, deadline)
        return self._run(admin_verbs.update_shard(terms, shard_id, state, pinned_to, tier, last, place, allow_older))

    def remove_shard(self, shard_id: int, *, deadline_ms: int | None = None, deadline: timedelta | None = None) -> None:
        """Stop serving a shard that is drained and empty. Any host asks its owner.

        Raises InvalidArgumentError if it still holds items, dead letters included, or has slots of dedup ids, and
        NotFoundError if it does not exist or was removed.
        """
        return self._run(admin_verbs.remove_shard(self._within(deadline_ms, deadline), shard_id))

    def ungate_slot(
        self,
        slot: int,
        *,
        force: bool = False,
        deadline_ms: int | None = None,
        deadline: timedelta | None = None,
    ) -> None:
        """Let the shard of a slot deliver serial topics although an earlier shard still has older items of them.

        It is for an earlier shard whose database is lost: if that comes back, its items are delivered out of order.
        slot: 0 to 1,023. force: True to do it; otherwise it raises InvalidArgumentError, which names the gates. Raises
        NotFoundError if the slot has no gate.
        """
        return self._run(admin_verbs.ungate_slot(self._within(deadline_ms, deadline), slot, force))

    def list_hosts(self, *, deadline_ms: int | None = None, deadline: timedelta | None = None) -> list[ClusterHost]:
        """Return the live hosts that the answering host knows, by name. It asks all of its peers, for up to 2 s."""
        return self._run(admin_verbs.list_hosts(self._within(deadline_ms, deadline)))

    def host_status(self, *, deadline_ms: int | None = None, deadline: timedelta | None = None) -> HostStatus:
        """Return the status of the answering host and of its shards."""
        return self._run(admin_verbs.host_status(self._within(deadline_ms, deadline)))

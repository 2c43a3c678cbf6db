"""The client of service FoqsAdmin. Verbs are defined in `foqs.client.admin_verbs`; here they get names and types."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from datetime import timedelta

from foqs.client import admin_verbs
from foqs.client.aio.base import AsyncBaseClient
from foqs.model.calls import (
    ClusterShard,
    DeadLettersResult,
    ExportPage,
    ExportPlan,
    ExportSplit,
    HostStatus,
    ItemState,
    PositionErrors,
    StoredItem,
    StoredItemPage,
)
from foqs.model.cluster import ShardUse
from foqs.model.jobs import Job, JobPage, JobState
from foqs.model.namespace import DedupScope, DedupWhenAway, Namespace
from foqs.model.policy import TopicPolicyEntry


class AsyncAdminClient(AsyncBaseClient):
    """A client of service FoqsAdmin for one event loop, used by operators and by tests to set up namespaces.

    Its arguments and errors are those of `AsyncClient`, and so is what deadline, deadline_ms and return_errors mean.
    """

    async def create_namespace(
        self,
        name: str,
        *,
        enqueues_per_minute_max: int | None = None,
        payload_bytes_max: int | None = None,
        metadata_bytes_max: int | None = None,
        batch_items_max: int | None = None,
        lease_ms_default: int | None = None,
        lease_default: timedelta | None = None,
        lease_ms_max: int | None = None,
        lease_max: timedelta | None = None,
        delay_ms_max: int | None = None,
        delay_max: timedelta | None = None,
        ttl_ms_default: int | None = None,
        ttl_default: timedelta | None = None,
        ttl_ms_max: int | None = None,
        ttl_max: timedelta | None = None,
        attempts_max: int | None = None,
        enqueue_paused: bool | None = None,
        dequeue_paused: bool | None = None,
        dedup_ms: int | None = None,
        dedup: timedelta | None = None,
        dedup_ids: int | None = None,
        dedup_scope: DedupScope | None = None,
        key_spread: int | None = None,
        dedup_when_away: DedupWhenAway | None = None,
        events_per_mille: int | None = None,
        deliveries_per_second_max: float | None = None,
        pause_reason: str | None = None,
        deadline_ms: int | None = None,
        deadline: timedelta | None = None,
    ) -> Namespace:
        """Create a namespace. A setting that is not given gets the service's default, see NamespaceSettings.

        Raises AlreadyExistsError when there is one of that name, InvalidArgumentError for a setting out of its bounds.
        """
        settings = admin_verbs.settings_of(
            {
                "enqueues_per_minute_max": enqueues_per_minute_max,
                "payload_bytes_max": payload_bytes_max,
                "metadata_bytes_max": metadata_bytes_max,
                "batch_items_max": batch_items_max,
                "attempts_max": attempts_max,
                "enqueue_paused": enqueue_paused,
                "dequeue_paused": dequeue_paused,
                "dedup_ids": dedup_ids,
                "dedup_scope": dedup_scope,
                "key_spread": key_spread,
                "dedup_when_away": dedup_when_away,
                "events_per_mille": events_per_mille,
                "deliveries_per_second_max": deliveries_per_second_max,
                "pause_reason": pause_reason,
            },
            {
                "lease_ms_default": (lease_ms_default, lease_default),
                "lease_ms_max": (lease_ms_max, lease_max),
                "delay_ms_max": (delay_ms_max, delay_max),
                "ttl_ms_default": (ttl_ms_default, ttl_default),
                "ttl_ms_max": (ttl_ms_max, ttl_max),
                "dedup_ms": (dedup_ms, dedup),
            },
        )
        return await self._run(admin_verbs.create_namespace(self._within(deadline_ms, deadline), name, settings))

    async def update_namespace(
        self,
        name: str,
        *,
        enqueues_per_minute_max: int | None = None,
        payload_bytes_max: int | None = None,
        metadata_bytes_max: int | None = None,
        batch_items_max: int | None = None,
        lease_ms_default: int | None = None,
        lease_default: timedelta | None = None,
        lease_ms_max: int | None = None,
        lease_max: timedelta | None = None,
        delay_ms_max: int | None = None,
        delay_max: timedelta | None = None,
        ttl_ms_default: int | None = None,
        ttl_default: timedelta | None = None,
        ttl_ms_max: int | None = None,
        ttl_max: timedelta | None = None,
        attempts_max: int | None = None,
        enqueue_paused: bool | None = None,
        dequeue_paused: bool | None = None,
        dedup_ms: int | None = None,
        dedup: timedelta | None = None,
        dedup_ids: int | None = None,
        dedup_scope: DedupScope | None = None,
        key_spread: int | None = None,
        dedup_when_away: DedupWhenAway | None = None,
        events_per_mille: int | None = None,
        deliveries_per_second_max: float | None = None,
        pause_reason: str | None = None,
        deadline_ms: int | None = None,
        deadline: timedelta | None = None,
    ) -> Namespace:
        """Change the given settings of a namespace, leave the others.

        Raises UnknownNamespaceError, and InvalidArgumentError for a setting out of its bounds and for another
        key_spread or dedup_scope than the namespace was created with.
        """
        settings = admin_verbs.settings_of(
            {
                "enqueues_per_minute_max": enqueues_per_minute_max,
                "payload_bytes_max": payload_bytes_max,
                "metadata_bytes_max": metadata_bytes_max,
                "batch_items_max": batch_items_max,
                "attempts_max": attempts_max,
                "enqueue_paused": enqueue_paused,
                "dequeue_paused": dequeue_paused,
                "dedup_ids": dedup_ids,
                "dedup_scope": dedup_scope,
                "key_spread": key_spread,
                "dedup_when_away": dedup_when_away,
                "events_per_mille": events_per_mille,
                "deliveries_per_second_max": deliveries_per_second_max,
                "pause_reason": pause_reason,
            },
            {
                "lease_ms_default": (lease_ms_default, lease_default),
                "lease_ms_max": (lease_ms_max, lease_max),
                "delay_ms_max": (delay_ms_max, delay_max),
                "ttl_ms_default": (ttl_ms_default, ttl_default),
                "ttl_ms_max": (ttl_ms_max, ttl_max),
                "dedup_ms": (dedup_ms, dedup),
            },
        )
        return await self._run(admin_verbs.update_namespace(self._within(deadline_ms, deadline), name, settings))

    async def get_namespace(
        self, name: str, *, deadline_ms: int | None = None, deadline: timedelta | None = None
    ) -> Namespace:
        """Return the namespace (its `number` is 0: it is not sent). Raises UnknownNamespaceError."""
        return await self._run(admin_verbs.get_namespace(self._within(deadline_ms, deadline), name))

    async def list_namespaces(
        self, prefix: str = "", *, deadline_ms: int | None = None, deadline: timedelta | None = None
    ) -> AsyncIterator[Namespace]:
        """Iterate over the namespaces whose names start with the prefix, page by page; a deadline is each page's."""
        token = ""
        while True:
            page = await self._run(admin_verbs.namespace_page(self._within(deadline_ms, deadline), prefix, token))
            for namespace in page.namespaces:
                yield namespace
            token = page.next_page_token
            if not token:
                return

    async def delete_namespace(
        self, name: str, *, deadline_ms: int | None = None, deadline: timedelta | None = None
    ) -> None:
        """Delete an empty namespace; refused while it holds items."""
        await self._run(admin_verbs.delete_namespace(self._within(deadline_ms, deadline), name))

    async def recover_namespace(
        self,
        number: int,
        name: str | None = None,
        *,
        key_spread: int | None = None,
        dedup_scope: DedupScope | None = None,
        deadline_ms: int | None = None,
        deadline: timedelta | None = None,
    ) -> Namespace:
        """Bring back a namespace whose items shards hold and the meta database has lost, by the number in the log.

        It gets its old name, or `name`, and default settings. key_spread and dedup_scope have to be what they were:
        else the dedup ids that its shards hold are not known again. Raises NotFoundError when no shard of this host
        knows it.
        """
        terms = self._within(deadline_ms, deadline)
        return await self._run(admin_verbs.recover_namespace(terms, number, name, key_spread, dedup_scope))

    async def set_topic_policy(
        self,
        namespace: str,
        topic: str,
        *,
        enqueue_paused: bool | None = None,
        dequeue_paused: bool | None = None,
        reason: str | None = None,
        deliveries_per_second_max: float | None = None,
        weight: int | None = None,
        deadline_ms: int | None = None,
        deadline: timedelta | None = None,
    ) -> TopicPolicyEntry:
        """Change what is given in the policy of a topic, and return all of it. Every host follows within 2 s.

        reason: why it is paused; who enqueues or dequeues is told.
        deliveries_per_second_max: the cap of the topic, 0 for none.
        weight: 1 (default) to 100, its share of dequeues with topic_prefix.
        """
        changes = {
            "enqueue_paused": enqueue_paused,
            "dequeue_paused": dequeue_paused,
            "reason": reason,
            "deliveries_per_second_max": deliveries_per_second_max,
            "weight": weight,
        }
        terms = self._within(deadline_ms, deadline)
        return await self._run(admin_verbs.set_topic_policy(terms, namespace, topic, changes))

    async def get_topic_policy(
        self, namespace: str, topic: str, *, deadline_ms: int | None = None, deadline: timedelta | None = None
    ) -> TopicPolicyEntry:
        """Return the policy of a topic: the defaults where nobody has set one."""
        return await self._run(admin_verbs.get_topic_policy(self._within(deadline_ms, deadline), namespace, topic))

    async def list_topic_policies(
        self, namespace: str, prefix: str = "", *, deadline_ms: int | None = None, deadline: timedelta | None = None
    ) -> AsyncIterator[TopicPolicyEntry]:
        """Iterate over the policies of topics that start with the prefix, by name; a deadline is each page's."""
        token = ""
        while True:
            terms = self._within(deadline_ms, deadline)
            page = await self._run(admin_verbs.topic_policy_page(terms, namespace, prefix, token))
            for policy in page.policies:
                yield policy
            token = page.next_page_token
            if not token:
                return

    async def peek_items(
        self,
        namespace: str,
        topic: str,
        limit: int = 100,
        page_token: str = "",
        *,
        deadline_ms: int | None = None,
        deadline: timedelta | None = None,
    ) -> StoredItemPage:
        """Return one page of a topic's ready and leased items, most urgent first. Nothing is leased.

        page_token: `next_page_token` of the previous page.
        """
        terms = self._within(deadline_ms, deadline)
        return await self._run(admin_verbs.peek_items(terms, namespace, topic, limit, page_token))

    async def get_item(
        self, namespace: str, id: str, *, deadline_ms: int | None = None, deadline: timedelta | None = None
    ) -> StoredItem:
        """Return one item in whatever state. Raises NotFoundError."""
        return await self._run(admin_verbs.get_item(self._within(deadline_ms, deadline), namespace, id))

    async def plan_export(
        self,
        namespace: str,
        splits_per_shard: int = 1,
        *,
        deadline_ms: int | None = None,
        deadline: timedelta | None = None,
    ) -> ExportPlan:
        """Return splits that together hold every item that is stored now, and none that is enqueued later.

        splits_per_shard: up to 64, so that several readers share the work. A split stays valid for as long as anybody
        wants to read it.
        """
        terms = self._within(deadline_ms, deadline)
        return await self._run(admin_verbs.plan_export(terms, namespace, splits_per_shard))

    async def export_items(
        self,
        namespace: str,
        split: ExportSplit,
        after_key: int = 0,
        limit: int = 1_000,
        *,
        topics: str | Iterable[str] = (),
        topic_prefix: str = "",
        states: Iterable[ItemState] = (),
        with_payload: bool = True,
        with_metadata: bool = True,
        deadline_ms: int | None = None,
        deadline: timedelta | None = None,
    ) -> ExportPage:
        """Return one page of a split, in the order of the items' keys. Nothing is changed or leased.

        after_key: `next_after_key` of the previous page.  topics, states: of which topics (up to 500) and in which
        states, all if empty.  topic_prefix: instead of topics, how their names begin.  with_payload, with_metadata: if
        False, they are empty.
        """
        terms = self._within(deadline_ms, deadline)
        flow = admin_verbs.export_items(
            terms, namespace, split, after_key, limit, topics, topic_prefix, states, with_payload, with_metadata
        )
        return await self._run(flow)

    async def iterate_items(
        self,
        namespace: str,
        *,
        topics: str | Iterable[str] = (),
        topic_prefix: str = "",
        states: Iterable[ItemState] = (),
        with_payload: bool = True,
        with_metadata: bool = True,
        page_size: int = 1_000,
        deadline_ms: int | None = None,
        deadline: timedelta | None = None,
    ) -> AsyncIterator[StoredItem]:
        """Iterate over all stored items, shard by shard, page by page; a deadline is each page's.

        An item that is there from the first page to the last comes exactly once, in the state that it has at the time
        of its page. What is enqueued after the start does not come. The arguments are those of `export_items`;
        page_size: items of a page, up to 1,000.
        """
        topics = [topics] if isinstance(topics, str) else list(topics)
        states = list(states)
        plan = await self.plan_export(namespace, deadline_ms=deadline_ms, deadline=deadline)
        for split in plan.splits:
            after_key = 0
            while True:
                page = await self.export_items(
                    namespace,
                    split,
                    after_key,
                    page_size,
                    topics=topics,
                    topic_prefix=topic_prefix,
                    states=states,
                    with_payload=with_payload,
                    with_metadata=with_metadata,
                    deadline_ms=deadline_ms,
                    deadline=deadline,
                )
                for item in page.items:
                    yield item
                after_key = page.next_after_key
                if not after_key:
                    break

    async def delete_items(
        self,
        namespace: str,
        ids: str | Iterable[str],
        *,
        return_errors: bool = False,
        deadline_ms: int | None = None,
        deadline: timedelta | None = None,
    ) -> PositionErrors:
        """Delete items in whatever state. A later ack of one that was leased raises StaleLeaseError.

        ids: one, whose error is raised, or many: then BatchError has the errors by position.
        """
        terms = self._within(deadline_ms, deadline)
        return await self._run(admin_verbs.delete_items(terms, namespace, ids, return_errors))

    async def list_dead_letters(
        self,
        namespace: str,
        topic: str,
        limit: int = 100,
        page_token: str = "",
        *,
        deadline_ms: int | None = None,
        deadline: timedelta | None = None,
    ) -> StoredItemPage:
        """Return one page of a topic's dead letters, oldest first. page_token: as with `peek_items`."""
        terms = self._within(deadline_ms, deadline)
        return await self._run(admin_verbs.list_dead_letters(terms, namespace, topic, limit, page_token))

    async def redrive_dead_letters(
        self,
        namespace: str,
        topic: str,
        ids: Iterable[str] | None = None,
        limit: int = 1_000,
        *,
        return_errors: bool = False,
        deadline_ms: int | None = None,
        deadline: timedelta | None = None,
    ) -> DeadLettersResult:
        """Make dead letters ready again, as never tried: the given ones, or up to `limit` of the oldest.

        Raises BatchError when some of the given ids are no dead letters of the topic.
        """
        flow = admin_verbs.change_dead_letters(
            self._within(deadline_ms, deadline), "redriveDeadLetters", namespace, topic, ids, limit, return_errors
        )
        return await self._run(flow)

    async def purge_dead_letters(
        self,
        namespace: str,
        topic: str,
        ids: Iterable[str] | None = None,
        limit: int = 1_000,
        *,
        return_errors: bool = False,
        deadline_ms: int | None = None,
        deadline: timedelta | None = None,
    ) -> DeadLettersResult:
        """Delete dead letters: the given ones, or up to `limit` of the oldest.

        Raises BatchError when some of the given ids are no dead letters of the topic.
        """
        flow = admin_verbs.change_dead_letters(
            self._within(deadline_ms, deadline), "purgeDeadLetters", namespace, topic, ids, limit, return_errors
        )
        return await self._run(flow)

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
        deadline_ms: int | None = None,
        deadline: timedelta | None = None,
    ) -> ClusterShard:
        """Change what is given, and return the shard. Raises NotFoundError.

        state: SERVING or DRAINING. pinned_to: the host that is to serve it while it is there, or "" for any.
        """
        terms = self._within(deadline_ms, deadline)
        return await self._run(admin_verbs.update_shard(terms, shard_id, state, pinned_to, tier))

    async def remove_shard(
        self, shard_id: int, *, deadline_ms: int | None = None, deadline: timedelta | None = None
    ) -> None:
        """Let nobody serve a shard any more that is drained and empty; give the client the addresses of all hosts.

        Raises InvalidArgumentError when it still holds items, dead letters included, or has slots of dedup ids.
        """
        return await self._run(admin_verbs.remove_shard(self._within(deadline_ms, deadline), shard_id))

    async def host_status(self, *, deadline_ms: int | None = None, deadline: timedelta | None = None) -> HostStatus:
        """Return the status of the host that answers, and of its shards."""
        return await self._run(admin_verbs.host_status(self._within(deadline_ms, deadline)))

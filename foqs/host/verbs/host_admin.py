"""The verbs of service FoqsAdmin on this host."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

from foqs.host import arguments
from foqs.host.registry.namespace_calls import NamespaceCalls
from foqs.host.registry.namespaces import Namespaces
from foqs.host.shards.shards import Shards
from foqs.host.verbs.exports import Exports
from foqs.host.verbs.inspection import Inspection
from foqs.host.verbs.job_calls import JobCalls
from foqs.host.verbs.policy_calls import PolicyCalls
from foqs.host.verbs.shard_calls import ShardCalls
from foqs.model import limits
from foqs.model.calls import (
    CallContext,
    ClusterShard,
    ClusterShards,
    DeadLettersResult,
    ExportPage,
    ExportPlan,
    ExportQuery,
    HostStatus,
    NamespacePage,
    PositionErrors,
    ShardStatus,
    StoredItem,
    StoredItemPage,
)
from foqs.model.jobs import Job, JobPage
from foqs.model.namespace import Namespace, NamespaceSettings, check_namespace_name, with_changes
from foqs.model.policy import TopicPolicyEntry, TopicPolicyPage
from foqs.shard.writer import ownership


class Admin:
    """Implements foqs.model.admin_calls.AdminCalls; the front door calls it.

    It owns nothing of a queue: it looks up the namespace of a call and asks the part of the host that does the work.
    """

    def __init__(
        self,
        host_name: str,
        namespaces: Namespaces,
        namespace_calls: NamespaceCalls,
        shards: Shards,
        inspection: Inspection,
        job_calls: JobCalls,
        exports: Exports,
        shard_calls: ShardCalls,
        draining: Callable[[], bool],
    ) -> None:
        self._host_name = host_name
        self._namespaces = namespaces
        self._namespace_calls = namespace_calls
        self._policy_calls = PolicyCalls(namespaces)
        self._shards = shards
        self._inspection = inspection
        self._job_calls = job_calls
        self._exports = exports
        self._shard_calls = shard_calls
        self._draining = draining
        self._started_at_ms = _now_ms()
        # Read from files, which no call shall wait for.
        self._version = version("foqs")

    async def create_namespace(self, context: CallContext, name: str, settings: object | None) -> Namespace:
        check_namespace_name(name)
        wanted = with_changes(NamespaceSettings(), settings)
        return await self._namespace_calls.create(name, wanted)

    async def update_namespace(self, context: CallContext, name: str, settings: object) -> Namespace:
        check_namespace_name(name)
        self._namespaces.require_durable()
        updated = await self._namespaces.calls.run(lambda meta: meta.update_namespace(name, settings))
        await self._namespaces.refresh()
        return updated

    async def get_namespace(self, context: CallContext, name: str) -> Namespace:
        return self._namespaces.get(check_namespace_name(name))

    async def list_namespaces(self, context: CallContext, prefix: str, limit: int, page_token: str) -> NamespacePage:
        arguments.check_range("limit", limit, 1, limits.PAGE_ITEMS_MAX)
        found = await self._namespaces.calls.run(lambda meta: meta.page_namespaces(prefix, page_token, limit + 1))
        return NamespacePage(found[:limit], found[limit - 1].name if len(found) > limit else "")

    async def delete_namespace(self, context: CallContext, name: str) -> None:
        await self._namespace_calls.delete(check_namespace_name(name))

    async def recover_namespace(
        self, context: CallContext, number: int, name: str | None, settings: object | None
    ) -> Namespace:
        arguments.check_range("number", number, 1, limits.NAMESPACE_NUMBER_MAX)
        wanted = with_changes(NamespaceSettings(), settings)
        return await self._namespace_calls.recover(number, name or "", wanted)

    async def set_topic_policy(
        self, context: CallContext, namespace_name: str, topic: str, changes: object, is_prefix: bool = False
    ) -> TopicPolicyEntry:
        return await self._policy_calls.set(namespace_name, topic, changes, is_prefix=is_prefix)

    async def set_topic_policies(
        self, context: CallContext, namespace_name: str, changes: Sequence[Any]
    ) -> PositionErrors:
        return await self._policy_calls.set_all(namespace_name, changes)

    async def get_topic_policy(
        self, context: CallContext, namespace_name: str, topic: str, is_prefix: bool = False
    ) -> TopicPolicyEntry:
        return self._policy_calls.get(namespace_name, topic, is_prefix=is_prefix)

    async def list_topic_policies(
        self,
        context: CallContext,
        namespace_name: str,
        prefix: str,
        limit: int,
        page_token: str,
        with_prefixes: bool = False,
    ) -> TopicPolicyPage:
        return await self._policy_calls.page(namespace_name, prefix, limit, page_token, with_prefixes=with_prefixes)

    async def peek_items(
        self, context: CallContext, namespace_name: str, topic: str, limit: int, page_token: str
    ) -> StoredItemPage:
        namespace = self._namespaces.get(namespace_name)
        return await self._inspection.page(namespace, topic, limit, page_token, dead=False, wanted=context.shards)

    async def get_item(self, context: CallContext, namespace_name: str, item_id: str) -> StoredItem:
        return await self._inspection.get(self._namespaces.get(namespace_name), item_id)

    async def delete_items(self, context: CallContext, namespace_name: str, item_ids: Sequence[str]) -> PositionErrors:
        return await self._inspection.delete(self._namespaces.get(namespace_name), item_ids)

    async def list_dead_letters(
        self, context: CallContext, namespace_name: str, topic: str, limit: int, page_token: str
    ) -> StoredItemPage:
        namespace = self._namespaces.get(namespace_name)
        return await self._inspection.page(namespace, topic, limit, page_token, dead=True, wanted=context.shards)

    async def redrive_dead_letters(
        self,
        context: CallContext,
        namespace_name: str,
        topic: str,
        item_ids: Sequence[str] | None,
        limit: int,
        page_token: str | None = None,
    ) -> DeadLettersResult:
        return await self._inspection.redrive(self._namespaces.get(namespace_name), topic, item_ids, limit, page_token)

    async def purge_dead_letters(
        self,
        context: CallContext,
        namespace_name: str,
        topic: str,
        item_ids: Sequence[str] | None,
        limit: int,
        page_token: str | None = None,
    ) -> DeadLettersResult:
        return await self._inspection.purge(self._namespaces.get(namespace_name), topic, item_ids, limit, page_token)

    async def create_job(
        self, context: CallContext, namespace_name: str, job_id: str, items_per_second_max: int, detail: str
    ) -> Job:
        return await self._job_calls.create(namespace_name, job_id, items_per_second_max, detail)

    async def update_job(
        self,
        context: CallContext,
        namespace_name: str,
        job_id: str,
        state: int | None,
        items_per_second_max: int | None,
        rows_count: int | None,
        detail: str | None,
    ) -> Job:
        return await self._job_calls.update(namespace_name, job_id, state, items_per_second_max, rows_count, detail)

    async def get_job(self, context: CallContext, namespace_name: str, job_id: str) -> Job:
        return await self._job_calls.get(namespace_name, job_id)

    async def list_jobs(self, context: CallContext, namespace_name: str, limit: int, page_token: str) -> JobPage:
        return await self._job_calls.page(namespace_name, limit, page_token)

    async def plan_export(
        self, context: CallContext, namespace_name: str, splits_per_shard: int, partial: bool = False
    ) -> ExportPlan:
        namespace = self._namespaces.get(namespace_name)
        return await self._exports.plan(namespace, splits_per_shard, context.shards, is_partial=partial)

    async def export_items(self, context: CallContext, namespace_name: str, query: ExportQuery) -> ExportPage:
        return await self._exports.page(self._namespaces.get(namespace_name), query)

    async def list_shards(self, context: CallContext) -> ClusterShards:
        return ClusterShards(await self._shard_calls.all())

    async def add_shard(self, context: CallContext, shard_id: int, place: str, tier: str) -> ClusterShard:
        return await self._shard_calls.add(shard_id, place, tier)

    async def update_shard(
        self,
        context: CallContext,
        shard_id: int,
        state: int | None,
        pinned_to: str | None,
        tier: str | None,
        last: bool = False,
    ) -> ClusterShard:
        return await self._shard_calls.update(shard_id, state, pinned_to, tier, last=last)

    async def remove_shard(self, context: CallContext, shard_id: int) -> None:
        await self._shard_calls.remove(shard_id)

    async def get_host_status(self, context: CallContext) -> HostStatus:
        shards = [
            ShardStatus(shard_id, "lost", 0, 0, 0, reason)
            for shard_id, reason in self._shards.refused.items()
            if shard_id not in self._shards.writers
        ]
        for shard_id, writer in self._shards.writers.items():
            shard = writer.held
            if shard is None:
                shards.append(ShardStatus(shard_id, "lost", 0, 0, 0, writer.detail))
            else:
                state, detail = "owned", writer.detail
                if not writer.health.healthy:
                    state, detail = "sick", writer.health.reason
                    if writer.detail != ownership.OWNED:
                        detail += f"; {writer.detail}"
                leases = len(shard.index.leases)
                shards.append(ShardStatus(shard_id, state, shard.epoch, shard.items_count, leases, detail))
        shards.sort(key=lambda one: one.shard_id)
        return HostStatus(self._host_name, self._version, self._started_at_ms, shards, self._draining())


def _now_ms() -> int:
    return time.time_ns() // 1_000_000

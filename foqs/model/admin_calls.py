"""The verbs of operators as types, without those of the cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

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
    StoredItem,
    StoredItemPage,
)
from foqs.model.jobs import Job, JobPage
from foqs.model.namespace import Namespace
from foqs.model.policy import TopicPolicyEntry, TopicPolicyPage


class AdminCalls(Protocol):
    """The verbs of service FoqsAdmin.

    `settings` is any object with the optional fields of NamespaceSettings, and `changes` with those of TopicPolicy; a
    list of them has objects with those of TopicPolicyChange.
    """

    async def create_namespace(self, context: CallContext, name: str, settings: object | None) -> Namespace: ...

    async def update_namespace(self, context: CallContext, name: str, settings: object) -> Namespace: ...

    async def get_namespace(self, context: CallContext, name: str) -> Namespace: ...

    async def recover_namespace(
        self, context: CallContext, number: int, name: str | None, settings: object | None
    ) -> Namespace: ...

    async def list_namespaces(
        self, context: CallContext, prefix: str, limit: int, page_token: str
    ) -> NamespacePage: ...

    async def delete_namespace(self, context: CallContext, name: str) -> None: ...

    async def set_topic_policy(
        self, context: CallContext, namespace_name: str, topic: str, changes: object, is_prefix: bool = False
    ) -> TopicPolicyEntry: ...

    async def set_topic_policies(
        self, context: CallContext, namespace_name: str, changes: Sequence[Any]
    ) -> PositionErrors: ...

    async def get_topic_policy(
        self, context: CallContext, namespace_name: str, topic: str, is_prefix: bool = False
    ) -> TopicPolicyEntry: ...

    async def list_topic_policies(
        self,
        context: CallContext,
        namespace_name: str,
        prefix: str,
        limit: int,
        page_token: str,
        with_prefixes: bool = False,
    ) -> TopicPolicyPage: ...

    async def peek_items(
        self, context: CallContext, namespace_name: str, topic: str, limit: int, page_token: str
    ) -> StoredItemPage: ...

    async def get_item(self, context: CallContext, namespace_name: str, item_id: str) -> StoredItem: ...

    async def delete_items(
        self, context: CallContext, namespace_name: str, item_ids: Sequence[str]
    ) -> PositionErrors: ...

    async def list_dead_letters(
        self, context: CallContext, namespace_name: str, topic: str, limit: int, page_token: str
    ) -> StoredItemPage: ...

    async def redrive_dead_letters(
        self,
        context: CallContext,
        namespace_name: str,
        topic: str,
        item_ids: Sequence[str] | None,
        limit: int,
        page_token: str | None = None,
    ) -> DeadLettersResult: ...

    async def purge_dead_letters(
        self,
        context: CallContext,
        namespace_name: str,
        topic: str,
        item_ids: Sequence[str] | None,
        limit: int,
        page_token: str | None = None,
    ) -> DeadLettersResult: ...

    async def create_job(
        self, context: CallContext, namespace_name: str, job_id: str, items_per_second_max: int, detail: str
    ) -> Job: ...

    async def update_job(
        self,
        context: CallContext,
        namespace_name: str,
        job_id: str,
        state: int | None,
        items_per_second_max: int | None,
        rows_count: int | None,
        detail: str | None,
    ) -> Job: ...

    async def get_job(self, context: CallContext, namespace_name: str, job_id: str) -> Job: ...

    async def list_jobs(self, context: CallContext, namespace_name: str, limit: int, page_token: str) -> JobPage: ...

    async def plan_export(
        self, context: CallContext, namespace_name: str, splits_per_shard: int, partial: bool = False
    ) -> ExportPlan: ...

    async def export_items(self, context: CallContext, namespace_name: str, query: ExportQuery) -> ExportPage: ...

    async def list_shards(self, context: CallContext) -> ClusterShards: ...

    async def add_shard(self, context: CallContext, shard_id: int, place: str, tier: str) -> ClusterShard: ...

    async def update_shard(
        self,
        context: CallContext,
        shard_id: int,
        state: int | None,
        pinned_to: str | None,
        tier: str | None,
        last: bool = False,
    ) -> ClusterShard: ...

    async def remove_shard(self, context: CallContext, shard_id: int) -> None: ...

    async def get_host_status(self, context: CallContext) -> HostStatus: ...

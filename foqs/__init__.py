"""A durable, multi-tenant distributed priority queue on sharded MySQL.

This package exports everything a program needs to use a queue: clients, workers, items, results and errors. Each name
is loaded on first use, so `import foqs` is cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from foqs.client.aio import AsyncAdminClient, AsyncClient
    from foqs.client.aio.consumer import AsyncConsumer
    from foqs.client.aio.settler import AsyncLeasedItem
    from foqs.client.aio.worker import AsyncWorker
    from foqs.client.bulk_jobs import new_bulk_job_id
    from foqs.client.client_errors import BatchError, ClientClosedError, NotSentError, OutcomeUnknownError
    from foqs.client.dequeued import Dequeued
    from foqs.client.describing import describe_error
    from foqs.client.policy_change import TopicPolicyChange
    from foqs.client.queue_items import Item, Nack, NewItem
    from foqs.client.retry import RetryPolicy
    from foqs.client.settling import DeadLetter, NackBackoff, Release, Retry, SettleStats
    from foqs.client.sync import AdminClient, Client
    from foqs.client.sync.consumer import Consumer
    from foqs.client.sync.settler import LeasedItem
    from foqs.client.sync.worker import Worker
    from foqs.client.worker_core import CutOffError
    from foqs.model.access import AccessGrant, AccessMode, RefusalRow
    from foqs.model.access_calls import AccessCertificate, AccessPrincipal, AccessState, AccessToken, NewToken
    from foqs.model.audit import AuditPage, AuditRecord
    from foqs.model.bulk_work import BulkAction, BulkState, BulkWork
    from foqs.model.calls import (
        ClusterShard,
        DeadLettersResult,
        DedupUntil,
        DeliveryPolicy,
        EnqueueResult,
        ExportPage,
        ExportPlan,
        ExportSplit,
        HostStatus,
        Identity,
        ItemFailure,
        ItemState,
        PositionErrors,
        ShardMap,
        ShardStatus,
        StoredItem,
        StoredItemPage,
        TopicStats,
    )
    from foqs.model.cluster import ShardHealth, ShardUse
    from foqs.model.cluster_calls import ClusterHost, HostState
    from foqs.model.errors import (
        AlreadyExistsError,
        ErrorCode,
        FoqsError,
        InternalError,
        InvalidArgumentError,
        NotFoundError,
        OverloadedError,
        PausedError,
        PermissionDeniedError,
        RateLimitedError,
        StaleLeaseError,
        TooLargeError,
        UnavailableError,
        UnknownNamespaceError,
    )
    from foqs.model.event_history import History, HistoryRow
    from foqs.model.groups import TopicGroup
    from foqs.model.holder import ConsumerRow, ReleaseResult
    from foqs.model.item_filter import ItemFilter
    from foqs.model.jobs import Job, JobPage, JobState
    from foqs.model.namespace import DedupScope, DedupWhenAway, Namespace, NamespaceSettings
    from foqs.model.policy import TopicPolicyEntry, TriState
    from foqs.model.reasons import Explanation, Reason, ReasonCode, Verdict
    from foqs.model.serial import OnDead
    from foqs.model.topic_rates import RateOrder, RatesPage, TopicRates

_HOME = {
    "foqs.client.aio": ("AsyncAdminClient", "AsyncClient"),
    "foqs.client.aio.consumer": ("AsyncConsumer",),
    "foqs.client.aio.settler": ("AsyncLeasedItem",),
    "foqs.client.aio.worker": ("AsyncWorker",),
    "foqs.client.dequeued": ("Dequeued",),
    "foqs.client.describing": ("describe_error",),
    "foqs.client.bulk_jobs": ("new_bulk_job_id",),
    "foqs.client.client_errors": ("BatchError", "ClientClosedError", "NotSentError", "OutcomeUnknownError"),
    "foqs.client.policy_change": ("TopicPolicyChange",),
    "foqs.client.queue_items": ("Item", "Nack", "NewItem"),
    "foqs.client.retry": ("RetryPolicy",),
    "foqs.client.settling": ("DeadLetter", "NackBackoff", "Release", "Retry", "SettleStats"),
    "foqs.client.sync": ("AdminClient", "Client"),
    "foqs.client.sync.consumer": ("Consumer",),
    "foqs.client.sync.settler": ("LeasedItem",),
    "foqs.client.sync.worker": ("Worker",),
    "foqs.client.worker_core": ("CutOffError",),
    "foqs.model.access": ("AccessGrant", "AccessMode", "RefusalRow"),
    "foqs.model.access_calls": ("AccessCertificate", "AccessPrincipal", "AccessState", "AccessToken", "NewToken"),
    "foqs.model.bulk_work": ("BulkAction", "BulkState", "BulkWork"),
    "foqs.model.calls": (
        "ClusterShard",
        "DeadLettersResult",
        "DedupUntil",
        "DeliveryPolicy",
        "EnqueueResult",
        "ExportPage",
        "ExportPlan",
        "ExportSplit",
        "HostStatus",
        "Identity",
        "ItemFailure",
        "ItemState",
        "PositionErrors",
        "ShardMap",
        "ShardStatus",
        "StoredItem",
        "StoredItemPage",
        "TopicStats",
    ),
    "foqs.model.cluster": ("ShardHealth", "ShardUse"),
    "foqs.model.cluster_calls": ("ClusterHost", "HostState"),
    "foqs.model.errors": (
        "AlreadyExistsError",
        "ErrorCode",
        "FoqsError",
        "InternalError",
        "InvalidArgumentError",
        "NotFoundError",
        "OverloadedError",
        "PausedError",
        "PermissionDeniedError",
        "RateLimitedError",
        "StaleLeaseError",
        "TooLargeError",
        "UnavailableError",
        "UnknownNamespaceError",
    ),
    "foqs.model.audit": ("AuditPage", "AuditRecord"),
    "foqs.model.event_history": ("History", "HistoryRow"),
    "foqs.model.groups": ("TopicGroup",),
    "foqs.model.holder": ("ConsumerRow", "ReleaseResult"),
    "foqs.model.item_filter": ("ItemFilter",),
    "foqs.model.jobs": ("Job", "JobPage", "JobState"),
    "foqs.model.topic_rates": ("RateOrder", "RatesPage", "TopicRates"),
    "foqs.model.namespace": ("DedupScope", "DedupWhenAway", "Namespace", "NamespaceSettings"),
    "foqs.model.policy": ("TopicPolicyEntry", "TriState"),
    "foqs.model.reasons": ("Explanation", "Reason", "ReasonCode", "Verdict"),
    "foqs.model.serial": ("OnDead",),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "AccessCertificate",
    "AccessGrant",
    "AccessMode",
    "AccessPrincipal",
    "AccessState",
    "AccessToken",
    "AdminClient",
    "AlreadyExistsError",
    "AsyncAdminClient",
    "AsyncClient",
    "AsyncConsumer",
    "AsyncLeasedItem",
    "AsyncWorker",
    "AuditPage",
    "AuditRecord",
    "BatchError",
    "BulkAction",
    "BulkState",
    "BulkWork",
    "Client",
    "ClientClosedError",
    "ClusterHost",
    "ClusterShard",
    "Consumer",
    "ConsumerRow",
    "CutOffError",
    "DeadLetter",
    "DeadLettersResult",
    "DedupScope",
    "DedupUntil",
    "DedupWhenAway",
    "DeliveryPolicy",
    "Dequeued",
    "EnqueueResult",
    "ErrorCode",
    "Explanation",
    "ExportPage",
    "ExportPlan",
    "ExportSplit",
    "FoqsError",
    "History",
    "HistoryRow",
    "HostState",
    "HostStatus",
    "Identity",
    "InternalError",
    "InvalidArgumentError",
    "Item",
    "ItemFailure",
    "ItemFilter",
    "ItemState",
    "Job",
    "JobPage",
    "JobState",
    "LeasedItem",
    "Nack",
    "NackBackoff",
    "Namespace",
    "NamespaceSettings",
    "NewItem",
    "NewToken",
    "NotFoundError",
    "NotSentError",
    "OnDead",
    "OutcomeUnknownError",
    "OverloadedError",
    "PausedError",
    "PermissionDeniedError",
    "PositionErrors",
    "RateLimitedError",
    "RateOrder",
    "RatesPage",
    "Reason",
    "ReasonCode",
    "RefusalRow",
    "Release",
    "ReleaseResult",
    "Retry",
    "RetryPolicy",
    "SettleStats",
    "ShardHealth",
    "ShardMap",
    "ShardStatus",
    "ShardUse",
    "StaleLeaseError",
    "StoredItem",
    "StoredItemPage",
    "TooLargeError",
    "TopicGroup",
    "TopicPolicyChange",
    "TopicPolicyEntry",
    "TopicRates",
    "TopicStats",
    "TriState",
    "UnavailableError",
    "UnknownNamespaceError",
    "Verdict",
    "Worker",
    "describe_error",
    "new_bulk_job_id",
]


def __getattr__(name: str) -> object:
    if name == "__version__":
        return import_module("importlib.metadata").version("foqs")  # Slow to import, and seldom needed.
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'foqs' has no attribute {name!r}")
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})

"""The meaning of each field of a request for permissions: content, or the name of something, and then who checks it.

Every field of every struct that a request can hold is listed here, so that nothing can be named in a request without
a check: `tests/unit/test_named_fields.py` fails for a field of idl/foqs.thrift that is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto


class Checked(Enum):
    """The place that checks a field, by the kind of its name."""

    CONTENT = auto()
    """Nobody: the field names nothing. It has data of the object that other fields name, or structs with fields of
    their own.
    """
    NAMESPACE = auto()
    """The router: the field names the namespace in which the caller needs the bits of the verb."""
    NAMESPACES = auto()
    """The router: the caller needs the bits in all namespaces whose names begin with the prefix of the request."""
    INSIDE = auto()
    """The method of the verb: it reads the thing in the namespace of the request alone."""
    COSTS = auto()
    """The router: a setting that costs the host needs OPERATE beside the bits of the verb."""
    CLUSTER = auto()
    """The router: the verb needs bits of the cluster, which hold for all shards, hosts, tiers and namespaces."""
    FROM_PEERS = auto()
    """The transport: it refuses the field from all others but hosts of the cluster."""
    CONNECTION = auto()
    """The connection: it reads the thing among its own calls alone."""
    PEER = auto()
    """The peer door: messages between hosts are taken after a proof, or are that proof, and are claims."""


def _fields(**by_check: str) -> Mapping[str, Checked]:
    return {name: Checked[check] for check, names in by_check.items() for name in names.split()}


FIELDS: Mapping[str, Mapping[str, Checked]] = {
    "EnqueueRequest": _fields(NAMESPACE="namespace_name", INSIDE="job_id", CONTENT="items bulk"),
    "NewItem": _fields(
        INSIDE="topic dedup_id ordering_key fairness_key",
        CONTENT="payload priority deliver_after_ms delay_ms ttl_ms lease_ms metadata delivery trace_context"
        " dedup_until",
    ),
    "DequeueRequest": _fields(
        NAMESPACE="namespace_name",
        INSIDE="topic_prefix group",
        CONTENT="topics lease_ms wait_ms count says_begun want_why consumer",
    ),
    "TopicDemand": _fields(INSIDE="topic group", CONTENT="count"),
    "AckRequest": _fields(NAMESPACE="namespace_name", INSIDE="receipts", CONTENT="repeated"),
    "NackRequest": _fields(NAMESPACE="namespace_name", CONTENT="nacks"),
    "Nack": _fields(INSIDE="receipt", CONTENT="delay_ms metadata release dead_letter unseen reason"),
    "ExtendRequest": _fields(NAMESPACE="namespace_name", INSIDE="receipts begun", CONTENT="lease_ms consumer"),
    "ActiveTopicsRequest": _fields(
        NAMESPACE="namespace_name",
        INSIDE="prefix page_token",
        FROM_PEERS="shard_ids",
        CONTENT="limit partial with_rates",
    ),
    "ShardMapRequest": _fields(NAMESPACE="namespace_name"),
    "EndWaitRequest": _fields(CONNECTION="namespace_name seqid"),
    "AuthenticateRequest": _fields(CONNECTION="token"),
    "WhoAmIRequest": _fields(),
    # Namespaces and policies.
    "CreateNamespaceRequest": _fields(NAMESPACE="name", CONTENT="settings"),
    "UpdateNamespaceRequest": _fields(NAMESPACE="name", CONTENT="settings"),
    "NamespaceSettings": _fields(
        COSTS="enqueues_per_minute_max payload_bytes_max metadata_bytes_max batch_items_max dedup_ms dedup_ids"
        " key_spread delay_ms_max ttl_ms_max events_per_mille tier",
        CONTENT="lease_ms_default lease_ms_max ttl_ms_default attempts_max enqueue_paused dequeue_paused dedup_scope"
        " dedup_when_away deliveries_per_second_max pause_reason dead_letter_on_expiry errors_bytes_max",
    ),
    "GetNamespaceRequest": _fields(NAMESPACE="name"),
    "ListNamespacesRequest": _fields(NAMESPACES="prefix page_token", CONTENT="limit"),
    "DeleteNamespaceRequest": _fields(NAMESPACE="name"),
    "RecoverNamespaceRequest": _fields(CLUSTER="number name", CONTENT="settings"),
    "SetTopicPolicyRequest": _fields(
        NAMESPACE="namespace_name",
        INSIDE="topic group",
        CONTENT="enqueue_paused dequeue_paused reason deliveries_per_second_max weight attempts_max is_prefix"
        " depth_max dead_letter_on_expiry backoff_ms backoff_ms_max serial on_dead in_flight_max"
        " key_buckets key_batch aging_ms_per_priority",
    ),
    "SetTopicPoliciesRequest": _fields(NAMESPACE="namespace_name", CONTENT="changes"),
    "TopicPolicyChange": _fields(
        INSIDE="topic group",
        CONTENT="is_prefix enqueue_paused dequeue_paused reason deliveries_per_second_max weight attempts_max"
        " depth_max dead_letter_on_expiry backoff_ms backoff_ms_max serial on_dead in_flight_max"
        " key_buckets key_batch aging_ms_per_priority",
    ),
    "GetTopicPolicyRequest": _fields(NAMESPACE="namespace_name", INSIDE="topic group", CONTENT="is_prefix"),
    "ListTopicPoliciesRequest": _fields(
        NAMESPACE="namespace_name", INSIDE="prefix page_token", CONTENT="limit with_prefixes"
    ),
    "CreateGroupRequest": _fields(
        NAMESPACE="namespace_name", INSIDE="topic group", CONTENT="ttl_ms delay_ms from_queued"
    ),
    "DeleteGroupRequest": _fields(NAMESPACE="namespace_name", INSIDE="topic group"),
    "ListGroupsRequest": _fields(NAMESPACE="namespace_name", INSIDE="prefix page_token", CONTENT="limit"),
    # Stored items.
    "PeekItemsRequest": _fields(
        NAMESPACE="namespace_name",
        INSIDE="topic page_token group ordering_key fairness_key",
        FROM_PEERS="shard_ids",
        CONTENT="limit",
    ),
    "GetItemRequest": _fields(NAMESPACE="namespace_name", INSIDE="id"),
    "DeleteItemsRequest": _fields(NAMESPACE="namespace_name", INSIDE="ids"),
    "ForgetDedupIdsRequest": _fields(NAMESPACE="namespace_name", INSIDE="dedup_ids topic ordering_key"),
    "ListDeadLettersRequest": _fields(
        NAMESPACE="namespace_name",
        INSIDE="topic page_token group ordering_key fairness_key",
        FROM_PEERS="shard_ids",
        CONTENT="limit",
    ),
    "ListConsumersRequest": _fields(
        NAMESPACE="namespace_name",
        INSIDE="topic group name_prefix page_token",
        FROM_PEERS="shard_ids",
        CONTENT="limit partial",
    ),
    "ReleaseLeasesRequest": _fields(
        NAMESPACE="namespace_name", INSIDE="consumer topic group", FROM_PEERS="shard_ids", CONTENT="at_most_once"
    ),
    "ExplainRequest": _fields(NAMESPACE="namespace_name", INSIDE="topic item_id group ordering_key fairness_key"),
    "RedriveDeadLettersRequest": _fields(
        NAMESPACE="namespace_name", INSIDE="topic ids page_token group ordering_key fairness_key", CONTENT="limit"
    ),
    "PurgeDeadLettersRequest": _fields(
        NAMESPACE="namespace_name", INSIDE="topic ids page_token group ordering_key fairness_key", CONTENT="limit"
    ),
    # Jobs and exports.
    "CreateJobRequest": _fields(NAMESPACE="namespace_name", INSIDE="id", CONTENT="items_per_second_max detail"),
    "CreateBulkJobRequest": _fields(
        NAMESPACE="namespace_name", INSIDE="id", CONTENT="items_per_second_max detail bulk"
    ),
    "BulkWork": _fields(INSIDE="undoes", CONTENT="filter action deliver_after_ms items_max all_items"),
    "ItemFilter": _fields(
        INSIDE="topics topic_prefix ids",
        CONTENT="states enqueued_after_ms enqueued_before_ms died_after_ms died_before_ms priority_min priority_max"
        " attempts_min attempts_max error_contains metadata_contains payload_contains deliver_after_ms",
    ),
    "UpdateJobRequest": _fields(
        NAMESPACE="namespace_name", INSIDE="id", CONTENT="state items_per_second_max rows_count detail"
    ),
    "GetJobRequest": _fields(NAMESPACE="namespace_name", INSIDE="id"),
    "ListJobsRequest": _fields(NAMESPACE="namespace_name", INSIDE="page_token", CONTENT="limit"),
    "GetRatesRequest": _fields(
        NAMESPACE="namespace_name",
        INSIDE="topics topic_prefix group",
        FROM_PEERS="shard_ids",
        CONTENT="order limit with_series of_namespaces partial",
    ),
    "GetHistoryRequest": _fields(
        NAMESPACE="namespace_name",
        INSIDE="topics group",
        FROM_PEERS="shard_ids",
        CONTENT="from_ms to_ms step_minutes partial",
    ),
    "PlanExportRequest": _fields(
        NAMESPACE="namespace_name", FROM_PEERS="shard_ids", CONTENT="splits_per_shard partial"
    ),
    "ExportItemsRequest": _fields(
        NAMESPACE="namespace_name",
        INSIDE="after_key topics topic_prefix",
        CONTENT="split limit states with_payload with_metadata",
    ),
    "ExportSplit": _fields(INSIDE="shard_id from_key to_key", CONTENT="items_estimate"),
    # Shards and hosts.
    "ListShardsRequest": _fields(),
    "AddShardRequest": _fields(CLUSTER="shard_id place tier"),
    "UpdateShardRequest": _fields(CLUSTER="shard_id place pinned_to tier", CONTENT="allow_older state last"),
    "RemoveShardRequest": _fields(CLUSTER="shard_id"),
    "UngateSlotRequest": _fields(CLUSTER="slot", CONTENT="force"),
    "ListHostsRequest": _fields(),
    "HostStatusRequest": _fields(),
    # Who can call.
    "CreatePrincipalRequest": _fields(CLUSTER="name", CONTENT="grants enabled"),
    "AccessGrant": _fields(CLUSTER="namespaces roles"),
    "UpdatePrincipalRequest": _fields(CLUSTER="name removed", CONTENT="enabled grants added"),
    "DeletePrincipalRequest": _fields(CLUSTER="name"),
    "ListPrincipalsRequest": _fields(CLUSTER="prefix page_token", CONTENT="limit"),
    "CreateTokenRequest": _fields(CLUSTER="principal", CONTENT="label expires_in_ms"),
    "RevokeTokenRequest": _fields(CLUSTER="id"),
    "ListTokensRequest": _fields(CLUSTER="principal page_token", CONTENT="limit"),
    "AddCertificateRequest": _fields(CLUSTER="principal name", CONTENT="label"),
    "RemoveCertificateRequest": _fields(CLUSTER="name"),
    "SetAccessModeRequest": _fields(CONTENT="mode"),
    "GetAccessRequest": _fields(),
    "ListRefusalsRequest": _fields(),
    "ListAuditRequest": _fields(CLUSTER="principal namespace_name verb page_token", CONTENT="since_ms until_ms limit"),
    # Between hosts.
    "GreetRequest": _fields(PEER="version caller_id callee_id nonce"),
    "JoinRequest": _fields(PEER="proof"),
    "HelloRequest": _fields(PEER="host_id challenge"),
    "ProveRequest": _fields(PEER="host_id challenge proof"),
    "ReportRequest": _fields(PEER="stocks opened"),
    "OpenedShard": _fields(PEER="shard_id epoch"),
    "TopicStock": _fields(PEER="namespace_number topic ready_count priority oldest_at_ms is_wanted urgency"),
    "SeekRequest": _fields(PEER="wishes asks depths"),
    "TopicDepth": _fields(PEER="namespace_number topic items_count"),
    "CapAsk": _fields(PEER="namespace_number topic per_second wanted_count held_count unused_count weight is_short"),
    "TopicWish": _fields(PEER="namespace_number topic count"),
    "HintRequest": _fields(PEER="pointers"),
    "GetFactsRequest": _fields(PEER="namespace_name names prefix group limit item_id urgency due_at_ms key shard_id"),
    "TopicPointer": _fields(PEER="namespace_number topic host_id ready_count priority oldest_at_ms urgency"),
}
"""Every field by its struct."""


def field_of(struct: str, check: Checked) -> str:
    """Return the first field of a struct that has this check, or empty text."""
    return next((name for name, checked in FIELDS[struct].items() if checked is check), "")

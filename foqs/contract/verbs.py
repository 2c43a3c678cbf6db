"""The table of the contract: one row for each verb says what it takes and returns, and which hosts do it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, NamedTuple

from foqs.contract import requests as of
from foqs.model import calls
from foqs.model.calls import CallContext
from foqs.model.cluster_calls import ClusterHosts
from foqs.model.jobs import Job, JobPage
from foqs.model.namespace import Namespace
from foqs.model.policy import TopicPolicyEntry, TopicPolicyPage

Method = Callable[[CallContext, Any], Awaitable[Any]]
"""Does one verb: it takes the request, and returns the result."""
Table = Mapping[str, Method]
"""The methods of verbs by their names."""
Call = Callable[[CallContext, str, Any], Awaitable[Any]]
"""Does the verb of this name."""


@dataclass(frozen=True, slots=True)
class ByShard:
    """Each position of a list is done by the owner of its shard."""

    field: str
    """The list."""
    id_field: str = ""
    """The field with the id of an element; empty if the elements are ids or receipts themselves."""
    also: str = ""
    """A second list, whose positions are behind those of the first one."""


@dataclass(frozen=True, slots=True)
class OfShard:
    """The request is done by the owner of one shard."""

    item_id: str = ""
    """The field with the id of an item on the shard."""
    shard_id: str = ""
    """The field with the id of the shard itself; a dot leads to a field of a field."""


class Whole(Enum):
    """A route of requests that no list or id divides among the hosts."""

    BY_ALL = auto()
    """All hosts do it, each for its own shards, and their results are merged."""
    PLACED = auto()
    """New items: by the owners of their dedup ids, or by a host with room."""
    PULLED = auto()
    """A demand for items: by this host, and by others that have better ones."""
    CHOSEN = auto()
    """Dead letters: by the owners of the ids, or of the oldest ones if the request has no ids."""
    SURVEYED = auto()
    """This host does it, and all hosts say which shards they serve."""
    HERE = auto()
    """Any host does it alone."""
    STATUS = auto()
    """Each host does it for itself, also if another host asks."""
    OF_PEERS = auto()
    """A message between hosts."""
    OF_CONNECTION = auto()
    """The connection itself does it."""


Route = ByShard | OfShard | Whole


class VerbRow(NamedTuple):
    request: Any
    """The struct of the request."""
    result: Any
    """The type of the result of its method; None if there is nothing to say."""
    route: Route
    costs: str = ""
    """The list of the result by whose length a response is charged; empty if the request is charged alone."""

    @property
    def is_for_peers(self) -> bool:
        """True if a host may ask it of another one."""
        return self.route not in (Whole.HERE, Whole.SURVEYED, Whole.OF_CONNECTION)


VERBS: dict[str, VerbRow] = {
    "enqueue": VerbRow(of.EnqueueRequest, calls.EnqueueResult, Whole.PLACED),
    "dequeue": VerbRow(of.DequeueRequest, list[calls.Delivery], Whole.PULLED),
    "ack": VerbRow(of.AckRequest, calls.PositionErrors, ByShard("receipts")),
    "nack": VerbRow(of.NackRequest, calls.PositionErrors, ByShard("nacks", id_field="receipt")),
    "extendLease": VerbRow(of.ExtendRequest, calls.PositionErrors, ByShard("receipts", also="begun")),
    "getActiveTopics": VerbRow(of.ActiveTopicsRequest, calls.TopicPage, Whole.BY_ALL, costs="topics"),
    "getShardMap": VerbRow(of.ShardMapRequest, calls.ShardMap, Whole.BY_ALL),
    "endWait": VerbRow(of.EndWaitRequest, None, Whole.OF_CONNECTION),
    # Namespaces and policies.
    "createNamespace": VerbRow(of.CreateNamespaceRequest, Namespace, Whole.HERE),
    "updateNamespace": VerbRow(of.UpdateNamespaceRequest, Namespace, Whole.HERE),
    "getNamespace": VerbRow(of.GetNamespaceRequest, Namespace, Whole.HERE),
    "listNamespaces": VerbRow(of.ListNamespacesRequest, calls.NamespacePage, Whole.HERE, costs="namespaces"),
    "deleteNamespace": VerbRow(of.DeleteNamespaceRequest, None, Whole.HERE),
    "recoverNamespace": VerbRow(of.RecoverNamespaceRequest, Namespace, Whole.HERE),
    "setTopicPolicy": VerbRow(of.SetTopicPolicyRequest, TopicPolicyEntry, Whole.HERE),
    "setTopicPolicies": VerbRow(of.SetTopicPoliciesRequest, calls.PositionErrors, Whole.HERE),
    "getTopicPolicy": VerbRow(of.GetTopicPolicyRequest, TopicPolicyEntry, Whole.HERE),
    "listTopicPolicies": VerbRow(of.ListTopicPoliciesRequest, TopicPolicyPage, Whole.HERE, costs="policies"),
    # Stored items.
    "peekItems": VerbRow(of.PeekItemsRequest, calls.StoredItemPage, Whole.BY_ALL, costs="items"),
    "getItem": VerbRow(of.GetItemRequest, calls.StoredItem, OfShard(item_id="id")),
    "deleteItems": VerbRow(of.DeleteItemsRequest, calls.PositionErrors, ByShard("ids")),
    "listDeadLetters": VerbRow(of.ListDeadLettersRequest, calls.StoredItemPage, Whole.BY_ALL, costs="items"),
    "redriveDeadLetters": VerbRow(of.RedriveDeadLettersRequest, calls.DeadLettersResult, Whole.CHOSEN),
    "purgeDeadLetters": VerbRow(of.PurgeDeadLettersRequest, calls.DeadLettersResult, Whole.CHOSEN),
    # Jobs and exports.
    "createJob": VerbRow(of.CreateJobRequest, Job, Whole.HERE),
    "updateJob": VerbRow(of.UpdateJobRequest, Job, Whole.HERE),
    "getJob": VerbRow(of.GetJobRequest, Job, Whole.HERE),
    "listJobs": VerbRow(of.ListJobsRequest, JobPage, Whole.HERE, costs="jobs"),
    "planExport": VerbRow(of.PlanExportRequest, calls.ExportPlan, Whole.BY_ALL),
    "exportItems": VerbRow(of.ExportItemsRequest, calls.ExportPage, OfShard(shard_id="split.shard_id"), costs="items"),
    # Shards and hosts.
    "listShards": VerbRow(of.ListShardsRequest, calls.ClusterShards, Whole.SURVEYED, costs="shards"),
    "addShard": VerbRow(of.AddShardRequest, calls.ClusterShard, Whole.SURVEYED),
    "updateShard": VerbRow(of.UpdateShardRequest, calls.ClusterShard, Whole.SURVEYED),
    "removeShard": VerbRow(of.RemoveShardRequest, None, OfShard(shard_id="shard_id")),
    "listHosts": VerbRow(of.ListHostsRequest, ClusterHosts, Whole.SURVEYED, costs="hosts"),
    "getHostStatus": VerbRow(of.HostStatusRequest, calls.HostStatus, Whole.STATUS, costs="shards"),
    # Between hosts.
    "greet": VerbRow(of.GreetRequest, of.GreetResponse, Whole.OF_PEERS),
    "join": VerbRow(of.JoinRequest, of.JoinResponse, Whole.OF_PEERS),
    "hello": VerbRow(of.HelloRequest, of.HelloResponse, Whole.OF_PEERS),
    "prove": VerbRow(of.ProveRequest, None, Whole.OF_PEERS),
    "report": VerbRow(of.ReportRequest, of.PointersResponse, Whole.OF_PEERS),
    "seek": VerbRow(of.SeekRequest, of.PointersResponse, Whole.OF_PEERS),
    "hint": VerbRow(of.HintRequest, None, Whole.OF_PEERS),
}  # fmt: skip
"""Every verb by its name on the wire."""

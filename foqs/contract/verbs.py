"""The table of the contract: one row for each verb has its request, result, permissions, and the hosts that do it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, NamedTuple

from foqs.contract import requests as of
from foqs.contract.permissions import (
    NOTHING,
    Permission,
    needed_by_bulk,
    needed_by_job,
    needed_by_nacks,
    needed_by_receipts,
    needed_by_recovery,
    needed_by_settings,
)
from foqs.model import access_calls as access
from foqs.model import calls
from foqs.model.audit import AuditPage
from foqs.model.calls import CallContext
from foqs.model.cluster_calls import ClusterHosts
from foqs.model.event_history import History
from foqs.model.facts import HostFacts
from foqs.model.groups import TopicGroup
from foqs.model.holder import ConsumerPage, ReleaseResult
from foqs.model.jobs import Job, JobPage
from foqs.model.namespace import Namespace
from foqs.model.policy import TopicPolicyEntry, TopicPolicyPage
from foqs.model.reasons import Explanation
from foqs.model.topic_rates import RatesPage

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
    BY_SLOT = auto()
    """Dedup ids: by the owners of the shards of their slots."""
    CHOSEN = auto()
    """Dead letters: by the owners of the ids, or of the oldest ones if the request has no ids."""
    SURVEYED = auto()
    """This host does it, and all hosts say which shards they serve."""
    HERE = auto()
    """Any host does it alone."""
    STATUS = auto()
    """Each host does it for itself, also if another host asks."""
    EXPLAINED = auto()
    """This host does it, with the facts of all hosts."""
    OF_PEERS = auto()
    """A message between hosts."""
    OF_CONNECTION = auto()
    """The connection itself does it."""


Route = ByShard | OfShard | Whole


class VerbRow(NamedTuple):
    request: Any
    """The struct of the request."""
    result: Any
    """The type of the result of its method; None if it has no result."""
    route: Route
    needs: Permission
    """The bits that a caller has to hold. It has no default, so that a verb without them does not import."""
    needs_also: Callable[[Any], Permission] | None = None
    """Returns the bits that a request needs beside those, because of its content."""
    costs: str = ""
    """The list of the result by whose length a response is charged; empty if the request is charged alone."""

    @property
    def is_for_peers(self) -> bool:
        """True if a host is permitted to ask it of another one."""
        return self.route not in (Whole.HERE, Whole.SURVEYED, Whole.EXPLAINED, Whole.OF_CONNECTION)


VERBS: dict[str, VerbRow] = {
    "enqueue": VerbRow(of.EnqueueRequest, calls.EnqueueResult, Whole.PLACED, Permission.ENQUEUE),
    "dequeue": VerbRow(of.DequeueRequest, list[calls.Delivery], Whole.PULLED, Permission.CONSUME),
    "ack": VerbRow(
        of.AckRequest, calls.PositionErrors, ByShard("receipts"), Permission.CONSUME, needs_also=needed_by_receipts
    ),
    "nack": VerbRow(
        of.NackRequest,
        calls.PositionErrors,
        ByShard("nacks", id_field="receipt"),
        Permission.CONSUME,
        needs_also=needed_by_nacks,
    ),
    "extendLease": VerbRow(
        of.ExtendRequest,
        calls.PositionErrors,
        ByShard("receipts", also="begun"),
        Permission.CONSUME,
        needs_also=needed_by_receipts,
    ),
    "getActiveTopics": VerbRow(
        of.ActiveTopicsRequest, calls.TopicPage, Whole.BY_ALL, Permission.OBSERVE, costs="topics"
    ),
    "getShardMap": VerbRow(of.ShardMapRequest, calls.ShardMap, Whole.BY_ALL, Permission.OBSERVE),
    "endWait": VerbRow(of.EndWaitRequest, None, Whole.OF_CONNECTION, NOTHING),
    "authenticate": VerbRow(of.AuthenticateRequest, calls.Identity, Whole.OF_CONNECTION, NOTHING),
    "whoAmI": VerbRow(of.WhoAmIRequest, calls.Identity, Whole.OF_CONNECTION, NOTHING),
    # Namespaces and policies.
    "createNamespace": VerbRow(
        of.CreateNamespaceRequest, Namespace, Whole.HERE, Permission.MANAGE, needs_also=needed_by_settings
    ),
    "updateNamespace": VerbRow(
        of.UpdateNamespaceRequest, Namespace, Whole.HERE, Permission.MANAGE, needs_also=needed_by_settings
    ),
    "getNamespace": VerbRow(of.GetNamespaceRequest, Namespace, Whole.HERE, Permission.OBSERVE),
    "listNamespaces": VerbRow(
        of.ListNamespacesRequest, calls.NamespacePage, Whole.HERE, Permission.OBSERVE, costs="namespaces"
    ),
    "deleteNamespace": VerbRow(of.DeleteNamespaceRequest, None, Whole.HERE, Permission.MANAGE),
    "recoverNamespace": VerbRow(
        of.RecoverNamespaceRequest, Namespace, Whole.HERE, Permission.OPERATE, needs_also=needed_by_recovery
    ),
    "setTopicPolicy": VerbRow(of.SetTopicPolicyRequest, TopicPolicyEntry, Whole.HERE, Permission.ALTER),
    "setTopicPolicies": VerbRow(of.SetTopicPoliciesRequest, calls.PositionErrors, Whole.HERE, Permission.ALTER),
    "getTopicPolicy": VerbRow(of.GetTopicPolicyRequest, TopicPolicyEntry, Whole.HERE, Permission.OBSERVE),
    "listTopicPolicies": VerbRow(
        of.ListTopicPoliciesRequest, TopicPolicyPage, Whole.HERE, Permission.OBSERVE, costs="policies"
    ),
    "createGroup": VerbRow(of.CreateGroupRequest, TopicGroup, Whole.HERE, Permission.MANAGE),
    "deleteGroup": VerbRow(of.DeleteGroupRequest, None, Whole.HERE, Permission.MANAGE),
    "listGroups": VerbRow(of.ListGroupsRequest, calls.GroupPage, Whole.HERE, Permission.OBSERVE, costs="groups"),
    # Stored items.
    "peekItems": VerbRow(of.PeekItemsRequest, calls.StoredItemPage, Whole.BY_ALL, Permission.READ, costs="items"),
    "getItem": VerbRow(of.GetItemRequest, calls.StoredItem, OfShard(item_id="id"), Permission.READ),
    "deleteItems": VerbRow(of.DeleteItemsRequest, calls.PositionErrors, ByShard("ids"), Permission.ALTER),
    "forgetDedupIds": VerbRow(of.ForgetDedupIdsRequest, calls.PositionErrors, Whole.BY_SLOT, Permission.ALTER),
    "listConsumers": VerbRow(
        of.ListConsumersRequest, ConsumerPage, Whole.BY_ALL, Permission.OBSERVE, costs="consumers"
    ),
    "releaseLeases": VerbRow(of.ReleaseLeasesRequest, ReleaseResult, Whole.BY_ALL, Permission.ALTER),
    "explain": VerbRow(of.ExplainRequest, Explanation, Whole.EXPLAINED, Permission.OBSERVE),
    "listDeadLetters": VerbRow(
        of.ListDeadLettersRequest, calls.StoredItemPage, Whole.BY_ALL, Permission.READ, costs="items"
    ),
    "redriveDeadLetters": VerbRow(
        of.RedriveDeadLettersRequest, calls.DeadLettersResult, Whole.CHOSEN, Permission.ALTER
    ),
    "purgeDeadLetters": VerbRow(of.PurgeDeadLettersRequest, calls.DeadLettersResult, Whole.CHOSEN, Permission.ALTER),
    # Jobs and exports.
    "createJob": VerbRow(of.CreateJobRequest, Job, Whole.HERE, Permission.ENQUEUE),
    "createBulkJob": VerbRow(
        of.CreateBulkJobRequest, Job, Whole.HERE, Permission.ALTER, needs_also=needed_by_bulk
    ),
    "updateJob": VerbRow(of.UpdateJobRequest, Job, Whole.HERE, Permission.ENQUEUE, needs_also=needed_by_job),
    "getJob": VerbRow(of.GetJobRequest, Job, Whole.HERE, Permission.OBSERVE),
    "listJobs": VerbRow(of.ListJobsRequest, JobPage, Whole.HERE, Permission.OBSERVE, costs="jobs"),
    "getRates": VerbRow(of.GetRatesRequest, RatesPage, Whole.BY_ALL, Permission.OBSERVE, costs="topics"),
    "getHistory": VerbRow(of.GetHistoryRequest, History, Whole.BY_ALL, Permission.OBSERVE, costs="rows"),
    "planExport": VerbRow(of.PlanExportRequest, calls.ExportPlan, Whole.BY_ALL, Permission.READ),
    "exportItems": VerbRow(
        of.ExportItemsRequest, calls.ExportPage, OfShard(shard_id="split.shard_id"), Permission.READ, costs="items"
    ),
    # Shards and hosts.
    "listShards": VerbRow(of.ListShardsRequest, calls.ClusterShards, Whole.SURVEYED, Permission.WATCH, costs="shards"),
    "addShard": VerbRow(of.AddShardRequest, calls.ClusterShard, Whole.SURVEYED, Permission.OPERATE),
    "updateShard": VerbRow(of.UpdateShardRequest, calls.ClusterShard, Whole.SURVEYED, Permission.OPERATE),
    "removeShard": VerbRow(of.RemoveShardRequest, None, OfShard(shard_id="shard_id"), Permission.OPERATE),
    "ungateSlot": VerbRow(of.UngateSlotRequest, None, Whole.HERE, Permission.OPERATE),
    "listHosts": VerbRow(of.ListHostsRequest, ClusterHosts, Whole.SURVEYED, Permission.WATCH, costs="hosts"),
    "getHostStatus": VerbRow(of.HostStatusRequest, calls.HostStatus, Whole.STATUS, Permission.WATCH, costs="shards"),
    # Who can call.
    "createPrincipal": VerbRow(of.CreatePrincipalRequest, access.AccessPrincipal, Whole.HERE, Permission.ACCESS),
    "updatePrincipal": VerbRow(of.UpdatePrincipalRequest, access.AccessPrincipal, Whole.HERE, Permission.ACCESS),
    "deletePrincipal": VerbRow(of.DeletePrincipalRequest, None, Whole.HERE, Permission.ACCESS),
    "listPrincipals": VerbRow(
        of.ListPrincipalsRequest, access.PrincipalPage, Whole.HERE, Permission.ACCESS, costs="principals"
    ),
    "createToken": VerbRow(of.CreateTokenRequest, access.NewToken, Whole.HERE, Permission.ACCESS),
    "revokeToken": VerbRow(of.RevokeTokenRequest, None, Whole.HERE, Permission.ACCESS),
    "listTokens": VerbRow(of.ListTokensRequest, access.TokenPage, Whole.HERE, Permission.ACCESS, costs="tokens"),
    "addCertificate": VerbRow(of.AddCertificateRequest, access.AccessCertificate, Whole.HERE, Permission.ACCESS),
    "removeCertificate": VerbRow(of.RemoveCertificateRequest, None, Whole.HERE, Permission.ACCESS),
    "setAccessMode": VerbRow(of.SetAccessModeRequest, access.AccessState, Whole.HERE, Permission.ACCESS),
    "getAccess": VerbRow(of.GetAccessRequest, access.AccessState, Whole.HERE, Permission.ACCESS),
    "listRefusals": VerbRow(
        of.ListRefusalsRequest, access.RefusalList, Whole.HERE, Permission.ACCESS, costs="refusals"
    ),
    "listAudit": VerbRow(of.ListAuditRequest, AuditPage, Whole.HERE, Permission.ACCESS, costs="records"),
    # Between hosts.
    "greet": VerbRow(of.GreetRequest, of.GreetResponse, Whole.OF_PEERS, NOTHING),
    "join": VerbRow(of.JoinRequest, of.JoinResponse, Whole.OF_PEERS, NOTHING),
    "hello": VerbRow(of.HelloRequest, of.HelloResponse, Whole.OF_PEERS, NOTHING),
    "prove": VerbRow(of.ProveRequest, None, Whole.OF_PEERS, NOTHING),
    "report": VerbRow(of.ReportRequest, of.PointersResponse, Whole.OF_PEERS, NOTHING),
    "seek": VerbRow(of.SeekRequest, of.PointersResponse, Whole.OF_PEERS, NOTHING),
    "hint": VerbRow(of.HintRequest, None, Whole.OF_PEERS, NOTHING),
    "getFacts": VerbRow(of.GetFactsRequest, HostFacts, Whole.OF_PEERS, NOTHING),
}  # fmt: skip
"""Every verb by its name on the wire."""

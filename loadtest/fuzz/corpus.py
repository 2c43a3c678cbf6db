"""Where the fuzzers start: a real message of every call, plain and with every field set, and answers to some."""

from __future__ import annotations

import json
from typing import Any

from foqs.model import limits
from foqs.model.errors import OverloadedError
from foqs.wire.codec import LENGTH_BYTES, METHODS, Codec, structs

NAMESPACE = "ns"
_RECEIPTS = ["1-10000000001:1", "2-1ffffffffff:7f", "1-10000000002"]
_I64 = -(1 << 62)


def seed_messages() -> list[bytes]:
    """Messages without the header of their frames; every method of the contract is among them."""
    codec = Codec()
    calls = [*_plain(), *_full()]
    assert {name for name, _ in calls} == set(METHODS)
    return [codec.encode_call(name, request, seqid)[LENGTH_BYTES:] for seqid, (name, request) in enumerate(calls)]


def seed_answers() -> list[bytes]:
    """Answers of a host, for the other side: what a client reads."""
    codec, s = Codec(), structs
    item = s.Item("1-2", "1-2:1", "topic", -1, b"payload", b"meta", 1, 2, 3, 1)
    error = s.ItemError(8, "the lease has ended")
    stats = s.TopicStats("topic", 1, 2, 3, 4, -5, 6)
    answers = [
        codec.encode_reply(METHODS["enqueue"], s.EnqueueResponse(["1-2", ""], {1: error}, []), 1),
        codec.encode_reply(METHODS["dequeue"], s.DequeueResponse([item] * 5), 2),
        codec.encode_reply(METHODS["ack"], s.BatchResponse({0: error, 7: error}), 3),
        codec.encode_reply(METHODS["getActiveTopics"], s.ActiveTopicsResponse([stats] * 3, "next"), 4),
        codec.encode_error(METHODS["nack"], OverloadedError("full", retry_after_ms=500), 5),
        codec.encode_application_error(b"nobody", 1, "the contract has no method nobody", 6),
    ]
    return [answer[LENGTH_BYTES:] for answer in answers]


def dictionary() -> list[bytes]:
    """Pieces that a message is made of: names, headers of fields, counts and numbers at the edges."""
    names = [method.name_bytes for method in METHODS.values()]
    fields = [bytes([kind, 0, number]) for kind in (2, 8, 10, 11, 12, 13, 14, 15) for number in (1, 2, 3)]
    numbers = [value.to_bytes(4, "big", signed=True) for value in EDGES]
    return [*names, *fields, *numbers, b"\x0c\0\0\0\1", b"\x0b\0\0\0\1", b"\0\0", b"\x80\x01\0\1"]


EDGES = (
    -(1 << 31),
    -5_000,
    -1,
    0,
    1,
    2,
    7,
    64,
    255,
    256,
    limits.BATCH_ITEMS_MAX,
    limits.FRAME_FIELDS_PER_STRUCT_MAX + 1,
    limits.FRAME_ELEMENTS_MAX,
    limits.FRAME_ELEMENTS_MAX + 1,
    1 << 16,
    1 << 24,
    (1 << 31) - 1,
)
"""Numbers of four bytes at which lengths, counts and arguments change their meaning."""


def _plain() -> list[tuple[str, Any]]:
    s = structs
    return [
        ("enqueue", s.EnqueueRequest(NAMESPACE, [s.NewItem("topic", b"payload")])),
        ("dequeue", s.DequeueRequest(NAMESPACE, [s.TopicDemand("topic", 10)])),
        ("dequeue", s.DequeueRequest(NAMESPACE, [], topic_prefix="to", count=10, group="audit")),
        ("ack", s.AckRequest(NAMESPACE, _RECEIPTS[:1])),
        ("nack", s.NackRequest(NAMESPACE, [s.Nack(_RECEIPTS[0])])),
        ("extendLease", s.ExtendRequest(NAMESPACE, _RECEIPTS[:1], 5_000)),
        ("getActiveTopics", s.ActiveTopicsRequest(NAMESPACE)),
        ("getShardMap", s.ShardMapRequest()),
        ("createNamespace", s.CreateNamespaceRequest("other")),
        ("updateNamespace", s.UpdateNamespaceRequest(NAMESPACE, s.NamespaceSettings())),
        ("getNamespace", s.GetNamespaceRequest(NAMESPACE)),
        ("listNamespaces", s.ListNamespacesRequest()),
        ("deleteNamespace", s.DeleteNamespaceRequest("other")),
        ("recoverNamespace", s.RecoverNamespaceRequest(7)),
        ("peekItems", s.PeekItemsRequest(NAMESPACE, "topic")),
        ("getItem", s.GetItemRequest(NAMESPACE, _RECEIPTS[2])),
        ("deleteItems", s.DeleteItemsRequest(NAMESPACE, _RECEIPTS[2:])),
        ("forgetDedupIds", s.ForgetDedupIdsRequest(NAMESPACE, ["known", "other"], "")),
        ("listDeadLetters", s.ListDeadLettersRequest(NAMESPACE, "topic")),
        ("redriveDeadLetters", s.RedriveDeadLettersRequest(NAMESPACE, "topic")),
        ("purgeDeadLetters", s.PurgeDeadLettersRequest(NAMESPACE, "topic")),
        ("createJob", s.CreateJobRequest(NAMESPACE, "job")),
        ("createBulkJob", s.CreateBulkJobRequest(NAMESPACE, f"bulk-{7:020x}", bulk=s.BulkWork(s.ItemFilter(), 0))),
        ("updateJob", s.UpdateJobRequest(NAMESPACE, "job")),
        ("getJob", s.GetJobRequest(NAMESPACE, "job")),
        ("listJobs", s.ListJobsRequest(NAMESPACE)),
        ("getRates", s.GetRatesRequest(NAMESPACE)),
        ("getHistory", s.GetHistoryRequest(NAMESPACE, None, 0, 60_000)),
        ("planExport", s.PlanExportRequest(NAMESPACE)),
        ("exportItems", s.ExportItemsRequest(NAMESPACE, s.ExportSplit(1, 0, _I64, 0))),
        ("listShards", s.ListShardsRequest()),
        ("addShard", s.AddShardRequest(70, "mysql://nowhere/shard")),
        ("updateShard", s.UpdateShardRequest(70)),
        ("removeShard", s.RemoveShardRequest(70)),
        ("ungateSlot", s.UngateSlotRequest(7, True)),
        ("setTopicPolicy", s.SetTopicPolicyRequest(NAMESPACE, "topic", weight=2)),
        ("setTopicPolicies", s.SetTopicPoliciesRequest(NAMESPACE, [s.TopicPolicyChange("topic", True, weight=2)])),
        ("getTopicPolicy", s.GetTopicPolicyRequest(NAMESPACE, "topic")),
        ("listTopicPolicies", s.ListTopicPoliciesRequest(NAMESPACE)),
        ("createGroup", s.CreateGroupRequest(NAMESPACE, "topic", "group")),
        ("deleteGroup", s.DeleteGroupRequest(NAMESPACE, "topic", "group")),
        ("listGroups", s.ListGroupsRequest(NAMESPACE)),
        ("listConsumers", s.ListConsumersRequest(NAMESPACE, "topic", "worker", 10, "", partial=True, group="")),
        ("releaseLeases", s.ReleaseLeasesRequest(NAMESPACE, "worker@host/1", "topic", True, group="audit")),
        ("endWait", s.EndWaitRequest(NAMESPACE, 7)),
        ("greet", s.GreetRequest(2, "host", "other", b"0" * 32)),
        ("join", s.JoinRequest(b"0" * 32)),
        ("hello", s.HelloRequest("host", b"0" * 16)),
        ("prove", s.ProveRequest("host", b"0" * 16, b"0" * 32)),
        ("report", s.ReportRequest([s.TopicStock(1, "topic", 5, 0, _I64, True)])),
        ("seek", s.SeekRequest([s.TopicWish(1, "topic", 5)])),
        ("hint", s.HintRequest([s.TopicPointer(1, "topic", "host", 5, 0, _I64)])),
        ("listHosts", s.ListHostsRequest()),
        ("getHostStatus", s.HostStatusRequest()),
        ("listAudit", s.ListAuditRequest(1, 2, "mailer", NAMESPACE, "enqueue")),
        *_of_access(),
        *_of_explanations(),
    ]


def _of_explanations() -> list[tuple[str, Any]]:
    s = structs
    return [
        ("explain", s.ExplainRequest(NAMESPACE, "topic", group="audit", ordering_key="key")),
        ("explain", s.ExplainRequest(NAMESPACE, item_id="0-10000000001")),
        ("getFacts", s.GetFactsRequest(NAMESPACE, ["topic"], None, None, 10, "0-10000000001", 5, _I64, _I64, 1)),
    ]


def _of_access() -> list[tuple[str, Any]]:
    s = structs
    grants = [s.AccessGrant("jobs-*", ["worker", "reader"])]
    return [
        ("authenticate", s.AuthenticateRequest(f"foqs_{'a' * 12}_{'b' * 49}")),
        ("whoAmI", s.WhoAmIRequest()),
        ("createPrincipal", s.CreatePrincipalRequest("mailer", grants)),
        ("updatePrincipal", s.UpdatePrincipalRequest("mailer", True, None, grants, ["jobs"])),
        ("deletePrincipal", s.DeletePrincipalRequest("mailer")),
        ("listPrincipals", s.ListPrincipalsRequest("m", 10, "token")),
        ("createToken", s.CreateTokenRequest("mailer", "label", 60_000)),
        ("revokeToken", s.RevokeTokenRequest("a" * 12)),
        ("listTokens", s.ListTokensRequest("mailer", 10, "token")),
        ("addCertificate", s.AddCertificateRequest("mailer", "foqs://prod/mailer", "label")),
        ("removeCertificate", s.RemoveCertificateRequest("foqs://prod/mailer")),
        ("setAccessMode", s.SetAccessModeRequest(1)),
        ("getAccess", s.GetAccessRequest()),
        ("listRefusals", s.ListRefusalsRequest()),
    ]


def _full() -> list[tuple[str, Any]]:
    s = structs
    item = s.NewItem("tópic 😀", bytes(range(256)), -5, _I64, 7, 60_000, 30_000, b"\0meta", 1, "dedup", "key")
    items = [s.NewItem(f"topic-{n}", json.dumps({"n": n}).encode(), n) for n in range(40)]
    settings = s.NamespaceSettings(attempts_max=3, lease_ms_max=60_000, enqueue_paused=True, ttl_ms_max=_I64)
    demands = [s.TopicDemand(f"topic-{n}", n, None if n % 2 else "group") for n in range(30)]
    nacks = [s.Nack(receipt, 5, b"meta", True, False, None, "caf\xc3\xa9 \x1b[2J" * 9) for receipt in _RECEIPTS]
    return [
        ("enqueue", s.EnqueueRequest(NAMESPACE, [item, item], True)),
        ("enqueue", s.EnqueueRequest(NAMESPACE, items)),
        ("dequeue", s.DequeueRequest(NAMESPACE, demands, 5_000, 1)),
        ("ack", s.AckRequest(NAMESPACE, _RECEIPTS * 20)),
        ("nack", s.NackRequest(NAMESPACE, nacks)),
        ("extendLease", s.ExtendRequest(NAMESPACE, _RECEIPTS, 5_000, _RECEIPTS)),
        ("getActiveTopics", s.ActiveTopicsRequest(NAMESPACE, "to", 10, "token")),
        ("getShardMap", s.ShardMapRequest(NAMESPACE)),
        ("createNamespace", s.CreateNamespaceRequest("other", settings)),
        ("updateNamespace", s.UpdateNamespaceRequest(NAMESPACE, settings)),
        ("listNamespaces", s.ListNamespacesRequest("n", 10, "n")),
        ("recoverNamespace", s.RecoverNamespaceRequest(7, "other")),
        ("enqueue", s.EnqueueRequest(NAMESPACE, [s.NewItem("topic", b"x", fairness_key=key) for key in "aab"])),
        ("peekItems", s.PeekItemsRequest(NAMESPACE, "topic", 10, "1", ordering_key="key")),
        ("peekItems", s.PeekItemsRequest(NAMESPACE, "topic", 10, "1", fairness_key="a")),
        ("createJob", s.CreateJobRequest(NAMESPACE, "job", _I64, "detail")),
        (
            "createBulkJob",
            s.CreateBulkJobRequest(
                NAMESPACE,
                f"bulk-{9:020x}",
                _I64,
                "detail",
                s.BulkWork(
                    s.ItemFilter(["topic"], None, [3], 0, _I64, 0, _I64, -1, 1, 0, 9, "error", b"m", b"p", 7, ["0-1"]),
                    2,
                    _I64,
                    5,
                    "bulk",
                ),
            ),
        ),
        ("updateJob", s.UpdateJobRequest(NAMESPACE, "job", 1, 5, _I64, "detail")),
        ("listJobs", s.ListJobsRequest(NAMESPACE, 10, "token")),
        ("getRates", s.GetRatesRequest(NAMESPACE, ["topic", "other"], "", 4, 10, True, None, True, None, "group")),
        ("getRates", s.GetRatesRequest(NAMESPACE, [], "to", 1, 10)),
        ("getHistory", s.GetHistoryRequest(NAMESPACE, ["topic", "other"], 0, 3_600_000, 5, True, None, "group")),
        ("getRates", s.GetRatesRequest(NAMESPACE, with_series=True, of_namespaces=True)),
        ("getActiveTopics", s.ActiveTopicsRequest(NAMESPACE, "to", 10, "token", True, None, True)),
        ("addShard", s.AddShardRequest(70, "mysql://nowhere/shard", "tier")),
        ("updateShard", s.UpdateShardRequest(70, 1, "host", "tier")),
        ("planExport", s.PlanExportRequest(NAMESPACE, 64)),
        (
            "exportItems",
            s.ExportItemsRequest(
                NAMESPACE, s.ExportSplit(1, 5, _I64, 7), 9, 10, ["topic", "other"], [0, 1, 2, 3], False, False, "to"
            ),
        ),
        ("listDeadLetters", s.ListDeadLettersRequest(NAMESPACE, "topic", 10, "1")),
        ("redriveDeadLetters", s.RedriveDeadLettersRequest(NAMESPACE, "topic", _RECEIPTS, 10)),
        ("purgeDeadLetters", s.PurgeDeadLettersRequest(NAMESPACE, "topic", _RECEIPTS, 10)),
    ]

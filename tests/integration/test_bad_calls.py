"""Well-formed frames with bad arguments: the exact code of each answer, nothing changes, the host serves on.

A case is a call and its outcome: the code of the whole call, or the codes by position of a batch.
"""

from __future__ import annotations

import gc
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest

from foqs.model import ids, limits
from foqs.model.errors import ErrorCode, FoqsError
from foqs.wire.codec import structs
from tests.support.running_host import RunningHost, running_host

pytestmark = [pytest.mark.deep]

INVALID = ErrorCode.INVALID_ARGUMENT
UNKNOWN = ErrorCode.UNKNOWN_NAMESPACE
NOT_FOUND = ErrorCode.NOT_FOUND
STALE = ErrorCode.STALE_LEASE
TOO_LARGE = ErrorCode.TOO_LARGE
EXISTS = ErrorCode.ALREADY_EXISTS

Outcome = ErrorCode | dict[int, ErrorCode]
Case = tuple[str, Any, Outcome]

I64_MIN, I64_MAX = -(1 << 63), (1 << 63) - 1
I32_MIN, I32_MAX = -(1 << 31), (1 << 31) - 1
NOT_UTF8 = b"\xff\xfe"
"""Where the contract wants text; the encoder sends bytes as they are."""
HOSTILE_NAMES = [
    "",
    " ",
    "\x00",
    "../../etc",
    "'; DROP TABLE namespace; --",
    "%",
    "_",
    "`",
    "\u202ejobs",
    "jobs\n",
    " jobs",
    "jobs ",
    "JOBS",
    "j\u043ebs",
    "x" * 65,
    "x" * 1_000_000,
    "😀",
]
HOSTILE_TOPICS = ["", "\x00", "a\x00", "a\nb", "\x7f", "\x85", "a\x1b[31m", "x" * 256, "😀" * 64, "x" * 1_000_000]
HOSTILE_IDS = ["", "0", "-1", "0-0", "0--1", "18446744073709551615", "0-10000000000000000", "x" * 1_000_000, "\x00"]
OF_NOBODY = ["0-1", "0-ffffffffffffffff", "3-123456789abcdef"]
OF_NO_SHARD = ["4-1", "ffff-1"]


class Stage:
    """A host with one item in each state, so that a bad call has something to spoil."""

    def __init__(self, host: RunningHost) -> None:
        self.host = host
        self.ready = self.delayed = self.dead = self.foreign = self.leased = self.receipt = ""

    async def set(self) -> None:
        client = self.host.client
        await self.host.admin.create_namespace("other")
        self.foreign = await client.enqueue("other", "t", b"foreign")
        self.dead = await client.enqueue("jobs", "t", b"dead")
        (item,) = await client.dequeue("jobs", "t", wait_ms=20_000)
        await client.nack("jobs", [item.receipt], dead_letter=True)
        self.leased = await client.enqueue("jobs", "t", b"leased")
        (item,) = await client.dequeue("jobs", "t", lease_ms=limits.HOUR_MS, wait_ms=20_000)
        self.receipt = item.receipt
        self.ready = await client.enqueue("jobs", "t", b"ready")
        self.delayed = await client.enqueue("jobs", "t", b"delayed", delay_ms=limits.HOUR_MS)

    async def facts(self) -> Any:
        """All that a call could change."""
        namespaces = [namespace async for namespace in self.host.admin.list_namespaces()]
        leased = await self.host.admin.get_item("jobs", self.leased)
        # It is told by the server's clock, of which the host learns more all the time.
        shard_id, key, _ = ids.parse(self.leased)
        shard = self.host.host._shards.writers[shard_id].shard
        assert shard is not None
        leased = replace(leased, lease_expires_at_ms=shard.index.leases[key].lease_due_at)
        stats = [await self.host.stats(name) for name in ("jobs", "other")]
        return self.host.rows("SELECT * FROM item ORDER BY id"), namespaces, leased, stats


@pytest.fixture
async def stage(meta_url, shard_urls):
    async with running_host(meta_url, shard_urls) as host:
        stage = Stage(host)
        await stage.set()
        yield stage


async def check(stage: Stage, cases: list[Case]) -> None:
    before = await stage.facts()
    answers, expected = [], []
    for number, (method, request, outcome) in enumerate(cases):
        reply = await stage.host.call(method, request)
        label = f"{number} {request!r:.120}"
        answers.append((label, outcome_of(reply)))
        assert all(told_nothing_done(reply)), label
        expected.append((label, outcome))
        for message in messages_of(reply):
            assert 0 < len(message) < 500, label
    assert answers == expected
    assert await stage.facts() == before
    await whole_life(stage.host)


def outcome_of(reply: Any) -> Any:
    if reply.error is not None:
        return reply.error.code if isinstance(reply.error, FoqsError) else reply.error
    return {position: ErrorCode(error.code) for position, error in (reply.response.errors or {}).items()}


def told_nothing_done(reply: Any) -> list[bool | None]:
    """What every refusal says, of the call or of each position."""
    if reply.error is not None:
        return [reply.error.nothing_done] if isinstance(reply.error, FoqsError) else []
    return [error.nothing_done for error in (reply.response.errors or {}).values()]


def messages_of(reply: Any) -> list[str]:
    if reply.error is not None:
        return [str(reply.error)]
    return [error.message for error in (reply.response.errors or {}).values()]


async def whole_life(host: RunningHost) -> None:
    item_id = await host.client.enqueue("jobs", "next", b"good")
    (item,) = await host.client.dequeue("jobs", "next", wait_ms=20_000)
    assert (item.id, item.payload) == (item_id, b"good")
    assert await host.client.extend("jobs", [item.receipt], 60_000) == {}
    assert await host.client.ack("jobs", [item.receipt]) == {}


def calls_of_every_verb(name: Any) -> list[tuple[str, Any]]:
    """A good call of every verb of the queue and of items, in the namespace of this name."""
    s = structs
    return [
        ("enqueue", s.EnqueueRequest(name, [s.NewItem("t", b"x")])),
        ("dequeue", s.DequeueRequest(name, [s.TopicDemand("t", 1)])),
        ("ack", s.AckRequest(name, ["0-1"])),
        ("nack", s.NackRequest(name, [s.Nack("0-1")])),
        ("extendLease", s.ExtendRequest(name, ["0-1"], 5_000)),
        ("getActiveTopics", s.ActiveTopicsRequest(name)),
        ("peekItems", s.PeekItemsRequest(name, "t")),
        ("planExport", s.PlanExportRequest(name)),
        ("exportItems", s.ExportItemsRequest(name, s.ExportSplit(0, 0, 1))),
        ("getItem", s.GetItemRequest(name, "0-1")),
        ("deleteItems", s.DeleteItemsRequest(name, ["0-1"])),
        ("listDeadLetters", s.ListDeadLettersRequest(name, "t")),
        ("redriveDeadLetters", s.RedriveDeadLettersRequest(name, "t")),
        ("purgeDeadLetters", s.PurgeDeadLettersRequest(name, "t")),
    ]


async def test_a_namespace_that_does_not_exist_is_unknown_to_every_verb(stage):
    await check(stage, [(*call, UNKNOWN) for name in HOSTILE_NAMES for call in calls_of_every_verb(name)])


async def test_text_that_is_not_utf8_is_refused(stage):
    s = structs
    await check(
        stage,
        [(*call, INVALID) for call in calls_of_every_verb(NOT_UTF8)]
        + [
            ("enqueue", s.EnqueueRequest("jobs", [s.NewItem("t", b"x"), s.NewItem(NOT_UTF8, b"x")]), INVALID),
            ("dequeue", s.DequeueRequest("jobs", [s.TopicDemand(NOT_UTF8, 1)]), INVALID),
            ("ack", s.AckRequest("jobs", [NOT_UTF8]), INVALID),
            ("nack", s.NackRequest("jobs", [s.Nack(NOT_UTF8)]), INVALID),
            ("getActiveTopics", s.ActiveTopicsRequest("jobs", NOT_UTF8), INVALID),
            ("createNamespace", s.CreateNamespaceRequest(NOT_UTF8), INVALID),
        ],
    )


async def test_absent_arguments_are_refused(stage):
    s = structs
    await check(
        stage,
        [(*call, INVALID) for call in calls_of_every_verb(None)]
        + [
            ("enqueue", s.EnqueueRequest("jobs"), INVALID),
            ("enqueue", s.EnqueueRequest("jobs", [s.NewItem(), s.NewItem("t"), s.NewItem(payload=b"x")]),
             {0: INVALID, 1: INVALID, 2: INVALID}),
            ("dequeue", s.DequeueRequest("jobs"), INVALID),
            ("dequeue", s.DequeueRequest("jobs", [s.TopicDemand()]), INVALID),
            ("dequeue", s.DequeueRequest("jobs", [s.TopicDemand("t")]), INVALID),
            ("dequeue", s.DequeueRequest("jobs", [s.TopicDemand(count=1)]), INVALID),
            ("ack", s.AckRequest("jobs"), INVALID),
            ("nack", s.NackRequest("jobs"), INVALID),
            ("nack", s.NackRequest("jobs", [s.Nack()]), {0: INVALID}),
            ("extendLease", s.ExtendRequest("jobs", ["0-1"]), INVALID),
            ("extendLease", s.ExtendRequest("jobs", None, 5_000), INVALID),
            ("peekItems", s.PeekItemsRequest("jobs"), INVALID),
            ("exportItems", s.ExportItemsRequest("jobs"), INVALID),
            ("exportItems", s.ExportItemsRequest("jobs", s.ExportSplit()), INVALID),
            ("exportItems", s.ExportItemsRequest("jobs", s.ExportSplit(0)), INVALID),
            ("exportItems", s.ExportItemsRequest("jobs", s.ExportSplit(0, 1)), INVALID),
            ("getItem", s.GetItemRequest("jobs"), INVALID),
            ("deleteItems", s.DeleteItemsRequest("jobs"), INVALID),
            ("listDeadLetters", s.ListDeadLettersRequest("jobs"), INVALID),
            ("redriveDeadLetters", s.RedriveDeadLettersRequest("jobs"), INVALID),
            ("purgeDeadLetters", s.PurgeDeadLettersRequest("jobs"), INVALID),
            ("createNamespace", s.CreateNamespaceRequest(), INVALID),
            ("updateNamespace", s.UpdateNamespaceRequest("jobs"), INVALID),
            ("updateNamespace", s.UpdateNamespaceRequest(None, s.NamespaceSettings()), INVALID),
            ("getNamespace", s.GetNamespaceRequest(), INVALID),
            ("deleteNamespace", s.DeleteNamespaceRequest(), INVALID),
        ],
    )  # fmt: skip


async def test_new_items_out_of_range_are_refused_each_at_its_position(stage):
    bad: list[tuple[dict[str, Any], ErrorCode]] = [
        *[({"topic": topic}, INVALID) for topic in HOSTILE_TOPICS],
        *[({"delivery": value}, INVALID) for value in (-1, 2, I32_MAX, I32_MIN)],
        *[({"delay_ms": value}, INVALID) for value in (-1, limits.DELAY_MS_MAX + 1, I64_MAX, I64_MIN)],
        *[({"deliver_after_ms": value}, INVALID) for value in (I64_MAX, 253_402_300_800_000)],
        *[({"ttl_ms": value}, INVALID) for value in (0, -1, limits.TTL_MS_MAX + 1, I64_MAX, I64_MIN)],
        *[({"lease_ms": value}, INVALID) for value in (0, -1, 999, limits.LEASE_MS_MAX + 1, I64_MAX, I64_MIN)],
        *[({"payload": b"x" * size}, TOO_LARGE) for size in (10_241, limits.MIB)],
        *[({"metadata": b"x" * size}, TOO_LARGE) for size in (513, limits.MIB)],
        *[({"dedup_id": text}, INVALID) for text in ("", "x" * 256, "é" * 128)],
        *[({"ordering_key": text}, INVALID) for text in ("", "k\x1d", "x" * 129)],
        *[({"fairness_key": text}, INVALID) for text in ("", "k\x1c", "x" * 65)],
        ({"ordering_key": "k", "fairness_key": "k"}, INVALID),
        ({"delay_ms": 1, "deliver_after_ms": 1}, INVALID),
        ({"delay_ms": 0, "deliver_after_ms": 0}, INVALID),
    ]
    good = {"topic": "t", "payload": b"x"}
    items = [structs.NewItem(**good | fields) for fields, _ in bad]
    codes = {position: code for position, (_, code) in enumerate(bad)}
    one_by_one = [
        ("enqueue", structs.EnqueueRequest("jobs", [item]), {0: codes[position]}) for position, item in enumerate(items)
    ]
    too_many = structs.EnqueueRequest("jobs", [structs.NewItem(**good)] * (limits.BATCH_ITEMS_MAX + 1))
    await check(
        stage,
        [*one_by_one, ("enqueue", structs.EnqueueRequest("jobs", items), codes), ("enqueue", too_many, TOO_LARGE)],
    )


async def test_dequeues_out_of_range_are_refused(stage):
    def dequeue(topics: Any, **fields: Any) -> tuple[str, Any]:
        return "dequeue", structs.DequeueRequest("jobs", topics, **fields)

    demand = [structs.TopicDemand("none", 1)]
    many = [structs.TopicDemand(f"t{n}", 1) for n in range(limits.DEQUEUE_TOPICS_MAX + 1)]
    await check(
        stage,
        [
            (*dequeue([]), INVALID),
            (*dequeue(many), TOO_LARGE),
            (*dequeue([structs.TopicDemand("t", 1, "gr\x1foup")]), INVALID),
            (*dequeue([], topic_prefix="t", count=1, group="gr\x1foup"), INVALID),
            (*dequeue(demand, group="audit"), INVALID),
            (*dequeue([*demand, structs.TopicDemand("t", 0)]), INVALID),
        ]
        + [(*dequeue([structs.TopicDemand("t", n)]), INVALID) for n in (0, -1, 1_001, I32_MAX, I32_MIN)]
        + [(*dequeue([structs.TopicDemand(topic, 1)]), INVALID) for topic in HOSTILE_TOPICS]
        + [(*dequeue(demand, wait_ms=n), INVALID) for n in (-1, 30_001, 10 * limits.DAY_MS, I64_MAX, I64_MIN)]
        + [
            (*dequeue(demand, lease_ms=n), INVALID)
            for n in (0, -1, 999, limits.LEASE_MS_MAX + 1, I64_MAX, I64_MIN)
        ],
    )  # fmt: skip


async def test_dequeues_that_wait_for_more_topics_than_the_host_keeps_are_refused_until_some_end(stage):
    def request(count: int, wait_ms: int) -> Any:
        return structs.DequeueRequest(
            "jobs", [structs.TopicDemand(f"none-{n}", 1) for n in range(count)], None, wait_ms
        )

    with patch.object(limits, "DEQUEUE_TOPICS_WAITING_MAX", 5):
        stage.host.raw.send("dequeue", request(3, 300), seqid=7)
        assert outcome_of(await stage.host.call("dequeue", request(3, 0))) is ErrorCode.OVERLOADED
        refused = await stage.host.call("dequeue", request(6, 0))
        assert (refused.error.code, refused.error.retry_after_ms) == (ErrorCode.OVERLOADED, 1_000)
        assert (await stage.host.raw.receive()).seqid == 7
        assert (await stage.host.call("dequeue", request(5, 0))).response.items == []


async def test_ids_and_receipts_that_are_not_good_fail_at_their_positions(stage):
    stale = f"{stage.leased}:7f"
    bad = dict.fromkeys(HOSTILE_IDS, INVALID) | dict.fromkeys([*OF_NOBODY, stage.foreign], NOT_FOUND)
    bad |= dict.fromkeys(OF_NO_SHARD, ErrorCode.UNAVAILABLE)
    cases: list[Case] = []
    for name, code in bad.items():
        cases += [
            ("ack", structs.AckRequest("jobs", [name]), {0: code}),
            ("deleteItems", structs.DeleteItemsRequest("jobs", [name]), {0: code}),
            ("getItem", structs.GetItemRequest("jobs", name), code),
            ("redriveDeadLetters", structs.RedriveDeadLettersRequest("jobs", "t", [name]), {0: code}),
            ("purgeDeadLetters", structs.PurgeDeadLettersRequest("jobs", "t", [name]), {0: code}),
        ]
    # A name that may have had a lease has none now; one of no shard of this host may have one elsewhere.
    unleased = dict.fromkeys(OF_NOBODY, STALE) | dict.fromkeys(OF_NO_SHARD, ErrorCode.UNAVAILABLE)
    unleased |= {stage.ready: STALE, stage.delayed: STALE, stage.dead: STALE, stale: STALE}
    for name, code in (dict.fromkeys(HOSTILE_IDS, INVALID) | unleased).items():
        cases += [
            ("nack", structs.NackRequest("jobs", [structs.Nack(name)]), {0: code}),
            ("extendLease", structs.ExtendRequest("jobs", [name], 5_000), {0: code}),
        ]
    cases.append(("ack", structs.AckRequest("jobs", [stale]), {0: STALE}))
    await check(stage, cases)


async def test_nacks_and_extensions_out_of_range_leave_the_lease(stage):
    def nack(**fields: Any) -> tuple[str, Any]:
        return "nack", structs.NackRequest("jobs", [structs.Nack(stage.receipt, **fields)])

    too_many = [stage.receipt] * (limits.BATCH_ITEMS_MAX + 1)
    await check(
        stage,
        [(*nack(delay_ms=n), {0: INVALID}) for n in (-1, limits.DELAY_MS_MAX + 1, I64_MAX, I64_MIN)]
        + [(*nack(metadata=b"x" * n), {0: TOO_LARGE}) for n in (513, limits.MIB)]
        + [(*nack(release=True, dead_letter=True), {0: INVALID})]
        + [
            ("extendLease", structs.ExtendRequest("jobs", [stage.receipt], n), INVALID)
            for n in (0, -1, 999, limits.LEASE_MS_MAX + 1, I64_MAX, I64_MIN)
        ]
        + [
            ("ack", structs.AckRequest("jobs", too_many), TOO_LARGE),
            ("nack", structs.NackRequest("jobs", [structs.Nack(name) for name in too_many]), TOO_LARGE),
            ("extendLease", structs.ExtendRequest("jobs", too_many, 5_000), TOO_LARGE),
            ("deleteItems", structs.DeleteItemsRequest("jobs", too_many), TOO_LARGE),
        ],
    )


async def test_errors_by_position_are_no_work_for_the_garbage_collector(stage):
    s, count = structs, 500
    receipts = [f"0-{n:x}:1" for n in range(1, count + 1)]
    calls = [
        ("enqueue", s.EnqueueRequest("jobs", [s.NewItem("", b"x")] * count)),
        ("enqueue", s.EnqueueRequest("jobs", [s.NewItem("t", b"x", ttl_ms=0)] * count)),
        ("ack", s.AckRequest("jobs", receipts)),
        ("ack", s.AckRequest("jobs", ["no receipt"] * count)),
        ("nack", s.NackRequest("jobs", [s.Nack(receipt) for receipt in receipts])),
        ("extendLease", s.ExtendRequest("jobs", receipts, 5_000)),
        ("deleteItems", s.DeleteItemsRequest("jobs", [receipt[:-2] for receipt in receipts])),
    ]
    for method, request in calls:
        gc.collect()
        gc.disable()
        try:
            assert len(outcome_of(await stage.host.call(method, request))) == count
            assert gc.collect() < count, method
        finally:
            gc.enable()


async def test_pages_out_of_range_are_refused(stage):
    s = structs
    cases: list[Case] = []
    for limit in (0, -1, limits.PAGE_ITEMS_MAX + 1, I32_MAX, I32_MIN):
        cases += [
            ("getActiveTopics", s.ActiveTopicsRequest("jobs", limit=limit), INVALID),
            ("getRates", s.GetRatesRequest("jobs", limit=limit), INVALID),
            ("getRates", s.GetRatesRequest("jobs", order=limit or 5), INVALID),
            ("getHistory", s.GetHistoryRequest("jobs", None, 0, 60_000, limit or I32_MIN), INVALID),
            ("peekItems", s.PeekItemsRequest("jobs", "t", limit), INVALID),
            ("listDeadLetters", s.ListDeadLettersRequest("jobs", "t", limit), INVALID),
            ("redriveDeadLetters", s.RedriveDeadLettersRequest("jobs", "t", limit=limit), INVALID),
            ("purgeDeadLetters", s.PurgeDeadLettersRequest("jobs", "t", limit=limit), INVALID),
            ("listNamespaces", s.ListNamespacesRequest(limit=limit), INVALID),
        ]
    for token in ("x", "-", "\x00", "0x", "1.5", "é", "'; --", "-1", "1_0", "f" * 41, "8" + "0" * 40, "f" * 1_000_000):
        cases += [
            ("peekItems", s.PeekItemsRequest("jobs", "t", 1, token), INVALID),
            ("listDeadLetters", s.ListDeadLettersRequest("jobs", "t", 1, token), INVALID),
        ]
    for topic in HOSTILE_TOPICS:
        cases += [
            ("peekItems", s.PeekItemsRequest("jobs", topic), INVALID),
            ("getRates", s.GetRatesRequest("jobs", [topic]), INVALID),
            ("getHistory", s.GetHistoryRequest("jobs", [topic], 0, 60_000), INVALID),
            ("listDeadLetters", s.ListDeadLettersRequest("jobs", topic), INVALID),
            ("redriveDeadLetters", s.RedriveDeadLettersRequest("jobs", topic), INVALID),
            ("purgeDeadLetters", s.PurgeDeadLettersRequest("jobs", topic, [stage.dead]), INVALID),
        ]
    await check(stage, cases)


async def test_exports_out_of_range_are_refused(stage):
    s = structs
    split, count = s.ExportSplit(0, 5, 100, 0), limits.EXPORT_TOPICS_MAX + 1
    query = partial(s.ExportItemsRequest, "jobs")
    out = (0, -1, I32_MAX, I32_MIN)
    bad_splits = [
        s.ExportSplit(0, 101, 100, 0),
        *[s.ExportSplit(0, number, 100, 0) for number in (-1, I64_MIN)],
        *[s.ExportSplit(0, 0, number, 0) for number in (-1, I64_MIN)],
        *[s.ExportSplit(number, 0, 1, 0) for number in (-1, limits.SHARD_ID_MAX + 1, I32_MAX, I32_MIN)],
    ]
    invalid = [
        *map(query, bad_splits),
        *[query(split, after_key) for after_key in (-1, 1, 4, 101, I64_MAX, I64_MIN)],
        *[query(split, limit=limit) for limit in (*out, limits.PAGE_ITEMS_MAX + 1)],
        *[query(split, topics=["t", topic]) for topic in HOSTILE_TOPICS],
        *[query(split, states=[0, state]) for state in (-1, 4, I32_MAX, I32_MIN)],
        *[query(split, topic_prefix=hostile) for hostile in ("\x00", "x" * 256, "x" * 1_000_000)],
        query(split, topics=["t"], topic_prefix="t"),
    ]
    plans = [s.PlanExportRequest("jobs", number) for number in (*out, limits.EXPORT_SPLITS_MAX + 1)]
    too_many = [query(split, topics=["t"] * count), query(split, topics=["t"] * 15_000), query(split, states=[0] * 99)]
    await check(
        stage,
        [("exportItems", request, INVALID) for request in invalid]
        + [("planExport", request, INVALID) for request in plans]
        + [("exportItems", request, TOO_LARGE) for request in too_many],
    )


async def test_namespaces_out_of_range_are_refused(stage):
    s = structs
    valid = {" ": False, "JOBS": True, "%": False, "_": True}
    names = [name for name in HOSTILE_NAMES if not valid.get(name, False)]
    cases: list[Case] = [("createNamespace", s.CreateNamespaceRequest(name), INVALID) for name in names]
    cases += [("getNamespace", s.GetNamespaceRequest(name), INVALID) for name in names]
    cases += [("updateNamespace", s.UpdateNamespaceRequest(name, s.NamespaceSettings()), INVALID) for name in names]
    cases += [("deleteNamespace", s.DeleteNamespaceRequest(name), INVALID) for name in names]
    for setting in ("enqueues_per_minute_max", "lease_ms_default", "lease_ms_max", "delay_ms_max", "ttl_ms_max"):
        for value in (-1, I64_MAX, I64_MIN):
            settings = s.NamespaceSettings(**{setting: value})
            cases += [
                ("createNamespace", s.CreateNamespaceRequest("new", settings), INVALID),
                ("updateNamespace", s.UpdateNamespaceRequest("jobs", settings), INVALID),
            ]
    for setting in ("payload_bytes_max", "metadata_bytes_max", "batch_items_max", "attempts_max"):
        for value in (-1, I32_MAX, I32_MIN):
            settings = s.NamespaceSettings(**{setting: value})
            cases.append(("updateNamespace", s.UpdateNamespaceRequest("jobs", settings), INVALID))
    cases += [
        ("createNamespace", s.CreateNamespaceRequest("jobs"), EXISTS),
        ("createNamespace", s.CreateNamespaceRequest("other", s.NamespaceSettings(attempts_max=1)), EXISTS),
        ("updateNamespace", s.UpdateNamespaceRequest("nobody", s.NamespaceSettings()), UNKNOWN),
        ("getNamespace", s.GetNamespaceRequest("nobody"), UNKNOWN),
        ("deleteNamespace", s.DeleteNamespaceRequest("nobody"), UNKNOWN),
        ("deleteNamespace", s.DeleteNamespaceRequest("jobs"), INVALID),
        ("deleteNamespace", s.DeleteNamespaceRequest("other"), INVALID),
    ]
    await check(stage, cases)


async def test_topics_that_look_like_code_are_only_names(stage):
    names = [
        "../../etc/passwd",
        "'; DROP TABLE item; --",
        "%",
        "_",
        "`",
        "\\",
        '"',
        "%s",
        "{}",
        "\u202e",
        "\ufeff",
        "null",
    ]
    for name in names:
        item_id = await stage.host.client.enqueue("jobs", name, name.encode())
        assert list(await stage.host.stats("jobs", name)) == [name]
        page = await stage.host.admin.peek_items("jobs", name)
        assert [item.id for item in page.items] == [item_id]
        (item,) = await stage.host.client.dequeue("jobs", name, 10, wait_ms=20_000)
        assert (item.id, item.topic, item.payload) == (item_id, name, name.encode())
        assert await stage.host.client.ack("jobs", [item]) == {}
    assert list(await stage.host.stats("jobs")) == ["t"]

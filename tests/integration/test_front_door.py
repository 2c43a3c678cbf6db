"""The Thrift port over a real socket: every call of the contract, and how connections begin, wait and end."""

from __future__ import annotations

import asyncio
import socket
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs
from thriftpy2.protocol import TBinaryProtocolFactory
from thriftpy2.rpc import make_client
from thriftpy2.transport import TFramedTransportFactory

from foqs.model.calls import CallContext
from foqs.model.cluster import ShardUse
from foqs.model.errors import ErrorCode, InvalidArgumentError, OverloadedError, RateLimitedError
from foqs.model.limits import FRAME_BYTES_MAX
from foqs.model.principal import EVERYBODY
from foqs.transport.bounds import TransportLimits
from foqs.transport.server import ThriftServer
from foqs.wire.codec import METHODS, Reply, structs
from tests.support.fake_queue import FakeQueue
from tests.support.front_door import dequeue_request, enqueue_request, world
from tests.support.loops import on_each_loop, on_uvloop
from tests.support.raw_client import RawClient
from tests.support.waiting import PATIENCE_S


@on_each_loop
async def test_an_item_goes_in_and_comes_out_on_either_event_loop() -> None:
    async with world() as w, w.connect() as client:
        reply = await client.call("enqueue", enqueue_request(b"\x00\xff", b"x" * 20_000, b""))
        assert reply.response.ids == ["1-1", "", "1-2"]
        assert reply.response.errors[1].code == ErrorCode.TOO_LARGE
        assert reply.response.duplicates == []
        reply = await client.call("dequeue", dequeue_request(5))
        first, second = reply.response.items
        assert (first.id, first.receipt) == ("1-1", "1-1.1")
        assert (first.payload, first.metadata) == (b"\x00\xff", b"")
        assert (first.topic, first.priority, first.attempt, first.group) == ("topic", 0, 1, None)
        assert second.payload == b""
        reply = await client.call("extendLease", structs.ExtendRequest("ns", ["1-1.1"], 1000))
        assert reply.response.errors == {}
        reply = await client.call("ack", structs.AckRequest("ns", ["1-1.1", "gone"]))
        assert {n: e.code for n, e in reply.response.errors.items()} == {1: ErrorCode.STALE_LEASE}
        reply = await client.call("nack", structs.NackRequest("ns", [structs.Nack("1-2.1")]))
        assert reply.response.errors == {}
        reply = await client.call("getActiveTopics", structs.ActiveTopicsRequest("ns"))
        assert [(t.topic, t.ready) for t in reply.response.topics] == [("topic", 1)]
        assert ("ack", "OK") in w.counts.finished


@on_uvloop
async def test_every_admin_verb_answers() -> None:
    s = structs
    async with world() as w, w.connect() as client:
        settings = s.NamespaceSettings(attempts_max=3)
        made = await client.call("createNamespace", s.CreateNamespaceRequest("other", settings))
        assert (made.response.name, made.response.settings.attempts_max) == ("other", 3)
        paused = s.NamespaceSettings(enqueue_paused=True)
        changed = await client.call("updateNamespace", s.UpdateNamespaceRequest("other", paused))
        assert changed.response.settings.enqueue_paused is True
        assert changed.response.settings.attempts_max == 3
        got = await client.call("getNamespace", s.GetNamespaceRequest("other"))
        assert got.response == changed.response
        listed = await client.call("listNamespaces", s.ListNamespacesRequest())
        assert [n.name for n in listed.response.namespaces] == ["ns", "other"]
        gone = await client.call("deleteNamespace", s.DeleteNamespaceRequest("other"))
        assert isinstance(gone.response, s.DeleteNamespaceResponse)
        await client.call("recoverNamespace", s.RecoverNamespaceRequest(7))
        await client.call("enqueue", enqueue_request(b"peek"))
        peeked = await client.call("peekItems", s.PeekItemsRequest("ns", "topic"))
        one = await client.call("getItem", s.GetItemRequest("ns", "1-1"))
        assert peeked.response.items == [one.response]
        assert (one.response.payload, one.response.state, one.response.died_at_ms) == (b"peek", 0, None)
        deleted = await client.call("deleteItems", s.DeleteItemsRequest("ns", ["no"]))
        assert deleted.response.errors[0].code == ErrorCode.NOT_FOUND
        forgotten = await client.call("forgetDedupIds", s.ForgetDedupIdsRequest("ns", ["no"]))
        assert forgotten.response.errors[0].code == ErrorCode.NOT_FOUND
        dead = await client.call("listDeadLetters", s.ListDeadLettersRequest("ns", "topic"))
        assert (dead.response.items, dead.response.next_page_token) == ([], "")
        redriven = await client.call("redriveDeadLetters", s.RedriveDeadLettersRequest("ns", "topic"))
        assert (redriven.response.count, list(redriven.response.errors)) == (9, [0])
        assert (redriven.response.ids[0], redriven.response.next_page_token) == ("1-0", "10")
        purged = await client.call("purgeDeadLetters", s.PurgeDeadLettersRequest("ns", "topic", ["a"]))
        assert purged.response.errors[0].code == ErrorCode.NOT_FOUND
        hosts = await client.call("listHosts", s.ListHostsRequest())
        assert [(host.name, host.state, host.beat_age_ms) for host in hosts.response.hosts] == [("fake", 1, 7)]
        status = await client.call("getHostStatus", s.HostStatusRequest())
        assert status.response.shards == [s.ShardStatus(1, "owned", 3, 5, 2, "")]
        audit = await client.call("listAudit", s.ListAuditRequest())
        assert (audit.response.records, audit.response.next_page_token) == ([], "")
        await _call_the_verbs_on_jobs(client)
        await _call_the_verbs_on_exports(client)
        await _call_the_verbs_on_shards(client)
        await _call_the_verbs_on_policies(client)
        await _call_the_verbs_on_consumers(client)
        await _call_the_verbs_on_rates(client)
        called = {method for method, _ in w.counts.finished} | {"enqueue"}
        assert {m.name for m in METHODS.values() if m.service == "FoqsAdmin"} <= called


async def _call_the_verbs_on_policies(client: RawClient) -> None:
    s = structs
    changes = [s.TopicPolicyChange("topic", weight=2)]
    many = await client.call("setTopicPolicies", s.SetTopicPoliciesRequest("ns", changes))
    assert many.response.errors == {}
    changed = await client.call("setTopicPolicy", s.SetTopicPolicyRequest("ns", "topic", weight=3))
    assert (changed.response.topic, changed.response.weight, changed.response.enqueue_paused) == ("topic", 3, False)
    found = await client.call("getTopicPolicy", s.GetTopicPolicyRequest("ns", "topic"))
    assert found.response == changed.response
    listed = await client.call("listTopicPolicies", s.ListTopicPoliciesRequest("ns"))
    assert listed.response.policies == [changed.response]
    group = (await client.call("createGroup", s.CreateGroupRequest("ns", "topic", "group", 5, 7))).response
    assert (group.topic, group.group, group.ttl_ms, group.delay_ms, group.is_deleted) == ("topic", "group", 5, 7, False)
    assert (await client.call("listGroups", s.ListGroupsRequest("ns"))).response.groups == [group]
    assert (await client.call("deleteGroup", s.DeleteGroupRequest("ns", "topic", "group"))).error is None
    assert (await client.call("listGroups", s.ListGroupsRequest("ns"))).response.groups == []


async def _call_the_verbs_on_consumers(client: RawClient) -> None:
    s = structs
    await client.call("enqueue", enqueue_request(b"held"))
    await client.call("dequeue", s.DequeueRequest("ns", [s.TopicDemand("topic", 9)], consumer="worker"))
    listed = (await client.call("listConsumers", s.ListConsumersRequest("ns"))).response
    assert (listed.next_page_token, listed.missing) == ("", [])
    [row] = listed.consumers
    assert (row.name, row.topic, row.held_since_ms, row.hosts, row.prefix) == ("worker", "topic", 5, [], None)
    released = (await client.call("releaseLeases", s.ReleaseLeasesRequest("ns", "worker"))).response
    assert (released.released, released.left_at_most_once) == (row.held, 0)
    explained = (await client.call("explain", s.ExplainRequest("ns", "other"))).response
    assert (explained.verdict, explained.as_of_ms, explained.missing) == (s.Verdict.EMPTY, 5, [])
    [reason] = explained.reasons
    assert (reason.code, reason.topic, reason.shard_id) == (s.ReasonCode.NOTHING_THERE, "other", -1)


async def _call_the_verbs_on_jobs(client: RawClient) -> None:
    s = structs
    made = await client.call("createJob", s.CreateJobRequest("ns", "load-1", 500, "nightly"))
    assert (made.response.id, made.response.items_per_second_max, made.response.detail) == ("load-1", 500, "nightly")
    changed = await client.call("updateJob", s.UpdateJobRequest("ns", "load-1", rows_count=7))
    assert (changed.response.rows_count, changed.response.items_per_second_max) == (7, 500)
    work = s.BulkWork(s.ItemFilter(topics=["t"]), 1, items_max=5)
    bulk = await client.call("createBulkJob", s.CreateBulkJobRequest("ns", f"bulk-{7:020x}", 9, "why", work))
    assert (bulk.response.detail, bulk.response.bulk.work.filter.topics, bulk.response.bulk.shards) == ("why", ["t"], 1)
    assert (bulk.response.bulk.work.action, bulk.response.bulk.work.items_max) == (1, 5)
    got = await client.call("getJob", s.GetJobRequest("ns", "load-1"))
    assert got.response == changed.response
    absent = await client.call("getJob", s.GetJobRequest("ns", "load-2"))
    assert absent.error.code == ErrorCode.NOT_FOUND
    listed = await client.call("listJobs", s.ListJobsRequest("ns"))
    assert (listed.response.jobs, listed.response.next_page_token) == ([bulk.response, got.response], "")


async def _call_the_verbs_on_rates(client: RawClient) -> None:
    s = structs
    rates = (await client.call("getRates", s.GetRatesRequest("ns", ["topic"]))).response
    assert [(row.topic, row.enqueued_1min, row.enqueued_series) for row in rates.topics] == [("topic", 1.5, None)]
    assert (rates.slot_ms, rates.missing) == (10_000, [])
    history = (await client.call("getHistory", s.GetHistoryRequest("ns", None, 60_000, 120_000))).response
    assert [(row.at_ms, row.enqueued, row.wait_buckets) for row in history.rows] == [(60_000, 7, [])]
    assert (history.complete_from_ms, history.bounds_ms[0]) == (60_000, 1)


async def _call_the_verbs_on_shards(client: RawClient) -> None:
    s = structs
    added = await client.call("addShard", s.AddShardRequest(7, "mysql://h:3306/s7", "gold"))
    assert (added.response.shard_id, added.response.place, added.response.tier) == (7, "mysql://h:3306/s7", "gold")
    changed = await client.call("updateShard", s.UpdateShardRequest(7, ShardUse.DRAINING, "host-2", None, True))
    assert (changed.response.state, changed.response.pinned_to) == (ShardUse.DRAINING, "host-2")
    assert (await client.call("listShards", s.ListShardsRequest())).response.shards == [changed.response]
    assert (await client.call("removeShard", s.RemoveShardRequest(7))).response == s.RemoveShardResponse()
    assert (await client.call("ungateSlot", s.UngateSlotRequest(7, True))).response == s.UngateSlotResponse()
    absent = await client.call("removeShard", s.RemoveShardRequest(8))
    assert absent.error.code == ErrorCode.NOT_FOUND


async def _call_the_verbs_on_exports(client: RawClient) -> None:
    """The item `peek` is the only one."""
    s = structs
    plan = await client.call("planExport", s.PlanExportRequest("ns"))
    (split,) = plan.response.splits
    exported = await client.call("exportItems", s.ExportItemsRequest("ns", split))
    assert [item.payload for item in exported.response.items] == [b"peek"]
    assert exported.response.next_after_key == 0


@on_uvloop
async def test_a_client_that_thriftpy2_generates_is_served() -> None:
    async with world() as w:
        await asyncio.to_thread(_use_generated_client, w.server.port)


def _use_generated_client(port: int) -> None:
    factories = {"proto_factory": TBinaryProtocolFactory(), "trans_factory": TFramedTransportFactory()}
    client = make_client(structs.Foqs, "127.0.0.1", port, timeout=int(PATIENCE_S * 1000), **factories)
    try:
        assert client.enqueue(enqueue_request(b"a")).ids == ["1-1"]
        assert client.dequeue(dequeue_request(1)).items[0].payload == b"a"
        with pytest.raises(structs.FoqsError) as caught:
            client.enqueue(structs.EnqueueRequest("absent", []))
        assert caught.value.code == ErrorCode.UNKNOWN_NAMESPACE
    finally:
        client.close()


@on_uvloop
async def test_a_declared_error_keeps_its_code_message_and_retry_time() -> None:
    async with world() as w, w.connect() as client:
        w.queue.failure = RateLimitedError("too many", retry_after_ms=1500)
        reply: Reply = await client.call("getActiveTopics", structs.ActiveTopicsRequest("ns"))
        assert isinstance(reply.error, RateLimitedError)
        assert (reply.error.message, reply.error.retry_after_ms) == ("too many", 1500)
        assert w.counts.finished == [("getActiveTopics", "RATE_LIMITED")]


@on_uvloop
async def test_a_call_for_which_no_response_can_be_made_ends_its_connection_alone() -> None:
    async with world() as w, w.connect() as client:
        w.queue.failure = InvalidArgumentError("x" * FRAME_BYTES_MAX)
        with capture_logs() as logs:
            client.send("getActiveTopics", structs.ActiveTopicsRequest("ns"), seqid=1)
            assert await client.is_closed()
        assert [(line["event"], line["method"]) for line in logs] == [("call_not_answered", "getActiveTopics")]
        assert await w.is_healthy()


@on_uvloop
async def test_a_call_goes_in_with_its_caller_and_a_long_poll_with_the_end_of_its_wait_from_when_its_frame_came() -> (
    None
):
    async with world() as w, w.connect("127.0.0.2") as client:
        loop = asyncio.get_running_loop()
        await client.call("enqueue", enqueue_request(b"x"))
        await client.call("dequeue", dequeue_request(1))
        before_s = loop.time()
        client.send("dequeue", dequeue_request(1, wait_ms=30_000), seqid=1)
        await w.queue.long_poll_began.wait()
        *others, long_poll = w.queue.contexts
        assert others == [CallContext("127.0.0.2", principal=EVERYBODY), CallContext("127.0.0.2", principal=EVERYBODY)]
        assert long_poll.caller == "127.0.0.2"
        assert long_poll.deadline_s is not None
        assert before_s - 1e-6 <= long_poll.deadline_s - 30 <= loop.time() + 1e-6


@on_uvloop
async def test_large_frames_that_come_in_pieces_are_served() -> None:
    async with world() as w, w.connect() as client:
        payload = bytes(range(256)) * 40
        for _ in range(3):
            reply = await client.call("enqueue", enqueue_request(*[payload] * 1000))
            assert "" not in reply.response.ids
        reply = await client.call("dequeue", dequeue_request(1000))
        assert {item.payload for item in reply.response.items} == {payload}


@on_uvloop
async def test_a_long_poll_ends_empty_at_a_half_close_and_takes_nothing() -> None:
    async with world() as w, w.connect() as client:
        client.send("dequeue", dequeue_request(1, wait_ms=30_000), seqid=4)
        await w.queue.long_poll_began.wait()
        client.end_sending()
        reply = await client.receive()
        assert (reply.seqid, reply.response.items) == (4, [])
        assert await client.is_closed()
        assert await w.is_healthy()
        assert not w.queue.long_polls


@on_uvloop
async def test_a_lost_connection_cancels_its_long_poll() -> None:
    async with world() as w:
        async with w.connect() as client:
            client.send("dequeue", dequeue_request(1, wait_ms=30_000), seqid=4)
            await w.queue.long_poll_began.wait()
            client.reset()
        async with asyncio.timeout(PATIENCE_S):
            await w.queue.long_poll_cancelled.wait()
        async with w.connect() as other:
            await other.call("enqueue", enqueue_request(b"kept"))
            reply = await other.call("dequeue", dequeue_request(1))
            assert reply.response.items[0].payload == b"kept"


@on_uvloop
async def test_a_drain_finishes_what_runs_refuses_what_comes_and_closes() -> None:
    async with world() as w, w.connect() as client, w.connect() as idle:
        w.queue.gate = asyncio.Event()
        await idle.call("getHostStatus", structs.HostStatusRequest())
        client.send("enqueue", enqueue_request(b"in flight"), seqid=1)
        await w.queue.until_running(1)
        draining = asyncio.ensure_future(w.server.drain())
        await asyncio.sleep(0)
        client.send("enqueue", enqueue_request(b"too late"), seqid=2)
        refused = await client.receive()
        assert isinstance(refused.error, OverloadedError)
        assert refused.error.retry_after_ms is not None
        assert refused.seqid == 2
        with pytest.raises(ConnectionRefusedError):
            async with w.connect():
                pass
        w.queue.gate.set()
        assert (await client.receive()).response.ids == ["1-1"]
        await draining
        assert await client.is_closed()
        assert await idle.is_closed()


@on_uvloop
async def test_a_drain_refuses_what_a_client_still_sends_until_the_client_goes() -> None:
    async with world(TransportLimits(part_ms=1_000 * int(PATIENCE_S))) as w, w.connect() as client:
        assert (await client.call("enqueue", enqueue_request(b"before"))).error is None
        draining = asyncio.ensure_future(w.server.drain())
        await asyncio.sleep(0)
        for _ in range(10):
            refused = (await client.call("enqueue", enqueue_request(b"after"))).error
            assert isinstance(refused, OverloadedError)
            assert not draining.done()
        client.reset()
        await draining


@on_uvloop
async def test_a_drain_gives_up_on_calls_that_do_not_end() -> None:
    async with world(TransportLimits(drain_ms_max=50)) as w, w.connect() as client:
        w.queue.gate = asyncio.Event()
        client.send("enqueue", enqueue_request(b"stuck"), seqid=1)
        await w.queue.until_running(1)
        await w.server.drain()
        await w.server.stop()
        assert w.queue.calls_running == 0
        assert await client.is_closed()


@on_uvloop
async def test_a_server_may_be_stopped_unstarted_and_twice() -> None:
    queue = FakeQueue()
    server = ThriftServer(queue.call, address="127.0.0.1", port=0, namespaces=queue, metrics=Mock())
    await server.stop()
    await server.stop()


@on_uvloop
async def test_a_port_in_use_fails_the_start() -> None:
    queue = FakeQueue()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = ThriftServer(
            queue.call, address="127.0.0.1", port=taken.getsockname()[1], namespaces=queue, metrics=Mock()
        )
        with pytest.raises(OSError, match="in use"):
            await server.start()

"""The 72 bad inputs, by the numbers of their rows: what each is answered, and that it harms nobody.

Bytes that are no good call are in tests/support/bad_frames.py; how peers misbehave, and good calls with bad
arguments, are here, a function for each row.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any
from unittest.mock import patch

import pytest
from structlog.testing import capture_logs

from foqs.core import limits
from foqs.core.errors import ErrorCode, InternalError
from foqs.transport.door import DoorLimits
from foqs.transport.wire import METHODS, UNKNOWN_METHOD, ApplicationError, structs
from tests.support import bad_frames, thrift_bytes
from tests.support.bad_frames import BadFrame, Outcome
from tests.support.front_door import dequeue_request, enqueue_request, run, world
from tests.support.running_host import RunningHost, running_host
from tests.support.thrift_bytes import DOUBLE, field, frame, list_of, message, new_item

pytestmark = pytest.mark.timeout(60)

NOT_HERE = {
    63: "TLS: client certificates",
    64: "TLS: versions and ciphers",
    65: "TLS: handshakes",
    66: "identity: what a principal may do",
}
"""Rows that concern what this host does not offer: TLS and identities."""

INVALID, TOO_LARGE, NOT_FOUND, STALE = (
    ErrorCode.INVALID_ARGUMENT,
    ErrorCode.TOO_LARGE,
    ErrorCode.NOT_FOUND,
    ErrorCode.STALE_LEASE,
)
I64_MIN, I64_MAX = -(1 << 63), (1 << 63) - 1
I32_MIN, I32_MAX = -(1 << 31), (1 << 31) - 1
SHORT_MS = 50

Behaviour = Callable[[], Awaitable[None]]
Calls = Callable[[RunningHost], Awaitable[None]]
BEHAVIOURS: list[tuple[int, Behaviour]] = []
CALLS: list[tuple[int, Calls]] = []


def behaviour(row: int) -> Callable[[Behaviour], Behaviour]:
    """Of a peer, at a server with a fake queue."""

    def register(check: Behaviour) -> Behaviour:
        BEHAVIOURS.append((row, check))
        return check

    return register


def calls(row: int) -> Callable[[Calls], Calls]:
    """To a real host on real shards."""

    def register(check: Calls) -> Calls:
        CALLS.append((row, check))
        return check

    return register


def _id(value: Any) -> str:
    return f"row {value}" if isinstance(value, int) else str(value.__name__)


def test_every_row_is_here_or_left_out_for_a_reason() -> None:
    covered = {bad.row for bad in bad_frames.ALL} | {row for row, _ in BEHAVIOURS} | {row for row, _ in CALLS}
    assert covered | NOT_HERE.keys() == set(range(1, 73))
    assert covered & NOT_HERE.keys() == set()


@pytest.mark.parametrize("bad", bad_frames.ALL, ids=lambda bad: f"row {bad.row}: {bad.name}")
def test_bytes_have_their_answer_and_harm_nobody(bad: BadFrame) -> None:
    async def main() -> None:
        async with world() as w, w.connect() as client:
            started_s = time.process_time()
            await client.send_bytes(bad.data)
            if bad.outcome is Outcome.CLOSED:
                assert await client.is_closed()
                assert len(w.counts.errors) == 1
            else:
                reply = await client.receive()
                assert reply.seqid == 7
                if bad.outcome is Outcome.UNKNOWN_METHOD:
                    assert isinstance(reply.error, ApplicationError)
                    assert reply.error.kind == UNKNOWN_METHOD
                elif bad.outcome is Outcome.OK:
                    assert reply.response.ids == ["1-1"]
                else:
                    assert codes_of(reply) in (bad.outcome, {0: bad.outcome})
                assert w.counts.errors == []
            assert time.process_time() - started_s < 1.0
            assert await w.is_healthy()
            assert bool(w.queue.ready["ns", "topic"]) is (bad.outcome is Outcome.OK)

    run(main)


@pytest.mark.parametrize(("row", "check"), BEHAVIOURS, ids=_id)
def test_peers_have_their_answer(row: int, check: Behaviour) -> None:
    run(check)


@pytest.mark.parametrize(("row", "check"), CALLS, ids=_id)
async def test_calls_have_their_answer(row: int, check: Calls, meta_url: str, shard_urls: dict[int, str]) -> None:
    async with running_host(meta_url, shard_urls) as host:
        await check(host)
        item_id = await host.client.enqueue("jobs", "afterwards", b"good")
        (item,) = await host.client.dequeue("jobs", "afterwards", wait_ms=5_000)
        assert item.id == item_id
        assert await host.client.ack("jobs", [item]) == {}


def codes_of(reply: Any) -> Any:
    """The code of the whole call, or the codes by position."""
    if reply.error is not None:
        return reply.error.code
    return {position: ErrorCode(error.code) for position, error in (reply.response.errors or {}).items()}


# ---- how peers misbehave ----


@behaviour(6)
async def a_header_that_comes_too_slowly() -> None:
    async with world(DoorLimits(header_ms_max=SHORT_MS, sweep_ms=5)) as w, w.connect() as client:
        await client.call("getHostStatus", structs.HostStatusRequest())
        await client.send_bytes(b"\0")
        assert await client.is_closed()
        assert w.counts.errors == ["header_deadline"]


@behaviour(7)
async def a_body_that_comes_too_slowly() -> None:
    bounds = DoorLimits(body_ms_min=SHORT_MS, body_bytes_per_ms_min=1_000, sweep_ms=5)
    async with world(bounds) as w, w.connect() as client:
        await client.send_bytes(w.codec.encode_call("enqueue", enqueue_request(b"x" * 500), 1)[:100])
        assert await client.is_closed()
        assert w.counts.errors == ["body_deadline"]
        assert not w.queue.ready


@behaviour(8)
async def a_connection_that_says_nothing() -> None:
    async with world(DoorLimits(first_frame_ms_max=SHORT_MS, sweep_ms=5)) as w, w.connect() as client:
        assert await client.is_closed()
        assert w.counts.errors == ["first_frame_deadline"]


@behaviour(9)
async def more_connections_of_one_address_than_may_be() -> None:
    async with world(DoorLimits(connections_per_address_max=1)) as w, w.connect() as first:
        await first.call("getHostStatus", structs.HostStatusRequest())
        for _ in range(20):
            async with w.connect() as another:
                assert await another.is_closed()
        assert w.counts.refused == ["connections_per_address_max"] * 20
        assert (await first.call("getHostStatus", structs.HostStatusRequest())).error is None


@behaviour(10)
async def a_half_close_after_a_good_request() -> None:
    async with world() as w, w.connect() as client:
        client.send("enqueue", enqueue_request(b"last"), seqid=9)
        client.end_sending()
        assert (await client.receive()).response.ids == ["1-1"]
        assert await client.is_closed()


@behaviour(22)
async def a_method_name_is_escaped_in_the_log() -> None:
    with capture_logs() as logs:
        async with world() as w, w.connect() as client:
            await client.send_bytes(frame(message(thrift_bytes.STOP, name=b"\x1b[31m\r\n\xff")))
            assert await client.is_closed()
    (line,) = [entry["detail"] for entry in logs if entry["event"] == "connection_refused"]
    assert line.isprintable()
    assert "\\x1b[31m\\r\\n\\xff" in line


@behaviour(34)
async def a_good_message_cut_off_at_every_byte() -> None:
    good = bad_frames.GOOD
    async with world() as w:
        for size in range(1, len(good)):
            async with w.connect() as client:
                await client.send_bytes(frame(good[:size]))
                assert await client.is_closed(), size
        assert len(w.counts.errors) == len(good) - 1
        assert not w.queue.ready


@behaviour(35)
async def every_bit_of_a_good_message_flipped() -> None:
    """Every byte set to every value is in tests/unit/test_frame_scan.py, without the sockets."""
    good = bad_frames.GOOD
    answered = closed = 0
    async with world() as w:
        for at in range(len(good)):
            for bit in range(8):
                async with w.connect() as client:
                    bad = good[:at] + bytes([good[at] ^ 1 << bit]) + good[at + 1 :]
                    await client.send_bytes(frame(bad))
                    client.end_sending()
                    if await client.is_closed():
                        closed += 1
                    else:
                        answered += 1
        assert closed == len(w.counts.errors) > 0
        assert answered == len(w.counts.finished) > 0
        assert await w.is_healthy()


@behaviour(68)
async def ten_thousand_calls_sent_at_once() -> None:
    async with world(DoorLimits(calls_in_flight_max=8)) as w, w.connect() as client:
        w.queue.gate = asyncio.Event()
        frames = [w.codec.encode_call("enqueue", enqueue_request(b"p"), n) for n in range(10_000)]
        sending = asyncio.ensure_future(client.send_bytes(b"".join(frames)))
        await w.queue.until_running(8)
        assert await w.is_healthy()
        assert w.queue.calls_running == 8
        w.queue.gate.set()
        assert {(await client.receive()).seqid for _ in range(10_000)} == set(range(10_000))
        await sending


@behaviour(69)
async def a_call_behind_a_long_poll() -> None:
    async with world() as w, w.connect() as client:
        client.send("dequeue", dequeue_request(1, wait_ms=30_000), seqid=1)
        client.send("getHostStatus", structs.HostStatusRequest(), seqid=2)
        assert (await client.receive()).seqid == 2


@behaviour(70)
async def a_defect_behind_a_verb() -> None:
    async with world() as w, w.connect() as client:
        w.queue.failure = ZeroDivisionError("secret")
        reply = await client.call("getActiveTopics", structs.ActiveTopicsRequest("ns"))
        assert isinstance(reply.error, InternalError)
        assert "secret" not in reply.error.message
        assert (await client.call("getHostStatus", structs.HostStatusRequest())).error is None


# ---- good calls with bad arguments, on a real host ----


async def enqueue(host: RunningHost, *items: dict[str, Any]) -> Any:
    """The codes by position of items that differ in these fields from a good one."""
    news = [structs.NewItem(**({"topic": "t", "payload": b"x"} | item)) for item in items]
    reply = await host.call("enqueue", structs.EnqueueRequest("jobs", news))
    codes = codes_of(reply)
    if isinstance(codes, dict):
        assert [bool(item_id) for item_id in reply.response.ids] == [n not in codes for n in range(len(items))]
    return codes


async def each_refused(host: RunningHost, code: ErrorCode, items: list[dict[str, Any]]) -> None:
    """Each of these items alone, and all of them around a good one; nothing but the good one is stored."""
    for item in items:
        assert await enqueue(host, item) == {0: code}, item
    assert await enqueue(host, *items, {}) == dict.fromkeys(range(len(items)), code)
    assert host.items_stored() == 1


async def dequeue(host: RunningHost, *demands: tuple[str, int], **fields: Any) -> Any:
    topics = [structs.TopicDemand(topic, count) for topic, count in demands]
    reply = await host.call("dequeue", structs.DequeueRequest("jobs", topics, **fields))
    return reply.error.code if reply.error else [item.id for item in reply.response.items]


async def leased(host: RunningHost) -> Any:
    await host.client.enqueue("jobs", "t", b"leased")
    (item,) = await host.client.dequeue("jobs", "t", lease_ms=limits.HOUR_MS, wait_ms=5_000)
    return item


@calls(24)
async def required_fields_that_are_absent(host: RunningHost) -> None:
    for method in METHODS.values():
        if method.required:
            reply = await host.call(method.name, method.request())
            assert codes_of(reply) is INVALID, method.name
            assert method.required[0] in reply.error.message
    assert await enqueue(host, {"topic": None}, {"payload": None}) == {0: INVALID, 1: INVALID}


@calls(25)
async def an_optional_field_of_a_wrong_type_is_as_if_absent(host: RunningHost) -> None:
    ids = await _enqueue_raw(host, field(thrift_bytes.STRING, 3, thrift_bytes.string(b"urgent")))
    assert (await host.admin.get_item("jobs", ids[0])).priority == 0


@calls(46)
async def a_double_where_a_number_is_due(host: RunningHost) -> None:
    for bits in ("7ff8000000000000", "7ff0000000000000", "fff0000000000000", "8000000000000000"):
        double = bytes.fromhex(bits)
        ids = await _enqueue_raw(host, field(DOUBLE, 3, double) + field(DOUBLE, 7, double))
        stored = await host.admin.get_item("jobs", ids[0])
        assert (stored.priority, stored.lease_ms) == (0, None)
        lease = field(DOUBLE, 3, double)
        receipts = field(thrift_bytes.LIST, 2, list_of(thrift_bytes.STRING, [thrift_bytes.string(b"0-1:1")]))
        namespace = field(thrift_bytes.STRING, 1, thrift_bytes.string(b"jobs"))
        body = field(thrift_bytes.STRUCT, 1, namespace + receipts + lease + thrift_bytes.STOP) + thrift_bytes.STOP
        await host.raw.send_bytes(frame(message(body, name=b"extendLease")))
        assert codes_of(await host.raw.receive()) is INVALID


async def _enqueue_raw(host: RunningHost, more: bytes) -> list[str]:
    namespace = field(thrift_bytes.STRING, 1, thrift_bytes.string(b"jobs"))
    items = field(thrift_bytes.LIST, 2, list_of(thrift_bytes.STRUCT, [new_item(more=more)]))
    await host.raw.send_bytes(frame(message(thrift_bytes.enqueue_args(namespace, items))))
    reply = await host.raw.receive()
    assert codes_of(reply) == {}
    return list(reply.response.ids)


@calls(45)
async def an_enum_out_of_range(host: RunningHost) -> None:
    await each_refused(host, INVALID, [{"delivery": value} for value in (-1, 2, I32_MAX, I32_MIN)])


@calls(47)
async def priorities_at_the_ends(host: RunningHost) -> None:
    assert await enqueue(host, *[{"priority": value} for value in (I32_MAX, 0, I32_MIN, -1)]) == {}
    items = await host.client.dequeue("jobs", "t", 4, wait_ms=5_000)
    assert [item.priority for item in items] == [I32_MIN, -1, 0, I32_MAX]


@calls(48)
async def delays_and_times_out_of_range(host: RunningHost) -> None:
    bad = [{"delay_ms": value} for value in (-1, limits.DELAY_MS_MAX + 1, I64_MAX, I64_MIN)]
    bad += [{"deliver_after_ms": value} for value in (-1, 4_294_967_296_000, 253_402_300_800_000, I64_MAX, I64_MIN)]
    bad += [{"ttl_ms": value} for value in (0, -1, limits.TTL_MS_MAX + 1, I64_MAX, I64_MIN)]
    await each_refused(host, INVALID, [*bad, {"delay_ms": 1, "deliver_after_ms": 1}])


BAD_LEASES = (0, -1, limits.LEASE_MS_MIN - 1, limits.LEASE_MS_MAX + 1, I64_MAX, I64_MIN)


@calls(49)
async def leases_out_of_range(host: RunningHost) -> None:
    await each_refused(host, INVALID, [{"lease_ms": value} for value in BAD_LEASES])
    for value in BAD_LEASES:
        assert await dequeue(host, ("t", 1), lease_ms=value) is INVALID
    assert (await host.stats("jobs"))["t"].ready == 1


@calls(50)
async def counts_out_of_range(host: RunningHost) -> None:
    await host.client.enqueue("jobs", "t", b"x")
    for count in (0, -1, limits.BATCH_ITEMS_MAX + 1, I32_MAX, I32_MIN):
        assert await dequeue(host, ("t", count)) is INVALID
        assert await dequeue(host, ("t", 1), ("other", count)) is INVALID
    assert await dequeue(host) is INVALID
    many = [(f"t{n}", 1) for n in range(limits.DEQUEUE_TOPICS_MAX + 1)]
    assert await dequeue(host, *many) is TOO_LARGE
    assert (await host.stats("jobs"))["t"].ready == 1


@calls(51)
async def waits_out_of_range(host: RunningHost) -> None:
    for wait_ms in (-1, limits.WAIT_MS_MAX + 1, 10 * limits.DAY_MS, I64_MAX, I64_MIN):
        assert await dequeue(host, ("t", 1), wait_ms=wait_ms) is INVALID
    assert await dequeue(host, ("t", 1), wait_ms=0) == []


@calls(53)
async def strange_text_in_names_and_any_bytes_in_payloads(host: RunningHost) -> None:
    await each_refused(host, INVALID, [{"topic": topic} for topic in ("", "\0", "a\0", "a\nb", "\x7f", "\x85")])
    twins = ["\u00e9", "e\u0301", "\u202eabc", "😀", "\ufeffa", "a"]
    payload = bytes(range(256)) + b"\xed\xa0\x80\0"
    assert await enqueue(host, *[{"topic": topic, "payload": payload} for topic in twins]) == {}
    assert set(await host.stats("jobs")) == {*twins, "t"}
    for topic in twins:
        (item,) = await host.client.dequeue("jobs", topic, 5, wait_ms=5_000)
        assert (item.topic, item.payload) == (topic, payload)


@calls(54)
async def names_that_look_like_code(host: RunningHost) -> None:
    names = ["../../etc", "'; DROP TABLE item; --", "%", "_", "`", "\\", "%s", "x" * 255]
    for name in names:
        reply = await host.call("enqueue", structs.EnqueueRequest(name, [structs.NewItem("t", b"x")]))
        assert codes_of(reply) is ErrorCode.UNKNOWN_NAMESPACE, name
        if name != "_":
            assert codes_of(await host.call("createNamespace", structs.CreateNamespaceRequest(name))) is INVALID, name
        item_id = await host.client.enqueue("jobs", name, b"x")
        assert list(await host.stats("jobs", name)) == [name]
        assert await dequeue(host, (name, 5), wait_ms=5_000) == [item_id]
    assert await enqueue(host, {"topic": "x" * 256}, {"topic": "é" * 128}) == {0: INVALID, 1: INVALID}


@calls(55)
async def topics_that_differ_in_case_or_space_alone(host: RunningHost) -> None:
    names = ["topic", "Topic", "topic ", " topic", "topic  "]
    ids = {name: await host.client.enqueue("jobs", name, b"x") for name in names}
    for name in names:
        assert await dequeue(host, (name, 10), wait_ms=5_000) == [ids[name]]


@calls(56)
async def payloads_at_their_limit(host: RunningHost) -> None:
    most = limits.PAYLOAD_BYTES_DEFAULT
    payloads = [b"", b"x", b"x" * most, b"x" * (most + 1), b"x" * limits.MIB]
    assert await enqueue(host, *[{"payload": payload} for payload in payloads]) == {3: TOO_LARGE, 4: TOO_LARGE}
    items = await host.client.dequeue("jobs", "t", 10, wait_ms=5_000)
    assert [len(item.payload) for item in items] == [0, 1, most]


@calls(57)
async def batches_at_their_limit(host: RunningHost) -> None:
    most = limits.BATCH_ITEMS_MAX
    assert await enqueue(host, *[{}] * (most + 1)) is TOO_LARGE
    assert host.items_stored() == 0
    assert await enqueue(host, *[{}] * (most - 1), {"ttl_ms": 0}) == {most - 1: INVALID}
    assert host.items_stored() == most - 1
    over = await host.call("ack", structs.AckRequest("jobs", ["0-1:1"] * (most + 1)))
    assert codes_of(over) is TOO_LARGE


@calls(58)
async def metadata_at_its_limit(host: RunningHost) -> None:
    most = limits.METADATA_BYTES_DEFAULT
    bad = [{"metadata": b"x" * size} for size in (most + 1, 64 * limits.KIB, limits.MIB)]
    await each_refused(host, TOO_LARGE, bad)
    assert await enqueue(host, {"metadata": b"x" * most}) == {}


@calls(59)
async def ids_of_others_and_of_nobody(host: RunningHost) -> None:
    await host.admin.create_namespace("other")
    foreign = await host.client.enqueue("other", "t", b"foreign")
    nobody = ["0-1", "3-ffffffffffffffff", "ffff-1", foreign]
    garbage = ["", "0", "-1", "0-0", "0--1", "18446744073709551615", "0-10000000000000000", "x" * 1_000_000]
    for name, code in (dict.fromkeys(nobody, NOT_FOUND) | dict.fromkeys(garbage, INVALID)).items():
        reply = await host.call("getItem", structs.GetItemRequest("jobs", name))
        assert codes_of(reply) is code, name
        for method, request in (
            ("ack", structs.AckRequest("jobs", [name])),
            ("deleteItems", structs.DeleteItemsRequest("jobs", [name])),
        ):
            assert codes_of(await host.call(method, request)) == {0: code}, (method, name)
    reply = await host.call("getItem", structs.GetItemRequest("jobs", foreign))
    absent = await host.call("getItem", structs.GetItemRequest("jobs", foreign[:-1] + "f"))
    assert reply.error.message.replace(foreign, "") == absent.error.message.replace(foreign[:-1] + "f", "")
    assert (await host.stats("other"))["t"].ready == 1


@calls(60)
async def receipts_forged_old_and_spent(host: RunningHost) -> None:
    item = await leased(host)
    forged = item.receipt.rpartition(":")[0] + ":7f"
    for method, request in (
        ("ack", structs.AckRequest("jobs", [forged])),
        ("nack", structs.NackRequest("jobs", [structs.Nack(forged)])),
        ("extendLease", structs.ExtendRequest("jobs", [forged], 5_000)),
    ):
        assert codes_of(await host.call(method, request)) == {0: STALE}
    assert await host.client.nack("jobs", [item.receipt]) == {}
    (again,) = await host.client.dequeue("jobs", "t", wait_ms=5_000)
    assert again.receipt != item.receipt
    assert codes_of(await host.call("ack", structs.AckRequest("jobs", [item.receipt]))) == {0: STALE}
    twice = structs.AckRequest("jobs", [again.receipt, again.receipt])
    assert codes_of(await host.call("ack", twice)) == {1: STALE}
    assert codes_of(await host.call("ack", twice)) == {0: STALE, 1: STALE}


@calls(61)
async def nacks_and_extensions_out_of_range(host: RunningHost) -> None:
    item = await leased(host)
    for delay_ms in (-1, limits.DELAY_MS_MAX + 1, I64_MAX, I64_MIN):
        nacks = [structs.Nack(item.receipt, delay_ms)]
        assert codes_of(await host.call("nack", structs.NackRequest("jobs", nacks))) == {0: INVALID}
    for lease_ms in BAD_LEASES:
        request = structs.ExtendRequest("jobs", [item.receipt], lease_ms)
        assert codes_of(await host.call("extendLease", request)) is INVALID
    assert (await host.admin.get_item("jobs", item.id)).lease_expires_at_ms == item.lease_expires_at_ms
    assert await host.client.ack("jobs", [item]) == {}


@calls(62)
async def dedup_ids_are_refused_until_they_are_kept(host: RunningHost) -> None:
    await each_refused(host, INVALID, [{"dedup_id": text} for text in ("", "d", "x" * 65)])


@calls(67)
async def the_same_request_twice_is_two_requests(host: RunningHost) -> None:
    request = structs.EnqueueRequest("jobs", [structs.NewItem("t", b"x")])
    for _ in range(2):
        host.raw.send("enqueue", request, seqid=5)
    replies = [await host.raw.receive() for _ in range(2)]
    assert {reply.seqid for reply in replies} == {5}
    assert len({reply.response.ids[0] for reply in replies}) == 2


@calls(72)
async def more_topics_than_a_shard_keeps(host: RunningHost) -> None:
    with patch.object(limits, "TOPICS_PER_SHARD_MAX", 3), patch.object(limits, "PLACEMENT_RUN_ITEMS", 1_000):
        items = [{"topic": f"t{n}"} for n in range(10)]
        assert await enqueue(host, *items) == dict.fromkeys(range(3, 10), ErrorCode.OVERLOADED)

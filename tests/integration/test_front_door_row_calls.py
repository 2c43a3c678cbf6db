"""Good calls with bad arguments to a real host, by the numbers of their rows in the list of 72 bad inputs.

A function for each row; test_front_door_rows.py has the others, and sees that none is missing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from unittest.mock import patch

import pytest

from foqs.model import limits
from foqs.model.errors import ErrorCode
from foqs.shard import mysql_server
from foqs.wire.codec import METHODS, structs
from tests.support import thrift_bytes
from tests.support.raw_client import RawClient, codes_of
from tests.support.running_host import RunningHost, running_host
from tests.support.thrift_bytes import DOUBLE, field, frame, list_of, message, new_item

INVALID, TOO_LARGE, NOT_FOUND, STALE = (
    ErrorCode.INVALID_ARGUMENT,
    ErrorCode.TOO_LARGE,
    ErrorCode.NOT_FOUND,
    ErrorCode.STALE_LEASE,
)
I64_MIN, I64_MAX = -(1 << 63), (1 << 63) - 1
I32_MIN, I32_MAX = -(1 << 31), (1 << 31) - 1

Calls = Callable[[RunningHost], Awaitable[None]]
CALLS: list[tuple[int, Calls]] = []


def calls(row: int) -> Callable[[Calls], Calls]:
    def register(check: Calls) -> Calls:
        CALLS.append((row, check))
        return check

    return register


@pytest.mark.deep
async def test_calls_have_their_answer(meta_url: str, shard_urls: dict[int, str]) -> None:
    async with running_host(meta_url, shard_urls) as host:
        # The one that counts topics comes first: shards know those of a deleted namespace for a while.
        for row, check in reversed(CALLS):
            try:
                await check(host)
                item_id = await host.client.enqueue("jobs", "afterwards", b"good")
                (item,) = await host.client.dequeue("jobs", "afterwards", wait_ms=20_000)
                assert item.id == item_id
                assert await host.client.ack("jobs", [item]) == {}
                await host.begin_anew()
            except BaseException as error:
                error.add_note(f"row {row}: {check.__name__}")
                raise


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
    (item,) = await host.client.dequeue("jobs", "t", lease_ms=limits.HOUR_MS, wait_ms=20_000)
    return item


@calls(24)
async def required_fields_that_are_absent(host: RunningHost) -> None:
    for method in METHODS.values():
        if method.required:
            async with RawClient.connect("127.0.0.1", host.host.port) as client:  # Who greets wrongly is turned out.
                reply = await client.call(method.name, method.request())
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
    items = await host.client.dequeue("jobs", "t", 4, wait_ms=20_000)
    assert [item.priority for item in items] == [I32_MIN, -1, 0, I32_MAX]


@calls(48)
async def delays_and_times_out_of_range(host: RunningHost) -> None:
    bad = [{"delay_ms": value} for value in (-1, limits.DELAY_MS_MAX + 1, I64_MAX, I64_MIN)]
    bad += [{"deliver_after_ms": value} for value in (4_294_967_296_000, 253_402_300_800_000, I64_MAX)]
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
        (item,) = await host.client.dequeue("jobs", topic, 5, wait_ms=20_000)
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
        assert await dequeue(host, (name, 5), wait_ms=20_000) == [item_id]
    assert await enqueue(host, {"topic": "x" * 256}, {"topic": "é" * 128}) == {0: INVALID, 1: INVALID}


@calls(55)
async def topics_that_differ_in_case_or_space_alone(host: RunningHost) -> None:
    names = ["topic", "Topic", "topic ", " topic", "topic  "]
    ids = {name: await host.client.enqueue("jobs", name, b"x") for name in names}
    for name in names:
        assert await dequeue(host, (name, 10), wait_ms=20_000) == [ids[name]]


@calls(56)
async def payloads_at_their_limit(host: RunningHost) -> None:
    most = limits.PAYLOAD_BYTES_DEFAULT
    payloads = [b"", b"x", b"x" * most, b"x" * (most + 1), b"x" * limits.MIB]
    assert await enqueue(host, *[{"payload": payload} for payload in payloads]) == {3: TOO_LARGE, 4: TOO_LARGE}
    items = await host.client.dequeue("jobs", "t", 10, wait_ms=20_000)
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
    nobody = ["0-1", "3-ffffffffffffffff", foreign]
    elsewhere = ["ffff-1"]  # Another host may have that shard.
    garbage = ["", "0", "-1", "0-0", "0--1", "18446744073709551615", "0-10000000000000000", "x" * 1_000_000]
    expected = dict.fromkeys(nobody, NOT_FOUND) | dict.fromkeys(garbage, INVALID)
    expected |= dict.fromkeys(elsewhere, ErrorCode.UNAVAILABLE)
    for name, code in expected.items():
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
    (again,) = await host.client.dequeue("jobs", "t", wait_ms=20_000)
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
    stored = await host.admin.get_item("jobs", item.id)
    assert stored.lease_expires_at_ms is not None
    # The host follows its server's clock all the time; an extension would be seconds.
    assert abs(stored.lease_expires_at_ms - item.lease_expires_at_ms) < 1_000
    assert await host.client.ack("jobs", [item]) == {}


@calls(62)
async def dedup_ids_that_are_too_short_or_too_long_are_refused(host: RunningHost) -> None:
    await each_refused(host, INVALID, [{"dedup_id": text} for text in ("", "x" * 256, "é" * 128)])


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
    with patch.object(limits, "TOPICS_PER_SHARD_MAX", 3), patch.object(mysql_server, "PLACEMENT_RUN_ITEMS", 1_000):
        items = [{"topic": f"t{n}"} for n in range(10)]
        assert await enqueue(host, *items) == dict.fromkeys(range(3, 10), ErrorCode.OVERLOADED)

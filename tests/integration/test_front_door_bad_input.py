"""Whatever bytes come in: the connection is closed or the call answered, and everybody else feels nothing."""

from __future__ import annotations

import random
import time
from enum import Enum

import pytest

from foqs.core.errors import ErrorCode
from foqs.core.limits import FRAME_BYTES_MAX, FRAME_DEPTH_MAX, FRAME_ELEMENTS_MAX
from foqs.transport.wire import UNKNOWN_METHOD, ApplicationError
from tests.support.front_door import dequeue_request, run, world
from tests.support.thrift_bytes import (
    BOOL,
    BYTE,
    EXCEPTION,
    I32,
    I64,
    LIST,
    MAP,
    ONEWAY,
    REPLY,
    SET,
    STOP,
    STRING,
    STRUCT,
    UNKNOWN_FIELD,
    enqueue,
    enqueue_args,
    field,
    frame,
    list_of,
    map_of,
    message,
    nested,
    new_item,
    string,
    u32,
)

pytestmark = pytest.mark.timeout(60)

GOOD = enqueue()
REQUEST_DEPTH = 2
"""Of the request's own fields: the arguments are level 1, the request 2."""


class Outcome(Enum):
    CLOSED = "closed"
    OK = "ok"
    UNKNOWN_METHOD = "unknown method"


def unknown(kind: int, value: bytes) -> bytes:
    """A frame with a good enqueue call that has one field more, which the contract does not know."""
    return frame(enqueue(field(kind, UNKNOWN_FIELD, value)))


def with_items(value: bytes) -> bytes:
    return frame(message(enqueue_args(items=value)))


def with_namespace(value: bytes) -> bytes:
    return frame(message(enqueue_args(namespace=value)))


BOMB = 2**31 - 1

FRAMES = {
    "length 0": u32(0),
    "length -1": u32(-1),
    "length -2^31": u32(-(2**31)),
    "length 2^31-1": u32(BOMB),
    "length one over the limit": u32(FRAME_BYTES_MAX + 1),
    "length near 2^31 with a few bytes": u32(2**31 - 9000) + b"0123456789",
    "HTTP": b"GET / HTTP/1.1\r\nHost: foqs\r\n\r\n",
    "TLS ClientHello": bytes.fromhex("1603010200010001fc0303"),
    "zlib": bytes.fromhex("789c63606062"),
    "unframed message": GOOD,
    "JSON protocol": frame(b'[1,"enqueue",1,0,{}]'),
    "compact protocol": frame(bytes.fromhex("8221070765") + b"nqueue" + STOP),
    "header protocol": frame(bytes.fromhex("0fff000000000007") + GOOD),
    "version 0x8002": frame(message(enqueue_args(), version=0x8002)),
    "non-strict header": frame(string(b"enqueue") + b"\1" + u32(7) + enqueue_args()),
    "two messages in one frame": frame(GOOD + GOOD),
    "trailing byte": frame(GOOD + b"\0"),
    "empty message": frame(b"\0"),
    "type REPLY": frame(message(enqueue_args(), kind=REPLY)),
    "type EXCEPTION": frame(message(enqueue_args(), kind=EXCEPTION)),
    "type 0": frame(message(enqueue_args(), kind=0)),
    "type 255": frame(message(enqueue_args(), kind=255)),
    "type ONEWAY": frame(message(enqueue_args(), kind=ONEWAY)),
    "empty method name": frame(message(enqueue_args(), name=b"")),
    "negative method name length": frame(u32(0x8001_0001) + u32(-5) + b"enqueue" + u32(7) + enqueue_args()),
    "method name of 65 bytes": frame(message(enqueue_args(), name=b"m" * 65)),
    "method name of 1 MB": frame(message(enqueue_args(), name=b"m" * 1_000_000)),
    "method name not UTF-8": frame(message(enqueue_args(), name=b"\xff\xfe")),
    "method name with CRLF": frame(message(enqueue_args(), name=b"enqueue\r\n")),
    "method name with ANSI escape": frame(message(enqueue_args(), name=b"\x1b[31m")),
}

STRUCTURE = {
    "100,000 unknown fields": frame(enqueue(field(BYTE, UNKNOWN_FIELD, b"\1") * 100_000)),
    "more fields than one struct may have": frame(enqueue(field(BYTE, UNKNOWN_FIELD, b"\1") * 1_001)),
    "many structs with many fields": unknown(
        LIST, list_of(STRUCT, [field(BYTE, 1, b"\1") * 900 + STOP] * 120)
    ),
    "one element over the budget": unknown(LIST, list_of(BYTE, [b"\0"] * (FRAME_ELEMENTS_MAX + 1))),
    "string length -1": with_namespace(field(STRING, 1, string(b"ns", -1))),
    "string length -5000": with_namespace(field(STRING, 1, string(b"ns", -5000))),
    "string longer than the frame": with_namespace(field(STRING, 1, string(b"ns", 20_000))),
    "string length 2^31-1": with_namespace(field(STRING, 1, string(b"ns", BOMB))),
    "string that ends one byte late": frame(enqueue(field(STRING, UNKNOWN_FIELD, string(b"x", 4)))),
    "list size -1": with_items(field(LIST, 2, list_of(STRUCT, [], -1))),
    "list<string> of 2^31-1": with_items(field(LIST, 2, list_of(STRING, [], BOMB))),
    "list<i64> longer than the frame": unknown(LIST, list_of(I64, [], 90_000)),
    "map size 2^31-1": unknown(MAP, map_of(STRING, STRING, [], BOMB)),
    "map of nothing to nothing": unknown(MAP, map_of(0, 0, [], BOMB)),
    "set of 2^31-1": unknown(SET, list_of(BYTE, [], BOMB)),
    "unknown type 5": unknown(5, b""),
    "unknown type 16": unknown(16, string(b"x")),
    "unknown type 18": unknown(18, string(b"x")),
    **{f"{count} of type {kind} in an unknown field": unknown(LIST, list_of(kind, [], count))
       for kind in (0, 1, 5, 7, 99) for count in (2, BOMB)},
    **{f"{count} of type {kind} in a known field": with_items(field(LIST, 2, list_of(kind, [], count)))
       for kind in (0, 1, 5, 7, 99) for count in (2, BOMB)},
    **{f"{levels} levels of type {kind}": unknown(kind, nested(kind, levels))
       for kind in (STRUCT, LIST, MAP)
       for levels in (FRAME_DEPTH_MAX - REQUEST_DEPTH + 1, 65, 50_000)},
}  # fmt: skip

INVALID = {
    "no arguments": frame(message(STOP)),
    "request is a string": frame(message(field(STRING, 1, string(b"x")) + STOP)),
    "no namespace_name": with_namespace(b""),
    "no items": with_items(b""),
    "namespace_name is an i32": with_namespace(field(I32, 1, u32(1))),
    "items is a string": with_items(field(STRING, 2, string(b"x"))),
    "items is a map": with_items(field(MAP, 2, map_of(BYTE, BYTE, []))),
    "namespace_name is not UTF-8": with_namespace(field(STRING, 1, string(b"\xff\xfe"))),
    "namespace_name has a NUL": with_namespace(field(STRING, 1, string(b"n\0s"))),
    "namespace_name is a path": with_namespace(field(STRING, 1, string(b"../../etc"))),
    "topic is not UTF-8": with_items(field(LIST, 2, list_of(STRUCT, [new_item(topic=b"\xc3\x28")]))),
}

UNKNOWN_METHODS = {
    name.decode(): frame(message(enqueue_args(), name=name))
    for name in (b"__class__", b"enqueue_args", b"Foqs:enqueue", b"Enqueue", b"m" * 64, b"a b")
}

ACCEPTED = {
    "a few unknown fields": frame(
        enqueue(b"".join(field(I32, UNKNOWN_FIELD + n, u32(n)) for n in range(20)))
    ),
    "unknown fields beside the request": frame(message(enqueue_args(after=field(BOOL, 9, b"\1")))),
    "the same field twice": frame(enqueue(field(STRING, 1, string(b"ns")))),
    "a bool of 255": frame(enqueue(field(BOOL, 3, b"\xff"))),
    "a map with list keys": unknown(MAP, map_of(LIST, BYTE, [list_of(BYTE, [b"\1"]) + b"\1"])),
    "a map with equal keys": unknown(MAP, map_of(STRING, BYTE, [string(b"k") + b"\1"] * 2)),
    "an empty list of an unknown type": unknown(LIST, list_of(0, [])),
    **{f"as many levels of type {kind} as may be": unknown(kind, nested(kind, levels))
       for kind in (STRUCT, LIST, MAP) for levels in (FRAME_DEPTH_MAX - REQUEST_DEPTH,)},
}  # fmt: skip

TABLE: list[tuple[str, bytes, Outcome | ErrorCode]] = [
    *((f"frame: {name}", data, Outcome.CLOSED) for name, data in FRAMES.items()),
    *((f"structure: {name}", data, Outcome.CLOSED) for name, data in STRUCTURE.items()),
    *((f"invalid: {name}", data, ErrorCode.INVALID_ARGUMENT) for name, data in INVALID.items()),
    *((f"method: {name}", data, Outcome.UNKNOWN_METHOD) for name, data in UNKNOWN_METHODS.items()),
    *((f"accepted: {name}", data, Outcome.OK) for name, data in ACCEPTED.items()),
]


@pytest.mark.parametrize(("data", "expected"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_every_input_has_its_answer_and_harms_nobody(data: bytes, expected: Outcome | ErrorCode) -> None:
    async def main() -> None:
        async with world() as w, w.connect() as client:
            started = time.process_time()
            await client.send_bytes(data)
            if expected is Outcome.CLOSED:
                assert await client.is_closed()
                assert len(w.counts.errors) == 1
            else:
                reply = await client.receive()
                assert reply.seqid == 7
                if expected is Outcome.UNKNOWN_METHOD:
                    assert isinstance(reply.error, ApplicationError)
                    assert reply.error.kind == UNKNOWN_METHOD
                elif expected is Outcome.OK:
                    assert reply.response.ids == ["1-1"]
                else:
                    assert _error_codes(reply) == {expected}
                assert w.counts.errors == []
            assert time.process_time() - started < 1.0
            assert await w.is_healthy()
            assert bool(w.queue.ready["ns", "topic"]) is (expected is Outcome.OK)

    run(main)


def _error_codes(reply: object) -> set[object]:
    return {reply.error.code} if reply.error else {e.code for e in reply.response.errors.values()}  # type: ignore[attr-defined]


def test_every_truncation_of_a_good_message_closes_and_does_nothing() -> None:
    async def main() -> None:
        async with world() as w:
            for size in range(1, len(GOOD)):
                async with w.connect() as client:
                    await client.send_bytes(frame(GOOD[:size]))
                    assert await client.is_closed(), size
            assert len(w.counts.errors) == len(GOOD) - 1
            assert not w.queue.ready

    run(main)


def test_a_frame_that_the_peer_leaves_unfinished_is_counted_and_closed() -> None:
    async def main() -> None:
        async with world() as w, w.connect() as client:
            await client.send_bytes(frame(GOOD)[:-1])
            client.end_sending()
            assert await client.is_closed()
            assert w.counts.errors == ["truncated"]

    run(main)


def test_one_message_over_two_frames_closes() -> None:
    async def main() -> None:
        async with world() as w, w.connect() as client:
            await client.send_bytes(frame(GOOD[:20]) + frame(GOOD[20:]))
            assert await client.is_closed()
            assert not w.queue.ready

    run(main)


def test_a_bad_frame_behind_good_ones_closes_and_cancels_what_runs() -> None:
    async def main() -> None:
        async with world() as w, w.connect() as client:
            client.send("dequeue", dequeue_request(1, wait_ms=30_000), seqid=1)
            await w.queue.long_poll_began.wait()
            await client.send_bytes(u32(0))
            assert await client.is_closed()
            await w.queue.long_poll_cancelled.wait()

    run(main)


def test_flipped_bytes_are_closed_or_answered() -> None:
    chance = random.Random(20)

    async def main() -> None:
        async with world() as w:
            answers = 0
            for _ in range(300):
                data = bytearray(GOOD)
                data[chance.randrange(len(data))] = chance.randrange(256)
                async with w.connect() as client:
                    await client.send_bytes(frame(bytes(data)))
                    client.end_sending()
                    answers += not await client.is_closed()
            assert 0 < answers < 300
            assert await w.is_healthy()

    run(main)

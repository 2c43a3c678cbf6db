"""Bytes that no good client sends, each under the number of its row in the list of 72 bad inputs."""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple

from foqs.model.errors import ErrorCode
from foqs.model.limits import FRAME_BYTES_MAX, FRAME_DEPTH_MAX, FRAME_ELEMENTS_MAX, MIB
from tests.support.thrift_bytes import (
    BOOL,
    BYTE,
    DOUBLE,
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

GOOD = enqueue()
REQUEST_DEPTH = 2
"""Of the request's own fields: the arguments are level 1, the request 2."""
BOMB = 2**31 - 1
WITHOUT_WIDTH = (0, 1, 5, 7, 99)
"""Types that a decoder skips without reading a byte."""


class Outcome(Enum):
    CLOSED = "closed"
    OK = "ok"
    UNKNOWN_METHOD = "unknown method"


class BadFrame(NamedTuple):
    row: int
    name: str
    data: bytes
    outcome: Outcome | ErrorCode


def unknown(kind: int, value: bytes) -> bytes:
    """A frame with a good enqueue call that has one field more, which the contract does not know."""
    return frame(enqueue(field(kind, UNKNOWN_FIELD, value)))


def with_items(value: bytes) -> bytes:
    return frame(message(enqueue_args(items=value)))


def with_item(topic: bytes = b"topic", more: bytes = b"") -> bytes:
    return with_items(field(LIST, 2, list_of(STRUCT, [new_item(topic, more=more)])))


def with_namespace(value: bytes) -> bytes:
    return frame(message(enqueue_args(namespace=value)))


def named(name: bytes) -> bytes:
    return frame(message(enqueue_args(), name=name))


def typed(kind: int) -> bytes:
    return frame(message(enqueue_args(), kind=kind))


CLOSED = {
    1: {"length 0": u32(0), "empty message": frame(b"\0")},
    2: {"length -1": u32(-1), "length -2^31": u32(-(2**31))},
    3: {"length 2^31-1": u32(BOMB)},
    4: {"length one over the limit": u32(FRAME_BYTES_MAX + 1), "length 256 MiB": u32(256 * MIB) + b"x" * 9_000},
    5: {"length near 2^31 with a few bytes": u32(2**31 - 9000) + b"0123456789"},
    11: {"HTTP": b"GET / HTTP/1.1\r\nHost: foqs\r\n\r\n"},
    12: {"TLS ClientHello": bytes.fromhex("1603010200010001fc0303")},
    13: {
        "unframed answer": message(enqueue_args(), kind=REPLY),
        "unframed call of a name that is too long": u32(0x8001_0001) + u32(65),
        "unframed call of a name with CRLF": message(enqueue_args(), name=b"enqueue\r\n"),
    },
    14: {"version 0x8002": frame(message(enqueue_args(), version=0x8002))},
    15: {"non-strict header": frame(string(b"enqueue") + b"\1" + u32(7) + enqueue_args())},
    16: {
        "JSON protocol": frame(b'[1,"enqueue",1,0,{}]'),
        "compact protocol": frame(bytes.fromhex("8221070765") + b"nqueue" + STOP),
        "header protocol": frame(bytes.fromhex("0fff000000000007") + GOOD),
    },
    17: {f"type {kind}": typed(kind) for kind in (REPLY, EXCEPTION, 0, 255)},
    18: {"type ONEWAY": typed(ONEWAY)},
    19: {
        "empty method name": named(b""),
        "negative method name length": frame(u32(0x8001_0001) + u32(-5) + b"enqueue" + u32(7) + enqueue_args()),
        "method name of 65 bytes": named(b"m" * 65),
        "method name of 1 MB": named(b"m" * 1_000_000),
    },
    22: {
        "method name not UTF-8": named(b"\xff\xfe"),
        "method name with CRLF": named(b"enqueue\r\n"),
        "method name with ANSI escape": named(b"\x1b[31m"),
    },
    28: {
        "100,000 unknown fields": frame(enqueue(field(BYTE, UNKNOWN_FIELD, b"\1") * 100_000)),
        "more fields than one struct may have": frame(enqueue(field(BYTE, UNKNOWN_FIELD, b"\1") * 1_001)),
        "many structs with many fields": unknown(LIST, list_of(STRUCT, [field(BYTE, 1, b"\1") * 900 + STOP] * 120)),
        "one element over the budget": unknown(LIST, list_of(BYTE, [b"\0"] * (FRAME_ELEMENTS_MAX + 1))),
    },
    29: {
        f"{levels} levels of structs": unknown(STRUCT, nested(STRUCT, levels))
        for levels in (FRAME_DEPTH_MAX - REQUEST_DEPTH + 1, 65, 200_000)
    },
    30: {
        f"{levels} levels of type {kind}": unknown(kind, nested(kind, levels))
        for kind in (LIST, MAP)
        for levels in (FRAME_DEPTH_MAX - REQUEST_DEPTH + 1, 65, 200_000)
    },
    31: {f"string length {n}": with_namespace(field(STRING, 1, string(b"ns", n))) for n in (-1, -5_000)},
    32: {
        "string longer than the frame": with_namespace(field(STRING, 1, string(b"ns", 20_000))),
        "string that ends one byte late": frame(enqueue(field(STRING, UNKNOWN_FIELD, string(b"x", 4)))),
    },
    33: {"string length 2^31-1": with_namespace(field(STRING, 1, string(b"ns", BOMB)))},
    36: {"trailing byte": frame(GOOD + b"\0"), "trailing kilobytes": frame(GOOD + b"x" * 5_000)},
    37: {"two messages in one frame": frame(GOOD + GOOD), "one in two frames": frame(GOOD[:20]) + frame(GOOD[20:])},
    38: {"list size -1": with_items(field(LIST, 2, list_of(STRUCT, [], -1)))},
    39: {
        "list<string> of 2^31-1": with_items(field(LIST, 2, list_of(STRING, [], BOMB))),
        "list<i64> longer than the frame": unknown(LIST, list_of(I64, [], 90_000)),
        "set of 2^31-1": unknown(SET, list_of(BYTE, [], BOMB)),
        "map of 2^31-1": unknown(MAP, map_of(STRING, STRING, [], BOMB)),
    },
    40: {
        **{
            f"{count} of type {kind} in an unknown field": unknown(LIST, list_of(kind, [], count))
            for kind in WITHOUT_WIDTH
            for count in (2, BOMB)
        },
        **{f"unknown type {kind}": unknown(kind, string(b"x")) for kind in (5, 16, 18)},
    },
    41: {
        f"{count} of type {kind} in a known field": with_items(field(LIST, 2, list_of(kind, [], count)))
        for kind in WITHOUT_WIDTH
        for count in (2, BOMB)
    },
    42: {
        f"map of {keys} to {values}": unknown(MAP, map_of(keys, values, [], BOMB))
        for keys, values in ((0, 0), (1, 5), (BYTE, 0), (LIST, LIST))
    },
    71: {"zlib": bytes.fromhex("789c63606062"), "zlib in a frame": frame(bytes.fromhex("789c636060626060600000"))},
}

INVALID = {
    23: {"no arguments": frame(message(STOP)), "empty request": frame(message(field(STRUCT, 1, STOP) + STOP))},
    24: {"no namespace_name": with_namespace(b""), "no items": with_items(b"")},
    25: {
        "request is a string": frame(message(field(STRING, 1, string(b"x")) + STOP)),
        "namespace_name is an i32": with_namespace(field(I32, 1, u32(1))),
        "items is a string": with_items(field(STRING, 2, string(b"x"))),
        "items is a map": with_items(field(MAP, 2, map_of(BYTE, BYTE, []))),
    },
    52: {
        "namespace_name is not UTF-8": with_namespace(field(STRING, 1, string(b"\xff\xfe"))),
        "topic is not UTF-8": with_item(b"\xc3\x28"),
    },
    53: {
        "namespace_name has a NUL": with_namespace(field(STRING, 1, string(b"n\0s"))),
        "topic is a lone surrogate": with_item(b"\xed\xa0\x80"),
    },
    54: {"namespace_name is a path": with_namespace(field(STRING, 1, string(b"../../etc")))},
}

UNKNOWN_METHODS = {
    20: {name.decode(): named(name) for name in (b"nobody", b"Enqueue", b"m" * 64, b"a b")},
    21: {name.decode(): named(name) for name in (b"__class__", b"enqueue_args", b"Foqs:enqueue")},
}

ACCEPTED = {
    26: {"the same field twice": frame(enqueue(field(STRING, 1, string(b"ns"))))},
    27: {
        "a few unknown fields": frame(enqueue(b"".join(field(I32, UNKNOWN_FIELD + n, u32(n)) for n in range(20)))),
        "unknown fields beside the request": frame(message(enqueue_args(after=field(BOOL, 9, b"\1")))),
    },
    29: {"as many levels as may be": unknown(STRUCT, nested(STRUCT, FRAME_DEPTH_MAX - REQUEST_DEPTH))},
    30: {
        f"as many levels of type {kind} as may be": unknown(kind, nested(kind, FRAME_DEPTH_MAX - REQUEST_DEPTH))
        for kind in (LIST, MAP)
    },
    40: {"an empty list of an unknown type": unknown(LIST, list_of(0, []))},
    42: {"a map with list keys": unknown(MAP, map_of(LIST, BYTE, [list_of(BYTE, [b"\1"]) + b"\1"]))},
    43: {"a map with equal keys": unknown(MAP, map_of(STRING, BYTE, [string(b"k") + b"\1"] * 2))},
    44: {f"a bool of {value}": frame(enqueue(field(BOOL, 3, bytes([value])))) for value in (2, 255)},
    46: {"a double that nobody knows": unknown(DOUBLE, bytes.fromhex("7ff8000000000000"))},
}

ALL = [
    BadFrame(row, name, data, outcome)
    for table, outcome in (
        (CLOSED, Outcome.CLOSED),
        (INVALID, ErrorCode.INVALID_ARGUMENT),
        (UNKNOWN_METHODS, Outcome.UNKNOWN_METHOD),
        (ACCEPTED, Outcome.OK),
    )
    for row, frames in table.items()
    for name, data in frames.items()
]


def row_id(value: Any) -> str:
    """The name of a test by its row and its function."""
    return f"row {value}" if isinstance(value, int) else str(value.__name__)

"""Thrift messages put together by hand, right or wrong, byte by byte."""

from __future__ import annotations

import struct

BOOL, BYTE, DOUBLE, I16, I32, I64, STRING, STRUCT, MAP, SET, LIST = 2, 3, 4, 6, 8, 10, 11, 12, 13, 14, 15
CALL, REPLY, EXCEPTION, ONEWAY = 1, 2, 3, 4
STOP = b"\0"
UNKNOWN_FIELD = 900


def u32(value: int) -> bytes:
    return struct.pack("!I", value & 0xFFFF_FFFF)


def frame(message: bytes) -> bytes:
    return u32(len(message)) + message


def message(body: bytes, name: bytes = b"enqueue", kind: int = CALL, version: int = 0x8001, seqid: int = 7) -> bytes:
    return u32(version << 16 | kind) + u32(len(name)) + name + u32(seqid) + body


def field(kind: int, number: int, value: bytes) -> bytes:
    return struct.pack("!bh", kind, number) + value


def string(value: bytes, length: int | None = None) -> bytes:
    return u32(len(value) if length is None else length) + value


def list_of(kind: int, values: list[bytes], count: int | None = None) -> bytes:
    return bytes([kind]) + u32(len(values) if count is None else count) + b"".join(values)


def map_of(key_kind: int, value_kind: int, entries: list[bytes], count: int | None = None) -> bytes:
    return bytes([key_kind, value_kind]) + u32(len(entries) if count is None else count) + b"".join(entries)


def nested(kind: int, levels: int) -> bytes:
    """A value of `kind` that holds itself, `levels` deep, the outermost counted."""
    if kind == STRUCT:
        return field(STRUCT, 1, b"") * (levels - 1) + STOP * levels
    if kind == LIST:
        return list_of(LIST, [], 1) * (levels - 1) + list_of(I32, [])
    return (bytes([BYTE, MAP]) + u32(1) + b"\1") * (levels - 1) + map_of(BYTE, BYTE, [])


def new_item(topic: bytes = b"topic", payload: bytes = b"payload", more: bytes = b"") -> bytes:
    return field(STRING, 1, string(topic)) + field(STRING, 2, string(payload)) + more + STOP


def enqueue_args(
    namespace: bytes | None = None, items: bytes | None = None, more: bytes = b"", after: bytes = b""
) -> bytes:
    """The arguments of an enqueue call; a part that is given replaces the good one with_payload."""
    namespace = field(STRING, 1, string(b"ns")) if namespace is None else namespace
    items = field(LIST, 2, list_of(STRUCT, [new_item()])) if items is None else items
    return field(STRUCT, 1, namespace + items + more + STOP) + after + STOP


def enqueue(more: bytes = b"") -> bytes:
    """A good enqueue call of one item, with more fields in its request."""
    return message(enqueue_args(more=more))

"""The inputs of up to a megabyte that keep a host longest, as far as anybody knows: frames, whole or in a row."""

from __future__ import annotations

from typing import Any

from foqs.model import limits
from foqs.wire.codec import LENGTH_BYTES, Codec, structs
from loadtest.fuzz.watched import NAMESPACE

INPUT_BYTES_MAX = 1 * limits.MIB
_STRUCT, _LIST, _MAP, _STRING, _BYTE = 12, 15, 13, 11, 3


def worst_inputs() -> dict[str, bytes]:
    """By name: bytes for one connection, none longer than INPUT_BYTES_MAX."""
    found = {**_structures(), **_batches(), **_rows()}
    for name, data in found.items():
        assert len(data) <= INPUT_BYTES_MAX, name
    return found


def call(method: str, request: Any, seqid: int = 1) -> bytes:
    return Codec().encode_call(method, request, seqid)


def _call_with(kind: int, value: bytes) -> bytes:
    """A good enqueue call with one field more, which nobody knows."""
    message = call("enqueue", structs.EnqueueRequest(NAMESPACE, [structs.NewItem("t", b"x")]))[LENGTH_BYTES:]
    message = message[:-2] + bytes([kind, 3, 132]) + value + b"\0\0"
    return len(message).to_bytes(4, "big") + message


def _list(kind: int, values: bytes, count: int) -> bytes:
    return bytes([kind]) + count.to_bytes(4, "big") + values


def _structures() -> dict[str, bytes]:
    most = limits.FRAME_ELEMENTS_MAX - 100
    empty_list, empty_map = _list(_BYTE, b"", 0), bytes([_BYTE, _BYTE]) + bytes(4)
    field = bytes([_BYTE, 0, 1, 1])
    fields = field * 900 + b"\0"
    nested = b""
    for _ in range(limits.FRAME_DEPTH_MAX - 4):
        nested = bytes([_LIST]) + (1).to_bytes(4, "big") + nested if nested else _list(_LIST, empty_list, 1)
    chains = most // (limits.FRAME_DEPTH_MAX - 3)
    return {
        "many empty structs": _call_with(_LIST, _list(_STRUCT, b"\0" * most, most)),
        "many empty lists": _call_with(_LIST, _list(_LIST, empty_list * most, most)),
        "many empty maps": _call_with(_LIST, _list(_MAP, empty_map * most, most)),
        "many structs with a field": _call_with(_LIST, _list(_STRUCT, (field + b"\0") * (most // 2), most // 2)),
        "structs with 900 fields": _call_with(_LIST, _list(_STRUCT, fields * (most // 901), most // 901)),
        "deep chains of lists": _call_with(_LIST, _list(_LIST, nested * chains, chains)),
        "map of lists to lists": _call_with(
            _MAP, bytes([_LIST, _LIST]) + (most // 2).to_bytes(4, "big") + empty_list * 2 * (most // 2)
        ),
        "many strings": _call_with(_LIST, _list(_STRING, bytes(4) * most, most)),
        "one element over the budget": _call_with(_LIST, _list(_STRUCT, b"\0" * 40_000, 40_000)),
        "a declared million": _call_with(_LIST, _list(_STRUCT, b"\0" * 1_000_000, 1_000_000)),
        "a string of a megabyte": _call_with(_STRING, (1_000_000).to_bytes(4, "big") + b"x" * 1_000_000),
    }


def _batches() -> dict[str, bytes]:
    s = structs
    count = limits.BATCH_ITEMS_MAX
    new, text = s.NewItem, "\x01" * 255
    receipts = [f"{n % 4:x}-1{n:010x}:1" for n in range(count)]
    topics = [f"{n:0250d}" for n in range(count)]

    def enqueue(items: list[Any]) -> bytes:
        return call("enqueue", s.EnqueueRequest(NAMESPACE, items))

    def dequeue(names: list[str], wait_ms: int = 0) -> bytes:
        return call("dequeue", s.DequeueRequest(NAMESPACE, [s.TopicDemand(name, 1) for name in names], None, wait_ms))

    return {
        "1,000 good items": enqueue([new("t", b"x" * 900, n) for n in range(count)]),
        "1,000 good items of 1,000 topics": enqueue([new(name, b"x") for name in topics]),
        "1,000 items without a payload": enqueue([new("t", None)] * count),
        "1,000 items with bad topics": enqueue([new(text, b"x")] * count),
        "1,000 items with large metadata": enqueue([new("t", b"x", metadata=b"m" * 900)] * count),
        "1,000 items with all fields wrong": enqueue([new("t", b"x", 1, -1, -1, -1, -1, b"m", 9, "d", "o")] * count),
        "6,000 items": enqueue([new("t", b"x")] * 6_000),
        "15,000 empty items": enqueue([new(priority=None)] * 15_000),
        "one topic of a megabyte": enqueue([new("\x01" * 1_000_000, b"x")]),
        "one namespace of a megabyte": call("enqueue", s.EnqueueRequest("\x01" * 1_000_000, [])),
        "1,000 receipts of nobody": call("ack", s.AckRequest(NAMESPACE, receipts)),
        "1,000 bare ids of nobody": call("ack", s.AckRequest(NAMESPACE, [name[:-2] for name in receipts])),
        "1,000 ids to delete": call("deleteItems", s.DeleteItemsRequest(NAMESPACE, [name[:-2] for name in receipts])),
        "1,000 receipts that are none": call("ack", s.AckRequest(NAMESPACE, ["\x01" * 900] * count)),
        "19,000 receipts": call("ack", s.AckRequest(NAMESPACE, ["0-1:1"] * 19_000)),
        "1,000 nacks of nobody": call("nack", s.NackRequest(NAMESPACE, [s.Nack(name) for name in receipts])),
        "1,000 extensions of nobody": call("extendLease", s.ExtendRequest(NAMESPACE, receipts, 5_000)),
        "a receipt of a megabyte": call("ack", s.AckRequest(NAMESPACE, ["\x01" * 1_000_000])),
        "a page token of a megabyte": call("peekItems", s.PeekItemsRequest(NAMESPACE, "t", 1_000, "f" * 1_000_000)),
        "a dequeue of 1,000 topics": dequeue(topics),
        "a long poll on 1,000 topics": dequeue(topics, 1_000),
    }


def _rows() -> dict[str, bytes]:
    """As many small frames as a megabyte holds, sent at once."""
    s = structs
    unknown = b"\0\0\0\x0e\x80\x01\0\1\0\0\0\1m\0\0\0\1\0"
    bad_text = call("getNamespace", s.GetNamespaceRequest(b"\xff"))
    small = {
        "small calls of no method": unknown,
        "small calls that are not UTF-8": bad_text,
        "small calls without arguments": b"\0\0\0\x0f\x80\x01\0\1\0\0\0\3ack\0\0\0\1\0"[:4]
        + b"\x80\x01\0\1\0\0\0\3ack\0\0\0\1\0"[:15],
        "small enqueues": call("enqueue", s.EnqueueRequest(NAMESPACE, [s.NewItem("t", b"")])),
        "small enqueues of nobody": call("enqueue", s.EnqueueRequest("nobody", [])),
        "small acks of nobody": call("ack", s.AckRequest(NAMESPACE, ["0-1:1"])),
        "small long polls": call("dequeue", s.DequeueRequest(NAMESPACE, [s.TopicDemand("none", 1)], None, 500)),
        "status calls": call("getHostStatus", s.HostStatusRequest()),
        "pages of exports": call("exportItems", s.ExportItemsRequest(NAMESPACE, s.ExportSplit(0, 0, 1 << 50, 0))),
        "plans of exports": call("planExport", s.PlanExportRequest(NAMESPACE, 64)),
        "pages of items": call("peekItems", s.PeekItemsRequest(NAMESPACE, "t")),
    }
    bad = b"\0\0\0\1\0"
    found = {f"a megabyte of {name}": frame * (INPUT_BYTES_MAX // len(frame)) for name, frame in small.items()}
    return found | {"a megabyte of bad frames": bad * (INPUT_BYTES_MAX // len(bad))}

"""Enqueue calls that are cut by kinds of items are read as any other call is."""

from __future__ import annotations

from struct import pack
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foqs.wire import codec as wire
from foqs.wire.codec import Codec, UnreadableCallError, structs
from foqs.wire.frames import FrameError
from foqs.wire.item_batch import KINDS_MAX, ItemBatch, cut_batch

TEXTS = st.sampled_from(["t", "u", "ü", "t" * 255, ""])
ITEMS = st.builds(
    structs.NewItem,
    topic=TEXTS,
    payload=st.binary(max_size=40),
    priority=st.sampled_from([0, 1, -1, None]),
    ttl_ms=st.sampled_from([None, 5]),
    metadata=st.sampled_from([None, b"", b"m"]),
    dedup_id=st.sampled_from([None, None, "d"]),
    trace_context=st.sampled_from([None, "x"]),
)


def of_kinds(kinds: list[Any]) -> st.SearchStrategy[list[Any]]:
    """Items of these kinds, each with a payload of its own."""
    alike = st.tuples(st.sampled_from(kinds), st.binary(max_size=40))
    return st.lists(alike.map(lambda pair: structs.NewItem(**{**vars(pair[0]), "payload": pair[1]})), max_size=12)


REQUESTS = st.builds(
    structs.EnqueueRequest,
    namespace_name=TEXTS,
    items=st.one_of(st.lists(ITEMS, max_size=12), st.lists(ITEMS, min_size=1, max_size=3).flatmap(of_kinds)),
    bulk=st.booleans(),
    job_id=st.sampled_from([None, "j"]),
)


def call(*items: Any) -> bytes:
    return Codec().encode_call("enqueue", structs.EnqueueRequest("n", list(items)), 7)[wire.LENGTH_BYTES :]


def read(message: bytes) -> object:
    try:
        method, seqid, request, count = Codec().decode_call(message)
    except (FrameError, UnreadableCallError) as error:
        return type(error), str(error), getattr(error, "response", None)
    items = None if request is None or request.items is None else list(request.items)
    return method, seqid, None if request is None else {**vars(request), "items": items}, count


def read_as_a_whole(message: bytes) -> object:
    with patch.object(wire, "cut_batch", lambda message: None):
        return read(message)


@given(REQUESTS)
def test_a_call_is_read_as_it_was_sent(request: Any) -> None:
    message = Codec().encode_call("enqueue", request, 7)[wire.LENGTH_BYTES :]
    assert read(message) == read_as_a_whole(message)


@settings(max_examples=400)
@given(REQUESTS, st.data())
def test_a_damaged_call_is_read_or_refused_as_any_other(request: Any, data: st.DataObject) -> None:
    message = bytearray(Codec().encode_call("enqueue", request, 7)[wire.LENGTH_BYTES :])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(message) - 1))
        kind = data.draw(st.sampled_from(["set", "cut", "insert", "repeat"]))
        if kind == "set":
            message[at] = data.draw(st.sampled_from([0, 1, 2, 8, 10, 11, 12, 13, 15, 0x7F, 0xFF]))
        elif kind == "cut":
            del message[at : at + data.draw(st.integers(1, 9))]
        elif kind == "insert":
            message[at:at] = bytes([data.draw(st.integers(0, 15))])
        else:
            message[at:at] = message[at : at + data.draw(st.integers(1, 60))]
        if not message:
            return
    assert read(bytes(message)) == read_as_a_whole(bytes(message))


def test_one_item_of_each_kind_is_decoded() -> None:
    items = [structs.NewItem("t", bytes(at), at % 3) for at in range(30)]
    cut = cut_batch(call(*items))
    assert cut is not None
    assert (cut.items_count, len(cut.payloads)) == (30, 3)
    assert len(cut.message) < len(call(*items)) / 5
    batch = Codec().decode_call(call(*items))[2].items
    assert isinstance(batch, ItemBatch)
    assert [(item.payload, item.priority) for item in batch] == [(bytes(at), at % 3) for at in range(30)]
    assert batch[4].payload == bytes(4)
    assert [item.priority for item in batch[1:3]] == [1, 2]


def test_many_kinds_and_lone_items_are_read_as_a_whole() -> None:
    assert cut_batch(call(*[structs.NewItem("t", b"", at % (KINDS_MAX + 1)) for at in range(100)])) is None
    assert cut_batch(call(*[structs.NewItem("t", b"", at % 3) for at in range(5)])) is None
    assert cut_batch(call(structs.NewItem("t", b""))) is None


@pytest.mark.parametrize("again", [b"\x0b\0\2" + pack("!I", 1) + b"y", b"\x0b\0\1" + pack("!I", 1) + b"u"])
def test_an_item_that_names_its_topic_or_payload_twice_is_read_as_a_whole(again: bytes) -> None:
    head, middle = call(structs.NewItem("t", b"x"), structs.NewItem("t", b"x")), b"\x0b\0\2" + pack("!I", 1) + b"x"
    message = head.replace(middle, middle + again)
    assert cut_batch(message) is None
    assert read(message) == read_as_a_whole(message)


def test_a_call_with_a_second_list_or_request_is_read_as_a_whole() -> None:
    message = call(structs.NewItem("t", b"x"), structs.NewItem("t", b"y"))
    assert cut_batch(message) is not None
    no_items = b"\x0f\0\2\x0c" + pack("!I", 0)
    for again in (no_items, b"\x0f\0\2\x08" + pack("!Ii", 1, 7), b"\x0c\0\3\0"):
        with_list = message[:-2] + again + message[-2:]
        assert cut_batch(with_list) is None
        assert read(with_list) == read_as_a_whole(with_list)
    with_request = message[:-1] + b"\x0c\0\1\0" + message[-1:]
    assert cut_batch(with_request) is None
    assert read(with_request) == read_as_a_whole(with_request)
    assert cut_batch(message + b"\0") is None

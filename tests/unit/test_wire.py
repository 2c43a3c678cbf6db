"""Messages to frames and back."""

from __future__ import annotations

import asyncio
from dataclasses import fields
from typing import Any

import pytest

from foqs.model import calls, limits
from foqs.model.errors import ERROR_BY_CODE, ErrorCode, FoqsError, InternalError, TooLargeError, error_for_code
from foqs.model.event_history import History, HistoryRow
from foqs.model.limits import FRAME_BYTES_MAX, MIB
from foqs.model.namespace import NamespaceSettings
from foqs.model.principal import EVERYBODY
from foqs.model.topic_rates import RatesPage, TopicRates
from foqs.transport.verb_table import Answered, Verbs, dequeue_response
from foqs.wire.codec import (
    LENGTH_BYTES,
    METHODS,
    ApplicationError,
    Codec,
    for_seqid,
    seqid_of,
    structs,
)
from foqs.wire.frames import FrameError
from tests.support import thrift_bytes as tb

ENQUEUE = METHODS["enqueue"]
DELIVERY = calls.Delivery("1-a", "1-a.1", "t", -3, 5, 6, 2**40, 2, b"\xff", b"m")


def message_of(frame: bytes) -> bytes:
    assert int.from_bytes(frame[:LENGTH_BYTES], "big") == len(frame) - LENGTH_BYTES
    return frame[LENGTH_BYTES:]


def test_all_services_are_known_with_what_they_require() -> None:
    assert {m.service for m in METHODS.values()} == {"Foqs", "FoqsAccess", "FoqsAdmin", "FoqsPeer"}
    assert len(METHODS) == 70
    assert ENQUEUE.required == ("namespace_name", "items")
    assert METHODS["listNamespaces"].required == ()


def test_a_call_is_what_a_plain_thrift_client_would_send() -> None:
    request = structs.AckRequest("ns", ["a"])
    expected = tb.message(
        tb.field(
            tb.STRUCT,
            1,
            tb.field(tb.STRING, 1, tb.string(b"ns"))
            + tb.field(tb.LIST, 2, tb.list_of(tb.STRING, [tb.string(b"a")]))
            + tb.STOP,
        )
        + tb.STOP,
        name=b"ack",
        seqid=258,
    )
    assert Codec().encode_call("ack", request, 258) == tb.frame(expected)


def test_an_answer_comes_back_as_it_was() -> None:
    codec = Codec()
    response = structs.EnqueueResponse(["a", ""], {1: structs.ItemError(3, "é")}, [])
    reply = codec.decode_reply(message_of(codec.encode_reply(ENQUEUE, response, -1)))
    assert (reply.method, reply.seqid, reply.response, reply.error) == (ENQUEUE, -1, response, None)


@pytest.mark.parametrize("code", list(ErrorCode))
def test_a_declared_error_comes_back_in_its_own_class(code: ErrorCode) -> None:
    codec = Codec()
    error = error_for_code(code, "why", 12)
    reply = codec.decode_reply(message_of(codec.encode_error(ENQUEUE, error, 3)))
    assert isinstance(reply.error, FoqsError)
    assert type(reply.error) is ERROR_BY_CODE[code]
    assert (reply.error.message, reply.error.retry_after_ms, reply.response) == ("why", 12, None)


def test_an_error_code_of_a_newer_host_is_an_internal_error() -> None:
    declared = structs.FoqsError(99, "new", None)
    frame = Codec()._encode(tb.REPLY, b"enqueue", 1, ENQUEUE.result(error=declared))
    assert isinstance(Codec().decode_reply(message_of(frame)).error, InternalError)


def test_an_application_exception_is_told_from_a_declared_error() -> None:
    codec = Codec()
    reply = codec.decode_reply(message_of(codec.encode_application_error(b"new", 1, "no such", 8)))
    assert isinstance(reply.error, ApplicationError)
    assert (reply.error.kind, str(reply.error), reply.seqid, reply.method) == (1, "no such", 8, None)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (tb.message(tb.STOP, kind=tb.REPLY), "empty"),
        (tb.message(tb.STOP, name=b"other", kind=tb.REPLY), "method_name"),
        (tb.message(tb.STOP), "message_type"),
        (tb.message(tb.STOP, kind=tb.REPLY) + b"x", "length"),
        (
            tb.message(
                tb.field(tb.STRUCT, 0, tb.field(tb.LIST, 1, tb.list_of(tb.STRING, [tb.string(b"\xff")])) + tb.STOP)
                + tb.STOP,
                kind=tb.REPLY,
            ),
            "utf8",
        ),
    ],
)
def test_an_answer_that_is_none_is_a_frame_error(answer: bytes, reason: str) -> None:
    with pytest.raises(FrameError) as caught:
        Codec().decode_reply(answer)
    assert caught.value.reason == reason


def test_a_list_with_elements_of_a_wrong_type_is_empty_and_never_holds_none() -> None:
    data = tb.field(tb.STRUCT, 1, tb.field(tb.LIST, 2, tb.list_of(tb.I32, [tb.u32(1)] * 3)) + tb.STOP)
    request = Codec().decode_request(METHODS["ack"], data + tb.STOP)
    assert (request.namespace_name, request.receipts) == (None, [])


def test_a_message_over_the_frame_limit_is_refused_and_the_codec_goes_on() -> None:
    codec = Codec()
    items = [structs.NewItem("t", b"x" * MIB)] * (FRAME_BYTES_MAX // MIB)
    with pytest.raises(TooLargeError):
        codec.encode_call("enqueue", structs.EnqueueRequest("ns", items), 1)
    frame = codec.encode_call("enqueue", structs.EnqueueRequest("ns", items[:-1]), 1)
    assert len(frame) > FRAME_BYTES_MAX - 2 * MIB
    assert len(codec.encode_call("enqueue", structs.EnqueueRequest("ns", []), 1)) < 100


def test_a_failed_encoding_leaves_nothing_behind() -> None:
    codec = Codec()
    good = codec.encode_call("ack", structs.AckRequest("ns", ["a"]), 1)
    with pytest.raises(Exception, match="ids"):
        codec.encode_reply(ENQUEUE, structs.EnqueueResponse([7], {}, []), 1)
    assert codec.encode_call("ack", structs.AckRequest("ns", ["a"]), 1) == good


class Lookalike:
    """Has the attributes of a delivery and nothing else in common with it."""

    __slots__ = tuple(field.name for field in fields(calls.Delivery))


def test_deliveries_of_any_class_are_encoded_as_items_are() -> None:
    lookalike = Lookalike()
    values = {field.name: getattr(DELIVERY, field.name) for field in fields(DELIVERY)}
    for name, value in values.items():
        setattr(lookalike, name, value)
    as_item = structs.Item(**values)
    frames = [_encoded_dequeue(one) for one in (DELIVERY, lookalike, as_item)]
    assert frames[0] == frames[1] == frames[2]
    reply = Codec().decode_reply(message_of(frames[0]))
    assert reply.response.items == [as_item]


def _encoded_dequeue(delivery: object) -> bytes:
    return Codec().encode_reply(METHODS["dequeue"], dequeue_response([delivery]), 1)


@pytest.mark.parametrize(
    ("cls", "struct", "not_sent"),
    [
        (calls.Delivery, structs.Item, set()),
        (calls.TopicStats, structs.TopicStats, set()),
        (TopicRates, structs.TopicRates, set()),
        (RatesPage, structs.RatesResponse, set()),
        (HistoryRow, structs.HistoryRow, set()),
        (History, structs.HistoryResponse, set()),
        (calls.StoredItem, structs.StoredItem, set()),
        (calls.StoredItemPage, structs.StoredItemsResponse, set()),
        (calls.TopicPage, structs.ActiveTopicsResponse, set()),
        (calls.NamespacePage, structs.ListNamespacesResponse, set()),
        (calls.ShardStatus, structs.ShardStatus, set()),
        (calls.HostStatus, structs.HostStatus, set()),
        (NamespaceSettings, structs.NamespaceSettings, set()),
    ],
)
def test_every_field_of_the_contract_has_its_attribute_behind_the_verbs(
    cls: Any, struct: Any, not_sent: set[str]
) -> None:
    contract = {field[1] for field in struct.thrift_spec.values()}
    assert contract - {field.name for field in fields(cls)} == not_sent
    assert {field[1] for field in cls.thrift_spec.values()} == contract - not_sent


def test_an_answer_is_the_same_for_another_seqid_but_for_that() -> None:
    codec, error = Codec(), InternalError("a defect")
    for seqid in (1, -1, 2**31 - 1):
        assert for_seqid(codec.encode_error(ENQUEUE, error, 7), seqid) == codec.encode_error(ENQUEUE, error, seqid)


@pytest.mark.parametrize("method", ["enqueue", "getHostStatus"])
def test_the_seqid_of_a_message_is_known_without_a_look_at_its_arguments(method: str) -> None:
    call = Codec().encode_call(method, METHODS[method].request(), -5)[LENGTH_BYTES:]
    assert seqid_of(call) == -5
    assert seqid_of(call[: 8 + len(method) + 4]) == -5


def test_an_answer_that_no_frame_holds_does_not_say_that_nothing_was_done() -> None:
    async def done(context: calls.CallContext, verb: str, request: object) -> dict[int, FoqsError]:
        return {0: InternalError("x" * (FRAME_BYTES_MAX + 1))}

    codec = Codec()
    verbs = Verbs(done, lambda host_id: False, codec, iter(()))
    request = structs.AckRequest("jobs", ["0-1:1"])
    ended: list[Answered | None] = []
    asyncio.run(verbs.serve(calls.CallContext("a", principal=EVERYBODY), METHODS["ack"], request, 1, ended.append))
    (answered,) = ended
    assert answered is not None
    error = codec.decode_reply(answered.frame[4:]).error
    assert isinstance(error, TooLargeError)
    assert not error.nothing_done


def test_a_page_that_is_encoded_in_parts_is_the_same_as_at_once() -> None:
    codec, method = Codec(), METHODS["peekItems"]
    items = [structs.StoredItem(f"{number}", "topic", payload=b"x" * number) for number in range(7)]
    for cuts in ([7], [3, 7], [1, 2, 7], []):
        part = items[: cuts[-1]] if cuts else []
        parts = [
            codec.encode_elements(structs.StoredItemsResponse(part[first:end], None))
            for first, end in zip([0, *cuts], cuts, strict=False)
        ]
        joined = codec.join_reply(method, structs.StoredItemsResponse([], "next"), len(part), parts, 7)
        assert joined == codec.encode_reply(method, structs.StoredItemsResponse(part, "next"), 7)


def test_a_page_in_parts_over_the_frame_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    codec = Codec()
    part = codec.encode_elements(structs.StoredItemsResponse([structs.StoredItem("1", payload=b"x" * 2_000)], None))
    monkeypatch.setattr(limits, "FRAME_BYTES_MAX", 1_000)
    with pytest.raises(TooLargeError):
        codec.join_reply(METHODS["peekItems"], structs.StoredItemsResponse([], ""), 1, [part], 7)

from __future__ import annotations

import pytest

from foqs.client.client_errors import OutcomeUnknownError
from foqs.client.dialogue import (
    BrokenDialogueError,
    Dialogue,
    FrameReader,
    body_bytes,
    leaves_connection_usable,
    outcome_of,
)
from foqs.client.flows import Call
from foqs.client.queue_items import Item, NewItem
from foqs.client.retry import Repeat
from foqs.model import limits
from foqs.model.errors import InternalError, InvalidArgumentError, RateLimitedError, UnavailableError
from foqs.wire import codec as wire

S = wire.structs


def enqueue_call(*items: NewItem) -> Call:
    return Call("enqueue", S.EnqueueRequest(namespace_name="ns", items=list(items)), Repeat.ALWAYS)


def ack_call() -> Call:
    return Call("ack", S.AckRequest(namespace_name="ns", receipts=["a.1"]), Repeat.ALWAYS)


def reply_to(frame: bytes) -> wire.Reply:
    return Dialogue().reply_in(frame[4:])


def test_every_call_has_another_seqid_and_seqids_stay_positive_int32() -> None:
    dialogue = Dialogue()
    assert [dialogue.frame_of(ack_call())[0] for _ in range(3)] == [1, 2, 3]
    dialogue._seqid = 2**31 - 2
    assert [dialogue.frame_of(ack_call())[0] for _ in range(2)] == [2**31 - 1, 1]


@pytest.mark.parametrize(
    "item",
    [
        NewItem("t", b"", priority=2**31),
        NewItem("t", b"", delay_ms="soon"),  # type: ignore[arg-type]
        NewItem(5, b""),  # type: ignore[arg-type]
        NewItem("\ud800", b""),
    ],
)
def test_what_cannot_be_encoded_is_an_invalid_argument_and_spoils_no_later_call(item: NewItem) -> None:
    dialogue = Dialogue()
    with pytest.raises(InvalidArgumentError, match="enqueue"):
        dialogue.frame_of(enqueue_call(NewItem("t", b""), item))
    assert dialogue.frame_of(ack_call())[1][4:] == Dialogue().frame_of(ack_call())[1][4:].replace(
        (1).to_bytes(4) + b"\x0c", (2).to_bytes(4) + b"\x0c"
    )


def test_an_answer_to_another_method_is_not_taken() -> None:
    frame = wire.Codec().encode_reply(wire.METHODS["nack"], S.BatchResponse(errors={}), 1)
    with pytest.raises(BrokenDialogueError, match="speaks of nack"):
        outcome_of(reply_to(frame), ack_call())
    assert not leaves_connection_usable(reply_to(frame), ack_call())


def test_unavailable_from_the_host_is_an_unknown_outcome() -> None:
    frame = wire.Codec().encode_error(wire.METHODS["ack"], UnavailableError("sick", retry_after_ms=5), 1)
    with pytest.raises(OutcomeUnknownError) as caught:
        outcome_of(reply_to(frame), ack_call())
    assert caught.value.retry_after_ms == 5


def test_a_declared_error_leaves_the_connection_usable_and_an_application_error_does_not() -> None:
    codec = wire.Codec()
    declared = reply_to(codec.encode_error(wire.METHODS["ack"], RateLimitedError("x", retry_after_ms=9), 1))
    assert leaves_connection_usable(declared, ack_call())
    with pytest.raises(RateLimitedError):
        outcome_of(declared, ack_call())
    internal = reply_to(codec.encode_application_error(b"ack", 6, "boom", 1))
    assert not leaves_connection_usable(internal, ack_call())
    with pytest.raises(InternalError, match="boom"):
        outcome_of(internal, ack_call())
    unknown = reply_to(codec.encode_application_error(b"ack", wire.UNKNOWN_METHOD, "no", 1))
    with pytest.raises(InvalidArgumentError, match="does not know ack"):
        outcome_of(unknown, ack_call())


def test_bytes_that_are_no_answer_break_the_dialogue() -> None:
    with pytest.raises(BrokenDialogueError):
        Dialogue().reply_in(b"HTTP/1.1 400 Bad Request\r\n\r\n")


@pytest.mark.parametrize("size", [0, limits.FRAME_BYTES_MAX + 1, 2**32 - 1])
def test_a_frame_length_beyond_the_limit_is_refused_before_its_body(size: int) -> None:
    with pytest.raises(BrokenDialogueError):
        body_bytes(size.to_bytes(4))
    with pytest.raises(BrokenDialogueError):
        list(FrameReader().feed(size.to_bytes(4)))
    reader = FrameReader()
    assert list(reader.feed(size.to_bytes(4)[:2])) == []
    with pytest.raises(BrokenDialogueError):
        list(reader.feed(size.to_bytes(4)[2:]))


def test_messages_are_cut_wherever_the_stream_is_cut() -> None:
    messages = [b"a", b"bcd" * 50, b"e" * 5]
    stream = b"".join(len(message).to_bytes(4) + message for message in messages)
    for cut in range(len(stream) + 1):
        reader = FrameReader()
        assert [*reader.feed(stream[:cut]), *reader.feed(stream[cut:])] == messages
    reader = FrameReader()
    assert [m for n in range(len(stream)) for m in reader.feed(stream[n : n + 1])] == messages


def test_an_item_of_the_client_is_encoded_like_the_wire_s_own_struct() -> None:
    item = NewItem("t", b"p", -3, 5, None, 7, 8_000, b"m", None, "d", "o")
    same = S.NewItem("t", b"p", -3, 5, None, 7, 8_000, b"m", None, "d", "o")
    assert Dialogue().frame_of(enqueue_call(item)) == Dialogue().frame_of(enqueue_call(same))


def test_items_have_every_field_that_the_contract_delivers() -> None:
    served = {spec[1] for spec in S.Item.thrift_spec.values()}
    assert set(Item.__slots__) == served

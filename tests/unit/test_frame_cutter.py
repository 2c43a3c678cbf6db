"""Frames are cut out of any stream of bytes, and a peer that has begun one has so long to end it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.model import limits
from foqs.wire.frames import FRAME_LENGTH, LENGTH_BYTES, FrameCutter, FrameDeadline, FrameError, FramePart, FrameTimes

MESSAGES = st.lists(st.binary(min_size=1, max_size=40), max_size=12)


def frame(message: bytes) -> bytes:
    return len(message).to_bytes(LENGTH_BYTES, "big") + message


def messages_of(cutter: FrameCutter) -> list[bytes]:
    found = []
    while (message := cutter.next_message()) is not None:
        found.append(message)
    return found


@given(MESSAGES, st.lists(st.integers(1, 60), max_size=40), st.integers(0, 20))
def test_a_stream_in_any_pieces_gives_its_messages(messages: list[bytes], sizes: list[int], cut_off: int) -> None:
    stream = b"".join(map(frame, messages))
    stream = stream[: len(stream) - cut_off] if cut_off < len(stream) else stream
    whole, rest = [], stream
    while len(rest) >= LENGTH_BYTES and len(rest) >= LENGTH_BYTES + int.from_bytes(rest[:LENGTH_BYTES], "big"):
        end = LENGTH_BYTES + int.from_bytes(rest[:LENGTH_BYTES], "big")
        whole.append(rest[LENGTH_BYTES:end])
        rest = rest[end:]
    cutter, found, at = FrameCutter(), [], 0
    for size in [*sizes, len(stream)]:
        if piece := stream[at : at + size]:
            cutter.feed(piece)
            found += messages_of(cutter)
            at += size
    assert found == whole
    assert all(isinstance(message, bytes) for message in found)
    assert cutter.buffered_bytes == len(rest)
    assert cutter.head(7) == rest[:7]
    if rest:
        is_header = len(rest) < LENGTH_BYTES
        assert cutter.missing() is (FramePart.HEADER if is_header else FramePart.BODY)
        assert cutter.body_bytes() == (0 if is_header else int.from_bytes(rest[:LENGTH_BYTES], "big"))


def test_messages_are_taken_one_by_one_and_the_others_wait() -> None:
    cutter = FrameCutter()
    cutter.feed(frame(b"one") + frame(b"two"))
    assert cutter.next_message() == b"one"
    cutter.feed(frame(b"three"))
    assert cutter.buffered_bytes == len(frame(b"two") + frame(b"three"))
    assert messages_of(cutter) == [b"two", b"three"]


@pytest.mark.parametrize("length", [0, limits.FRAME_BYTES_MAX + 1, 2**32 - 1])
def test_a_length_that_no_frame_may_have_is_refused_before_its_body_comes(length: int) -> None:
    cutter = FrameCutter()
    cutter.feed(frame(b"good") + length.to_bytes(LENGTH_BYTES, "big"))
    assert cutter.next_message() == b"good"
    for _ in range(2):
        with pytest.raises(FrameError) as caught:
            cutter.next_message()
        assert caught.value.reason == FRAME_LENGTH


def test_what_was_forgotten_does_not_come_back() -> None:
    cutter = FrameCutter()
    cutter.feed(frame(b"one")[:-1])
    assert cutter.next_message() is None
    cutter.clear()
    cutter.feed(frame(b"two"))
    assert messages_of(cutter) == [b"two"]


def deadline() -> FrameDeadline:
    times = FrameTimes(first_frame_ms_max=10_000, header_ms_max=5_000, body_ms_min=2_000, body_bytes_per_ms_min=100)
    return FrameDeadline(times, 100.0)


def ends_at(one: FrameDeadline, now_s: float) -> bool:
    """Whether it ends at that moment, to a millisecond."""
    return one.is_over(now_s + 0.0005) and not one.is_over(now_s - 0.0005)


def test_a_new_connection_has_so_long_for_its_first_header_however_it_begins() -> None:
    one = deadline()
    one.await_part(FramePart.HEADER, 0, 109.0)
    assert one.awaited is FramePart.FIRST_FRAME
    assert ends_at(one, 110.0)


def test_each_part_of_a_frame_has_its_time_and_more_bytes_of_it_do_not_move_that() -> None:
    one = deadline()
    one.await_nothing()
    assert not one.is_over(1e9)
    one.await_part(FramePart.HEADER, 0, 200.0)
    one.await_part(FramePart.HEADER, 0, 204.0)
    assert ends_at(one, 205.0)
    assert one.partial_since_s is None
    one.await_part(FramePart.BODY, 300_000, 204.0)
    one.await_part(FramePart.BODY, 300_000, 208.0)
    assert ends_at(one, 209.0)
    assert one.partial_since_s == 204.0
    one.await_nothing()
    assert (one.awaited, one.partial_since_s, one.is_over(1e9)) == (None, None, False)


def test_a_deadline_stands_still_while_the_host_does_not_read() -> None:
    one = deadline()
    one.await_part(FramePart.BODY, 100_000, 200.0)
    one.pause(201.0)
    assert one.is_paused
    assert not one.is_over(1e9)
    one.resume(231.0)
    assert not one.is_paused
    assert ends_at(one, 233.0)
    assert one.partial_since_s == 230.0
    one.resume(500.0)
    assert ends_at(one, 233.0)


def test_a_part_that_begins_in_a_pause_has_all_of_its_time_after_it() -> None:
    one = deadline()
    one.await_nothing()
    one.pause(200.0)
    one.await_part(FramePart.HEADER, 0, 250.0)
    one.resume(300.0)
    assert ends_at(one, 305.0)

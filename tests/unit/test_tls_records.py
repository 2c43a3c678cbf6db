"""The lengths of TLS records, against one that cuts the whole stream."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from foqs.transport.tls.records import HEAD_BYTES, RecordMeter


def partial_bytes_of(stream: bytes) -> int:
    """The bytes behind the last whole record."""
    at = 0
    while len(stream) - at >= HEAD_BYTES:
        end = at + HEAD_BYTES + int.from_bytes(stream[at + 3 : at + HEAD_BYTES], "big")
        if end > len(stream):
            break
        at = end
    return len(stream) - at


@given(
    st.lists(st.integers(0, 40), max_size=12),
    st.lists(st.integers(0, 300), max_size=12),
    st.integers(0, 60),
)
def test_the_bytes_of_the_begun_record_are_known_wherever_the_stream_is_cut(
    sizes: list[int], cuts: list[int], dropped_bytes: int
) -> None:
    stream = b"".join(b"\x17\x03\x03" + size.to_bytes(2, "big") + b"x" * size for size in sizes)
    stream = stream[: max(0, len(stream) - dropped_bytes)]
    meter, places = RecordMeter(), sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    for start, end in pairwise(places):
        piece, at = stream[start:end], 0
        while at < len(piece):
            before, at = at, meter.end_of_record(piece, at)
            assert before < at
            assert meter.partial_bytes == partial_bytes_of(stream[: start + at])
            assert at == len(piece) or not meter.partial_bytes, "it stops at the end of each record"

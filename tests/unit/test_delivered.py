"""The answer to a dequeue is the same in bytes, in whichever parts its items were delivered."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from foqs.model import ids
from foqs.model.calls import Delivery
from foqs.model.delivered import Delivered, DeliveredBundle
from foqs.transport.verb_table import dequeue_response
from foqs.wire.codec import DEQUEUE, Codec

KEYS = st.one_of(st.integers(1, 300), st.integers(2**40 - 20, 2**40 + 20), st.integers(1, 2**63 - 500))


@st.composite
def parts(draw: st.DrawFn) -> Delivery | DeliveredBundle:
    shard_id, key, number = draw(st.integers(0, 4_095)), draw(KEYS), draw(st.integers(1, 300))
    payloads = draw(st.lists(st.binary(max_size=60), min_size=1, max_size=40))
    first = Delivery(
        ids.item_id(shard_id, key),
        ids.receipts(shard_id, [key], [number])[0],
        draw(st.sampled_from(["t", "%b%x", "ü", "a" * 37])),
        draw(st.integers(-(2**31), 2**31 - 1)),
        1,
        2,
        draw(st.integers(0, 2**45)),
        draw(st.integers(1, 9)),
        payloads[0],
        draw(st.sampled_from([b"", b"%x%%"])),
        draw(st.sampled_from([None, "%b"])),
        None,
        draw(st.sampled_from([None, "g%"])),
    )
    return first if len(payloads) == 1 else DeliveredBundle(first, shard_id, key, number, payloads)


@given(st.lists(parts(), max_size=5))
def test_an_answer_has_the_same_bytes_in_bundles_and_item_by_item(found: list[Delivery | DeliveredBundle]) -> None:
    codec, delivered = Codec(), Delivered(found)
    alone = codec.encode_reply(DEQUEUE, dequeue_response(list(delivered)), 7)
    assert codec.encode_delivered(DEQUEUE, delivered.parts, len(delivered), 7) == alone


def test_the_items_of_a_bundle_have_ids_and_receipts_of_their_own() -> None:
    first = Delivery("3-ff", "3-ff:2", "t", 5, 1, 2, 3, 2, b"a", b"m")
    delivered = Delivered([DeliveredBundle(first, 3, 0xFF, 2, [b"a", b"b"])])
    assert len(delivered) == 2
    assert [(item.id, item.receipt, item.payload) for item in delivered] == [
        ("3-ff", "3-ff:2", b"a"),
        ("3-100", "3-100:2", b"b"),
    ]
    assert delivered[1].metadata == b"m"
    assert not Delivered([])

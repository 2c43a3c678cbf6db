"""Items that lie in one buffer behave as a list of them does."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from foqs.client.encoded import EncodedItems

lists = st.lists(st.binary(max_size=5), max_size=12)


@given(lists, st.integers(-15, 15) | st.none(), st.integers(-15, 15) | st.none(), st.sampled_from([1, 2, None]))
def test_slices_and_items_are_those_of_a_list(
    items: list[bytes], first: int | None, last: int | None, step: int | None
) -> None:
    encoded = EncodedItems.of(items)
    part = encoded[first:last:step]
    assert [bytes(item) for item in part] == items[first:last:step]
    assert [bytes(part[at]) for at in range(len(part))] == items[first:last:step]
    assert part.size_bytes == sum(map(len, items[first:last:step]))
    assert b"".join(part.parts()) == b"".join(items[first:last:step])
    if items:
        assert bytes(encoded[-1]) == items[-1]


@given(lists, st.integers(1, 5), st.integers(0, 12))
def test_batches_hold_all_items_in_order_and_keep_their_bounds(
    items: list[bytes], items_max: int, bytes_max: int
) -> None:
    batches = list(EncodedItems.of(items).batches(items_max, bytes_max))
    assert [bytes(item) for _, batch in batches for item in batch] == items
    assert [at for at, _ in batches] == [sum(len(b) for _, b in batches[:n]) for n in range(len(batches))]
    for at, batch in batches:
        assert 1 <= len(batch) <= items_max
        assert batch.size_bytes <= bytes_max or len(batch) == 1
        is_last = at + len(batch) == len(items)
        if not is_last and len(batch) < items_max:
            assert batch.size_bytes + len(items[at + len(batch)]) > bytes_max, "one more would have fitted"

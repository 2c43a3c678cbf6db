"""The way from a dedup id to its slot is part of the contract: clients in any language compute it."""

import pytest

from foqs.model.slots import SLOTS_COUNT, slot_of


@pytest.mark.parametrize(
    ("namespace", "dedup_id", "key_spread", "slot"),
    [("jobs", "order-1", 1, 453), ("jobs", "order-2", 1, 453), ("jobs", "order-1", 4, 456), ("jobs", "größe", 64, 462)],
)
def test_a_slot_is_what_other_clients_compute(namespace: str, dedup_id: str, key_spread: int, slot: int) -> None:
    assert slot_of(namespace, dedup_id, key_spread) == slot


@pytest.mark.parametrize("key_spread", [1, 2, 64, SLOTS_COUNT])
def test_a_namespace_has_as_many_slots_in_a_row_as_its_spread(key_spread: int) -> None:
    first = slot_of("jobs", "", 1)
    slots = {slot_of("jobs", f"id-{number}", key_spread) for number in range(20 * key_spread)}
    assert slots == {(first + at) % SLOTS_COUNT for at in range(key_spread)}

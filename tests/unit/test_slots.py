"""The way from a dedup id to its slot is part of the contract: clients in any language compute it."""

import pytest

from foqs.model.slots import SLOTS_COUNT, first_table, slot_of, unpacked


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


def test_neighbouring_slots_lead_to_different_shards_and_all_shards_get_slots() -> None:
    table = first_table([7, 2, 5])
    assert table.shards[:7] == (2, 5, 7, 2, 5, 7, 2)
    assert len(table.shards) == SLOTS_COUNT
    assert table == first_table([5, 7, 2])


@pytest.mark.parametrize("shards", [[0], [65_535, 0, 300], range(2_000)])
def test_a_copy_of_a_table_is_the_table(shards: list[int]) -> None:
    table = first_table(shards)
    assert unpacked(table.version, table.packed()) == table
    assert len(table.packed()) == 2 * SLOTS_COUNT

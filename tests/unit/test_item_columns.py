"""The classes that hold rows and contents of items have what the table of columns has."""

from __future__ import annotations

from dataclasses import fields
from struct import calcsize

from foqs.model import limits
from foqs.model.calls import NO_CONTENT, Delivery, ItemContent, StoredItem
from foqs.shard.port import ClaimedRow, FetchedRow, ItemRow
from foqs.storage.schema import item_columns
from foqs.storage.schema.item_columns import (
    CONTENT_COLUMNS,
    FAILURE_COLUMNS,
    GIVEN_COLUMNS,
    ITEM_COLUMNS,
    KEY_COLUMNS,
    STATE_COLUMNS,
    names,
)
from tests.contract.owner import new_item

GROUPS = {"key": KEY_COLUMNS, "given": GIVEN_COLUMNS, "state": STATE_COLUMNS, "content": CONTENT_COLUMNS,
          "failures": FAILURE_COLUMNS}  # fmt: skip
ITEM = new_item(7, priority=3, due_at=2_000, enqueued_at=1_000)


def test_a_row_has_the_columns_of_the_table_in_their_order_and_its_content_before_its_failures() -> None:
    fields_of_rows = ["key" if name == "id" else name for name in names(ITEM_COLUMNS)]
    assert [*ItemRow._fields[:-2], *ItemContent._fields, "errors"] == fields_of_rows
    assert ItemRow._fields[-2:] == ("content", "errors")
    assert list(ItemContent._fields) == names(CONTENT_COLUMNS)


def test_what_is_read_of_a_row_is_a_part_of_it_in_its_order() -> None:
    for part in (FetchedRow, ClaimedRow):
        stored = [name for name in part._fields if name != "was_dead"]  # It is told by the reason.
        assert stored == [name for name in ItemRow._fields if name in part._fields]


def test_what_is_told_of_an_item_has_its_content_in_one_piece() -> None:
    told = NO_CONTENT.fields()
    for cls in (Delivery, StoredItem):
        told_fields = [field.name for field in fields(cls)]
        at = told_fields.index(ItemContent._fields[0])
        assert told_fields[at : at + len(told)] == list(ItemContent._fields)


def test_the_integers_of_an_item_are_those_of_the_columns() -> None:
    given = {name: getattr(ITEM, name) for name in names(GIVEN_COLUMNS)} | {"topic": ITEM.topic.number}
    assert ITEM.content is not None
    assert item_columns.packed_integers(ITEM) == (*given.values(), *map(len, ITEM.content))
    assert item_columns.inserted_integers(ITEM) == (7, 0, 0, *given.values())
    ready = new_item(8, priority=3)
    assert item_columns.inserted_integers(ready) == (
        8,
        ready.topic.number,
        3,
        *item_columns.packed_integers(ready)[: len(given)],
    )


def test_columns_come_in_the_order_of_their_migrations_and_later_ones_have_a_default() -> None:
    for group in GROUPS.values():
        assert [column.since for column in group] == sorted(column.since for column in group)
    for column in (*GIVEN_COLUMNS, *CONTENT_COLUMNS):
        kind = bytes if column in CONTENT_COLUMNS else int
        assert column.since == 1 or isinstance(column.default, kind)


def test_the_code_of_an_integer_holds_what_its_column_does() -> None:
    sizes = {"tinyint": 1, "int": 4, "bigint": 8}
    for column in (*KEY_COLUMNS, *GIVEN_COLUMNS):
        kind, *_ = column.sql_type.split()
        assert calcsize(f">{column.code}") == sizes[kind]
        assert (
            column.code.isupper() == ("unsigned" in column.sql_type) == bool(column.wire_type & item_columns.UNSIGNED)
        )


def test_the_code_of_bytes_holds_the_length_that_they_may_have() -> None:
    longest = {"mediumblob": limits.PAYLOAD_BYTES_MAX, "blob": limits.METADATA_BYTES_MAX}
    for column in CONTENT_COLUMNS:
        kind, *_ = column.sql_type.split()
        most = longest.get(kind) or int(kind.removeprefix("varbinary(").removesuffix(")"))
        assert most < 1 << 8 * calcsize(f">{column.code}")

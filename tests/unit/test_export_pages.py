"""One page of an export, made of what was packed and of what had rows a moment later."""

from __future__ import annotations

from typing import Any, cast

from foqs.model.item import ItemContent
from foqs.shard.port import ItemRow
from foqs.storage.shard.export_pages import ExportCriteria, KeyPage, merged_by_key


def row(key: int, lane: int = 1) -> ItemRow:
    return ItemRow(key, lane, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, None, None, ItemContent(b"1234", b"", b""))


def criteria(limit: int = 10, bytes_max: int = 1_000) -> ExportCriteria:
    return cast(
        ExportCriteria,
        cast(Any, ExportCriteria)._make([0, 100, limit, bytes_max, *[None] * (len(ExportCriteria._fields) - 4)]),
    )


def test_an_item_that_got_a_row_meanwhile_comes_once_and_as_its_row_says() -> None:
    page = merged_by_key(KeyPage([row(1), row(2)], 100), KeyPage([row(2, lane=7), row(3)], 100), criteria())
    assert [(one.key, one.lane) for one in page.rows] == [(1, 1), (2, 7), (3, 1)]
    assert page.up_to == 100


def test_a_page_ends_where_the_first_of_its_parts_does() -> None:
    page = merged_by_key(KeyPage([row(1), row(5)], 5), KeyPage([row(2)], 3), criteria())
    assert ([one.key for one in page.rows], page.up_to) == ([1, 2], 3)


def test_a_page_that_is_full_ends_with_its_last_row() -> None:
    parts = KeyPage([row(1), row(3)], 100), KeyPage([row(2), row(4)], 100)
    for full in (criteria(limit=3), criteria(bytes_max=12)):
        page = merged_by_key(*parts, full)
        assert ([one.key for one in page.rows], page.up_to) == ([1, 2, 3], 3)

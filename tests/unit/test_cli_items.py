"""Pages of items as tables."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from foqs.cli.item_commands import _print_page
from foqs.cli.output import Output
from foqs.model.calls import NO_CONTENT, DeliveryPolicy, ItemState, StoredItem, StoredItemPage

ONE = StoredItem("0-1", "t", ItemState.READY, 5, 0, 0, 0, 2, DeliveryPolicy.AT_LEAST_ONCE, *NO_CONTENT.fields())


def table(capsys: pytest.CaptureFixture[str], *items: StoredItem) -> list[list[str]]:
    remote: Any = SimpleNamespace(output=Output(as_json=False))
    _print_page(remote, StoredItemPage(list(items), ""))
    return [line.split("\t") for line in capsys.readouterr().out.splitlines()]


def test_a_text_that_only_some_items_have_is_a_column_where_one_has_it(capsys: pytest.CaptureFixture[str]) -> None:
    dead = replace(ONE, state=ItemState.DEAD, death_reason="too many attempts")
    heads, *rows = table(capsys, ONE, dead)
    assert "DEATH REASON" in heads
    at = heads.index("DEATH REASON")
    assert rows[1][at] == "too many attempts"
    assert rows[0][at] != rows[1][at]
    assert "DEATH REASON" not in table(capsys, ONE)[0]

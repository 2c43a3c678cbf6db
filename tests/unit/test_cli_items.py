"""Pages of items as tables."""

from __future__ import annotations

import inspect
import json
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from foqs.cli.item_commands import _print_page, item
from foqs.cli.output import Output
from foqs.model.calls import NO_CONTENT, DeliveryPolicy, ItemFailure, ItemState, StoredItem, StoredItemPage

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


HOSTILE = ItemFailure(1_700_000_000_000, 2, "bad \x1b[2J\u202ecard")
"""As a host before this one, or another program with rights on the database, could have stored it."""


def test_the_last_error_is_a_column_where_an_item_has_one_and_steers_no_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    failed = replace(ONE, errors=[HOSTILE, ItemFailure(0, 1, "first")])
    heads, *rows = table(capsys, ONE, failed)
    at = heads.index("LAST ERROR")
    assert rows[0][at] == "-"
    assert rows[1][at] == "bad \N{REPLACEMENT CHARACTER}[2J\N{REPLACEMENT CHARACTER}card"
    assert "LAST ERROR" not in table(capsys, ONE)[0]


@pytest.mark.parametrize("as_json", [False, True])
def test_one_item_is_shown_with_all_its_errors(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, as_json: bool
) -> None:
    failed = replace(ONE, errors=[HOSTILE, ItemFailure(1_600_000_000_000, 1, "first")])
    admin = SimpleNamespace(get_item=lambda namespace, item_id: failed)
    remote: Any = SimpleNamespace(admin=lambda: nullcontext(admin), output=Output(as_json=as_json))
    callback: Any = item.commands["get"].callback
    inspect.unwrap(callback)(remote, "jobs", "0-1")
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\u202e" not in out
    if as_json:
        assert [one["attempt"] for one in json.loads(out)["errors"]] == [2, 1]
        assert json.loads(out)["errors"][0]["reason"] == HOSTILE.reason
        return
    lines = out.splitlines()
    assert not any(line.startswith("errors") for line in lines)
    assert [line.split("\t")[0] for line in lines[-2:]] == ["error of attempt 2", "error of attempt 1"]
    assert lines[-1].endswith(" first")

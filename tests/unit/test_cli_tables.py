"""How tables look at a terminal and in a pipe."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from foqs.cli.main import _COMMANDS, cli
from foqs.cli.tables import cell_of, table_lines, width_of

COLUMNS = ["ID", "STATE", "PAYLOAD"]


def test_for_programs_cells_are_whole_and_parted_by_tabs():
    lines = list(table_lines(COLUMNS, [("1-1", "ready", "x" * 500), ("1-2", None, b"a\tb\nc")], None, is_last_cut=True))
    assert lines == ["ID\tSTATE\tPAYLOAD", "1-1\tready\t" + "x" * 500, "1-2\t-\ta\N{REPLACEMENT CHARACTER}b�c"]


def test_at_a_terminal_columns_are_aligned_and_the_last_is_not_padded():
    lines = list(table_lines(COLUMNS, [("1-1", "ready", "x"), ("1-200", "dead", "y" * 30)], 80))
    assert lines == ["ID     STATE  PAYLOAD", "1-1    ready  x", "1-200  dead   " + "y" * 30]


def test_a_payload_is_cut_where_the_terminal_ends_and_nothing_else_is():
    rows = [("1-1", "ready", "y" * 300), ("1-2", "ready", "中" * 300)]
    _, first, second = table_lines(COLUMNS, rows, 40, is_last_cut=True)
    assert first == "1-1  ready  " + "y" * 27 + "…"
    assert second == "1-2  ready  " + "中" * 13 + "…"
    assert max(width_of(first), width_of(second)) <= 40
    whole = list(table_lines(COLUMNS, rows, 40))
    assert whole[1].endswith("y" * 300)


@pytest.mark.parametrize("width", [1, 10, 20])
def test_what_does_not_fit_becomes_a_record_of_several_lines(width):
    lines = list(table_lines(COLUMNS, [("1-1", "ready", "x" * 30), ("1-2", "dead", "y")], width))
    assert lines == [
        "ID       1-1",
        "STATE    ready",
        "PAYLOAD  " + "x" * 30,
        "",
        "ID       1-2",
        "STATE    dead",
        "PAYLOAD  y",
    ]


def test_every_cell_stands_in_its_column_whatever_its_characters_are_as_wide_as():
    lines = list(table_lines(["A", "B"], [("中文", "x"), ("é", "x"), ("e\u0301", "x")], 80))
    assert lines == ["A     B", "中文  x", "é     x", "e\u0301     x"]


def test_rows_are_printed_before_the_last_one_is_there():
    def rows() -> Iterator[tuple[object, ...]]:
        yield from ((number, "ready") for number in range(5_000))
        raise RuntimeError("the rest is not there yet")

    lines = table_lines(["ID", "STATE"], rows(), 80)
    assert [next(lines) for _ in range(4_000)][-1] == "3998  ready"


def test_a_table_without_rows_is_its_head():
    assert list(table_lines(COLUMNS, [], 80)) == ["ID  STATE  PAYLOAD"]
    assert list(table_lines(COLUMNS, [], None)) == ["ID\tSTATE\tPAYLOAD"]


def test_cells_have_no_control_characters():
    assert cell_of("\x1b[31mred\r\n") == "�[31mred��"
    assert (cell_of(True), cell_of(None), cell_of(7)) == ("true", "-", "7")


def test_help_imports_nothing_that_a_host_or_a_client_needs():
    code = (
        "import sys\nfrom foqs.cli.main import cli\n"
        "try: cli(['--help'])\nexcept SystemExit: pass\n"
        "heavy = {'pymysql', 'sqlalchemy', 'thriftpy2', 'rich', 'pydantic', 'structlog', 'uvloop', 'asyncio', 'ssl'}\n"
        "print(sorted(heavy & set(sys.modules)), len([name for name in sys.modules if name.startswith('foqs')]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    imported, count = done.stdout.splitlines()[-1].rsplit(maxsplit=1)
    assert imported == "[]"
    assert int(count) < 12


@pytest.mark.parametrize("name", _COMMANDS)
def test_the_summary_of_a_command_is_its_own_first_sentence(name):
    command = cli.get_command(None, name)
    assert command is not None
    assert _COMMANDS[name].summary == command.get_short_help_str(200)

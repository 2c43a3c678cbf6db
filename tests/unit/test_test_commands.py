"""`make test`, `make test-deep` and `make test-slow` together run every test once; `.ci/run` runs the first two."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from scripts.test_counts import COMMANDS, RESULTS, main

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text()


def recipe(target: str) -> str:
    found = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    assert found is not None, target
    return found[1]


def commands(target: str) -> list[str]:
    """What pytest is told by it."""
    return re.findall(r"\$\(BIN\)/pytest (.*?)(?: \|\| .*)?$", recipe(target), re.MULTILINE)


RUNS = [*commands("test"), *commands("test-deep"), *commands("test-slow")]


def test_each_test_is_run_by_one_of_the_commands() -> None:
    selections = [re.findall(r'-m "(.*?)"', words)[0] for words in RUNS]
    for deep, alone, slow in itertools.product([False, True], repeat=3):
        marks = {"deep": deep, "alone": alone, "slow": slow}
        assert [eval(selection, dict(marks)) for selection in selections].count(True) == 1, marks


def test_markers_alone_select_tests_and_those_that_run_alone_are_where_they_are_sought() -> None:
    options = r'\$\(SIDE_BY_SIDE\)|-n \d+|-m ".*?"|--junit-xml \S+'
    where = ["tests/integration", "tests/e2e"]
    assert [re.sub(options, "", words).split() for words in RUNS] == [[], [], where, [], where]
    mark = "mark." + "alone"
    marked = {path.relative_to(ROOT).parts[:2] for path in (ROOT / "tests").rglob("*.py") if mark in path.read_text()}
    assert marked == {("tests", "integration"), ("tests", "e2e")}


def test_continuous_integration_runs_both_also_when_the_first_one_failed() -> None:
    lines = (ROOT / ".ci/run").read_text().splitlines()
    made = [line for line in lines if line.startswith("make")]
    assert made == [f"{command} || failed=1" for command in [*COMMANDS, "make image"]]
    assert lines[-1] == "exit $failed"


def test_the_counts_are_of_the_files_that_the_commands_write() -> None:
    assert f"RESULTS := {RESULTS}\n" in MAKEFILE
    for command, files in COMMANDS.items():
        assert re.findall(r"--junit-xml \$\(RESULTS\)/(\S+)", recipe(command.removeprefix("make "))) == files


def write(path: Path, tests: int, failures: int = 0, errors: int = 0, skipped: int = 0) -> None:
    path.write_text(
        f'<testsuites><testsuite name="pytest" tests="{tests}" failures="{failures}" errors="{errors}" '
        f'skipped="{skipped}"/></testsuites>'
    )


def test_counts_are_told_by_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "test.xml", 6_130, skipped=7)
    write(tmp_path / "test-deep.xml", 1_000)
    write(tmp_path / "test-deep-alone.xml", 12)
    assert main(tmp_path) == 0
    assert capsys.readouterr().out.splitlines() == [
        "make test: 6,123 passed, 0 failed, 7 skipped",
        "make test-deep: 1,012 passed, 0 failed, 0 skipped",
    ]


def test_what_failed_and_what_was_not_run_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "test.xml", 10, failures=1, errors=1)
    write(tmp_path / "test-deep.xml", 1)
    assert main(tmp_path) == 1
    assert capsys.readouterr().out.splitlines() == [
        "make test: 8 passed, 2 failed, 0 skipped",
        "make test-deep: 1 passed, 0 failed, 0 skipped, test-deep-alone.xml is missing",
    ]
    write(tmp_path / "test.xml", 10)
    assert main(tmp_path) == 1, "some were not run"
    write(tmp_path / "test-deep-alone.xml", 1)
    assert main(tmp_path) == 0

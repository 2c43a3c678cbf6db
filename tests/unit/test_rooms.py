"""Who may import whom beside the layers of foqs (pyproject.toml): what tests and loads share stands with the tests."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]


def _imported(folder: str) -> Iterator[tuple[str, str]]:
    """File and module for each import."""
    for path in sorted((_ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield str(path.relative_to(_ROOT)), alias.name
            elif isinstance(node, ast.ImportFrom):
                yield str(path.relative_to(_ROOT)), node.module or ""


@pytest.mark.parametrize("folder", ["support", "histories", "sim", "contract"])
def test_what_tests_share_stands_on_no_load(folder: str) -> None:
    modules = list(_imported(f"tests/{folder}"))
    assert modules
    assert [at for at in modules if at[1].split(".")[0] == "loadtest"] == []


def test_loads_use_of_the_tests_only_what_is_shared() -> None:
    used = [at for at in _imported("loadtest") if at[1].split(".")[0] == "tests"]
    assert used
    assert [at for at in used if not at[1].startswith(("tests.support", "tests.histories"))] == []


def test_the_queue_uses_neither() -> None:
    assert [at for at in _imported("foqs") if at[1].split(".")[0] in ("tests", "loadtest")] == []

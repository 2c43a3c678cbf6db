"""Who may import whom beside the layers of foqs (pyproject.toml): what tests and loads share stands with the tests."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.sources import parsed

_ROOT = Path(__file__).parents[2]


def _imported(folder: str) -> Iterator[tuple[str, str]]:
    """File and module for each import."""
    for path in sorted((_ROOT / folder).rglob("*.py")):
        for node in ast.walk(parsed(path)):
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


def test_no_two_files_of_the_queue_have_one_name() -> None:
    """A file is found by its name alone. The blocking client is generated from the asyncio one, with its names."""
    files: defaultdict[str, list[str]] = defaultdict(list)
    for path in sorted((_ROOT / "foqs").rglob("*.py")):
        name = str(path.relative_to(_ROOT))
        if path.name != "__init__.py" and not name.startswith("foqs/client/sync/"):
            files[path.name].append(name)
    assert len(files) > 250
    assert {name: of for name, of in files.items() if len(of) > 1} == {}


@pytest.mark.parametrize("room", ["host", "cluster", "storage"])
def test_a_folder_says_what_it_is_for_and_where_to_begin(room: str) -> None:
    folders = sorted((_ROOT / "foqs" / room).rglob("__init__.py"))
    assert 5 <= len(folders) <= 10, "with the room itself"
    for path in folders:
        lines = (ast.get_docstring(parsed(path)) or "").split("\n")
        assert len(lines) == 4, f"{path}: what it is for, an empty line, what it must not know, where to begin"
        named = re.findall(r"`(\w+)`", lines[3])
        assert lines[3].startswith("Begin with `"), path
        assert [name for name in named if not list(path.parent.glob(f"{name}*"))] == [], path

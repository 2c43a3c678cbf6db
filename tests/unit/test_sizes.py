"""Code that can be read: no file and no function is longer than a reader can hold."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.support.sources import parsed

ROOT = Path(__file__).parents[2]
FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 60
"""Without its head, which names arguments, and its docstring."""


def _files() -> Iterator[Path]:
    """All Python of this tree, but what is installed or built in it."""
    for name in ("foqs", "loadtest", "scripts", "tests", "pyspark_foqs.py"):
        found = ROOT / name
        yield from sorted(path for path in found.rglob("*.py") if "node_modules" not in path.parts) or [found]


def _is_generated(path: Path) -> bool:
    return path.read_text().startswith("# Generated from")


def test_no_file_is_longer_than_a_reader_can_hold() -> None:
    lines = {path: len(path.read_text().splitlines()) for path in _files() if not _is_generated(path)}
    assert len(lines) > 400, "they are all of the tree"
    assert [f"{path.relative_to(ROOT)}: {count}" for path, count in lines.items() if count > FILE_LINES_MAX] == []


def test_no_function_is_longer_than_a_reader_can_hold() -> None:
    found = []
    for path in _files():
        if _is_generated(path):
            continue
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                body = node.body[1:] if ast.get_docstring(node) is not None else node.body
                count = (node.end_lineno or 0) - body[0].lineno + 1 if body else 0
                if count > FUNCTION_LINES_MAX:
                    found.append(f"{path.relative_to(ROOT)}: {node.name} has {count} lines")
    assert not found, "\n".join(found)

"""What a reader may rely on in the code: classes say what they are for, and a name has one meaning."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import foqs

_ROOT = Path(foqs.__file__).parent
_METHODS_MIN = 5
"""A class with so many methods needs more than its name."""
_GENERATED = ("client/sync/",)
"""These files stand for others."""


def _classes() -> Iterator[tuple[str, ast.ClassDef]]:
    for path in sorted(_ROOT.rglob("*.py")):
        name = str(path.relative_to(_ROOT))
        if not name.startswith(_GENERATED):
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef):
                    yield name, node


def test_a_class_with_many_methods_says_what_it_is_for() -> None:
    silent = [
        f"{file}: {node.name}"
        for file, node in _classes()
        if ast.get_docstring(node) is None
        and sum(isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef) for part in node.body) >= _METHODS_MIN
    ]
    assert silent == []


def test_the_public_name_of_a_class_is_that_of_one_class() -> None:
    files: defaultdict[str, list[str]] = defaultdict(list)
    for file, node in _classes():
        if not node.name.startswith("_"):
            files[node.name].append(file)
    assert {name: of for name, of in files.items() if len(of) > 1} == {}

"""A host is composed: no class of it extends another one of foqs, but for a few that are made for it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.support.sources import parsed

_ROOT = Path(__file__).parents[2]
_COMPOSED = ("host", "cluster", "transport", "storage")
_TO_EXTEND = {"Service", "Operation"}
_EXTENDED = {
    "Answer": "a completion that a caller can wait for",
    "CallerQueue": "a member of a round",
    "Flow": "a member of a round",
    "Session": "the driver's connection, which a guarded login extends as well",
}
"""The classes that extend another one of foqs, each with the reason."""


def _name_of(base: ast.expr) -> str:
    """The name of a base class, without its module and its type arguments."""
    if isinstance(base, ast.Subscript):
        base = base.value
    return base.attr if isinstance(base, ast.Attribute) else ast.unparse(base)


def _classes(folder: str) -> Iterator[tuple[str, list[str]]]:
    """Each class of a folder, with the names of its bases."""
    for path in sorted((_ROOT / "foqs" / folder).rglob("*.py")):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef):
                yield node.name, [_name_of(base) for base in node.bases]


def test_a_host_is_composed_and_not_inherited() -> None:
    ours = {name for name, bases in _classes("") if "Protocol" not in bases and not name.endswith("Error")}
    extending = {
        name
        for folder in _COMPOSED
        for name, bases in _classes(folder)
        if not name.endswith("Error") and ours.intersection(bases) - _TO_EXTEND
    }
    assert extending == _EXTENDED.keys()

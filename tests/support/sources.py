"""Python files as trees, for tests of how the code is written."""

from __future__ import annotations

import ast
from pathlib import Path


def parsed(path: Path) -> ast.Module:
    """Return the tree of a file.

    CPython 3.11 counts the depth of trees for all threads together, and fails now and then for no reason of the file's
    (gh-106905). The next try succeeds.
    """
    for _ in range(9):
        try:
            return ast.parse(path.read_text())
        except SystemError:
            continue
    return ast.parse(path.read_text())

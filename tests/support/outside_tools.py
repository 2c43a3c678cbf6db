"""Programs that tests use and that no package of Python brings: promtool, systemd-analyze, kubectl."""

from __future__ import annotations

import os
import shutil

import pytest


def outside_tool(name: str, package: str, *, is_optional: bool = False) -> str:
    """The path of a program. Without it the test is skipped, or fails where all tools are to be there (`.ci/run`),
    unless it is optional.
    """
    path = shutil.which(name)
    if path is not None:
        return path
    missing = f"{name} is missing: install the package {package}, or run scripts/test-tools.sh"
    if os.environ.get("FOQS_CI") and not is_optional:
        pytest.fail(missing)
    pytest.skip(missing)

"""Programs that tests use and that no package of Python brings: promtool, systemd-analyze."""

from __future__ import annotations

import os
import shutil

import pytest


def outside_tool(name: str, package: str) -> str:
    """The path of a program. Without it the test is skipped, or fails where all tools are to be there (`.ci/run`)."""
    path = shutil.which(name)
    if path is not None:
        return path
    missing = f"{name} is missing: install the package {package}, or run scripts/test-tools.sh"
    if os.environ.get("FOQS_CI"):
        pytest.fail(missing)
    pytest.skip(missing)

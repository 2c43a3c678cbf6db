"""Which packages the scripts install where something is missing."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.waiting import PROGRAM_S_MAX

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.mark.parametrize(
    ("has_17", "package"),
    [(True, "openjdk-17-jre-headless"), (False, "default-jre-headless")],
    ids=["bookworm", "trixie"],
)
def test_a_java_runtime_is_one_that_the_release_has(tmp_path: Path, has_17: bool, package: str) -> None:
    for tool in ("sh", "dirname", "env"):
        (tmp_path / tool).symlink_to(shutil.which(tool) or "/missing")
    asked = tmp_path / "asked"
    for tool, text in (
        ("id", "echo 0"),
        ("apt-get", f'echo "$@" >>{asked}'),
        ("apt-cache", "exit 0" if has_17 else "exit 100"),
    ):
        (tmp_path / tool).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / tool).chmod(0o755)
    done = subprocess.run(
        [SCRIPTS / "spark.sh"],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=PROGRAM_S_MAX,
        check=False,
    )
    assert done.returncode == 1, "these packages install nothing"
    assert "name a newer one in PATH" in done.stderr
    assert asked.read_text().splitlines()[-1].split()[-1] == package

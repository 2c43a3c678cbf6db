"""The examples of docs/testing.md are test files: they run with pytest as a user's own would."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import PROGRAM_S_MAX

_ROOT = Path(__file__).parents[2]
_EXAMPLE = re.compile(r"```python\n# (?P<name>\w+\.py)\n(?P<text>.*?)```", re.DOTALL)
_TESTS_COUNT = 11


@pytest.mark.deep
def test_the_examples_pass(tmp_path: Path) -> None:
    page = (_ROOT / "docs/testing.md").read_text()
    examples = [(found["name"], found["text"]) for found in _EXAMPLE.finditer(page)]
    assert len(examples) == page.count("```python"), "an example does not say which file it is"
    assert examples[0][0] == "conftest.py"
    for name, text in examples:
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-W",
            "error",
            "-p",
            "no:cacheprovider",
            "--rootdir",
            tmp_path,
            tmp_path,
        ],
        capture_output=True,
        text=True,
        timeout=PROGRAM_S_MAX,
        check=False,
        env=os.environ | {"PYTHONPATH": str(_ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{_TESTS_COUNT} passed" in done.stdout

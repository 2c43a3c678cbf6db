"""Commands whose stdin, stdout or disk is not there: a message and an exit code, never a traceback."""

from __future__ import annotations

import shlex
import subprocess
import sys

import pytest

from tests.support.waiting import PROGRAM_S_MAX

CONFIG = "config show --meta-url mysql://h/m --shard 0=mysql://h/s"


@pytest.mark.parametrize(
    ("command", "code", "complaint"),
    [
        (f"{CONFIG} >&-", 0, ""),
        (f"{CONFIG} --output json >&-", 0, ""),
        ("enqueue n t --address 127.0.0.1:1 <&-", 2, "stdin holds nothing"),
        ("enqueue n t --address 127.0.0.1:1 <&- >&- 2>&-", 2, ""),
        ("enqueue n t --lines --address 127.0.0.1:1 <&-", 0, "stdin held no line"),
        ("--help >/dev/full", 1, "No space left on device"),
        (f"{CONFIG} >/dev/full", 1, "No space left on device"),
    ],
)
def test_a_stream_that_is_closed_or_full_is_no_traceback(command: str, code: int, complaint: str) -> None:
    foqs = f"exec {shlex.quote(sys.executable)} -m foqs.cli.main {command}"
    done = subprocess.run(["/bin/sh", "-c", foqs], capture_output=True, text=True, timeout=PROGRAM_S_MAX, check=False)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert complaint in done.stderr

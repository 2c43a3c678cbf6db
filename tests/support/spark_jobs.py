"""`foqs spark` commands as a user runs them: in this process, which has a JVM already, or in one of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner, Result

from foqs.cli.main import cli
from tests.support.waiting import PROGRAM_S_MAX

ROOT = Path(__file__).parents[2]
FOQS = ("-c", "from foqs.cli.main import main; main()", "spark")
_QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dspark.ui.enabled=false"


def command(*arguments: str) -> Result:
    """`foqs spark ARGUMENTS`. What the processes of Spark say is not in the result."""
    return CliRunner().invoke(cli, ["spark", *arguments], prog_name="foqs")


def process(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Python with these arguments."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "JAVA_TOOL_OPTIONS": _QUICK_JVM,
    }
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PROGRAM_S_MAX,
        check=False,
    )

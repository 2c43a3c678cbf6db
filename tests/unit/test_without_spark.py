"""Nobody but the users of Spark needs pyspark and pyarrow: all the rest is imported without them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.waiting import PROGRAM_S_MAX

_PROGRAM = """
import importlib, pkgutil, sys
for missing in ("pyspark", "pyarrow", "py4j"):
    sys.modules[missing] = None  # As if it were not installed.
import foqs, loadtest
ours = [*pkgutil.walk_packages(foqs.__path__, "foqs."), *pkgutil.walk_packages(loadtest.__path__, "loadtest.")]
names = {module.name for module in ours}
needs = set()
for name in sorted(names):
    if name.endswith("__main__"):
        continue
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name.partition(".")[0] in ("pyspark", "pyarrow", "py4j"):
            needs.add(name)
        elif name.startswith("foqs."):
            raise
ours = {f"foqs.spark.{name}" for name in ("json_types", "reader", "source", "writer")}
theirs = {f"loadtest.spark.{name}" for name in ("bench", "exact", "faulty", "measured")}
assert needs == ours | theirs, needs
"""


@pytest.mark.deep
def test_only_what_spark_itself_imports_needs_pyspark() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=PROGRAM_S_MAX, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_command_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['pyspark'] = sys.modules['pyspark.sql'] = None; "
        "from foqs.cli.main import main; sys.argv[1:] = ['spark', 'enqueue', '--input', 'x', '--format', 'csv', "
        "'--namespace', 'a', '--addresses', 'h', '--dedup', 'none']; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PROGRAM_S_MAX, check=False
    )
    assert done.returncode == 1
    assert "pip install 'foqs[spark]'" in done.stderr
    assert "Traceback" not in done.stderr

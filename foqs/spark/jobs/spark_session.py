"""The parts that all jobs share: a Spark session while a job runs, and Spark's errors as one line."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ERROR_LINE = re.compile(r"^foqs\.[\w.]+: (.+)$", re.MULTILINE)
"""The last line of a Python traceback within a message of Spark."""

_SETTINGS = {
    # Jobs read no output of Spark's streams. Without this setting Spark logs a stack trace for a missing directory.
    "spark.sql.streaming.fileStreamSink.ignoreMetadata": "true",
}
_PYTHON_VARIABLE, _PYTHON_SETTING = "PYSPARK_PYTHON", "spark.pyspark.python"

master_option: Callable[[Any], Any] = click.option(
    "--master", help="Spark's master, such as spark://host:7077; by default what Spark is configured with."
)


@contextmanager
def session(name: str, master: str | None) -> Iterator[SparkSession]:
    """A session for the job `name`, stopped at the end. Errors of Spark become one line."""
    try:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise click.ClickException(f"Spark is not installed ({error}): pip install 'foqs[spark]'") from error
    builder = SparkSession.builder.appName(f"foqs {name}")
    for key, value in _SETTINGS.items():
        builder = builder.config(key, value)
    # The warning concerns functions on pandas values, and foqs has none.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    try:
        spark = (builder.master(master) if master else builder).getOrCreate()
        _use_this_python(spark)
        try:
            yield spark
        finally:
            spark.stop()
    except (PySparkException, Py4JError) as error:
        messages = _ERROR_LINE.findall(str(error))
        raise click.ClickException(messages[-1] if messages else str(error)) from error


def _use_this_python(spark: SparkSession) -> None:
    """Let tasks on this machine run in the environment of the job, unless Spark is configured otherwise.

    By default Spark runs the `python3` of the PATH, which is another one if the environment is not activated. The
    environment of a cluster's workers is unknown here.
    """
    context = spark.sparkContext
    is_configured = os.environ.get(_PYTHON_VARIABLE) or spark.conf.get(_PYTHON_SETTING, None)
    if context.master.startswith("local") and not context.master.startswith("local-cluster") and not is_configured:
        context.pythonExec = sys.executable

"""What all jobs share: a Spark session for as long as one runs, and errors of Spark as one line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ERROR_LINE = re.compile(r"^foqs\.[\w.]+: (.+)$", re.MULTILINE)
"""The last line of a Python traceback within a message of Spark."""

master_option: Callable[[Any], Any] = click.option(
    "--master", help="Spark's master, such as spark://host:7077; by default what Spark is configured with."
)


@contextmanager
def session(name: str, master: str | None) -> Iterator[SparkSession]:
    """A session for the job `name`, stopped at the end; what Spark raises becomes one line."""
    try:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise click.ClickException(f"Spark is not installed ({error}): pip install 'foqs[spark]'") from error
    builder = SparkSession.builder.appName(f"foqs {name}")
    try:
        spark = (builder.master(master) if master else builder).getOrCreate()
        try:
            yield spark
        finally:
            spark.stop()
    except (PySparkException, Py4JError) as error:
        told = _ERROR_LINE.findall(str(error))
        raise click.ClickException(told[-1] if told else str(error)) from error

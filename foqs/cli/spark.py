"""`foqs spark`: jobs that run on Spark."""

from __future__ import annotations

import click

from foqs.spark.jobs.enqueue import enqueue


@click.group()
def spark() -> None:
    """Jobs on Spark.

    They need the extra foqs[spark], and a Java runtime, 17 or newer.
    """


spark.add_command(enqueue)

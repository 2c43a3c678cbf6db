"""`foqs spark`: jobs that run on Spark."""

from __future__ import annotations

import click

from foqs.cli.job_commands import jobs, status, update
from foqs.spark.jobs.capacity_report import capacity_report
from foqs.spark.jobs.compact import compact
from foqs.spark.jobs.delivery_report import delivery_report
from foqs.spark.jobs.enqueue import enqueue
from foqs.spark.jobs.export import export
from foqs.spark.jobs.redrive import redrive


@click.group()
def spark() -> None:
    """Jobs on Spark, and the records of jobs.

    Jobs need the extra foqs[spark], and a Java runtime, 17 or newer. The records (jobs, status, update) need neither.
    """


for command in (enqueue, export, redrive, compact, delivery_report, capacity_report, jobs, status, update):
    spark.add_command(command)

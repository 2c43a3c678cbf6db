"""The capacity report's figures: enqueues a minute by namespace against the quota, growth, and suggested quotas."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DAY_S = 86_400
GROWTH_DAYS_MIN = 2.0
"""Least number of days of data for a figure of growth."""


def minute_table(rollups: DataFrame) -> DataFrame:
    """Items by namespace and minute, over all hosts: enqueued, and refused by the quota. `demand` is both."""
    from pyspark.sql import functions as f

    counts = [
        f.sum(f.when(f.col("outcome") == outcome, f.col("count")).otherwise(0)).alias(name)
        for outcome, name in (("enqueued", "enqueued"), ("rate_limited", "refused"))
    ]
    found = rollups.where(f.col("outcome").isin("enqueued", "rate_limited") & f.col("namespace").isNotNull())
    return found.groupBy("namespace", "minute").agg(*counts).withColumn("demand", f.col("enqueued") + f.col("refused"))


def namespace_table(minutes: DataFrame) -> DataFrame:
    """One row for each namespace: sums, the highest minute, percentiles over minutes with demand, and a straight line.

    `slope` is the growth in a second of a minute's demand, and `level` the demand at the time 0 of that line.
    """
    from pyspark.sql import functions as f

    moment = f.unix_timestamp("minute")
    return minutes.groupBy("namespace").agg(
        f.sum("enqueued").alias("enqueued"),
        f.sum("refused").alias("refused"),
        f.max("enqueued").alias("enqueued_max"),
        f.max("demand").alias("demand_max"),
        f.percentile("enqueued", f.lit(0.5)).alias("enqueued_p50"),
        f.percentile("enqueued", f.lit(0.99)).alias("enqueued_p99"),
        f.count_if(f.col("refused") > 0).alias("minutes_refused"),
        f.count(f.lit(1)).alias("minutes"),
        f.min("minute").alias("first"),
        f.max("minute").alias("last"),
        f.regr_slope("demand", moment).alias("slope"),
        f.avg("demand").alias("demand_mean"),
    )


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A namespace's use of its quota, and the quota that would suit it."""

    quota: int | None
    used_share: float | None
    """The highest minute of enqueues as a share of the quota."""
    growth_share: float | None
    """The growth of demand in the horizon, as a share of its mean; None for less than GROWTH_DAYS_MIN."""
    suggested: int


def suggest(row: Mapping[str, Any], quota: int | None, *, horizon_days: int, headroom: float) -> Suggestion:
    """Suggest the highest demand of a minute, grown along the straight line, times the headroom, to two digits.

    A shrinking namespace is treated as one that stays the same.
    """
    first, last = row["first"], row["last"]
    assert isinstance(first, datetime)
    assert isinstance(last, datetime)
    growth: float | None = None
    if (last - first).total_seconds() >= GROWTH_DAYS_MIN * DAY_S and row["slope"] is not None and row["demand_mean"]:
        growth = row["slope"] * horizon_days * DAY_S / row["demand_mean"]
    wanted = row["demand_max"] * (1 + max(0.0, growth or 0.0)) * headroom
    used = row["enqueued_max"] / quota if quota else None
    return Suggestion(quota, used, growth, rounded_up(wanted))


def rounded_up(value: float) -> int:
    """The next number with at most two digits other than 0; at least 1."""
    if value <= 10:
        return max(1, math.ceil(value))
    unit = int(10 ** (math.floor(math.log10(value)) - 1))
    return math.ceil(round(value / unit, 9)) * unit


def suggestions(
    rows: Sequence[Mapping[str, Any]], quotas: Mapping[str, int], *, horizon_days: int, headroom: float
) -> list[tuple[Mapping[str, Any], Suggestion]]:
    """Each namespace with its suggestion, in descending order of the used share of the quota."""
    found = [
        (row, suggest(row, quotas.get(row["namespace"]), horizon_days=horizon_days, headroom=headroom)) for row in rows
    ]
    return sorted(found, key=lambda pair: (-(pair[1].used_share or 0), pair[0]["namespace"]))

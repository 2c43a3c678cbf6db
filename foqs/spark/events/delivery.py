"""The delivery report's tables: times of waiting and processing, and failures of deliveries, by topic and by time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from foqs.model.event_log import BOUNDS_MS
from foqs.model.item import Outcome

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SHARES = (0.5, 0.95, 0.99)
"""The percentiles of the report."""
DETAIL = ("namespace", "topic", "priority", "hour")
"""The key columns of the finest table."""
OUTCOMES = tuple(outcome.name.lower() for outcome in Outcome)
FAILURES = ("nacked", "lease_ended", "dead", "at_most_once")
"""The outcomes of deliveries that failed."""
ENDS_OF_LIVES = tuple(outcome.name.lower() for outcome in Outcome if outcome.ends_life)
_BUCKETS = len(BOUNDS_MS) + 1


def delivery_table(rollups: DataFrame, lives: DataFrame, keys: Sequence[str]) -> DataFrame:
    """One row for each combination of the keys, which are columns of both frames.

    The roll-ups, which have everything, give counts by outcome, and percentiles as the bounds of buckets. The sampled
    lives give exact percentiles, with the number of lives and their share of all. Times are in milliseconds.
    """
    from pyspark.sql import functions as f

    ends = rollups.where(f.col("outcome").isin(*OUTCOMES))
    counts = [
        f.sum(f.when(f.col("outcome") == outcome, f.col("count")).otherwise(0)).alias(outcome) for outcome in OUTCOMES
    ]
    sums = [f.sum(name).alias(name) for name in ("redeliveries", "wait_ms_sum", "processing_ms_sum")]
    ended = f.col("outcome").isin(*ENDS_OF_LIVES)
    attempts = f.sum(f.when(ended, f.col("attempts")).otherwise(0)).alias("attempts")
    buckets = [_bucket_sums(name) for name in ("wait", "processing")]
    table = ends.groupBy(*keys).agg(*counts, *sums, attempts, *buckets)
    table = table.withColumns({"failures": _total(FAILURES), "lives": _total(ENDS_OF_LIVES)})
    for name in ("wait", "processing"):
        table = table.withColumns(_bucket_percentiles(name))
    table = table.drop("wait", "processing", "wait_ms_sum", "processing_ms_sum")
    sampled = _sampled(lives, keys)
    # Keys are null for items without a row of their own, which are counted by their namespace.
    same = [table[key].eqNullSafe(sampled[key]) for key in keys]
    joined = table.join(sampled, same, "left") if keys else table.crossJoin(sampled)
    for key in keys:
        joined = joined.drop(sampled[key])
    share = f.when(f.col("lives") > 0, f.coalesce(f.col("sampled_lives"), f.lit(0)) / f.col("lives"))
    return joined.withColumn("sampled_share", share)


def with_hours(rollups: DataFrame, lives: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Both frames with the start of the hour that contains a roll-up's minute or the end of a life."""
    from pyspark.sql import functions as f

    return (
        rollups.drop("hour").withColumn("hour", f.date_trunc("hour", "minute")),
        lives.drop("hour").withColumn("hour", f.date_trunc("hour", "ended_at")),
    )


def _total(names: Sequence[str]) -> Column:
    from pyspark.sql import functions as f

    total = f.lit(0).cast("bigint")
    for name in names:
        total = total + f.col(name)
    return total


def _bucket_sums(name: str) -> Column:
    """The sums of all arrays by position; an empty array counts as zeros."""
    from pyspark.sql import functions as f

    return f.array(
        *[f.coalesce(f.sum(f.get(name, f.lit(place))), f.lit(0).cast("bigint")) for place in range(_BUCKETS)]
    ).alias(name)


def _bucket_percentiles(name: str) -> dict[str, Column]:
    """The upper bound of the bucket of each percentile, and the mean, of times counted in buckets.

    Null without times, and for a percentile beyond the last bound.
    """
    from pyspark.sql import functions as f

    count = f.aggregate(name, f.lit(0).cast("bigint"), lambda total, one: total + one)
    bounds = f.array(*[f.lit(bound).cast("bigint") for bound in (*BOUNDS_MS, None)])
    found: dict[str, Column] = {f"{name}_count": count}
    for share in SHARES:
        first = _first_place(name, f.ceil(f.lit(share) * count))
        found[f"{name}_p{share * 100:.0f}_ms_max"] = f.when(count > 0, f.element_at(bounds, first))
    found[f"{name}_mean_ms"] = f.when(count > 0, f.col(f"{name}_ms_sum") / count)
    return found


def _first_place(name: str, rank: Column) -> Column:
    """The position, from 1, of the first bucket at which the running total reaches `rank`."""
    from pyspark.sql import functions as f

    def is_reached(place: Column) -> Column:
        some = f.slice(name, 1, place)
        return f.aggregate(some, f.lit(0).cast("bigint"), lambda total, one: total + one) >= rank

    places = f.sequence(f.lit(1), f.lit(_BUCKETS))
    return f.array_position(f.transform(places, is_reached), f.lit(True)).cast("int")


def _sampled(lives: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Exact percentiles of the sampled lives, and their number `sampled_lives`."""
    from pyspark.sql import functions as f

    times = {
        "wait": _elapsed_ms("ready_at", "first_delivered_at"),
        "processing": _elapsed_ms("last_delivered_at", "ended_at"),
        "life": _elapsed_ms("enqueued_at", "ended_at"),
        "attempts": f.col("attempts"),
    }
    timed = lives.select(*keys, *[column.alias(f"_{name}") for name, column in times.items()])
    shares = f.array(*[f.lit(share) for share in SHARES])
    table = timed.groupBy(*keys).agg(
        f.count(f.lit(1)).alias("sampled_lives"),
        *[f.percentile(f"_{name}", shares).alias(f"_{name}") for name in times],
        f.max("_attempts").alias("sampled_attempts_max"),
    )
    places = {
        f"sampled_{name}_p{share * 100:.0f}{'' if name == 'attempts' else '_ms'}": f.get(f"_{name}", f.lit(number))
        for name in times
        for number, share in enumerate(SHARES)
    }
    return table.withColumns(places).drop(*[f"_{name}" for name in times])


def _elapsed_ms(start: str, end: str) -> Column:
    """Null if one of the times is unknown. Never below 0, because a server's clock can step back."""
    from pyspark.sql import functions as f

    elapsed = f.unix_millis(end) - f.unix_millis(start)
    return f.when(elapsed.isNotNull(), f.greatest(elapsed, f.lit(0)))

"""Event logs become Parquet once, and reports say what was counted without Spark from the same traffic."""

from __future__ import annotations

import gzip
import math
import os
import random
import re
import statistics
import subprocess
from collections import Counter, defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from foqs.model.event_log import BOUNDS_MS, LIVES, ROLLUPS
from foqs.model.item import Outcome
from foqs.spark.events.capacity import minute_table, namespace_table, rounded_up, suggestions
from foqs.spark.events.compaction import Compacted, CompactionPlan, compact
from foqs.spark.events.delivery import DETAIL, delivery_table, with_hours
from foqs.spark.events.reading import Span, read_log
from foqs.spark.reports.delivery_page import delivery_page
from foqs.spark.reports.page import html_of
from tests.support.event_log import MadeLog, bucket_of, closed_files, open_files
from tests.support.faults.programs import FOQS
from tests.support.waiting import PROGRAM_S_MAX

pytestmark = [pytest.mark.slow]

BASE_MS = 1_764_000_000_000
HOUR_MS = 3_600_000
ENDS = {"acked", "dead", "expired", "deleted", "at_most_once"}


def made_log(directory: Path, *, per_mille: int = 1_000, host_name: str = "queue-1:7600", seed: int = 1) -> MadeLog:
    """Two hours of traffic of two topics, with all outcomes."""
    chance = random.Random(seed)
    log = MadeLog(directory, per_mille=per_mille, host_name=host_name)
    for hour in range(2):
        log.now_s = BASE_MS / 1000 + hour * 3600
        for number in range(400):
            topic = log.topic(f"<i>{number % 2}</i>")
            at_ms = BASE_MS + hour * HOUR_MS + chance.randrange(HOUR_MS // 2)
            log.enqueue(topic, [number % 3], at_ms)
            outcome = chance.choice([Outcome.ACKED] * 8 + [Outcome.NACKED, Outcome.DEAD, Outcome.LEASE_ENDED])
            times = {"wait_ms": int(chance.lognormvariate(4, 2)), "processing_ms": int(chance.lognormvariate(5, 1))}
            log.end(topic, outcome, ready_ms=at_ms, priority=number % 3, deliveries=chance.choice([0, 0, 1]), **times)
        log.close()
    return log


def percentile(values: list[int], share: float) -> float:
    """Exact, with a straight line between neighbours."""
    ordered, place = sorted(values), share * (len(values) - 1)
    low, high = ordered[math.floor(place)], ordered[math.ceil(place)]
    return low + (high - low) * (place - math.floor(place))


def bucket_bound(values: list[int], share: float) -> int:
    return BOUNDS_MS[bucket_of(sorted(values)[math.ceil(share * len(values)) - 1])]


def compacted(spark: Any, output: Path, *inputs: Path, **options: Any) -> dict[str, Compacted]:
    plan = CompactionPlan(tuple(map(str, inputs)), str(output), **options)
    return {kind: compact(spark, kind, plan) for kind in (LIVES, ROLLUPS)}


@pytest.fixture(autouse=True)
def _utc(spark: Any) -> None:
    spark.conf.set("spark.sql.session.timeZone", "UTC")


def test_each_file_is_taken_once_late_files_too_and_torn_lines_are_counted(spark: Any, tmp_path: Path) -> None:
    first, output = tmp_path / "first", tmp_path / "parquet"
    log = made_log(first)
    done = compacted(spark, output, first)
    assert done[LIVES].rows_count == sum(life["outcome"] in ENDS for life in log.ended)
    assert (done[LIVES].files_count, done[ROLLUPS].files_count) == (2, 2)
    before = sorted(map(str, spark.read.parquet(f"{output}/lives").collect()))
    again = compacted(spark, output, first, first)
    assert [(one.files_count, one.rows_count, one.files_before_count) for one in again.values()] == [(0, 0, 2)] * 2
    assert sorted(map(str, spark.read.parquet(f"{output}/lives").collect())) == before
    # A late file of another host in the same hours: a line of it is torn, and the other file's end is missing.
    second = tmp_path / "second"
    late = made_log(second, host_name="queue-2:7600", seed=2)
    torn, cut = closed_files(second, LIVES)
    whole = gzip.decompress(torn.read_bytes())
    torn.write_bytes(gzip.compress(b'{"v":1,"count":2' + b"\n" + b"[]\n" + whole))
    whole_bytes = cut.read_bytes()
    cut.write_bytes(whole_bytes[: len(whole_bytes) // 2])
    done = compacted(spark, output, first, second)
    assert (done[LIVES].torn_lines_count, done[LIVES].torn_files_count, done[LIVES].files_count) == (2, 1, 1)
    cut.write_bytes(whole_bytes)
    assert compacted(spark, output, first, second)[LIVES].files_count == 1
    lives = spark.read.parquet(f"{output}/lives")
    expected = sum(life["outcome"] in ENDS for life in [*log.ended, *late.ended])
    assert lives.count() == lives.select("host", "id").distinct().count() == expected


def test_one_pattern_names_many_hosts_and_a_file_that_a_dead_one_left_open_is_taken(spark: Any, tmp_path: Path) -> None:
    hosts, output = tmp_path / "hosts", tmp_path / "parquet"
    logs = [made_log(hosts / f"queue-{number}", host_name=f"queue-{number}", seed=number) for number in (1, 2)]
    dead = MadeLog(hosts / "queue-3", host_name="queue-3")
    for pause_s in (3, 0):  # The second one is not flushed when the host dies.
        dead.end(dead.topic("t"), Outcome.ACKED, ready_ms=BASE_MS, wait_ms=1, processing_ms=1)
        dead.passes()
        dead.passes(pause_s)

    def taken(*inputs: Path, **options: Any) -> tuple[int, int, int]:
        done = compact(spark, LIVES, CompactionPlan(tuple(map(str, inputs)), str(output), **options))
        return done.files_count, done.files_before_count, done.torn_files_count

    assert taken(hosts / "*") == (4, 0, 0)
    (left,) = [path for path in open_files(hosts / "queue-3") if LIVES in str(path)]
    left.rename(left.with_name(left.name.removeprefix("_")))
    assert taken(hosts / "*") == (0, 4, 1)
    assert taken(*sorted(hosts.iterdir()), takes_torn=True) == (1, 4, 1)
    lives = spark.read.parquet(f"{output}/lives")
    counts = {row["host"]: row["count"] for row in lives.groupBy("host").count().collect()}
    ended = [sum(life["outcome"] in ENDS for life in log.ended) for log in logs]
    assert counts == {"queue-1": ended[0], "queue-2": ended[1], "queue-3": 1}


def test_the_delivery_table_is_what_is_counted_without_spark(spark: Any, tmp_path: Path) -> None:
    log = made_log(tmp_path / "log")
    compacted(spark, tmp_path / "parquet", tmp_path / "log")
    rollups, lives = with_hours(*read_log(spark, str(tmp_path / "parquet"), Span(None, None), ()))
    rows = [row.asDict() for row in delivery_table(rollups, lives, DETAIL).collect()]
    groups = defaultdict(list)
    for end in log.ended:
        minute_ms = end["ended_at_ms"]
        hour = datetime.fromtimestamp(minute_ms // HOUR_MS * 3600, UTC).replace(tzinfo=None)
        groups[end["namespace"], end["topic"], end["priority"], hour].append(end)
    assert {tuple(row[key] for key in DETAIL) for row in rows} == set(groups)
    for row in rows:
        ends = groups[tuple(row[key] for key in DETAIL)]
        counts = Counter(end["outcome"] for end in ends)
        assert {name: row[name] for name in counts} == counts
        assert row["failures"] == counts["nacked"] + counts["dead"] + counts["lease_ended"]
        assert row["redeliveries"] == sum(end["deliveries"] > 0 for end in ends)
        ended = [end for end in ends if end["outcome"] in ENDS]
        assert row["lives"] == (row["sampled_lives"] or 0) == len(ended)
        assert row["attempts"] == sum(end["deliveries"] + 1 for end in ended)
        waits = [end["wait_ms"] for end in ends if not end["deliveries"]]
        taken = [end["processing_ms"] for end in ends]
        for rank, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
            assert row[f"processing_{rank}_ms_max"] == bucket_bound(taken, share)
            if waits:
                assert row[f"wait_{rank}_ms_max"] == bucket_bound(waits, share)
            if ended:
                exact = percentile([end["processing_ms"] for end in ended], share)
                assert row[f"sampled_processing_{rank}_ms"] == pytest.approx(exact)
        assert row["processing_mean_ms"] == pytest.approx(sum(taken) / len(taken))


def test_without_samples_the_report_has_buckets_and_its_page_escapes_names(spark: Any, tmp_path: Path) -> None:
    made_log(tmp_path / "log", per_mille=0)
    compacted(spark, tmp_path / "parquet", tmp_path / "log")
    rollups, lives = with_hours(*read_log(spark, str(tmp_path / "parquet"), Span(None, None), ()))
    assert lives.count() == 0

    def rows(*keys: str) -> list[dict[str, Any]]:
        table = delivery_table(rollups, lives, keys)
        return [row.asDict() for row in (table.orderBy(*keys) if keys else table).collect()]

    (total,) = rows()
    assert total["sampled_share"] == 0
    html = html_of(delivery_page(total, rows("hour"), rows("namespace", "topic"), lost_count=0, source="a <test>"))
    assert "&lt;i&gt;0&lt;/i&gt;" in html
    assert "<i>0</i>" not in html
    assert "≤ " in html
    assert html.count("<svg") == 3
    assert not re.search(r'(src|href)="', html), "nothing is loaded"


def test_the_capacity_table_is_what_is_counted_without_spark(spark: Any, tmp_path: Path) -> None:
    log = MadeLog(tmp_path / "log")
    chance = random.Random(3)
    for minute in range(30):
        for priority in range(2):
            at_ms = BASE_MS + minute * 60_000
            log.enqueue(log.topic("t"), [priority] * chance.randrange(1, 50), at_ms)
    log.refused = {1: 70}
    log.now_s = BASE_MS / 1000 + 29 * 60
    log.close()
    compacted(spark, tmp_path / "parquet", tmp_path / "log")
    rollups, _ = read_log(spark, str(tmp_path / "parquet"), Span(None, None), ())
    by_minute: Counter[int] = Counter()
    for (_, minute_ms, _, _), items_count in log.enqueued.items():
        by_minute[minute_ms] += items_count
    (row,) = namespace_table(minute_table(rollups)).collect()
    assert (row.namespace, row.enqueued, row.refused, row.minutes_refused) == ("ns-1", by_minute.total(), 70, 1)
    assert (row.enqueued_max, row.minutes) == (max(by_minute.values()), 30)
    assert row.demand_max == max(*by_minute.values(), by_minute[BASE_MS + 29 * 60_000] + 70)
    assert row.enqueued_p50 == percentile(list(by_minute.values()), 0.5)


def test_growth_and_the_suggested_quota_are_those_of_the_line_through_all_minutes(spark: Any, tmp_path: Path) -> None:
    log = MadeLog(tmp_path / "log")
    demands: dict[int, int] = {}
    for quarter in range(13):  # Three days, with some noise on what grows.
        at_ms = BASE_MS + quarter * 6 * HOUR_MS
        demands[at_ms // 1_000] = 100 + 10 * quarter + quarter % 3
        log.now_s = at_ms / 1_000
        log.enqueue(log.topic("t"), [0] * demands[at_ms // 1_000], at_ms)
        log.close()
    compacted(spark, tmp_path / "parquet", tmp_path / "log")
    rollups, _ = read_log(spark, str(tmp_path / "parquet"), Span(None, None), ())
    rows = [row.asDict() for row in namespace_table(minute_table(rollups)).collect()]
    ((_, said),) = suggestions(rows, {"ns-1": 250}, horizon_days=30, headroom=1.25)
    line = statistics.linear_regression(list(demands), list(demands.values()))
    growth = line.slope * 30 * 86_400 / statistics.fmean(demands.values())
    assert said.growth_share == pytest.approx(growth, rel=1e-6)
    assert said.used_share == max(demands.values()) / 250
    assert said.suggested == rounded_up(max(demands.values()) * (1 + growth) * 1.25)


def test_the_first_compaction_prints_its_counts_and_no_stack_trace(tmp_path: Path) -> None:
    """Nor does it need an environment that is activated: tasks run in that of the command."""
    made_log(tmp_path / "log")
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK")}
    variables["PATH"] = f"/usr/bin:/bin:{variables['PATH']}"
    paths = ["--input", str(tmp_path / "log"), "--output", str(tmp_path / "parquet")]
    command = [FOQS, "spark", "compact", *paths, "--master", "local[1]"]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=PROGRAM_S_MAX, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^lives: \d+ rows of 2 files; 0 files were there before", done.stdout, re.MULTILINE), done.stdout
    assert not re.search(r"^\s+at |Exception", done.stderr, re.MULTILINE), done.stderr

"""Rows per second from PySpark next to plain clients that send the same rows, by turns, on this machine.

Both sides have two tasks or processes with four calls of 1,000 in flight each. Spark reads Parquet; the plain clients
read the same files, or have all rows ready in memory. With keys both sides send the same dedup ids, new ones in each
run, and these go to the same slots and shards. Spark has written before, so that its JVM is warm. A block is plain,
Spark, Spark, plain; after each run the queue is emptied, and the rows are counted.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from itertools import count, product
from pathlib import Path
from typing import Any

from foqs import AdminClient
from foqs.model import limits
from foqs.spark.options import KEY, NONE
from loadtest.spark.bench_clients import CALLS_IN_FLIGHT, MEMORY, NAMESPACE, PARQUET, by_clients, drain, write_parquet
from loadtest.spark.dev_cluster import DevCluster
from loadtest.spark.measured import COLUMNS, ROWS, MeasuredSource
from loadtest.spark.session import local_session

RATIO_BARS = {NONE: 0.90, KEY: 0.85}
CPU_BARS_US = {NONE: 2.0, KEY: 2.3}
"""Of Python, for a row, in `write`."""
_WARM_UPS = 2
"""Writes before the first block: the first one starts Python workers, and the JVM has still to compile."""


@dataclass(slots=True)
class Case:
    """One comparison and what came out: rates in rows a second and ratios by block, processor time by run of Spark."""

    dedup: str
    baseline: str
    ratios: list[float] = field(default_factory=list)
    spark_rates: list[float] = field(default_factory=list)
    plain_rates: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"dedup={self.dedup}, plain clients with rows {'in memory' if self.baseline == MEMORY else 'in Parquet'}"

    def last_block(self) -> str:
        cpu_us = " and ".join(f"{cpu_us:.2f}" for cpu_us in self.cpu_us[-2:])
        rates = f"Spark {self.spark_rates[-1]:,.0f} rows/s, plain {self.plain_rates[-1]:,.0f} rows/s"
        return f"{rates}, {self.ratios[-1]:.2f}; Python {cpu_us} µs a row"

    def verdict(self) -> str:
        ratio, cpu_us = statistics.median(self.ratios), statistics.median(self.cpu_us)
        told = f"{self.name}: ratio {ratio:.2f} ({min(self.ratios):.2f} to {max(self.ratios):.2f}; bar "
        told += f"{RATIO_BARS[self.dedup]:.2f}: {_met(ratio >= RATIO_BARS[self.dedup])}), Python {cpu_us:.2f} µs a row "
        return told + f"(bar {CPU_BARS_US[self.dedup]:.1f}: {_met(cpu_us <= CPU_BARS_US[self.dedup])})"


class Bench:
    """Runs of both sides with the rows of one directory."""

    def __init__(self, spark: Any, address: str, home: Path, rows_count: int, writer: str) -> None:
        self._spark = spark
        self._address = address
        self._parquet = home / "rows"
        self._measures = home / "measures"
        self._measures.mkdir()
        self._rows_count = rows_count
        self._writer = writer
        self._runs = count(1)
        spark.dataSource.register(MeasuredSource)
        write_parquet(self._parquet, rows_count)

    def block(self, case: Case) -> None:
        """Plain, Spark, Spark, plain."""
        plain_s = self._plain(case)
        spark_s = self.by_spark(case) + self.by_spark(case)
        plain_s += self._plain(case)
        case.spark_rates.append(2 * self._rows_count / spark_s)
        case.plain_rates.append(2 * self._rows_count / plain_s)
        case.ratios.append(plain_s / spark_s)

    def by_spark(self, case: Case) -> float:
        """Seconds until `save` returns."""
        frame = self._spark.read.parquet(str(self._parquet))
        prefix = self._key_prefix(case)
        key = [] if prefix is None else [f"concat('{prefix}', id) AS dedup_id"]
        options = {"addresses": self._address, "namespace": NAMESPACE, "dedup": case.dedup}
        options |= {"maxInFlight": str(CALLS_IN_FLIGHT), "writer": self._writer, "measures": str(self._measures)}
        began_s = time.monotonic()
        rows = frame.selectExpr("topic", "payload", *key)
        rows.write.format("foqs_measured").options(**options).mode("append").save()
        elapsed_s = time.monotonic() - began_s
        self._empty(case)
        measures = list(self._measures.iterdir())
        case.cpu_us.append(sum(int(file.read_text()) for file in measures) / 1_000 / self._rows_count)
        for file in measures:
            file.unlink()
        return elapsed_s

    def _plain(self, case: Case) -> float:
        elapsed_s = by_clients(self._address, self._parquet, case.baseline, self._key_prefix(case))
        self._empty(case)
        return elapsed_s

    def _empty(self, case: Case) -> None:
        found_count = drain(self._address)
        if found_count != self._rows_count:
            raise SystemExit(f"{case.name}: {found_count:,} items came of {self._rows_count:,} rows")

    def _key_prefix(self, case: Case) -> str | None:
        return None if case.dedup == NONE else f"run-{next(self._runs)}-"


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # What it has started ends with it.
    arguments = _arguments()
    cases = [Case(dedup, baseline) for dedup, baseline in product(arguments.dedup, arguments.baseline)]
    with tempfile.TemporaryDirectory(prefix="foqs-bench-spark-") as home, DevCluster() as cluster:
        make_namespace(cluster.address, arguments.key_spread)
        with local_session(Path(home), is_short=False) as spark:
            bench = Bench(spark, cluster.address, Path(home), arguments.rows, arguments.writer)
            for case in cases:
                for _ in range(_WARM_UPS):
                    bench.by_spark(case)
                case.cpu_us.clear()
                for block in range(arguments.blocks):
                    bench.block(case)
                    print(f"{case.name}, block {block}: {case.last_block()}", flush=True)
    for case in cases:
        print(case.verdict())
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        told = {"rows": arguments.rows, "writer": arguments.writer, "cases": [asdict(case) for case in cases]}
        arguments.json.write_text(json.dumps(told, indent=2))
    return 0


def make_namespace(address: str, key_spread: int) -> None:
    """One that refuses nothing, and that knows dedup ids for as long as there is room for them."""
    with AdminClient(address) as admin:
        admin.create_namespace(
            NAMESPACE,
            enqueues_per_minute_max=1_000_000_000,
            key_spread=key_spread,
            dedup_ids=limits.DEDUP_IDS_MAX,
        )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--blocks", type=int, default=7, help="of plain, Spark, Spark, plain each, for each case")
    parser.add_argument("--dedup", nargs="+", choices=[NONE, KEY], default=[NONE, KEY])
    parser.add_argument("--baseline", nargs="+", choices=[PARQUET, MEMORY], default=[PARQUET, MEMORY])
    parser.add_argument("--key-spread", type=int, default=16, help="slots over which the dedup ids spread")
    parser.add_argument(
        "--writer", choices=[COLUMNS, ROWS], default=COLUMNS, help="rows: one with an object for each row, to compare"
    )
    parser.add_argument("--json", type=Path, help="write the figures here")
    return parser.parse_args()


def _met(is_met: bool) -> str:
    return "met" if is_met else "missed"


if __name__ == "__main__":
    sys.exit(main())

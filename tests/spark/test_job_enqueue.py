"""`foqs spark enqueue` as a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from foqs import Client
from foqs.spark.jobs import enqueue as job

pytestmark = [pytest.mark.database, pytest.mark.slow, pytest.mark.timeout(300)]
ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=240, check=False
    )


def test_files_become_items_and_the_driver_tells_the_totals(
    tmp_path: Path, address: str, namespace: str, client: Client
) -> None:
    orders = tmp_path / "orders.json"
    orders.write_text("".join(json.dumps({"id": number, "rush": number < 5}) + "\n" for number in range(100)))
    done = run(
        *("-c", "from foqs.cli.main import main; main()", "spark", "enqueue", "--dedup", "none"),
        *("--input", str(orders), "--format", "json"),
        *("--addresses", address, "--namespace", namespace, "--topic", "orders", "--master", "local[2]"),
        *("--select", "IF(id = 60, NULL, to_json(struct(id))) AS payload", "--select", "IF(rush, -1, 0) AS priority"),
        *("--where", "id != 50", "--on-invalid-row", "skip"),
    )
    assert done.returncode == 0, done.stderr
    assert "99 rows in" in done.stdout
    assert f"{namespace}: 98 items of 99 rows enqueued, 1 refused (" in done.stderr
    assert "payload is null" in done.stderr
    items = client.dequeue(namespace, "orders", 1_000)
    assert [json.loads(item.payload)["id"] for item in items[:5]] == [0, 1, 2, 3, 4]
    assert len(items) == 98


def test_what_is_wrong_is_told_in_one_line_for_spark_submit_too(tmp_path: Path, address: str, namespace: str) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("payload\nx\n")
    done = run(
        *(str(job.__file__), "--input", str(rows), "--format", "csv", "--reader-option", "header=true"),
        *("--addresses", address, "--namespace", namespace, "--dedup", "none", "--master", "local[1]"),
    )
    assert done.returncode == 1
    assert "Error: format foqs: column 'topic' is missing" in done.stderr


def test_a_wrong_option_is_told_before_spark_is_started(tmp_path: Path, address: str, namespace: str) -> None:
    done = run(
        *(str(job.__file__), "--input", str(tmp_path), "--format", "csv", "--addresses", address),
        *("--namespace", namespace, "--batch-size", "0", "--max-invalid-rows", "3", "--master", "nothing"),
    )
    assert done.returncode == 1
    assert "batchSize '0' is not a whole number within 1..1000; maxInvalidRows allows invalid rows" in done.stderr


def test_an_input_that_is_not_there_is_told_without_a_traceback(tmp_path: Path, address: str, namespace: str) -> None:
    done = run(
        *(str(job.__file__), "--input", str(tmp_path / "nothing"), "--format", "parquet"),
        *("--addresses", address, "--namespace", namespace, "--dedup", "none", "--master", "local[1]"),
    )
    assert done.returncode == 1
    assert "Error: [PATH_NOT_FOUND]" in done.stderr
    assert "Traceback" not in done.stderr

"""`foqs spark enqueue`: files become items, and what is wrong is one line."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from foqs import AdminClient, Client
from foqs.spark.jobs import capacity_report, compact, delivery_report, enqueue, export, redrive
from tests.support.spark_jobs import FOQS, command, process
from tests.support.spark_rows import drained

pytestmark = [pytest.mark.database]
JOBS = [capacity_report, compact, delivery_report, enqueue, export, redrive]


def orders(directory: Path, kind: str) -> str:
    """100 orders with the columns id and rush."""
    rows = [{"id": number, "rush": number < 5} for number in range(100)]
    path = directory / f"orders.{kind}"
    if kind == "parquet":
        parquet.write_table(pa.Table.from_pylist(rows), path)
    elif kind == "json":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        path.write_text("id,rush\n" + "".join(f"{row['id']},{row['rush']}\n" for row in rows))
    return str(path)


@pytest.mark.deep
def test_the_command_as_a_process_of_its_own_tells_the_totals(
    tmp_path: Path, address: str, namespace: str, client: Client
) -> None:
    done = process(
        *(*FOQS, "enqueue", "--dedup", "none", "--input", orders(tmp_path, "json"), "--format", "json"),
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


@pytest.mark.parametrize(
    ("kind", "runs_count"), [("parquet", 1), ("json", 1), pytest.param("csv", 2, marks=pytest.mark.slow)]
)
def test_files_of_each_format_become_items_once_however_often_the_command_is_run(
    quick_jvm: None, tmp_path: Path, address: str, namespace: str, client: Client, kind: str, runs_count: int
) -> None:
    arguments = (
        *("enqueue", "--input", orders(tmp_path, kind), "--format", kind, "--partitions", "2"),
        *("--select", "to_json(struct(int(id) AS id, boolean(rush) AS rush)) AS payload"),
        *("--select", "string(id) AS dedup_id", "--addresses", address, "--namespace", namespace),
        *("--topic", "orders", "--master", "local[2]"),
        *(("--reader-option", "header=true") if kind == "csv" else ()),
    )
    for run in range(runs_count):
        done = command(*arguments, "--job-id", f"orders-{run}")
        assert done.exit_code == 0, done.output
        assert "100 rows in" in done.stdout
    if runs_count > 1:
        done = command(*arguments, "--job-id", "orders-0")
        assert (done.exit_code, "job 'orders-0' of namespace" in done.stderr) == (1, True), done.output
        assert command(*arguments).exit_code == 0, "without a name it may be run again"
    found = Counter(item.payload for item in drained(client, namespace))
    assert found == Counter(json.dumps({"id": n, "rush": n < 5}, separators=(",", ":")).encode() for n in range(100))


def test_progress_is_told_on_the_way_and_the_record_of_the_job_shows_the_totals(
    quick_jvm: None, tmp_path: Path, address: str, namespace: str, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At 50 items a second there is time to tell it."""
    monkeypatch.setattr(enqueue, "PROGRESS_EVERY_S", 0.2)
    done = command(
        *("enqueue", "--input", orders(tmp_path, "parquet"), "--format", "parquet", "--dedup", "content"),
        *("--select", "string(id) AS payload", "--addresses", address, "--namespace", namespace, "--topic", "t"),
        *("--job-id", "slow", "--max-items-per-second", "50", "--master", "local[2]"),
    )
    assert done.exit_code == 0, done.output
    assert re.search(r"0 of 1 tasks done, \d+ items, 0 there before, 0 refused", done.stderr), done.stderr
    with AdminClient(address) as admin:
        while admin.get_job(namespace, "slow").items_count < 100:
            client.dequeue(namespace, "nothing", 1, wait_ms=200)  # Hosts write their counts every 2 s.
    table = command("status", namespace, "slow", "--address", address)
    shown = dict(line.split("\t") for line in table.stdout.splitlines())
    assert {"state": "succeeded", "items": "100", "rows": "100", "items_per_second_max": "50"}.items() <= shown.items()
    assert shown["detail"] == "100 items of 100 rows enqueued"


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.__name__.rpartition(".")[2])
def test_each_job_is_a_file_that_spark_submit_can_run(job: object) -> None:
    done = process(str(job.__file__), "--help")  # type: ignore[attr-defined]
    assert done.returncode == 0, done.stderr
    assert "--master" in done.stdout


def test_what_is_wrong_is_told_in_one_line(quick_jvm: None, tmp_path: Path, address: str, namespace: str) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("payload\nx\n")
    done = command(
        *("enqueue", "--input", str(rows), "--format", "csv", "--reader-option", "header=true"),
        *("--addresses", address, "--namespace", namespace, "--dedup", "none", "--master", "local[1]"),
    )
    assert done.exit_code == 1
    assert "Error: format foqs: column 'topic' is missing" in done.stderr


def test_a_wrong_option_is_told_before_spark_is_started(tmp_path: Path, address: str, namespace: str) -> None:
    done = command(
        *("enqueue", "--input", str(tmp_path), "--format", "csv", "--addresses", address),
        *("--namespace", namespace, "--batch-size", "0", "--max-invalid-rows", "3", "--master", "nothing"),
    )
    assert done.exit_code == 1
    assert "batchSize '0' is not a whole number within 1..1000; maxInvalidRows allows invalid rows" in done.stderr


def test_an_input_that_is_not_there_is_told_without_a_traceback(
    quick_jvm: None, tmp_path: Path, address: str, namespace: str
) -> None:
    done = command(
        *("enqueue", "--input", str(tmp_path / "nothing"), "--format", "parquet"),
        *("--addresses", address, "--namespace", namespace, "--dedup", "none", "--master", "local[1]"),
    )
    assert done.exit_code == 1
    assert "Error: [PATH_NOT_FOUND]" in done.stderr
    assert "Traceback" not in done.output

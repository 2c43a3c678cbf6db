"""The statements on the tables of bulk jobs take the index that they should, with as many jobs as can run."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from sqlalchemy import insert
from sqlalchemy.dialects import mysql

from foqs.model.bulk_work import RUNNING_MAX
from foqs.model.jobs import JobState
from foqs.storage.meta import meta_bulk_statements as sql
from foqs.storage.meta.meta_jobs import JobKey
from foqs.storage.meta.meta_store import MetaStore
from foqs.storage.meta.meta_tables import BULK_JOB, BULK_PART, BULK_RUNNING

pytestmark = [pytest.mark.database, pytest.mark.deep]

SHARDS = 200
OTHERS = 2_000
"""Jobs that have ended."""
KEYS = [JobKey(1_000 + number % 10, f"bulk-{number:020x}") for number in range(RUNNING_MAX)]
KEY, OWN = KEYS[7], [3, 4, 5]
ALL_PARTS = RUNNING_MAX * SHARDS
CASES: dict[str, tuple[Any, str, str, int]] = {
    "lock_job": (sql.lock_job(KEY), "job", "PRIMARY", 1),
    "read_definition": (sql.read_definition(KEY), "bulk_job", "PRIMARY", 1),
    "read_works": (sql.read_works(KEYS), "bulk_job", "PRIMARY", RUNNING_MAX),
    "read_states": (sql.read_states(KEYS), "job", "PRIMARY", RUNNING_MAX),
    "count_open": (sql.count_open(KEYS), "bulk_part", "bulk_part_by_progress", ALL_PARTS),
    "count_in_work": (sql.count_in_work(KEYS), "bulk_part", "bulk_part_by_progress", ALL_PARTS),
    "read_own_parts": (sql.read_own_parts(KEYS, OWN, 3_000), "bulk_part", "", RUNNING_MAX * len(OWN)),
    "touch_own_parts": (sql.touch_own_parts(KEYS, OWN), "bulk_part", "", RUNNING_MAX * len(OWN)),
    "touch_parts": (sql.touch_parts(KEY), "bulk_part", "PRIMARY", SHARDS),
    "read_parts": (sql.read_parts(KEY), "bulk_part", "PRIMARY", SHARDS),
    "read_keys": (sql.read_keys(KEY, 5), "bulk_part", "PRIMARY", 1),
    "read_late_shards": (sql.read_late_shards(KEY, 10_000), "bulk_part", "", SHARDS),
    "write_part": (sql.write_part(KEY, 5, {"done": 7, "page_to": 0}), "bulk_part", "PRIMARY", 1),
    "write_count": (sql.write_count(KEY, 7), "job", "PRIMARY", 1),
    "write_state": (sql.write_state(KEY, JobState.PAUSED), "job", "PRIMARY", 1),
    "write_error": (sql.write_error(KEY, b"full"), "bulk_job", "PRIMARY", 1),
    "read_times": (sql.read_times(KEY.namespace, 5), "bulk_job", "PRIMARY", RUNNING_MAX + OTHERS),
    "read_running": (sql.read_running(KEY), "bulk_running", "PRIMARY", 1),
    "read_all_running": (sql.read_all_running(), "job", "PRIMARY", 1),
    "end_running": (sql.end_running(KEY), "bulk_running", "PRIMARY", 1),
}  # fmt: skip
"""The statement, the table that it is about, its index ("" for any) and the most rows that it reads there."""
NOT_EXPLAINED = {"named", "add_running", "read_shards"}
"""The columns of a key, an insert, and a read of the list of shards as a whole."""


@pytest.fixture(scope="module")
def plans(databases_of_session: Any) -> Iterator[dict[str, dict[str, dict[str, Any]]]]:
    """The plans of the statements, by table."""
    databases_of_session.wipe()
    with closing(MetaStore(databases_of_session.meta_url)) as meta, meta._sessions.transaction() as connection:
        for shard_id in range(1, SHARDS + 1):
            meta.shards.add(shard_id, f"mysql://h/s{shard_id}", "")
        ended = [JobKey(1_000 + number % 10, f"ended-{number}") for number in range(OTHERS)]
        for key in [*KEYS, *ended]:
            connection.exec_driver_sql(
                "INSERT INTO job VALUES (%s, %s, 0, 0, 0, 0, 0, 0, 0, 0, '')", (key.namespace, key.id.encode())
            )
            connection.execute(insert(BULK_JOB), {**sql.named(key), "work": b"{}", "deliver_after": 0, "error": b""})
        for key in KEYS:
            connection.execute(insert(BULK_RUNNING), sql.named(key))
            numbers = {c.name: 0 for c in BULK_PART.c if c.name not in ("namespace", "job", "shard_id", "later_keys")}
            numbers |= {"page_keys": b"\0" * 4_000, "error": b""}
            rows = [{**numbers, **sql.named(key), "shard_id": shard_id} for shard_id in range(1, SHARDS + 1)]
            connection.execute(insert(BULK_PART), rows)
        connection.exec_driver_sql("ANALYZE TABLE shard, job, bulk_job, bulk_running, bulk_part").all()
        found: dict[str, dict[str, dict[str, Any]]] = {}
        for name, (statement, *_) in CASES.items():
            compiled = statement.compile(dialect=mysql.dialect(), compile_kwargs={"render_postcompile": True})
            arguments = tuple(compiled.params[at] for at in compiled.positiontup or ())
            rows = connection.exec_driver_sql(f"EXPLAIN {compiled}", arguments)
            found[name] = {row["table"]: dict(row) for row in rows.mappings()}
        yield found
    databases_of_session.wipe()


def test_every_statement_has_a_case() -> None:
    public = {name for name, one in vars(sql).items() if inspect.isfunction(one) and one.__module__ == sql.__name__}
    assert {name for name in public if not name.startswith("_")} == {*CASES, *NOT_EXPLAINED}


@pytest.mark.parametrize("name", CASES)
def test_a_statement_takes_its_index(plans: dict[str, dict[str, dict[str, Any]]], name: str) -> None:
    _, table, index, rows_max = CASES[name]
    plan = plans[name][table]
    assert plan["key"], plan
    assert plan["key"] == index or not index, plan
    assert int(plan["rows"]) <= 2 * rows_max + 1, plan


@pytest.mark.parametrize("name", ["count_open", "count_in_work"])
def test_counts_of_parts_read_no_rows_with_keys_of_pages(
    plans: dict[str, dict[str, dict[str, Any]]], name: str
) -> None:
    assert "Using index" in plans[name]["bulk_part"]["Extra"], plans[name]

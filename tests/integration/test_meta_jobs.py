"""Job records in a real meta database: made, changed, listed, counted, and bounded; and the fake one does the same."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from sqlalchemy import event, text

from foqs.model import limits
from foqs.model.errors import AlreadyExistsError, InvalidArgumentError, NotFoundError, UnknownNamespaceError
from foqs.model.jobs import JobChanges, JobState
from foqs.model.namespace import Namespace, NamespaceSettings
from foqs.storage.meta.meta_jobs import JobCounts, JobKey, JobView
from foqs.storage.meta.meta_store import MetaStore
from foqs.testing.fake_meta import memory_meta


@pytest.fixture
def meta(meta_url: str) -> Iterator[MetaStore]:
    with closing(MetaStore(meta_url)) as store:
        yield store


@pytest.fixture
def namespace(meta: MetaStore) -> Namespace:
    return meta.namespaces.insert("loads", NamespaceSettings(), 1)


def age(meta: MetaStore, table: str, column: str, by_ms: int) -> None:
    """Let the rows be older than they are."""
    with meta._sessions.transaction() as connection:
        connection.execute(text(f"UPDATE {table} SET {column} = {column} - {by_ms}"))


def rows_count(meta: MetaStore, table: str) -> int:
    with meta._sessions.transaction() as connection:
        count: int = connection.execute(text(f"SELECT COUNT(*) FROM {table}")).scalar_one()
        return count


def test_a_job_comes_back_as_it_was_made_and_changed(meta: MetaStore, namespace: Namespace) -> None:
    made = meta.jobs.create(namespace, "Load-1.a_b", 500, "flights \N{SNOWMAN}")
    assert (made.state, made.items_per_second_max, made.detail) == (JobState.RUNNING, 500, "flights \N{SNOWMAN}")
    assert meta.jobs.get(namespace, "Load-1.a_b") == made
    changes = JobChanges(state=JobState.SUCCEEDED, rows_count=7, items_per_second_max=0)
    changed = meta.jobs.update(namespace, "Load-1.a_b", changes)
    assert (changed.state, changed.rows_count, changed.items_per_second_max) == (JobState.SUCCEEDED, 7, 0)
    assert (changed.detail, changed.created_at_ms) == (made.detail, made.created_at_ms)
    assert meta.jobs.update(namespace, "Load-1.a_b", JobChanges(detail="")).detail == ""


def test_ids_are_of_one_namespace_and_exist_once(meta: MetaStore, namespace: Namespace) -> None:
    other = meta.namespaces.insert("other", NamespaceSettings(), 1)
    for of in (namespace, other):
        meta.jobs.create(of, "a", 0, "")
    with pytest.raises(AlreadyExistsError, match="'loads' has a job 'a'"):
        meta.jobs.create(namespace, "a", 0, "")
    meta.jobs.create(namespace, "A", 0, "")
    for call in (
        lambda: meta.jobs.get(other, "A"),
        lambda: meta.jobs.update(other, "A", JobChanges(rows_count=1)),
    ):
        with pytest.raises(NotFoundError, match="'other' has no job 'A'"):
            call()
    gone = Namespace(99, "gone", NamespaceSettings(), 1)
    with pytest.raises(UnknownNamespaceError):
        meta.jobs.create(gone, "a", 0, "")


def test_pages_begin_with_the_newest_and_hold_each_job_once(meta: MetaStore, namespace: Namespace) -> None:
    names = [f"job-{number}" for number in range(7)]
    for name in names:
        age(meta, "job", "created_at", 5_000)
        meta.jobs.create(namespace, name, 0, "")
    with meta._sessions.transaction() as connection:  # Three of them at one time.
        connection.execute(text("UPDATE job SET created_at = 5 WHERE id IN ('job-1', 'job-2', 'job-3')"))
    found: list[str] = []
    after = None
    while page := meta.jobs.page(namespace, after, 2):
        found += [job.id for job in page]
        after = (page[-1].created_at_ms, page[-1].id)
    assert found == ["job-6", "job-5", "job-4", "job-0", "job-1", "job-2", "job-3"]


def test_a_count_that_is_written_twice_counts_once(meta: MetaStore, namespace: Namespace) -> None:
    meta.jobs.create(namespace, "a", 0, "")
    key = JobKey(namespace.number, "a")
    assert meta.jobs.count("h1", 1, {}, [key]) == {key: JobView(0, 1, JobCounts())}
    for _ in range(2):
        meta.jobs.count("h1", 1, {key: JobCounts(10, 2, 1)})
    meta.jobs.count("h2", 1, {key: JobCounts(5, 0, 0)})
    job = meta.jobs.get(namespace, "a")
    assert (job.items_count, job.duplicates_count, job.rejected_count) == (15, 2, 1)
    assert meta.jobs.page(namespace, None, 1) == [job]


def test_a_host_that_starts_anew_keeps_what_its_last_process_has_counted(meta: MetaStore, namespace: Namespace) -> None:
    meta.jobs.create(namespace, "a", 0, "")
    key = JobKey(namespace.number, "a")
    meta.jobs.count("h1", 1, {key: JobCounts(10, 2, 1)})
    assert meta.jobs.count("h1", 2, {}, [key])[key].counts == JobCounts(), "it has counted nothing itself"
    meta.jobs.count("h1", 2, {key: JobCounts(1, 1, 1)})
    job = meta.jobs.get(namespace, "a")
    assert (job.items_count, job.duplicates_count, job.rejected_count) == (11, 3, 2)
    assert rows_count(meta, "job_host") == 1


def test_a_process_that_had_forgotten_a_job_goes_on_from_its_own_counts(meta: MetaStore, namespace: Namespace) -> None:
    meta.jobs.create(namespace, "a", 0, "")
    key = JobKey(namespace.number, "a")
    meta.jobs.count("h1", 1, {key: JobCounts(10, 2, 1)})
    assert meta.jobs.count("h1", 1, {}, [key])[key].counts == JobCounts(10, 2, 1)


def test_the_hosts_that_were_active_of_late_are_told(
    meta: MetaStore, namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "JOB_ACTIVE_MS", limits.HOUR_MS)
    meta.jobs.create(namespace, "a", 900, "")
    key = JobKey(namespace.number, "a")
    for host, expected in (("h1", 1), ("h2", 2), ("h3", 3), ("h1", 3)):
        assert meta.jobs.count(host, 1, {key: JobCounts()})[key] == JobView(900, expected, JobCounts())
    age(meta, "job_host", "active_at", limits.JOB_ACTIVE_MS + 1)
    assert meta.jobs.count("h2", 1, {key: JobCounts()})[key].hosts_count == 1


def test_a_job_without_a_record_is_not_counted(meta: MetaStore, namespace: Namespace) -> None:
    key = JobKey(namespace.number, "nobody")
    assert meta.jobs.count("h1", 1, {key: JobCounts(1, 0, 0)}, [JobKey(99, "x")]) == {}
    assert rows_count(meta, "job_host") == 0
    assert meta.jobs.count("h1", 1, {}) == {}


def test_records_go_thirty_days_after_their_last_update(meta: MetaStore, namespace: Namespace) -> None:
    for name in ("old", "counted", "changed"):
        meta.jobs.create(namespace, name, 0, "")
    meta.jobs.count("h1", 1, {JobKey(namespace.number, "old"): JobCounts(1, 0, 0)})
    age(meta, "job", "updated_at", limits.JOB_KEPT_MS + 1)
    meta.jobs.count("h1", 1, {JobKey(namespace.number, "counted"): JobCounts(1, 0, 0)})
    meta.jobs.update(namespace, "changed", JobChanges(detail="x"))
    meta.jobs.create(namespace, "new", 0, "")
    assert {job.id for job in meta.jobs.page(namespace, None, 10)} == {"counted", "changed", "new"}
    assert rows_count(meta, "job_host") == 1


def test_a_full_table_loses_the_job_that_ended_first_and_refuses_where_all_run(
    meta: MetaStore, namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "JOBS_PER_NAMESPACE_MAX", 3)
    for name in ("a", "b", "c"):
        meta.jobs.create(namespace, name, 0, "")
    with pytest.raises(InvalidArgumentError, match="'loads' has 3 jobs that run, and the limit is 3"):
        meta.jobs.create(namespace, "d", 0, "")
    for name in ("c", "b"):
        meta.jobs.update(namespace, name, JobChanges(state=JobState.FAILED))
        age(meta, "job", "updated_at", 1_000)
    meta.jobs.create(namespace, "d", 0, "")
    assert {job.id for job in meta.jobs.page(namespace, None, 10)} == {"a", "b", "d"}
    monkeypatch.setattr(limits, "JOBS_MAX", 3)
    other = meta.namespaces.insert("other", NamespaceSettings(), 1)
    meta.jobs.create(other, "e", 0, "")
    assert {job.id for job in meta.jobs.page(namespace, None, 10)} == {"a", "d"}
    with pytest.raises(InvalidArgumentError, match="there are 3 jobs that run"):
        meta.jobs.create(other, "f", 0, "")


def test_a_deleted_namespace_takes_its_jobs_with_it(meta: MetaStore, namespace: Namespace) -> None:
    meta.jobs.create(namespace, "a", 0, "")
    meta.jobs.count("h1", 1, {JobKey(namespace.number, "a"): JobCounts(1, 0, 0)})
    census = meta.namespaces.begin_deletion("loads")
    assert meta.namespaces.finish_deletion(census, "loads") == []
    assert (rows_count(meta, "job"), rows_count(meta, "job_host")) == (0, 0)


@pytest.mark.parametrize("seed", range(3))
def test_the_fake_database_does_the_same(
    meta: MetaStore, namespace: Namespace, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(limits, "JOBS_PER_NAMESPACE_MAX", 4)
    chance = random.Random(seed)
    clock = iter(range(1_000, 10_000))
    fake = memory_meta(lambda: next(clock))
    ids = ["a", "b", "c", "d", "e", "f"]

    def step() -> tuple[str, tuple[object, ...]]:
        key = JobKey(namespace.number, chance.choice(ids))
        counts = JobCounts(chance.randrange(9), chance.randrange(9), chance.randrange(9))
        return chance.choice(
            [
                ("create", (namespace, key.id, chance.randrange(3), "x")),
                ("update", (namespace, key.id, JobChanges(state=chance.choice(list(JobState)), rows_count=3))),
                ("get", (namespace, key.id)),
                ("count", (chance.choice(["h1", "h2"]), chance.randint(1, 2), {key: counts})),
                ("count", (chance.choice(["h1", "h2"]), chance.randint(1, 2), {}, [key])),
            ]
        )

    def outcome(store: Any, verb: str, arguments: tuple[object, ...]) -> object:
        try:
            result = getattr(store.jobs, verb)(*arguments)
        except (AlreadyExistsError, NotFoundError, InvalidArgumentError) as error:
            return type(error)
        return result if isinstance(result, dict) else (result.id, result.state, result.items_count, result.rows_count)

    for _ in range(60):
        verb, arguments = step()
        age(meta, "job", "updated_at", 10)  # So that no two times of the real clock are one.
        age(meta, "job", "created_at", 10)
        assert outcome(meta, verb, arguments) == outcome(fake, verb, arguments), (verb, arguments)
    listed = [[(job.id, job.items_count) for job in store.jobs.page(namespace, None, 9)] for store in (meta, fake)]
    assert listed[0] == listed[1]


def test_statements_on_jobs_read_by_an_index(meta: MetaStore, namespace: Namespace) -> None:
    """But for the count of all records, which a creation needs and which are bounded."""
    statements: list[tuple[str, Any]] = []
    event.listen(
        meta._sessions._engine,
        "before_cursor_execute",
        lambda _c, _cursor, statement, parameters, *_: statements.append((statement, parameters)),
    )
    meta.jobs.create(namespace, "a", 0, "")
    key = JobKey(namespace.number, "a")
    meta.jobs.count("h1", 1, {key: JobCounts()})
    meta.jobs.count("h1", 2, {key: JobCounts()})
    meta.jobs.update(namespace, "a", JobChanges(rows_count=1))
    meta.jobs.page(namespace, (5, "x"), 10)
    explained = set()
    with meta._sessions.transaction() as connection:
        for number in range(2_000):  # Enough for an index to be worth it.
            connection.exec_driver_sql(
                "INSERT INTO job VALUES (%s, %s, 0, 0, 0, 0, 0, 0, 0, 0, '')", (number % 40 + 1_000, b"%d" % number)
            )
            connection.exec_driver_sql(
                "INSERT INTO job_host VALUES (%s, %s, 'h', 1, 0, 0, 0, 0)", (number % 40 + 1_000, b"%d" % number)
            )
        connection.exec_driver_sql("ANALYZE TABLE job, job_host").all()
        for statement, parameters in statements:
            if " job" in statement and statement.startswith(("SELECT", "UPDATE", "DELETE")):
                for row in connection.exec_driver_sql(f"EXPLAIN {statement}", parameters).mappings():
                    key_used, is_whole_count = (
                        row["key"],
                        "count(*)" in statement and "WHERE job.namespace =" not in statement,
                    )
                    if row["table"] in ("job", "job_host") and not is_whole_count:
                        assert key_used is not None, (statement, dict(row))
                        explained.add((row["table"], key_used))
    assert {("job", "PRIMARY"), ("job_host", "PRIMARY"), ("job", "job_by_update")} <= explained

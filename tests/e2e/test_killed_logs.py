"""kill -9 of a host with an event log and with a job: what was written is there, and what is told is honest."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from foqs import AdminClient, Client
from foqs.client.queue_items import NewItem
from foqs.model.event_log import LIVES
from tests.support import event_log
from tests.support.databases import Databases
from tests.support.faults.load import NAMESPACE
from tests.support.faults.programs import HostProgram, foqs, free_port
from tests.support.impatient_foqs import COMMAND
from tests.support.waiting import PATIENCE_S, until

pytestmark = [pytest.mark.database, pytest.mark.deep]

GZIP_HEAD_BYTES = 20
"""What is in a file before anything is flushed to it."""


@contextmanager
def host_with_log(databases: Databases, port: int, directory: Path) -> Iterator[HostProgram]:
    variables = {"FOQS_EVENT_LOG_DIR": str(directory)}
    host = HostProgram("host-1", port, databases.meta_url, databases.shard_urls, variables, command=COMMAND)
    try:
        yield host
    finally:
        host.close()


def ack_some(client: Client, count: int) -> set[str]:
    client.enqueue_many(NAMESPACE, [NewItem("t", b"x")] * count)
    items = client.dequeue(NAMESPACE, "t", count, wait_ms=20_000)
    assert client.ack(NAMESPACE, items) == {}
    return {item.id for item in items}


async def test_lives_that_were_flushed_survive_a_kill_and_none_is_told_twice(own_databases, tmp_path) -> None:
    directory, port = tmp_path / "events", free_port()
    with host_with_log(own_databases, port, directory) as host, Client(host.address) as client:
        with AdminClient(host.address) as admin:
            admin.create_namespace(NAMESPACE, events_per_mille=1_000)
        flushed = ack_some(client, 300)
        await until(lambda: any(path.stat().st_size > GZIP_HEAD_BYTES for path in open_lives(directory)), PATIENCE_S)
        in_flight = ack_some(client, 200)
        host.kill()
    assert open_lives(directory), "it could close nothing"
    with host_with_log(own_databases, port, directory):
        await until(lambda: not open_lives(directory), PATIENCE_S)
        found = Counter(life["id"] for life in event_log.lives(directory))
    assert flushed <= set(found) <= flushed | in_flight
    assert max(found.values()) == 1


def open_lives(directory: Path) -> list[Path]:
    return [path for path in event_log.open_files(directory) if f"/{LIVES}/" in str(path)]


async def test_a_job_whose_host_is_killed_has_never_more_items_than_there_are_and_status_says_it_runs(
    own_databases, tmp_path
) -> None:
    port = free_port()
    with host_with_log(own_databases, port, tmp_path / "first") as host:
        with AdminClient(host.address) as admin, Client(host.address) as client:
            admin.create_namespace(NAMESPACE)
            admin.create_job(NAMESPACE, "load")
            told = load(client, 500)
            # What was counted by now is written: the record says so by itself.
            await until(lambda: admin.get_job(NAMESPACE, "load").items_count == told, PATIENCE_S)
            told_later = load(client, 300)
        host.kill()
    with host_with_log(own_databases, port, tmp_path / "second") as host, Client(host.address) as client:
        after = status(host)
        assert told <= after["items_count"] <= told + told_later
        assert (after["state"], after["rejected_count"]) == ("running", 0)
        again = load(client, 100)
        with AdminClient(host.address) as admin:
            written = after["items_count"] + again
            await until(lambda: admin.get_job(NAMESPACE, "load").items_count == written, PATIENCE_S)
            stored = sum(1 for _ in admin.iterate_items(NAMESPACE, with_payload=False))
        assert stored == told + told_later + again >= status(host)["items_count"]


def load(client: Client, count: int) -> int:
    """How many items the host says that it made."""
    result = client.enqueue_many(NAMESPACE, [NewItem("bulk", b"x")] * count, bulk=True, job_id="load")
    assert not result.errors
    return len(result.ids)


def status(host: HostProgram) -> dict[str, object]:
    found: dict[str, object] = json.loads(
        foqs("spark", "status", NAMESPACE, "load", "--address", host.address, "--output", "json")
    )
    return found

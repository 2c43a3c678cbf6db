"""`foqs spark status`, `jobs` and `update` over a socket; none of them imports pyspark."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest
from click.testing import CliRunner, Result

from foqs.cli import job_commands as cli_jobs
from foqs.cli.main import cli
from foqs.contract.requests import CreateJobRequest
from foqs.model.calls import CallContext
from foqs.model.jobs import JobState
from foqs.model.principal import EVERYBODY
from tests.support.background_host import background_host
from tests.support.fake_queue import FakeQueue
from tests.support.waiting import PROGRAM_S_MAX


class Shell:
    def __init__(self, address: str, queue: FakeQueue) -> None:
        self.address = address
        self.queue = queue

    def run(self, *arguments: str) -> Result:
        return CliRunner().invoke(cli, ["spark", *arguments, "--address", self.address], prog_name="foqs")

    def make(self, job_id: str, **changes: object) -> None:
        asyncio.run(self.queue.create_job(CallContext("t", principal=EVERYBODY), CreateJobRequest("ns", job_id)))
        self.change(job_id, **changes)

    def change(self, job_id: str, **changes: object) -> None:
        key = ("ns", job_id)
        self.queue.jobs[key] = replace(self.queue.jobs[key], **changes)  # type: ignore[arg-type]


@pytest.fixture
def shell() -> Iterator[Shell]:
    with background_host() as (address, queue):
        yield Shell(address, queue)


def test_status_shows_a_record_as_a_table_or_json(shell: Shell) -> None:
    shell.make("load", items_count=12, duplicates_count=3, rejected_count=1, rows_count=16, detail="flights")
    table = shell.run("status", "ns", "load")
    assert table.exit_code == 0
    rows = dict(line.split("\t") for line in table.stdout.splitlines())
    assert {"state": "running", "items": "12", "duplicates": "3", "rejected": "1", "rows": "16"}.items() <= rows.items()
    shown = json.loads(shell.run("status", "ns", "load", "--output", "json").stdout)
    assert (shown["id"], shown["state"], shown["items_count"], shown["detail"]) == ("load", "running", 12, "flights")


def test_an_unknown_job_has_the_exit_code_of_what_is_not_found(shell: Shell) -> None:
    result = shell.run("status", "ns", "nope")
    assert (result.exit_code, "has no job 'nope'" in result.stderr) == (3, True)


def test_jobs_lists_the_newest_first(shell: Shell) -> None:
    for name in ("a", "b"):
        shell.make(name)
    lines = shell.run("jobs", "ns").stdout.splitlines()
    assert [line.split("\t")[0] for line in lines] == ["JOB", "b", "a"]
    assert [job["id"] for job in json.loads(shell.run("jobs", "ns", "--output", "json", "--limit", "1").stdout)] == [
        "b"
    ]


def test_a_watched_job_is_shown_until_it_has_ended(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell.make("load", updated_at_ms=1_000)
    steps = iter([{"items_count": 500, "updated_at_ms": 2_000}, {"state": JobState.SUCCEEDED, "updated_at_ms": 2_000}])
    monkeypatch.setattr(cli_jobs, "_pause", lambda _: shell.change("load", **next(steps)))
    lines = shell.run("status", "ns", "load", "--watch").stdout.splitlines()
    assert [line.partition("  ")[2] for line in lines] == [
        "running: 0 items, 0 duplicates, 0 rejected",
        "running: 500 items, 0 duplicates, 0 rejected, 500/s",
        "succeeded: 500 items, 0 duplicates, 0 rejected",
    ]


def test_watched_jobs_are_shown_again_and_again(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell.make("a")
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(cli_jobs, "_pause", pause)
    result = shell.run("jobs", "ns", "--watch", "--output", "json")
    assert [json.loads(line)[0]["id"] for line in result.stdout.splitlines() if line] == ["a"] * 3
    assert result.exit_code == 1


def test_update_changes_what_is_given(shell: Shell) -> None:
    shell.make("load", items_per_second_max=9)
    assert shell.run("update", "ns", "load").exit_code == 2
    assert shell.run("update", "ns", "load", "--items-per-second-max", "100", "--state", "failed").exit_code == 0
    job = shell.queue.jobs["ns", "load"]
    assert (job.items_per_second_max, job.state, job.detail) == (100, JobState.FAILED, "")


def test_the_commands_on_records_need_no_spark(shell: Shell) -> None:
    shell.make("load")
    blocked = "import sys\nfor name in ('pyspark', 'pyarrow', 'py4j'): sys.modules[name] = None\n"
    program = f"{blocked}from foqs.cli.main import main; main()"
    for arguments in (("status", "ns", "load"), ("jobs", "ns"), ("update", "ns", "load", "--detail", "x")):
        command = [sys.executable, "-c", program, "spark", *arguments, "--address", shell.address]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROGRAM_S_MAX, check=False)
        assert (done.returncode, done.stderr) == (0, ""), arguments
        assert "load" in done.stdout

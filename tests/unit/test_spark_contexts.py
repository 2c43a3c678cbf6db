"""Spark jobs with a named context: what it gives them, what goes before it, and that no secret is in their options."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from foqs.client.context_file import FILE_VARIABLE
from foqs.model import access_tokens
from foqs.spark.credentials import Credentials
from foqs.spark.jobs import capacity_report, enqueue, export, redrive

TOKEN = access_tokens.new_token(bytes(range(access_tokens.RANDOM_BYTES)))
SECRET = TOKEN.partition("_")[2].partition("_")[2]
VARIABLES = ("FOQS_ADDRESS", "FOQS_CONTEXT", "FOQS_TOKEN", "FOQS_TOKEN_FILE", "FOQS_CA_FILE", "FOQS_USE_TLS")


class Jobs:
    """The jobs, which end where they would begin a session of Spark. `options` are those that Spark would get."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory = directory
        self.options: dict[str, str] = {}
        self.credentials: Credentials | None = None
        (directory / "mailer.token").write_text(TOKEN)
        self.write_contexts('default = "staging"\n')
        monkeypatch.setenv(FILE_VARIABLE, str(directory / "contexts.toml"))
        for name in VARIABLES:
            monkeypatch.delenv(name, raising=False)
        for module in (export, redrive, enqueue):
            monkeypatch.setattr(module, "session", _no_session)
        for module in (export, redrive):
            monkeypatch.setattr(module, "read_frame", self._take)
        monkeypatch.setattr(enqueue, "_run", lambda spark, frame, options, own: self._take(spark, options))
        monkeypatch.setattr(capacity_report, "_quotas", self._quotas)

    def _take(self, spark: Any, options: dict[str, str], schema: object = None) -> None:
        self.options = options
        raise click.exceptions.Exit(0)

    def _quotas(self, addresses: str | None, credentials: Credentials) -> None:
        self.options, self.credentials = {"addresses": addresses or ""}, credentials
        raise click.exceptions.Exit(0)

    def write_contexts(self, first: str) -> None:
        file = self.directory / "contexts.toml"
        file.write_text(
            f'{first}[prod]\naddresses = "queue-a:7600,queue-b:7600"\nca_file = "ca.pem"\n'
            'server_name = "queue.example"\ntoken_file = "mailer.token"\nnamespace = "shop"\n'
            '[staging]\naddresses = "127.0.0.1:7600"\n'
        )
        file.chmod(0o600)

    def run(self, job: click.Command, *arguments: str, **variables: str) -> Result:
        first: dict[click.Command, tuple[str, ...]] = {
            export.export: ("--output", "/x", "--format", "json"),
            redrive.redrive: (),
            enqueue.enqueue: ("--input", "/x", "--format", "json", "--topic", "t", "--dedup", "none"),
            capacity_report.capacity_report: ("--input", "/x"),
        }
        return CliRunner().invoke(job, [*first[job], *arguments], env=variables)


@contextmanager
def _no_session(name: str, master: str | None) -> Iterator[Any]:
    frame = SimpleNamespace()
    reading = SimpleNamespace(load=lambda paths: frame)
    reading.options = lambda **options: reading
    yield SimpleNamespace(read=SimpleNamespace(format=lambda kind: reading))


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Jobs:
    return Jobs(tmp_path, monkeypatch)


WITH_NAMESPACE = [export.export, redrive.redrive, enqueue.enqueue]


def shown(jobs: Jobs) -> dict[str, str]:
    return {name: jobs.options[name] for name in ("addresses", "namespace", "caFile", "serverName", "tokenFile")}


@pytest.mark.parametrize("job", WITH_NAMESPACE, ids=lambda job: job.name)
@pytest.mark.parametrize("by_variable", [False, True])
def test_a_context_gives_a_job_its_hosts_files_and_namespace(jobs: Jobs, job: click.Command, by_variable: bool) -> None:
    named = () if by_variable else ("--context", "prod")
    variables = {"FOQS_CONTEXT": "prod"} if by_variable else {}
    result = jobs.run(job, "--namespace", "@", *named, **variables)
    assert result.exit_code == 0, result.output
    assert shown(jobs) == {
        "addresses": "queue-a:7600,queue-b:7600",
        "namespace": "shop",
        "caFile": str(jobs.directory / "ca.pem"),
        "serverName": "queue.example",
        "tokenFile": str(jobs.directory / "mailer.token"),
    }
    assert jobs.options["tls"].lower() == "true"


@pytest.mark.parametrize("job", WITH_NAMESPACE, ids=lambda job: job.name)
def test_flags_and_variables_go_before_the_context(jobs: Jobs, job: click.Command) -> None:
    result = jobs.run(
        job, "--context", "prod", "--namespace", "other", "--token-file", "/t", FOQS_ADDRESS="queue-c:7600",
        FOQS_CA_FILE="/ca",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert shown(jobs) == {
        "addresses": "queue-c:7600",
        "namespace": "other",
        "caFile": "/ca",
        "serverName": "queue.example",
        "tokenFile": "/t",
    }


@pytest.mark.parametrize("job", WITH_NAMESPACE, ids=lambda job: job.name)
def test_the_default_context_is_for_jobs_without_an_address(jobs: Jobs, job: click.Command) -> None:
    jobs.write_contexts('default = "prod"\n')
    assert jobs.run(job, "--namespace", "n").exit_code == 0
    assert jobs.options["addresses"] == "queue-a:7600,queue-b:7600"
    assert jobs.run(job, "--namespace", "n", "--addresses", "127.0.0.1:1").exit_code == 0
    assert jobs.options["addresses"] == "127.0.0.1:1"
    assert "tokenFile" not in jobs.options, "its token goes to no other hosts"
    jobs.write_contexts("")
    refused = jobs.run(job, "--namespace", "n")
    assert refused.exit_code == 2
    assert "Missing option '--addresses', or '--context'" in refused.output


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--context", "prdo", "--namespace", "n"), "'prdo' is no context of"),
        (("--context", "staging", "--namespace", "@"), "the context staging has none"),
        (("--addresses", "127.0.0.1:1", "--namespace", "@"), "there is no context"),
    ],
)
@pytest.mark.parametrize("job", WITH_NAMESPACE, ids=lambda job: job.name)
def test_a_context_that_cannot_be_used_is_told_before_spark_starts(
    jobs: Jobs, job: click.Command, arguments: tuple[str, ...], told: str
) -> None:
    result = jobs.run(job, *arguments)
    assert result.exit_code == 1
    assert told in result.output
    assert jobs.options == {}


def test_the_report_of_capacity_asks_hosts_only_if_it_is_told_to(jobs: Jobs) -> None:
    jobs.write_contexts('default = "prod"\n')
    report = capacity_report.capacity_report
    assert jobs.run(report).exit_code == 0
    assert jobs.options["addresses"] == "", "the default context is not meant by that"
    assert jobs.run(report, "--context", "prod").exit_code == 0
    assert jobs.options["addresses"] == "queue-a:7600,queue-b:7600"
    assert jobs.credentials == Credentials(
        tls=True, ca_file=str(jobs.directory / "ca.pem"), server_name="queue.example",
        token_file=str(jobs.directory / "mailer.token"),
    )  # fmt: skip


@pytest.mark.parametrize("job", WITH_NAMESPACE, ids=lambda job: job.name)
def test_no_secret_is_among_the_options_whatever_the_environment_has(jobs: Jobs, job: click.Command) -> None:
    result = jobs.run(job, "--context", "prod", "--namespace", "@", FOQS_TOKEN=TOKEN)
    assert result.exit_code == 0, result.output
    assert SECRET[:8] not in str(jobs.options)
    assert SECRET[:8] not in result.output


def test_the_function_of_a_task_has_the_paths_of_a_context_and_no_token(jobs: Jobs) -> None:
    own = Credentials(tls=True, token_file=str(jobs.directory / "mailer.token"))
    task: Callable[..., Any] = redrive.task_of("queue-a:7600", "shop", 1, own)
    kept = [cell.cell_contents for cell in task.__closure__ or ()]
    assert own in kept
    assert SECRET.encode()[:8] not in pickle.dumps(kept)

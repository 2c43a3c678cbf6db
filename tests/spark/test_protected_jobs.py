"""`foqs spark` commands at a host that requires TLS and enforces access: the bits that each needs, and no others."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from foqs import NewItem
from foqs.contract.permissions import OF_NAMESPACE, ROLES, Permission
from foqs.spark.credentials import Credentials
from foqs.spark.jobs import capacity_report
from tests.support.protected_host import ProtectedHost, protected_host
from tests.support.spark_bits import documented_bits, documented_roles
from tests.support.spark_jobs import command
from tests.support.taking import deliveries

pytestmark = [pytest.mark.database, pytest.mark.slow]
NAMESPACE = "shop"
ROWS = 5


@pytest.fixture
def protected(
    meta_url: str, shard_urls: dict[int, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ProtectedHost]:
    """It knows a role of each single bit, by the name of the bit. It has dead letters, and the record of a job."""
    for bit in OF_NAMESPACE:
        monkeypatch.setitem(ROLES, str(bit.name).lower(), bit)  # type: ignore[arg-type]
    with protected_host(meta_url, shard_urls, tmp_path, NAMESPACE) as host:
        with host.client() as client, host.admin() as admin:
            client.enqueue_many(NAMESPACE, [NewItem("t", b"x")] * ROWS)
            for items in deliveries(client, NAMESPACE, ["t"], ROWS):
                client.nack(NAMESPACE, items, dead_letter=True)
            admin.create_job(NAMESPACE, "load")
        yield host


def holding(host: ProtectedHost, name: str, bits: Permission) -> Path:
    """A principal with exactly these bits, and the file of its token."""
    return host.principal(name, {NAMESPACE: " ".join(str(bit.name).lower() for bit in bits)})


def spark_job(host: ProtectedHost, token_file: Path, job: str, *arguments: str) -> str:
    """Run the command, and return what it says of a refusal, or nothing."""
    flags = ("--addresses", host.address, "--ca-file", host.authority.ca_file, "--token-file", str(token_file))
    done = command(job, *flags, "--namespace", NAMESPACE, "--master", "local[2]", *arguments)
    assert "Traceback" not in done.stderr
    return done.stderr if done.exit_code else ""


def enqueue(host: ProtectedHost, token_file: Path) -> str:
    source = host.directory / "rows.json"
    source.write_text("".join(json.dumps({"payload": str(n), "dedup_id": f"{n}"}) + "\n" for n in range(ROWS)))
    return spark_job(host, token_file, "enqueue", "--input", str(source), "--format", "json", "--topic", "new")


def export(host: ProtectedHost, token_file: Path) -> str:
    return spark_job(host, token_file, "export", "--output", str(host.directory / token_file.stem), "--format", "json")


def dry_run(host: ProtectedHost, token_file: Path) -> str:
    return spark_job(host, token_file, "redrive", "--dry-run")


def redrive(host: ProtectedHost, token_file: Path) -> str:
    return spark_job(host, token_file, "redrive")


def record(*arguments: str) -> Callable[[ProtectedHost, Path], str]:
    def run(host: ProtectedHost, token_file: Path) -> str:
        flags = ("--address", host.address, "--ca-file", host.authority.ca_file, "--token-file", str(token_file))
        done = command(*arguments, *flags)
        return done.stderr if done.exit_code else ""

    return run


SPARK = {
    "`foqs spark enqueue`": enqueue,
    "`foqs spark export`": export,
    "`foqs spark redrive --dry-run`": dry_run,
    "`foqs spark redrive`": redrive,
}
RECORDS = {
    "`foqs spark status`": record("status", NAMESPACE, "load"),
    "`foqs spark jobs`": record("jobs", NAMESPACE),
    "`foqs spark update`": record("update", NAMESPACE, "load", "--items-per-second-max", "5"),
}


def check(host: ProtectedHost, what: str, act: Callable[[ProtectedHost, Path], str]) -> None:
    """The documented bits are enough, and each of them is needed. The refusals come first: they change nothing."""
    needed = documented_bits()[what]
    for number, missing in enumerate(needed):
        said = act(host, holding(host, f"lacking-{number}", needed & ~missing))
        assert f"lacking-{number} may not call" in said
        assert f"it lacks {missing.name}" in said
    assert act(host, holding(host, "holding", needed)) == ""


@pytest.mark.parametrize("what", SPARK, ids=["enqueue", "export", "dry-run", "redrive"])
def test_the_bits_of_the_documents_are_enough_for_a_job_and_each_is_needed(
    quick_jvm: None, protected: ProtectedHost, what: str
) -> None:
    check(protected, what, SPARK[what])
    with protected.client() as client:
        counts = {stats.topic: (stats.ready, stats.dead) for stats in client.topics(NAMESPACE)}
    done = {"`foqs spark enqueue`": {"t": (0, ROWS), "new": (ROWS, 0)}, "`foqs spark redrive`": {"t": (ROWS, 0)}}
    assert counts == done.get(what, {"t": (0, ROWS)})


def test_the_bits_of_the_documents_are_enough_for_records_and_quotas_and_each_is_needed(
    protected: ProtectedHost,
) -> None:
    for number, (what, act) in enumerate(RECORDS.items()):
        (needed,) = documented_bits()[what]
        without = OF_NAMESPACE & ~needed
        assert f"it lacks {needed.name}" in act(protected, holding(protected, f"others-{number}", without))
        assert act(protected, holding(protected, f"only-{number}", needed)) == ""
    (needed,) = documented_bits()["`foqs spark capacity-report --addresses`"]

    def quotas(token_file: Path) -> dict[str, int]:
        own = Credentials(tls=True, ca_file=protected.authority.ca_file, token_file=str(token_file))
        return capacity_report._quotas(protected.address, own)

    assert list(quotas(holding(protected, "report", needed))) == [NAMESPACE]
    with pytest.raises(Exception, match=f"it lacks {needed.name}"):
        quotas(holding(protected, "no-report", OF_NAMESPACE & ~needed))


def test_every_command_of_spark_is_in_the_table() -> None:
    told = {name.split()[2].strip("`") for name in documented_roles() if name.startswith("`foqs spark ")}
    from foqs.cli.spark import spark

    assert told == set(spark.commands)


@pytest.mark.parametrize("flag", ["--token-file", "--ca-file"])
def test_a_file_that_is_not_there_is_told_before_a_job_begins(
    quick_jvm: None, protected: ProtectedHost, flag: str
) -> None:
    token_file = protected.principal("loader", {NAMESPACE: "reader"})
    option = "tokenFile" if flag == "--token-file" else "caFile"
    absent = str(protected.directory / "absent")
    arguments = ("--output", str(protected.directory / "out"), "--format", "json", flag, absent)
    assert f"{option} '{absent}' cannot be read on" in spark_job(protected, token_file, "export", *arguments)

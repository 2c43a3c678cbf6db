"""`foqs hosts` over a socket."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from click.testing import CliRunner, Result

from foqs.cli.main import cli
from foqs.model.calls import ClusterShard, ExportPlan
from foqs.model.cluster import ShardHealth, ShardUse
from foqs.model.cluster_calls import ClusterHost, HostState
from tests.support.background_host import background_host
from tests.support.fake_queue import FakeQueue

Run = Callable[..., Result]
HOST = ClusterHost("h1", "h1#a", "h:1", "gold", "0.9", 1_000, 12, False, HostState.SERVING, [0, 1], [1], "", "h:2")
SILENT = ClusterHost("h2", "h2#b", "", "", "", 1_000, 2_000, True, HostState.SILENT, detail="it tells no address")
SHARD = ClusterShard(0, "mysql://h/d", ShardUse.SERVING, "", "", "h1", "", 1, "", 1, health=ShardHealth.SERVED)


@pytest.fixture
def shell() -> Iterator[tuple[Run, FakeQueue]]:
    with background_host() as (address, queue):
        queue.hosts, queue.shards = [HOST], {0: SHARD}

        def run(*arguments: str) -> Result:
            return CliRunner().invoke(cli, ["hosts", *arguments, "--address", address], prog_name="foqs")

        yield run, queue


def test_the_hosts_are_a_table_or_json(shell: tuple[Run, FakeQueue]) -> None:
    run, queue = shell
    queue.hosts = [replace(HOST, shards=list(range(25))), SILENT]
    header, first, second = [line.split("\t") for line in run().stdout.splitlines()]
    shown = dict(zip(header, first, strict=True))
    assert (shown["HOST"], shown["PROCESS"], shown["ADDRESS"], shown["TIER"]) == ("h1", "h1#a", "h:1", "gold")
    assert shown["PEER ADDRESS"] == "h:2"
    assert (shown["VERSION"], shown["STATE"], shown["BEAT MS AGO"], shown["SICK"]) == ("0.9", "serving", "12", "1")
    assert shown["UP SINCE"].startswith("1970-01-01 00:00:01")
    assert shown["SHARDS"].endswith("18 19 ... (25 in all)")
    shown = dict(zip(header, second, strict=True))
    assert (shown["STATE"], shown["DETAIL"]) == ("silent, leaving", "it tells no address")
    one, two = json.loads(run("--output", "json").stdout)
    assert (one["name"], one["host_id"], one["state"], one["beat_age_ms"]) == ("h1", "h1#a", "serving", 12)
    assert (one["peer_address"], two["peer_address"]) == ("h:2", "")
    assert (two["is_leaving"], two["shards"], two["detail"]) == (True, [], "it tells no address")


def test_a_check_is_well_while_all_shards_are_served_and_all_hosts_answer(shell: tuple[Run, FakeQueue]) -> None:
    run, queue = shell
    gone = replace(SHARD, shard_id=1, state=ShardUse.REMOVED, health=ShardHealth.UNSERVED)
    queue.shards[1] = gone
    checked = run("--check")
    assert (checked.exit_code, checked.stderr) == (0, "")
    assert "h1#a" in checked.stdout


@pytest.mark.parametrize(
    ("health", "words"),
    [
        (ShardHealth.SICK, "not well: shard 0: it is sick: why"),
        (ShardHealth.UNSERVED, "not well: shard 0: no host serves it: why"),
        (ShardHealth.UNKNOWN, "not well: shard 0: it is not known who serves it: why"),
    ],
)
def test_a_check_fails_when_a_shard_is_not_well(shell: tuple[Run, FakeQueue], health: ShardHealth, words: str) -> None:
    run, queue = shell
    queue.shards[0] = replace(SHARD, health=health, detail="why")
    assert run().exit_code == 0
    checked = run("--check")
    assert (checked.exit_code, checked.stderr) == (1, words + "\n")
    assert json.loads(run("--check", "--output", "json").stdout)[0]["name"] == "h1"


def test_a_check_fails_when_hosts_are_gone_and_when_a_shard_has_no_standby(shell: tuple[Run, FakeQueue]) -> None:
    run, queue = shell
    queue.shards[0] = replace(SHARD, tier="gold")
    gone = run("--check", "--hosts-min", "2")
    assert gone.exit_code == 1
    assert gone.stderr.splitlines() == [
        "not well: hosts that serve or stand by: 1, and --hosts-min wants 2",
        "not well: no standby for shard 0: no host but h1 serves or stands by in that tier",
    ]
    other = replace(HOST, name="h3", host_id="h3#a", tier="lead", state=HostState.STANDBY, shards=[])
    queue.hosts = [HOST, other]
    warned = run("--check")
    assert (warned.exit_code, warned.stderr[:34]) == (0, "warning: no standby for shard 0: n")
    assert run("--check", "--hosts-min", "2").exit_code == 1
    queue.hosts = [HOST, replace(other, tier="gold")]
    assert (run("--check", "--hosts-min", "2").exit_code, run("--check", "--hosts-min", "2").stderr) == (0, "")
    queue.hosts = [HOST, replace(other, tier="gold", state=HostState.LEAVING)]
    assert run("--check", "--hosts-min", "2").exit_code == 1


def test_a_check_fails_when_the_asked_host_does_not_reach_an_owner(
    shell: tuple[Run, FakeQueue], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, queue = shell

    async def plan(*_: object) -> ExportPlan:
        return ExportPlan([], 1, ["host h2#b is needed as the owner of shard 1: it cannot be reached"])

    monkeypatch.setattr(queue, "plan_export", plan)
    checked = run("--check")
    assert checked.exit_code == 1
    assert "not well: a call through the host that was asked fails: host h2#b is needed" in checked.stderr
    assert run().exit_code == 0


def test_a_check_fails_when_a_host_does_not_answer(shell: tuple[Run, FakeQueue]) -> None:
    run, queue = shell
    queue.hosts = [HOST, SILENT]
    assert run().exit_code == 0
    checked = run("--check")
    words = "not well: host h2#b does not answer: it tells no address"
    assert (checked.exit_code, checked.stderr.splitlines()[1:]) == (1, [words])

"""`foqs topic ...`, `foqs namespace pause` and `foqs dequeue --prefix` on a host."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result

from foqs.cli.main import cli
from tests.support.running_host import host_beside

pytestmark = pytest.mark.database


class Shell:
    def __init__(self, address: str) -> None:
        self._address = address

    def run(self, *arguments: str) -> Result:
        return CliRunner().invoke(cli, [*arguments, "--address", self._address], prog_name="foqs")

    def json(self, *arguments: str) -> Any:
        result = self.run(*arguments, "--output", "json")
        assert result.exit_code == 0, result.stderr
        return json.loads(result.stdout)


@pytest.fixture
def shell(meta_url: str, shard_urls: dict[int, str]) -> Iterator[Shell]:
    with host_beside(meta_url, {0: shard_urls[0]}, "ns") as address:
        yield Shell(address)


def test_a_topic_is_paused_limited_and_weighed(shell: Shell) -> None:
    paused = shell.json("topic", "pause", "ns", "t", "--dequeue", "--reason", "a move")
    assert (paused["enqueue_paused"], paused["dequeue_paused"], paused["reason"]) == (False, True, "a move")
    refused = shell.run("dequeue", "ns", "t")
    assert refused.exit_code != 0
    assert "a move" in refused.stderr
    shell.run("topic", "limit", "ns", "t", "0.5")
    shell.run("topic", "weight", "ns", "t", "3")
    (policy,) = shell.json("topic", "policies", "ns")
    assert (policy["deliveries_per_second_max"], policy["weight"]) == (0.5, 3)
    assert shell.run("topic", "policies", "ns").stdout.splitlines()[1].split("\t") == [
        "t",
        "dequeue",
        "0.5",
        "3",
        "a move",
    ]
    shell.run("topic", "limit", "ns", "t", "none")
    shell.run("topic", "weight", "ns", "t", "1")
    resumed = shell.json("topic", "resume", "ns", "t")
    assert (resumed["dequeue_paused"], resumed["reason"]) == (False, "")
    assert shell.json("topic", "policies", "ns") == []
    assert shell.run("topic", "limit", "ns", "t", "many").exit_code == 2


def test_a_namespace_is_paused_and_resumed(shell: Shell) -> None:
    paused = shell.json("namespace", "pause", "ns", "--enqueue", "--reason", "full")["settings"]
    assert (paused["enqueue_paused"], paused["dequeue_paused"], paused["pause_reason"]) == (True, False, "full")
    refused = shell.run("enqueue", "ns", "t", "x")
    assert refused.exit_code != 0
    assert "full" in refused.stderr
    resumed = shell.json("namespace", "resume", "ns")["settings"]
    assert (resumed["enqueue_paused"], resumed["pause_reason"]) == (False, "")
    settings = shell.json("namespace", "set", "ns", "--deliveries-per-second-max", "2.5")["settings"]
    assert settings["deliveries_per_second_max"] == 2.5


def test_items_of_any_topic_are_dequeued_by_prefix(shell: Shell) -> None:
    for topic in ("a/1", "a/2", "b/1"):
        shell.run("enqueue", "ns", topic, topic)
    items = shell.json("dequeue", "ns", "a/", "--prefix", "--count", "10", "--wait-ms", "5000")
    assert {item["topic"] for item in items} <= {"a/1", "a/2"}
    assert items

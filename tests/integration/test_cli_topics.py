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

    def run(self, *arguments: str, stdin: bytes | None = None) -> Result:
        return CliRunner().invoke(cli, [*arguments, "--address", self._address], input=stdin, prog_name="foqs")

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
        "",
        "",
        "",
        "",
        "",
        "no",
        "a move",
    ]
    shell.run("topic", "limit", "ns", "t", "none")
    shell.run("topic", "weight", "ns", "t", "1")
    shell.run("topic", "attempts", "ns", "t", "4")
    assert shell.json("topic", "policies", "ns")[0]["attempts_max"] == 4
    shell.run("topic", "attempts", "ns", "t", "0")
    shell.run("topic", "serial", "ns", "ledger", "on", "--on-dead", "hold")
    assert shell.run("topic", "policies", "ns").stdout.splitlines()[1].split("\t")[9] == "yes, dead letters hold it"
    told = shell.json("topic", "serial", "ns", "ledger", "off", "--on-dead", "continue")
    assert (told["serial"], told["own_fields"]) == (False, [])
    shell.run("topic", "in-flight", "ns", "t", "7")
    assert shell.json("topic", "policies", "ns")[0]["in_flight_max"] == 7
    shell.run("topic", "in-flight", "ns", "t", "0")
    resumed = shell.json("topic", "resume", "ns", "t")
    assert (resumed["dequeue_paused"], resumed["reason"]) == (False, "")
    assert shell.json("topic", "policies", "ns") == []
    assert shell.run("topic", "limit", "ns", "t", "many").exit_code == 2


def test_a_topic_has_a_depth_an_expiry_and_a_backoff(shell: Shell) -> None:
    shell.run("topic", "depth", "ns", "t", "1")
    shell.run("topic", "expiry", "ns", "t", "dead-letter")
    shell.run("topic", "backoff", "ns", "t", "500", "--max-ms", "60000")
    row = shell.run("topic", "policies", "ns").stdout.splitlines()[1].split("\t")
    assert row == ["t", "no", "none", "1", "", "", "1", "dead-letter", "500..60000", "no", ""]
    shell.run("enqueue", "ns", "t", "x")
    assert "topic 't' is full" in shell.run("enqueue", "ns", "t", "x").stderr
    shell.run("topic", "depth", "ns", "t", "0")
    shell.run("topic", "expiry", "ns", "t", "namespace")
    (policy,) = shell.json("topic", "policies", "ns")
    assert (policy["backoff_ms"], policy["own_fields"]) == (500, ["backoff_ms", "backoff_ms_max"])
    assert shell.run("topic", "expiry", "ns", "t", "maybe").exit_code == 2


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


def test_a_prefix_has_a_policy_that_a_topic_overrides(shell: Shell) -> None:
    paused = shell.json("topic", "pause", "ns", "mail/", "--prefix", "--reason", "a move")
    assert (paused["topic"], paused["is_prefix"], paused["dequeue_paused"]) == ("mail/", True, True)
    for name in ("mail/1", "mail/2"):
        assert "a move" in shell.run("dequeue", "ns", name).stderr
    resumed = shell.json("topic", "resume", "ns", "mail/1")
    assert (resumed["is_prefix"], resumed["dequeue_paused"], resumed["reason"]) == (False, False, "")
    assert "a move" not in shell.run("dequeue", "ns", "mail/1").stderr
    shell.run("topic", "limit", "ns", "mail/", "7", "--prefix")
    shell.run("topic", "weight", "ns", "mail/*", "3")
    rows = [line.split("\t") for line in shell.run("topic", "policies", "ns").stdout.splitlines()[1:]]
    assert rows == [
        ["mail/*", "enqueue, dequeue", "7", "1", "", "", "", "", "", "no", "a move"],
        ["mail/*", "enqueue, dequeue", "7", "3", "", "", "", "", "", "no", "a move"],
        ["mail/1", "no", "7", "1", "", "", "", "", "", "no", ""],
    ]
    prefix, odd, own = shell.json("topic", "policies", "ns")
    assert [(one["topic"], one["is_prefix"]) for one in (prefix, odd, own)] == [
        ("mail/", True), ("mail/*", False), ("mail/1", False),
    ]  # fmt: skip
    assert (odd["own_fields"], own["own_fields"]) == (["weight"], ["enqueue_paused", "dequeue_paused", "reason"])
    shell.run("topic", "resume", "ns", "mail/", "--prefix")
    shell.run("topic", "limit", "ns", "mail/", "none", "--prefix")
    assert [one["topic"] for one in shell.json("topic", "policies", "ns")] == ["mail/*", "mail/1"]


CSV = """\ufefftopic,prefix,enqueue_paused,dequeue_paused,reason,items_per_second,weight,depth,expiry,backoff_ms_max
" a, ""b"" *",,,,,2.5,,9,,
ü,,,TRUE,"so, so",,,,delete,
p,true,,,,none,4,,,7
,,,,,,2,,,
bad,,maybe,,,,,,,
worse,,,,,,200,,,
few,
odd,,,,,,,,never,
"""


def test_policies_come_from_a_file_with_any_names_and_a_bad_line_fails_alone(shell: Shell) -> None:
    result = shell.run("topic", "set-policies", "ns", "-", stdin=CSV.encode())
    assert result.exit_code == 2, result.output
    assert result.stdout == "3 policies set, 5 failed\n"
    assert [line.split(":")[1].strip() for line in result.stderr.splitlines()] == [
        f"line {at}" for at in (5, 6, 7, 8, 9)
    ]
    found = {(one["topic"], one["is_prefix"]): one for one in shell.json("topic", "policies", "ns")}
    assert found.keys() == {(' a, "b" *', False), ("ü", False), ("p", True)}
    assert found[' a, "b" *', False]["deliveries_per_second_max"] == 2.5
    assert (found["ü", False]["dequeue_paused"], found["ü", False]["reason"]) == (True, "so, so")
    assert (found["p", True]["weight"], found["p", True]["backoff_ms_max"]) == (4, 7)
    assert (found[' a, "b" *', False]["depth_max"], found["ü", False]["dead_letter_on_expiry"]) == (9, "off")
    for wrong in (b"topic,colour\nt,red\n", b"weight\n2\n", b"topic\n\xff\n", b'topic\n"a\n', b""):
        refused = shell.run("topic", "set-policies", "ns", "-", stdin=wrong)
        assert refused.exit_code == 2, wrong
        assert "line" in refused.stderr


def test_items_with_fairness_keys_are_enqueued_counted_and_redriven_by_key(shell: Shell) -> None:
    for payload, key in (("0", "a"), ("1", "a"), ("2", "b")):
        assert shell.run("enqueue", "ns", "shared", payload, "--fairness-key", key).exit_code == 0
    (stats,) = [one for one in shell.json("topics", "ns") if one["topic"] == "shared"]
    assert (stats["ready"], stats["ordering_keys"], stats["fairness_keys"]) == (3, None, 2)
    items = shell.json("dequeue", "ns", "shared", "--count", "2", "--wait-ms", "2000")
    assert sorted([item["fairness_key"] for item in items]) == ["a", "b"]
    (item, _) = sorted(items, key=lambda one: one["fairness_key"])
    assert shell.run("nack", "ns", item["receipt"], "--dead-letter").exit_code == 0
    assert shell.json("dead-letter", "list", "ns", "shared", "--fairness-key", "b")["items"] == []
    (dead,) = shell.json("dead-letter", "list", "ns", "shared", "--fairness-key", "a")["items"]
    assert (dead["id"], dead["fairness_key"]) == (item["id"], "a")
    assert "shared (fairness key a)" in shell.run("item", "list", "ns").stdout
    assert shell.run("dead-letter", "redrive", "ns", "shared", "--fairness-key", "b").stdout == "0 redriven\n"
    assert shell.run("dead-letter", "redrive", "ns", "shared", "--fairness-key", "a").stdout == "1 redriven\n"


def test_items_with_ordering_keys_are_enqueued_counted_and_redriven_by_key(shell: Shell) -> None:
    for payload, key in (("0", "a"), ("1", "a"), ("2", "b")):
        assert shell.run("enqueue", "ns", "orders", payload, "--ordering-key", key).exit_code == 0
    (stats,) = shell.json("topics", "ns")
    assert (stats["topic"], stats["ready"], stats["ordering_keys"]) == ("orders", 3, 2)
    assert shell.run("topics", "ns").stdout.splitlines()[1].split("\t")[5] == "2"
    (item,) = shell.json("dequeue", "ns", "orders", "--count", "1", "--wait-ms", "2000")
    assert item["ordering_key"] in ("a", "b")
    assert shell.run("nack", "ns", item["receipt"], "--dead-letter").exit_code == 0
    assert shell.json("dead-letter", "list", "ns", "orders", "--ordering-key", "other")["items"] == []
    (dead,) = shell.json("dead-letter", "list", "ns", "orders", "--ordering-key", item["ordering_key"])["items"]
    assert dead["id"] == item["id"]
    assert f"orders (key {item['ordering_key']})" in shell.run("item", "list", "ns").stdout
    redriven = shell.run("dead-letter", "redrive", "ns", "orders", "--ordering-key", item["ordering_key"])
    assert redriven.stdout == "1 redriven\n"
    refused = shell.run("topic", "key-buckets", "ns", "orders", "16")
    assert refused.exit_code != 0
    assert "only without items" in refused.stderr
    told = shell.json("topic", "key-buckets", "ns", "events", "16")
    assert (told["key_buckets"], told["own_fields"]) == (16, ["key_buckets"])
    assert shell.json("topic", "key-batch", "ns", "events", "100")["key_batch"] == 100
    assert "no, keys in 16 buckets, 100 together" in shell.run("topic", "policies", "ns").stdout


def test_a_topic_ages_by_a_policy_of_its_own_or_of_a_prefix(shell: Shell) -> None:
    told = shell.json("topic", "aging", "ns", "orders", "60000")
    assert (told["aging_ms_per_priority"], told["own_fields"]) == (60_000, ["aging_ms_per_priority"])
    assert shell.json("topic", "aging", "ns", "mail/", "500", "--prefix")["is_prefix"]
    told = shell.run("topic", "policies", "ns").stdout
    assert "no, ages by one priority in 60000 ms" in told
    assert "no, ages by one priority in 500 ms" in told
    refused = shell.run("topic", "serial", "ns", "orders", "on")
    assert refused.exit_code != 0
    assert "aging_ms_per_priority 60000 is not possible with serial" in refused.stderr

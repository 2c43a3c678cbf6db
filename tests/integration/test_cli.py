"""The remote commands against the real transport with a fake queue behind it."""

from __future__ import annotations

import base64
import errno
import json
import os
import pty
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result

from foqs.cli.main import cli
from foqs.cli.output import Output
from foqs.client import flows
from foqs.model.calls import CallContext, HostStatus, ShardStatus, TopicPage, TopicStats
from foqs.model.errors import FoqsError, OverloadedError, PausedError
from foqs.model.namespace import NamespaceSettings
from foqs.model.reasons import Reason, ReasonCode
from tests.support.background_host import background_host
from tests.support.fake_queue import FakeQueue
from tests.support.waiting import PATIENCE_S


class Shell:
    def __init__(self, address: str, queue: FakeQueue) -> None:
        self.address = address
        self.queue = queue

    def run(self, *arguments: str, stdin: bytes = b"") -> Result:
        result = CliRunner().invoke(cli, [*arguments, "--address", self.address], input=stdin, prog_name="foqs")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    def json(self, *arguments: str, stdin: bytes = b"") -> Any:
        result = self.run(*arguments, "--output", "json", stdin=stdin)
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)


@pytest.fixture
def shell() -> Iterator[Shell]:
    with background_host() as (address, queue):
        yield Shell(address, queue)


def test_output_that_cannot_be_written_is_a_message_and_acks_nothing(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    shell.run("enqueue", "ns", "mail", "x")
    monkeypatch.setattr(Output, "table", full)
    result = shell.run("dequeue", "ns", "mail", "--ack")
    assert (result.exit_code, result.stderr) == (1, "error: No space left on device\n")
    assert len(shell.queue.leased) == 1


def test_what_is_enqueued_is_listed_and_dequeued(shell: Shell) -> None:
    options = ["--priority", "-5", "--metadata", "m", "--trace-context", "00-a-01"]
    item_id = shell.json("enqueue", "ns", "mail", "hello", *options)["id"]
    (stats,) = shell.json("topics", "ns")
    assert (stats["topic"], stats["ready"], stats["most_urgent_priority"]) == ("mail", 1, -5)
    assert "TRACE CONTEXT" in shell.run("item", "peek", "ns", "mail").stdout.splitlines()[0]
    (peeked,) = shell.json("item", "peek", "ns", "mail")["items"]
    assert peeked["trace_context"] == shell.json("item", "get", "ns", item_id)["trace_context"] == "00-a-01"
    assert (peeked["id"], peeked["state"], peeked["delivery"]) == (item_id, "ready", "at_least_once")
    (taken,) = shell.json("dequeue", "ns", "mail")
    assert taken["trace_context"] == "00-a-01"
    assert (taken["id"], taken["payload"], taken["metadata"], taken["priority"]) == (
        item_id,
        "hello",
        "m",
        -5,
    )
    assert shell.json("ack", "ns", taken["receipt"]) == {"errors": {}}
    assert shell.json("dequeue", "ns", "mail") == []


def test_a_payload_may_come_from_stdin_and_need_not_be_text(shell: Shell) -> None:
    assert shell.run("enqueue", "ns", "t", "-", stdin=b"\xff\x00\n").exit_code == 0
    assert shell.run("enqueue", "ns", "t", os.fsdecode(b"\xff\x00".rstrip(b"\0"))).exit_code == 0
    (taken,) = shell.json("dequeue", "ns", "t")
    assert taken["payload"] is None
    assert base64.b64decode(taken["payload_base64"]) == b"\xff\x00\n"


def test_an_empty_stdin_is_no_item_unless_asked_for(shell: Shell) -> None:
    assert shell.run("enqueue", "ns", "t").exit_code == 2
    assert shell.queue.ready["ns", "t"] == []
    assert shell.run("enqueue", "ns", "t", "--allow-empty").exit_code == 0
    assert shell.run("enqueue", "ns", "t", "").exit_code == 0
    assert [item.payload for item in shell.queue.ready["ns", "t"]] == [b"", b""]
    assert "nothing is stored" in shell.run("enqueue", "ns", "t", "--lines").stderr


def test_an_item_with_a_dedup_id_is_stored_once_and_a_repeat_is_told(shell: Shell) -> None:
    first = shell.json("enqueue", "ns", "t", "a", "--dedup-id", "order-1")
    assert first == {"id": first["id"], "duplicate": False}
    again = shell.run("enqueue", "ns", "t", "b", "--dedup-id", "order-1")
    assert (again.exit_code, again.stdout.strip()) == (0, first["id"])
    assert "enqueued before" in again.stderr
    assert shell.json("enqueue", "ns", "t", "b", "--dedup-id", "order-1") == {"id": first["id"], "duplicate": True}
    assert len(shell.queue.ready["ns", "t"]) == 1
    assert shell.run("enqueue", "ns", "t", "--lines", "--dedup-id", "x", stdin=b"a").exit_code == 2


def test_a_dedup_id_is_unique_while_its_item_lives_and_is_made_free(shell: Shell) -> None:
    first = shell.json("enqueue", "ns", "t", "a", "--dedup-id", "order-1", "--unique")
    refused = shell.run("enqueue", "ns", "t", "a", "--unique")
    assert (refused.exit_code, "--unique needs --dedup-id" in refused.stderr) == (2, True)
    free = shell.run("dedup", "forget", "ns", "order-1", "order-2", "--yes")
    assert (free.exit_code, "made free 1" in free.stderr, "order-2: it was free already" in free.stderr) == (
        3,
        True,
        True,
    )
    assert shell.json("enqueue", "ns", "t", "a", "--dedup-id", "order-1")["id"] != first["id"]
    assert shell.json("dedup", "forget", "ns", "order-1", "--yes") == {"errors": {}}


def test_enqueue_says_at_a_terminal_that_it_reads_from_there(shell: Shell) -> None:
    here, there = pty.openpty()
    with os.fdopen(here, "wb", buffering=0) as terminal, os.fdopen(there, "rb") as stdin:
        command = [sys.executable, "-m", "foqs.cli.main", "enqueue", "ns", "t", "--address", shell.address]
        with subprocess.Popen(
            command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as program:
            assert program.stderr is not None
            assert "reading the payload from stdin" in program.stderr.readline()
            terminal.write(b"typed\n\x04")
            assert program.wait(PATIENCE_S) == 0
    assert [item.payload for item in shell.queue.ready["ns", "t"]] == [b"typed\n"]


def test_what_a_stdout_cannot_hold_is_escaped(shell: Shell) -> None:
    shell.run("enqueue", "ns", "brève-中", "né-\N{GRINNING FACE}")
    plain = {"PYTHONIOENCODING": "latin-1"}
    table = CliRunner(charset="latin-1").invoke(cli, ["topics", "ns", "--address", shell.address], env=plain)
    assert (table.exit_code, table.exception) == (0, None)
    assert table.stdout.splitlines()[1].endswith("brève-\\u4e2d")
    arguments = ["item", "peek", "ns", "brève-中", "--output", "json", "--address", shell.address]
    document = CliRunner(charset="latin-1").invoke(cli, arguments)
    assert json.loads(document.stdout)["items"][0]["payload"] == "né-\N{GRINNING FACE}"


def test_every_line_of_stdin_may_be_an_item(shell: Shell) -> None:
    lines = [f"line {number}".encode() for number in range(250)]
    result = shell.run("enqueue", "ns", "t", "--lines", stdin=b"\n".join(lines))
    assert result.exit_code == 0
    assert len(set(result.stdout.split())) == 250
    assert [item.payload for item in shell.queue.ready["ns", "t"]] == lines


def test_lines_are_stored_in_calls_of_no_more_than_fit_into_a_minute(shell: Shell) -> None:
    assert shell.run("namespace", "create", "small", "--enqueues-per-minute-max", "30").exit_code == 0
    result = shell.run("enqueue", "small", "t", "--lines", stdin=b"x\n" * 250)
    assert result.exit_code == 0, result.stderr
    assert len(shell.queue.ready["small", "t"]) == 250


def test_a_line_that_fails_is_named_and_the_others_are_stored(shell: Shell) -> None:
    stdin = b"one\n" + b"x" * 20_000 + b"\nthree\n"
    result = shell.run("enqueue", "ns", "t", "--lines", "--output", "json", stdin=stdin)
    assert result.exit_code == 2
    first, second, third = map(json.loads, result.stdout.splitlines())
    assert (first["line"], second["line"], third["line"]) == (1, 2, 3)
    assert second["error"]["code"] == "TOO_LARGE"
    assert "line 2" in result.stderr
    assert [item.payload for item in shell.queue.ready["ns", "t"]] == [b"one", b"three"]


def test_more_than_the_largest_payload_is_refused_before_it_is_read_whole(shell: Shell) -> None:
    result = shell.run("enqueue", "ns", "t", stdin=b"x" * (2**20 + 1))
    assert (result.exit_code, result.stdout) == (2, "")
    assert "1048576" in result.stderr


def test_dequeue_with_ack_leaves_nothing_under_lease(shell: Shell) -> None:
    shell.run("enqueue", "ns", "t", "a")
    shell.run("enqueue", "ns", "t", "b")
    result = shell.run("dequeue", "ns", "t", "--count", "5", "--ack")
    assert result.exit_code == 0
    assert shell.queue.leased == {}
    assert shell.queue.ready["ns", "t"] == []


def test_dequeue_without_ack_keeps_the_lease_and_nack_gives_it_back(shell: Shell) -> None:
    shell.run("enqueue", "ns", "t", "a")
    (taken,) = shell.json("dequeue", "ns", "t")
    assert list(shell.queue.leased) == [taken["receipt"]]
    assert shell.run("nack", "ns", taken["receipt"]).exit_code == 0
    assert len(shell.queue.ready["ns", "t"]) == 1
    stale = shell.run("ack", "ns", taken["receipt"])
    assert stale.exit_code == 4
    assert taken["receipt"] in stale.stderr


def test_tables_without_a_terminal_are_whole_and_have_no_control_characters(
    shell: Shell,
) -> None:
    shell.run("enqueue", "ns", "t" * 50, "\x1b[31mred[bold]" + "x" * 100)
    row = shell.run("item", "peek", "ns", "t" * 50).stdout.splitlines()[1]
    assert "\x1b" not in row
    assert "[31mred[bold]xxx" in row
    assert row.endswith("x" * 100)
    assert row.split("\t")[1] == "ready"
    assert shell.run("topics", "ns").stdout.splitlines()[1].split("\t")[-1] == "t" * 50


def test_a_namespace_lives_from_create_to_delete(shell: Shell) -> None:
    created = shell.json("namespace", "create", "orders", "--attempts-max", "3", "--enqueue-paused")
    assert created["settings"]["attempts_max"] == 3
    assert created["settings"]["enqueue_paused"] is True
    changed = shell.json("namespace", "set", "orders", "--not-enqueue-paused")
    assert changed["settings"] == {**created["settings"], "enqueue_paused": False}
    assert shell.json("namespace", "show", "orders") == changed
    assert [one["name"] for one in shell.json("namespace", "list", "--prefix", "o")] == ["orders"]
    table = dict(line.split(maxsplit=1) for line in shell.run("namespace", "show", "orders").stdout.splitlines())
    assert (table["attempts_max"].strip(), table["dequeue_paused"].strip()) == ("3", "false")
    assert (table["key_spread"].strip(), table["dedup_scope"].strip()) == ("1", "namespace")
    assert shell.run("namespace", "delete", "orders", "--yes").exit_code == 0
    assert shell.run("namespace", "show", "orders").exit_code == 3


def test_a_namespace_is_told_how_it_knows_dedup_ids(shell: Shell) -> None:
    options = ("--key-spread", "4", "--dedup-scope", "topic", "--dedup-ms", "60000", "--dedup-when-away", "ACCEPT")
    created = shell.json("namespace", "create", "orders", *options)
    told = {name: created["settings"][name] for name in ("key_spread", "dedup_scope", "dedup_ms", "dedup_when_away")}
    assert told == {"key_spread": 4, "dedup_scope": "topic", "dedup_ms": 60_000, "dedup_when_away": "accept"}
    changed = shell.json("namespace", "set", "orders", "--dedup-when-away", "refuse", "--dedup-ids", "2000")
    assert changed["settings"] == created["settings"] | {"dedup_when_away": "refuse", "dedup_ids": 2_000}
    refused = shell.run("namespace", "set", "orders", "--key-spread", "2")
    assert refused.exit_code == 2
    assert "key_spread is 4 since the namespace was created" in refused.stderr


def test_every_setting_of_a_namespace_has_its_option() -> None:
    for command in ("create", "set"):
        text = CliRunner().invoke(cli, ["namespace", command, "--help"]).stdout
        for name in NamespaceSettings.__dataclass_fields__:
            assert f"--{name.replace('_', '-')}" in text
        # What is not given to `set` stays, whatever the default is.
        assert ("default: 16" in text) == (command == "create")


def test_what_destroys_asks_first(shell: Shell) -> None:
    refused = shell.run("namespace", "delete", "ns", stdin=b"n\n")
    assert refused.exit_code == 1
    assert "ns" in shell.queue.namespaces
    assert shell.run("namespace", "delete", "ns", stdin=b"y\n").exit_code == 0
    assert "ns" not in shell.queue.namespaces


@pytest.mark.parametrize(
    ("arguments", "question"),
    [
        (["item", "delete", "ns", "0-1", "0-2"], "item delete ns 0-1 0-2: really?"),
        (["item", "delete", "ns", *map(str, range(7))], "item delete ns 0 1 2 3 4 ... (7 in all): really?"),
        (["dead-letter", "purge", "ns", "t", "--limit", "9"], "dead-letter purge ns t (up to 9 items): really?"),
        (["dead-letter", "purge", "ns", "t", "--all"], "dead-letter purge ns t (all dead letters): really?"),
        (["dead-letter", "purge", "ns", "t", "0-1"], "dead-letter purge ns t 0-1: really?"),
        (["namespace", "delete", "ns"], "namespace delete ns: really?"),
    ],
)
def test_the_question_names_what_would_be_destroyed(shell: Shell, arguments: list[str], question: str) -> None:
    assert question in shell.run(*arguments, stdin=b"n\n").stderr


def test_a_topic_with_nothing_ready_has_no_most_urgent_priority(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    async def topics(*_: object) -> TopicPage:
        return TopicPage([TopicStats("busy", 1, 0, 0, 0, 0, 5), TopicStats("idle", 0, 7, 0, 0, 0, 0)], "")

    monkeypatch.setattr(shell.queue, "get_active_topics", topics)
    busy, idle = (line.split() for line in shell.run("topics", "ns").stdout.splitlines()[1:])
    heads = shell.run("topics", "ns").stdout.splitlines()[0].split("\t")
    priority_at = next(at for at, head in enumerate(heads) if "PRIORITY" in head or "URGENT" in head)
    assert busy[priority_at] == "0"
    assert idle[priority_at:] == ["-", "-", "idle"]


@pytest.mark.parametrize(
    ("arguments", "exit_code", "words"),
    [
        (["topics", "nowhere"], 3, "does not exist"),
        (["item", "get", "ns", "1-99"], 3, "no item"),
        (["item", "delete", "ns", "1-98", "1-99", "--yes"], 3, "1-99"),
        (["dead-letter", "redrive", "ns", "t", "1-99"], 3, "1-99"),
        (["namespace", "create", "ns"], 4, "exists"),
        (["ack", "ns", "1-1.1"], 4, "1-1.1"),
        (["namespace", "create", "bad name"], 2, "not valid"),
        (["enqueue", "ns", "t", "x" * 20_000], 2, "over"),
        (["enqueue", "ns", "t", "x", "--priority", str(2**40)], 2, "priority"),
        (["enqueue", "ns", "t", "x", "--priority", "high"], 2, "'high' is not a whole number within -"),
        (["enqueue", "ns", "t", "x", "--priority", "high"], 2, "the smaller, the more urgent; 0 is usual"),
        (["enqueue", "ns", "t", "x", "--delay-ms", "1s"], 2, "'1s' is not a whole number: milliseconds"),
        (["item", "list", "ns", "--limit", "some"], 2, "'some' is not a whole number from 1 on"),
        (["namespace", "set", "ns"], 2, "at least one"),
        (["enqueue", "ns", "t", "payload", "--lines"], 2, "no PAYLOAD"),
        (["nack", "ns", "r", "--release", "--dead-letter"], 2, "exclude"),
        (["enqueue", "ns", "t"], 2, "--allow-empty"),
    ],
)
def test_each_failure_has_its_exit_code_and_says_why_on_stderr(
    shell: Shell, arguments: list[str], exit_code: int, words: str
) -> None:
    result = shell.run(*arguments)
    assert result.exit_code == exit_code, result.output
    assert words in result.stderr


@pytest.mark.parametrize("error", [OverloadedError("full"), PausedError("paused", retry_after_ms=7)])
def test_what_may_work_later_is_unavailable(shell: Shell, error: FoqsError) -> None:
    shell.queue.failure = error
    result = shell.run("topics", "ns")
    assert result.exit_code == 5
    assert ("7 ms" in result.stderr) == (error.retry_after_ms == 7)


@pytest.mark.parametrize("output", ["table", "json"])
def test_topics_of_which_a_part_is_missing_are_shown_and_have_an_exit_code_of_their_own(
    shell: Shell, output: str
) -> None:
    shell.run("enqueue", "ns", "mail", "hello")
    assert shell.run("topics", "ns", "--output", output).exit_code == 0
    shell.queue.missing = ["shards 0, 2 are served by no host now", "shards 0, 2 are served by no host now"]
    for options, exit_code in (([], 6), (["--partial"], 0)):
        result = shell.run("topics", "ns", "--output", output, *options)
        assert (result.exit_code, "mail" in result.stdout) == (exit_code, True)
        assert result.stderr == "not counted: shards 0, 2 are served by no host now\n"


def test_a_host_that_is_away_is_unavailable() -> None:
    # Port 1 is privileged and unassigned.
    result = CliRunner().invoke(cli, ["host-status"], env={"FOQS_ADDRESS": "127.0.0.1:1"})
    assert result.exit_code == 5
    assert "127.0.0.1:1" in result.stderr
    assert "FOQS_ADDRESS" in result.stderr


def test_dead_letters_are_redriven_and_purged_by_topic_and_each_failure_names_its_item(shell: Shell) -> None:
    assert shell.json("dead-letter", "list", "ns", "t")["items"] == []
    some = shell.run("dead-letter", "redrive", "ns", "t", "--limit", "12")
    assert some.stdout == "12 redriven\n"
    assert "error: 1-0: being settled\n" in some.stderr
    assert some.exit_code == 5
    every = shell.run("dead-letter", "purge", "ns", "t", "--all", "--yes", "--output", "json")
    document = json.loads(every.stdout)
    assert document["count"] == 90
    assert set(document["errors"]) == {f"1-{n:x}" for n in range(0, 100, 10)}
    every = shell.run("dead-letter", "redrive", "ns", "t", "--all", "--output", "json")
    assert json.loads(every.stdout)["count"] == 90
    for wrong in (["--all", "--limit", "3"], ["0-1", "--all"], ["0-1", "--limit", "3"]):
        assert shell.run("dead-letter", "redrive", "ns", "t", *wrong).exit_code == 2


def test_host_status_shows_the_shards(shell: Shell) -> None:
    status = shell.json("host-status")
    assert status["shards"] == [
        {"shard_id": 1, "state": "owned", "epoch": 3, "items": 5, "open_leases": 2, "detail": ""}
    ]
    assert "owned" in shell.run("host-status").stdout


@pytest.mark.parametrize(
    ("shards", "draining", "words"),
    [
        (
            [ShardStatus(1, "owned", 3, 5, 2), ShardStatus(2, "lost", 0, 0, 0, "owned by b")],
            False,
            "2 is lost: owned by b",
        ),
        ([ShardStatus(1, "sick", 3, 5, 2, "it is slow")], False, "1 is sick: it is slow"),
        ([ShardStatus(1, "owned", 3, 5, 2)], True, "draining"),
        ([], False, "no shard"),
    ],
)
def test_a_check_of_the_host_fails_unless_all_is_well(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, shards: list[ShardStatus], draining: bool, words: str
) -> None:
    assert shell.run("host-status", "--check").exit_code == 0

    async def status(_: CallContext, __: object) -> HostStatus:
        return HostStatus("fake", "0", 1, shards, draining)

    monkeypatch.setattr(shell.queue, "get_host_status", status)
    assert shell.run("host-status").exit_code == 0
    checked = shell.run("host-status", "--check")
    assert checked.exit_code == 1
    assert words in checked.stderr


def test_the_address_for_hosts_is_shown_where_there_is_one(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "other hosts call it" not in shell.run("host-status").stderr

    async def status(_: CallContext, __: object) -> HostStatus:
        return HostStatus("fake", "0", 1, [ShardStatus(1, "owned", 3, 5, 2)], False, "queue-a:7601")

    monkeypatch.setattr(shell.queue, "get_host_status", status)
    assert "other hosts call it at queue-a:7601" in shell.run("host-status").stderr
    assert shell.json("host-status")["peer_address"] == "queue-a:7601"


def test_a_command_that_reads_goes_on_to_the_next_address_when_a_host_hangs(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flows, "HOP_MS", 500)
    # The system accepts for a process that is stopped, and nobody answers.
    with socket.create_server(("127.0.0.1", 0)) as hung:
        shell.address = f"127.0.0.1:{hung.getsockname()[1]},{shell.address}"
        for _ in range(8):  # Each command begins with one of them by chance.
            assert shell.json("topics", "ns") == []


def test_what_a_host_says_is_told_together_with_the_one_that_is_not_there(shell: Shell) -> None:
    shell.queue.failure = OverloadedError("this host serves nothing")
    answers = shell.address
    shell.address = f"{answers},127.0.0.1:1"
    result = shell.run("topics", "ns")
    assert result.exit_code == 5
    assert f"error: {answers}: this host serves nothing; no connection: 127.0.0.1:1: " in result.stderr


def test_a_dequeue_that_gets_nothing_says_why_and_exits_with_6_if_not_all_was_asked(shell: Shell) -> None:
    result = shell.run("dequeue", "ns", "mail")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "no item is ready\n")
    shell.queue.why = [Reason(ReasonCode.DELAYED, "2 items of topic 'mail' are not due yet", count=2)]
    result = shell.run("dequeue", "ns", "mail")
    assert (result.exit_code, result.stderr) == (0, "no item is ready\n2 items of topic 'mail' are not due yet\n")
    shell.queue.why = [Reason(ReasonCode.TOPIC_PAUSED, "it is paused", remedy="foqs topic resume ns mail")]
    result = shell.run("dequeue", "ns", "mail")
    assert (result.exit_code, result.stderr) == (0, "it is paused: see `foqs topic resume ns mail`\n")
    shell.queue.why = [Reason(ReasonCode.SHARD_SICK, "shard 3 is sick and was not asked", shard_id=3)]
    result = shell.run("dequeue", "ns", "mail", "--output", "json")
    assert (result.exit_code, json.loads(result.stdout)) == (6, [])
    assert "no item is ready" not in result.stderr
    shell.queue.why = [Reason(12_345, "a reason of a newer host")]
    result = shell.run("dequeue", "ns", "mail")
    assert (result.exit_code, result.stderr) == (0, "a reason of a newer host\n")

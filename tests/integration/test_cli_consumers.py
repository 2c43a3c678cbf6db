"""`foqs consumer` and `foqs dequeue --name` against the real transport with a fake queue behind it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from foqs.model.calls import CallContext
from foqs.model.holder import ConsumerPage, ConsumerRow, ReleaseResult
from tests.integration.test_cli import Shell
from tests.support.background_host import background_host

ROW = ConsumerRow("w@h/1", "10.0.0.1", "", 2, 0, 0, 1_700_000_000_000, ["a", "b"], prefix="em", group="audit")


@pytest.fixture
def shell() -> Iterator[Shell]:
    with background_host() as (address, queue):
        yield Shell(address, queue)


def test_consumers_are_listed_with_their_items(shell: Shell) -> None:
    shell.run("enqueue", "ns", "mail", "x")
    assert shell.run("dequeue", "ns", "mail", "--name", "me").exit_code == 0
    (row,) = shell.json("consumer", "list", "ns")
    assert (row["name"], row["topic"], row["held"], row["held_since_ms"]) == ("worker", "mail", 1, 5)
    heads, line = shell.run("consumer", "list", "ns").stdout.splitlines()
    assert heads.split("\t")[:4] == ["NAME", "TOPIC", "WAITS", "HOLDS"]
    assert line.split("\t")[:4] == ["worker", "mail", "0", "1"]


def test_what_is_missing_is_named_and_ends_with_its_exit_code(shell: Shell) -> None:
    async def list_consumers(context: CallContext, request: object) -> ConsumerPage:
        return ConsumerPage([ROW], "", ["shard 3 is away"])

    shell.queue.list_consumers = list_consumers  # type: ignore[method-assign]
    result = shell.run("consumer", "list", "ns")
    assert (result.exit_code, "not listed: shard 3 is away" in result.stderr) == (6, True)
    assert "em* (group audit)" in result.stdout
    assert "a, b" in result.stdout
    assert shell.run("consumer", "list", "ns", "--partial").exit_code == 0


def test_a_release_asks_first_and_says_how_many(shell: Shell) -> None:
    requests: list[tuple[str, str, bool, str | None]] = []

    async def release_leases(context: CallContext, request: object) -> ReleaseResult:
        requests.append((request.consumer, request.topic, request.at_most_once, request.group))  # type: ignore[attr-defined]
        return ReleaseResult(4, 1)

    shell.queue.release_leases = release_leases  # type: ignore[method-assign]
    assert shell.run("consumer", "release", "ns", "w@h/1", stdin=b"n\n").exit_code != 0
    assert requests == []
    result = shell.run("consumer", "release", "ns", "w@h/1", "--topic", "t", "--group", "g", "--yes")
    assert result.exit_code == 0
    assert "released 4" in result.stderr
    assert "left 1" in result.stderr
    assert shell.json("consumer", "release", "ns", "w@h/1", "--at-most-once", "--yes") == {
        "released": 4,
        "left_at_most_once": 1,
    }
    assert requests == [("w@h/1", "t", False, "g"), ("w@h/1", "", True, None)]

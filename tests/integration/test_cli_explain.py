"""`foqs explain` against the real transport with a fake queue behind it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from foqs.model.calls import CallContext
from foqs.model.reasons import Explanation, Reason, ReasonCode, Verdict
from tests.integration.test_cli import Shell
from tests.support.background_host import background_host


@pytest.fixture
def shell() -> Iterator[Shell]:
    with background_host() as (address, queue):
        yield Shell(address, queue)


def explains(shell: Shell, found: Explanation) -> list[Any]:
    """Let the host answer so. Returns the requests."""
    requests: list[Any] = []

    async def explain(context: CallContext, request: Any) -> Explanation:
        requests.append(request)
        return found

    shell.queue.explain = explain  # type: ignore[method-assign]
    return requests


PAUSED = Reason(ReasonCode.TOPIC_PAUSED, "dequeues are paused", 0, 3, "mail", remedy="foqs topic resume ns mail")


def test_the_summary_the_reasons_and_the_commands_that_help_are_printed(shell: Shell) -> None:
    late = Reason(77, "something of a newer host", 1_700_000_000_000, remedy="foqs topic resume ns mail")
    explains(shell, Explanation(Verdict.STOPPED, "topic 'mail' stands still", [PAUSED, late], 5))
    result = shell.run("explain", "ns", "--topic", "mail")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "topic 'mail' stands still",
        "REASON\tUNTIL\tWHAT",
        "TOPIC_PAUSED\t-\tdequeues are paused",
        "77\t2023-11-14 22:13:20.000\tsomething of a newer host",
    ]
    assert result.stderr == "$ foqs topic resume ns mail\n"
    (shown,) = [shell.json("explain", "ns", "--topic", "mail")["reasons"][0]]
    assert (shown["code"], shown["count"], shown["remedy"]) == (14, 3, "foqs topic resume ns mail")


def test_an_item_shows_its_place_and_the_options_arrive(shell: Shell) -> None:
    behind = Reason(ReasonCode.BEHIND, "others come first", count=1_204)
    found = Explanation(Verdict.SLOW, "item waits", [behind], 5, 1_204, ahead_is_exact=False, expected_wait_ms=125_000)
    requests = explains(shell, found)
    result = shell.run("explain", "ns", "--item", "0-10000000001")
    assert result.stderr == "in front of it: at least 1,204 items\nexpected wait: about 2 min\n"
    shell.run("explain", "ns", "--topic", "t", "--group", "g", "--ordering-key", "k")
    assert [(one.topic, one.item_id, one.group, one.ordering_key) for one in requests] == [
        ("", "0-10000000001", None, None), ("t", "", "g", "k"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("verdict", "missing", "code"), [(Verdict.GONE, [], 3), (Verdict.STOPPED, ["shard 3"], 6), (Verdict.MOVING, [], 0)]
)
def test_the_exit_code_says_if_the_item_is_gone_or_not_all_was_asked(
    shell: Shell, verdict: Verdict, missing: list[str], code: int
) -> None:
    explains(shell, Explanation(verdict, "it", [PAUSED], 5, missing=missing))
    assert shell.run("explain", "ns").exit_code == code

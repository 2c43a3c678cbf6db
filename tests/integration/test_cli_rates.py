"""`foqs topic rates`, `foqs topic history` and the rates of `foqs topics`: tables, JSON, refusals and exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result

from foqs.cli.main import cli
from foqs.cli.rate_commands import shown_rate
from foqs.model.calls import TopicPage, TopicStats
from foqs.model.event_history import History, HistoryRow
from foqs.model.event_log import BOUNDS_MS
from foqs.model.topic_rates import RatesPage, TopicRates
from tests.support.background_host import background_host
from tests.support.fake_queue import FakeQueue

Run = Callable[..., Result]
AT_MS = 1_700_000_000_000
ROWS = [
    TopicRates("mail", 250.4, 12.34, 1.0, 0.02, 3.0, 2.0, 1.0, 0.0, ready=7),
    TopicRates("mail", 1.0, group="audit"),
    TopicRates("pay"),
]


@pytest.fixture
def shell() -> Iterator[tuple[Run, FakeQueue]]:
    with background_host() as (address, queue):

        def run(*arguments: str, code: int = 0) -> Result:
            done = CliRunner().invoke(cli, [*arguments, "--address", address], prog_name="foqs")
            assert done.exit_code == code, done.output
            return done

        yield run, queue


def answering(queue: FakeQueue, verb: str, *answers: object) -> list[Any]:
    """Let a verb return these answers, one after the other and the last one again; its requests are in the list."""
    left, requests = list(answers), []

    async def answer(_: object, request: Any) -> object:
        requests.append(request)
        return left.pop(0) if len(left) > 1 else left[0]

    setattr(queue, verb, answer)
    return requests


def cells(result: Result) -> list[list[str]]:
    return [line.split("\t") for line in result.stdout.splitlines()]


def test_topics_are_shown_with_their_rates_in_the_wanted_order(shell: tuple[Run, FakeQueue]) -> None:
    run, queue = shell
    requests = answering(queue, "get_rates", RatesPage(ROWS))
    table = cells(run("topic", "rates", "ns", "--prefix", "m", "--order", "failed", "--limit", "5"))
    assert table[0] == ["IN/S", "OUT/S", "DELIVERED/S", "FAIL/S", "IN/S 15 MIN", "OUT/S 15 MIN", "READY", "TOPIC"]
    assert table[1] == ["250", "1.0", "12.3", "0.02", "3.0", "1.0", "7", "mail"]
    assert [row[-1] for row in table[2:]] == ["mail (group audit)", "pay"]
    (request,) = requests
    assert (request.topic_prefix, request.order, request.limit, request.partial) == ("m", 3, 5, True)
    assert not request.topics
    rows = json.loads(run("topic", "rates", "ns", "mail", "--group", "audit", "--output", "json").stdout)
    assert [row["enqueued_1min"] for row in rows] == [250.4, 1.0, 0.0]
    assert (requests[-1].topics, requests[-1].group) == (["mail"], "audit")
    run("topic", "rates", "ns", "--all")
    assert requests[-1].of_namespaces


def test_series_of_the_first_topics_are_read_by_their_names(shell: tuple[Run, FakeQueue]) -> None:
    run, queue = shell
    names = ("enqueued_series", "delivered_series", "ended_series", "failed_series", "ready_series")
    row = TopicRates("mail", **{name: [-1, number, 5] for number, name in enumerate(names)})
    requests = answering(queue, "get_rates", RatesPage(ROWS), RatesPage([row], AT_MS))
    table = cells(run("topic", "rates", "ns", "--series", "--limit", "900"))
    assert (requests[0].limit, requests[0].with_series) == (50, None)
    assert (requests[1].topics, requests[1].with_series) == (["mail", "pay"], True)
    assert table[1:] == [
        ["2023-11-14 22:13:30.000", "0", "2", "1", "3", "4", "mail"],
        ["2023-11-14 22:13:40.000", "5", "5", "5", "5", "5", "mail"],
    ]


def test_a_page_without_some_hosts_is_shown_and_has_an_exit_code_of_its_own(shell: tuple[Run, FakeQueue]) -> None:
    run, queue = shell
    answering(queue, "get_rates", RatesPage(ROWS, missing=["host b"]))
    answering(queue, "get_history", History([], 1, AT_MS, missing=["host b"]))
    for command in (("topic", "rates", "ns"), ("topic", "history", "ns")):
        assert "not counted: host b" in run(*command, code=6).stderr
        run(*command, "--partial")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("rates", "ns", "--group", "g"), "--group is the group of each TOPIC"),
        (("rates", "ns", "t", "--all"), "--all is the namespace as a whole"),
        (("rates", "ns", "--limit", "1001"), "1001"),
        (("rates", "ns", "--order", "speed"), "speed"),
        (("history", "ns", "--group", "g"), "--group is the group of each TOPIC"),
        (("history", "ns", "--step", "1441"), "1441"),
        (("history", "ns", "--since", "soon"), "'soon' is no time"),
    ],
)
def test_a_wrong_call_is_an_error_of_usage(shell: tuple[Run, FakeQueue], arguments: tuple[str, ...], text: str) -> None:
    run, _ = shell
    assert text in run("topic", *arguments, code=2).stderr


def test_the_past_is_shown_by_steps_with_the_bounds_of_its_times(shell: tuple[Run, FakeQueue]) -> None:
    run, queue = shell
    buckets = [0] * (len(BOUNDS_MS) + 1)
    buckets[3], buckets[-1] = 9, 1
    row = HistoryRow("mail", AT_MS, 10, 8, 2, 1, 3, 4, 5, wait_buckets=buckets)
    requests = answering(queue, "get_history", History([row], 5, AT_MS + 300_000))
    done = run("topic", "history", "ns", "mail", "--since", "2023-11-14T22:00", "--until", "2023-11-14T23:00")
    table = cells(done)
    assert table[1] == [
        "2023-11-14 22:13:20.000", "10", "8", "5", "4", "6", "10 ms", f"> {BOUNDS_MS[-1]} ms", "-", "-", "mail",
    ]  # fmt: skip
    assert "rows before 2023-11-14 22:18:20.000 are not complete" in done.stderr
    (request,) = requests
    assert (request.topics, request.to_ms - request.from_ms, request.step_minutes) == (["mail"], 3_600_000, 0)
    document = json.loads(run("topic", "history", "ns", "--output", "json").stdout)
    assert (document["rows"][0]["enqueued"], document["step_minutes"]) == (10, 5)


def test_the_list_of_topics_has_rates_if_they_are_asked_for(shell: tuple[Run, FakeQueue]) -> None:
    run, queue = shell
    stats = [TopicStats("mail", 1, 0, 0, 0, 0, 5, rates=ROWS[0]), TopicStats("still", 1, 0, 0, 0, 0, 5)]
    requests = answering(queue, "get_active_topics", TopicPage(stats, ""))
    head, *rows = cells(run("topics", "ns", "--rates"))
    assert head[-3:] == ["IN/S", "OUT/S", "TOPIC"]
    assert [row[-3:] for row in rows] == [["250", "1.0", "mail"], ["0.0", "0.0", "still"]]
    assert requests[-1].with_rates
    assert cells(run("topics", "ns"))[0][-2:] == ["OLDEST READY", "TOPIC"]
    assert not requests[-1].with_rates


def test_a_rate_has_the_digits_that_it_has_a_use_for() -> None:
    assert [shown_rate(rate) for rate in (0, 0.001, 0.02, 0.994, 1.25, 99.96, 12_345.6)] == [
        "0.0", "0.0", "0.02", "0.99", "1.2", "100.0", "12346",
    ]  # fmt: skip

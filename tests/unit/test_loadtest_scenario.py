"""Workload files: what they say is what runs, and what is wrong in them is told."""

from __future__ import annotations

from typing import Any

import pytest

from loadtest.bench.runner import unfit
from loadtest.bench.scenario import ScenarioError, load, names, parse
from loadtest.peers import registry


def _document(**parts: Any) -> dict[str, Any]:
    phase = {"items": 10, "producers": {"batch": 5}}
    return {"name": "x", "title": "", "variant": "full", "base": phase} | parts


@pytest.mark.parametrize("name", names())
def test_every_workload_can_be_run_in_every_size(name: str) -> None:
    full, quick, smoke = (load(name, variant) for variant in ("full", "quick", "smoke"))
    assert full.phases.keys() >= quick.phases.keys() >= smoke.phases.keys()
    assert full.phases != smoke.phases


def test_a_title_tells_the_numbers_of_its_variant() -> None:
    assert load("w5").title.startswith("a backlog of 1,000,000 items drained;")
    assert load("w5", "quick").title.startswith("a backlog of 50,000 items drained;")


def test_the_nine_workloads_are_there_in_order() -> None:
    assert names()[:9] == [f"w{number}" for number in range(1, 10)]


def test_a_phase_has_what_is_said_for_all_and_what_is_said_for_it() -> None:
    scenario = parse(_document(phases={"one": {}, "two": {"producers": {"in_flight": 3}}}))
    two = scenario.phases["two"].producers
    assert two is not None
    assert (two.batch, two.in_flight) == (5, 3)
    assert list(scenario.phases) == ["one", "two"]


def test_a_file_that_extends_another_says_only_what_differs() -> None:
    assert load("waiting-consumer").phases == {"500 a second": load("w6").phases["500 a second"]}


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ({"speed": 1}, "speed: Unexpected keyword"),
        ({"base": {"items": 1, "producers": {"rate": 5}}}, "phases.all.producers.rate: Unexpected keyword"),
        ({"base": {"items": 0, "producers": {}}}, "phases.all.items: .* greater than or equal to 1"),
        ({"base": {"items": 1, "producers": {"batch": 1_001}}}, "phases.all.producers.batch: .* 1000"),
        ({"base": {"items": 1}}, "needs producers or consumers"),
        ({"base": {"producers": {}}}, "need items or seconds"),
        ({"base": {"consumers": {}, "seconds": 1}}, "not by seconds"),
        ({"base": {"producers": {}, "items": 1, "seconds": 1}}, "exclude each other"),
        ({"payload_bytes": 19}, "payload_bytes: .* 20"),
        ({"priority_weights": [0, 0]}, "all priority_weights are zero"),
        ({"needs": ["speed"]}, "needs"),
        ({"foqs": {"key_spread": 65}}, "foqs.key_spread: .* 64"),
        (
            {"base": {"items": 1, "producers": {"items_per_s": 5, "dedup_ids": "by shard"}}},
            "not sent when they are due",
        ),
        ({"only": ["two"]}, "only names phases that are not there: two"),
        ({"ratios": {"r": ["one.items_per_s", "all.items_per_s"]}}, "not there: one"),
        ({"topics": 5, "base": {"items": 1, "consumers": {"topics_per_claim": 2}}}, "leave topics without"),
        ({"phases": {}}, "needs a phase"),
        ({"title": "{phases[two].items} items"}, "title: 'two' in '{phases.two..items} items'"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(parts: dict[str, Any], told: str) -> None:
    with pytest.raises(ScenarioError, match=f"workload x: .*{told}"):
        parse(_document(**parts))


def test_a_workload_that_is_not_there_is_told_with_those_that_are() -> None:
    with pytest.raises(ScenarioError, match=r"no workload w10: there are w1, w2"):
        load("w10")


@pytest.mark.parametrize(("name", "reason"), [("w3-ids", "has no dedup ids"), ("w3-events", "has no event log")])
def test_a_queue_without_what_a_workload_turns_on_is_not_run(name: str, reason: str) -> None:
    assert unfit(load(name), registry.new_adapter("raw")) == reason
    assert unfit(load(name), registry.new_adapter("foqs")) is None
    assert unfit(load("w3"), registry.new_adapter("raw")) is None

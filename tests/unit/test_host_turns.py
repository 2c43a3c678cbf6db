"""Hosts have turns by the weights of the topics that have something there, counted in items."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from foqs.cluster.homes import host_turns
from foqs.cluster.homes.host_turns import CREDIT_ITEMS_MAX, HostTurns

WEIGHTS = {"a": 1, "b": 3, "c": 6}


def taken(turns: HostTurns, weights: dict[str, int], counts: list[int]) -> Counter[str]:
    """The items that calls of these sizes take from each host, where every host gives all that is wanted."""
    found: Counter[str] = Counter()
    for count in counts:
        found[turns.begin(1, weights, count)] += count
    return found


@pytest.mark.parametrize("seed", range(20))
def test_in_any_run_of_calls_each_host_gives_its_part_within_two_calls(seed: int) -> None:
    chance = Random(seed)
    weights = {host_id: chance.randint(1, 1_000) for host_id in "abcdef"[: chance.randint(1, 6)]}
    counts = [chance.randint(1, 100) for _ in range(200)]
    found = taken(HostTurns(), weights, counts)
    for host_id, weight in weights.items():
        due = sum(counts) * weight / sum(weights.values())
        assert abs(found[host_id] - due) <= 2 * max(counts)


def test_a_host_that_gave_less_than_was_wanted_is_only_charged_for_that() -> None:
    turns, chance, found = HostTurns(), Random(1), Counter[str]()
    for _ in range(2_000):
        host_id = turns.begin(1, WEIGHTS, 20)
        got = chance.randint(1, 20)
        found[host_id] += got
        turns.end(1, WEIGHTS, host_id, 20 - got)
    for host_id, weight in WEIGHTS.items():
        assert found[host_id] / found.total() == pytest.approx(weight / 10, rel=0.03)


def test_calls_at_the_same_time_go_to_different_hosts() -> None:
    turns = HostTurns()
    assert Counter(turns.begin(1, {"a": 1, "b": 1}, 20) for _ in range(4)) == {"a": 2, "b": 2}


def test_a_host_that_gave_little_for_long_has_no_more_than_some_turns_ahead_of_the_others() -> None:
    turns, weights = HostTurns(), {"a": 1, "b": 1}
    for _ in range(10_000):
        host_id = turns.begin(1, weights, 20)
        turns.end(1, weights, host_id, 20 if host_id == "a" else 0)
    assert taken(turns, weights, [20] * 200)["a"] <= 2_000 + 2 * CREDIT_ITEMS_MAX


def test_namespaces_have_their_own_turns_and_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_turns, "NAMESPACES_KEPT_MAX", 2)
    turns = HostTurns()
    for namespace in (1, 2, 3):
        assert turns.begin(namespace, {"a": 1, "b": 1}, 1) == "a"
    assert list(turns._credits) == [2, 3]
    assert turns.begin(3, {"a": 1, "b": 1}, 1) == "b"

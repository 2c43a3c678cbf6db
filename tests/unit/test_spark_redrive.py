"""What a task of `foqs spark redrive` does with ids, whatever the service answers."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from foqs.model.calls import DeadLettersResult
from foqs.model.errors import FoqsError, InvalidArgumentError, NotFoundError, UnavailableError
from foqs.spark.jobs import redrive as job
from foqs.spark.jobs.redrive import Redriven, redrive_rows


class Dead:
    """Dead letters by id. What is planned goes wrong first."""

    def __init__(self, ids: Iterable[str], once: Iterable[str] = (), plan: Iterable[str] = ()) -> None:
        self.dead, self.once, self.plan = set(ids), set(once), list(plan)
        self.calls: list[tuple[str, int]] = []
        self.redriven: list[str] = []

    def redrive_dead_letters(
        self, namespace: str, topic: str, ids: Iterable[str] | None, *, group: str | None, return_errors: bool
    ) -> DeadLettersResult:
        wanted = list(ids or ())
        self.calls.append((f"{topic} of {group}" if group else topic, len(wanted)))
        fate = self.plan.pop(0) if self.plan else "done"
        if fate == "lost before":
            raise UnavailableError("no answer")
        errors: dict[int, FoqsError] = {}
        for position, one in enumerate(wanted):
            if one not in self.dead:
                errors[position] = NotFoundError("not dead")
            elif one in self.once:
                errors[position] = InvalidArgumentError("at most once")
            elif fate == "settled" and position == 0:
                errors[position] = UnavailableError("being settled", nothing_done=True)
            else:
                self.dead.remove(one)
                self.redriven.append(one)
        if fate == "lost after":
            raise UnavailableError("no answer")
        return DeadLettersResult(len(wanted) - len(errors), errors)


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "PAUSE_S", 0)


def test_ids_go_by_topic_in_calls_of_a_thousand() -> None:
    ids = [f"0-{n:x}" for n in range(1, 2_502)]
    client, done = Dead(ids), Redriven()
    redrive_rows(client, "ns", [("ab"[n % 2], one, None) for n, one in enumerate(ids)], done)
    assert sorted(client.calls) == [("a", 251), ("a", 1_000), ("b", 250), ("b", 1_000)]
    assert sorted(client.redriven) == sorted(ids)
    assert done == Redriven(redriven=2_501)


def test_ids_of_groups_go_apart_from_those_of_their_topic() -> None:
    client, done = Dead("abc"), Redriven()
    redrive_rows(client, "ns", [("t", "a", None), ("t", "b", "audit"), ("t", "c", "audit")], done)
    assert client.calls == [("t", 1), ("t of audit", 2)]
    assert done == Redriven(redriven=3)


@pytest.mark.parametrize("fate", ["lost before", "lost after", "settled"])
def test_what_may_not_have_been_done_is_asked_for_again_and_nothing_is_redriven_twice(fate: str) -> None:
    client, done = Dead("abc", once="c", plan=[fate, fate]), Redriven()
    redrive_rows(client, "ns", [("t", one, "g") for one in "abcd"], done)
    assert sorted(client.redriven) == ["a", "b"]
    assert done.redriven + done.gone == 3
    assert (done.refused, len(client.dead)) == (1, 1)


def test_what_stays_unavailable_fails_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "TRIES_MAX", 3)
    for fate in ("lost before", "settled"):
        client = Dead("abc", plan=[fate] * 3)
        with pytest.raises(UnavailableError):
            redrive_rows(client, "ns", [("t", "a", None)], Redriven())
        assert len(client.calls) == 3

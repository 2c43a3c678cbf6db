"""The demo's order check against a brute-force reading of its rule, and against histories that break it."""

from __future__ import annotations

import random

from loadtest.demo.history import READY_MARGIN_MS, History
from loadtest.demo.messages import Answer, Enqueued, Handout, Phase, Settled

MS = 1_000_000


def _handout(item_id: str, place: int, *, attempt: int = 1, due_ms: int = 0, lease_ends_ms: int = 0) -> Handout:
    return Handout(item_id, "t", place, attempt, due_ms, lease_ends_ms, delayed=due_ms > 0)


def _answer(asked_ms: int, answered_ms: int, *handouts: Handout) -> Answer:
    return Answer(asked_ms * MS, answered_ms * MS, float(answered_ms), list(handouts))


def _history(answers: list[Answer], enqueued_ms: dict[str, int] | None = None) -> History:
    history = History(wall_minus_monotonic_ms=0.0)
    item_ids = {handout.id for answer in answers for handout in answer.handouts}
    for item_id in item_ids:
        at_ms = (enqueued_ms or {}).get(item_id, 0)
        history.add_enqueued(Enqueued(Phase.FLOOD, at_ms * MS, [item_id]))
    for consumer, answer in enumerate(answers):
        history.add_answer(consumer, answer)
    return history


def test_an_item_that_was_ready_and_is_handed_out_after_a_less_urgent_one_is_a_violation() -> None:
    history = _history([_answer(10, 20, _handout("late", 2)), _answer(30, 40, _handout("early", 1))])
    assert len(history.check_order().violations) == 1


def test_nothing_is_said_of_calls_that_overlap() -> None:
    history = _history([_answer(10, 30, _handout("late", 2)), _answer(20, 40, _handout("early", 1))])
    assert history.check_order().violations == []
    assert history.check_order().compared_count == 0


def test_an_item_that_was_stored_after_the_other_call_began_may_come_later() -> None:
    answers = [_answer(10, 20, _handout("late", 2)), _answer(30, 40, _handout("early", 1))]
    assert _history(answers, {"early": 15}).check_order().violations == []
    assert len(_history(answers, {"early": 9}).check_order().violations) == 1


def test_a_delayed_item_has_its_margin() -> None:
    def violations(due_ms: int) -> int:
        early = _handout("early", 1, due_ms=due_ms)
        answers = [_answer(5_000, 5_010, _handout("late", 2)), _answer(5_020, 5_030, early)]
        return len(_history(answers).check_order().violations)

    assert violations(5_001 - READY_MARGIN_MS) == 0
    assert violations(4_999 - READY_MARGIN_MS) == 1


def test_an_item_whose_lease_ended_has_its_margin() -> None:
    def violations(lease_ends_ms: int) -> int:
        answers = [
            _answer(10, 20, _handout("early", 1, lease_ends_ms=lease_ends_ms)),
            _answer(5_000, 5_010, _handout("late", 2)),
            _answer(5_020, 5_030, _handout("early", 1, attempt=2)),
        ]
        return len(_history(answers).check_order().violations)

    assert violations(5_001 - READY_MARGIN_MS) == 0
    assert violations(4_999 - READY_MARGIN_MS) == 1


def test_the_order_check_agrees_with_brute_force_on_random_histories() -> None:
    found = 0
    for seed in range(200):
        chance = random.Random(seed)
        answers, enqueued_ms, number = [], {}, 0
        for _ in range(12):
            asked_ms = chance.randrange(100)
            handouts = []
            for _ in range(chance.randrange(1, 4)):
                number += 1
                handouts.append(_handout(f"i{number}", chance.randrange(20)))
                enqueued_ms[f"i{number}"] = chance.randrange(100)
            answers.append(_answer(asked_ms, asked_ms + chance.randrange(1, 20), *handouts))
        expected = sum(
            any(
                earlier.asked_ns > enqueued_ms[handout.id] * MS
                and earlier.answered_ns < answer.asked_ns
                and any(other.place > handout.place for other in earlier.handouts)
                for earlier in answers
            )
            for answer in answers
            for handout in answer.handouts
        )
        assert len(_history(answers, enqueued_ms).check_order().violations) == expected, seed
        found += expected
    assert found > 100, "the histories must contain violations, or agreement says nothing"


def test_an_answer_out_of_order_in_itself_is_found() -> None:
    assert _history([_answer(0, 1, _handout("a", 1), _handout("b", 2))]).out_of_order_answers() == 0
    assert _history([_answer(0, 1, _handout("a", 2), _handout("b", 1))]).out_of_order_answers() == 1


def test_an_early_delivery_and_one_under_a_running_lease_are_found() -> None:
    assert _history([_answer(0, 5, _handout("a", 1, due_ms=6))]).early_count() == 1
    assert _history([_answer(0, 5, _handout("a", 1, due_ms=5))]).early_count() == 0
    twice = [_answer(0, 5, _handout("a", 1, lease_ends_ms=50)), _answer(40, 49, _handout("a", 1, attempt=2))]
    assert _history(twice).doubly_leased_count() == 1


def test_lost_and_doubly_settled_items_are_found() -> None:
    history = _history([_answer(0, 1, _handout("a", 1), _handout("b", 2), _handout("c", 3))])
    history.add_settled(0, Settled(dead=["b"], refused=["c"]))
    assert (history.acked, history.dead, history.lost_count()) == (["a"], ["b"], 1)
    assert history.settled_twice_count() == 0
    history.add_answer(0, _answer(2, 3, _handout("a", 1, attempt=2)))
    assert [handout.id for handout in history.held_by(0)] == ["a"]
    history.add_settled(0, Settled())
    assert history.settled_twice_count() == 1


def test_what_was_handed_out_before_an_item_that_came_late_is_seen() -> None:
    urgent, late = _handout("urgent", 1), _handout("late", 2, attempt=2)
    between, last = _answer(50, 60, urgent), _answer(70, 80, late)
    history = _history([between, last])
    assert history.was_behind(last, late, since_ms=55)
    assert not history.was_behind(last, late, since_ms=60)
    assert not history.was_behind(between, urgent, since_ms=0)

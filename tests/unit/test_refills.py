"""Windows are refilled in the order in which somebody asked for it."""

from __future__ import annotations

import pytest

from foqs.model import limits
from foqs.shard.state.events import Events
from foqs.shard.state.ops import refill as refill_module
from tests.support.shards import NAMESPACE, Shards


def test_topics_that_are_asked_for_again_and_again_keep_no_other_from_its_refill(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "TRANSACTION_REFILLS_MAX", 2)
    monkeypatch.setattr(refill_module, "WARM_UPS_PER_TICK", 0)
    shards = Shards(1)
    names = [f"topic-{number}" for number in range(6)]
    for name in names:
        shards.enqueue(0, name)
    shards.run(0)
    shards.take_over()
    state = shards.states[0]
    topics = [state.index.topic(NAMESPACE, name) for name in names]
    refilled: list[int] = []
    for turn in range(6):
        # As many as one transaction takes come anew each time, and the others only once.
        for topic in topics if turn == 0 else topics[-2:]:
            state.want_refill(topic, with_payload=True)
        transaction = shards.begin(0)
        if transaction is None:
            continue  # After one that failed.
        refilled += [refill.lane for refill in transaction.refills if refill.lane]
        shards.end(0, well=False)
    assert refilled == [topic.number for topic in topics]


def test_a_refill_that_always_fails_holds_up_nothing_else() -> None:
    shards = Shards(1)
    shards.enqueue(0, "a")
    shards.run(0)
    shards.take_over()
    outcomes = []
    for _ in range(6):
        shards.enqueue(0, "b")
        transaction = shards.begin(0)
        assert transaction is not None
        outcomes.append(not any(refill.lane for refill in transaction.refills))
        shards.end(0, well=outcomes[-1])
    assert outcomes == [False, True] * 3


@pytest.mark.parametrize("well", [False, True])
def test_a_topic_that_went_while_it_was_read_leaves_nothing(*, well: bool) -> None:
    shards = Shards(1)
    shards.enqueue(0, "a")
    shards.run(0)
    shards.take_over()
    state = shards.states[0]
    topic = state.index.topic(NAMESPACE, "a")
    shards.begin(0)
    state.index.remove_topic(topic)
    state.refills.forget(topic)
    gone = Events()
    gone.topics_gone.append(topic)
    shards.dispatcher.on_events(gone)
    shards.end(0, well=well)
    assert topic not in state.refills.wanted
    assert not shards.dispatcher.queues.by_topic


def test_a_refill_that_failed_is_made_again_though_nobody_asks() -> None:
    shards = Shards(1)
    shards.enqueue(0, "a")
    shards.run(0)
    shards.take_over()
    topic = shards.states[0].index.topic(NAMESPACE, "a")
    shards.begin(0)
    shards.end(0, well=False)
    shards.run(0)
    assert topic.window.complete


def test_what_is_under_lease_is_got_past_in_larger_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after the take-over of a topic of which nearly all is leased: what comes first is not to be had."""
    monkeypatch.setattr(limits, "WINDOW_ITEMS_MAX", 32)
    shards = Shards(1)
    items = shards.enqueue(0, "a", count=400)
    call = shards.dequeue({"a": 190})
    shards.run(0)
    assert len(call.items) == 190
    shards.take_over()
    leased = set(shards.states[0].index.leases)
    call = shards.dequeue({"a": 1})
    refills = []
    while (transaction := shards.begin(0)) is not None:
        refills += [(refill.limit, refill.with_payload) for refill in transaction.refills if refill.lane]
        shards.end(0)
    assert [item.key for item in call.items] == [next(item.key for item in items if item.key not in leased)]
    assert set(refills[: len(leased) // 24]) == {(24, False)}
    assert len(refills) <= len(leased) // 24 + 3
    assert len(shards.states[0].index.by_number[1].window.sort_keys) <= limits.WINDOW_ITEMS_MAX

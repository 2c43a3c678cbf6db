"""A fence is passed when all that was let in before is committed, and by the shard's owner alone."""

from __future__ import annotations

import pytest

from foqs.model import limits
from foqs.model.errors import UnavailableError
from foqs.shard.state.events import Completion
from tests.support.shards import NAMESPACE, Shards


class Asked:
    """A fence of shard 0, and how often it was answered."""

    def __init__(self, shards: Shards, namespace: int = NAMESPACE) -> None:
        self.answers: list[Completion] = []
        shards.states[0].ask_fence(namespace, Completion(self.answers.append))


def test_a_fence_is_worth_a_transaction_of_its_own() -> None:
    shards = Shards(1)
    asked = Asked(shards)
    assert not asked.answers
    shards.run(0)
    assert [completion.failure for completion in asked.answers] == [None]


def test_a_fence_waits_for_what_is_buffered_of_its_namespace_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TRANSACTION_INSERTS_MAX", 1)
    shards = Shards(1)
    for _ in range(3):
        shards.enqueue(0, "t")
    asked, other = Asked(shards), Asked(shards, NAMESPACE + 1)
    for expected in ((0, 1), (0, 1), (1, 1)):
        shards.begin(0)
        shards.end(0)
        assert (len(asked.answers), len(other.answers)) == expected
    assert shards.states[0].items_of(NAMESPACE) == 3


def test_a_fence_that_is_asked_for_during_a_transaction_is_passed_with_the_next() -> None:
    shards = Shards(1)
    Asked(shards)
    assert shards.begin(0) is not None
    late = Asked(shards)
    shards.end(0)
    assert not late.answers
    shards.run(0)
    assert late.answers


def test_no_fence_is_passed_by_a_transaction_that_failed_or_a_shard_that_is_lost() -> None:
    shards = Shards(1)
    failed = Asked(shards)
    assert shards.begin(0) is not None
    waiting = Asked(shards)
    shards.end(0, well=False)
    assert [type(completion.failure) for completion in failed.answers] == [UnavailableError]
    shards.dispatcher.on_events(shards.states[0].abandon("it is lost"))
    assert [type(completion.failure) for completion in waiting.answers] == [UnavailableError]

"""A client notices that a host of an older build has ignored a part of a policy."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from foqs.client import policy_verbs
from foqs.model.errors import InternalError
from foqs.wire.codec import structs


def test_a_field_that_the_host_does_not_know_is_no_silent_success(monkeypatch: pytest.MonkeyPatch) -> None:
    def answered(*_: Any) -> Generator[Any, Any, Any]:
        return structs.TopicPolicy(topic="t", enqueue_paused=False, dequeue_paused=False, reason="", weight=2)
        yield

    monkeypatch.setattr(policy_verbs, "call_flow", answered)
    terms: Any = None
    with pytest.raises(InternalError, match="too old for depth_max, and has ignored"):
        next(policy_verbs.set_topic_policy(terms, "n", "t", {"weight": 2, "depth_max": 5}, False))
    with pytest.raises(StopIteration) as done:
        next(policy_verbs.set_topic_policy(terms, "n", "t", {"weight": 2, "depth_max": None}, False))
    assert done.value.value.weight == 2

"""Defects of caps, pauses, and dequeues from any topic."""

from __future__ import annotations

from typing import Any

from foqs.host.dispatch.deliveries import Deliveries
from foqs.host.dispatch.rings import Rings
from foqs.host.dispatch.tokens import Tokens
from foqs.host.dispatch.topic_queue import DequeueCall, TopicQueue
from foqs.model.caps import TokenBucket
from tests.sim.planting import in_place_of

_seen: dict[str, Any] = {
    "refresh": Tokens.refresh,
    "detach": Rings.detach,
    "take": Tokens.take,
}


@in_place_of(TokenBucket, "take")
def gives_tokens_that_are_not_there(self: TokenBucket, count: int, now_s: float) -> int:
    self._refill(now_s)
    self._held_count += count
    return count


@in_place_of(TokenBucket, "_refill")
def makes_up_for_the_time_that_claims_took(self: TokenBucket, now_s: float) -> None:
    self._tokens += max(0.0, now_s - self._at_s) * self.rate
    self._at_s = max(self._at_s, now_s)


@in_place_of(Tokens, "take")
def forgets_the_cap_of_the_namespace(self: Tokens, queue: TopicQueue, count: int, now_s: float) -> int:
    shared_cap, queue.shared_cap = queue.shared_cap, None
    granted: int = _seen["take"](self, queue, count, now_s)
    queue.shared_cap = shared_cap
    if shared_cap is not None:
        shared_cap._held_count += granted  # type: ignore[attr-defined]
    return granted


@in_place_of(Tokens, "_refund")
def loses_the_tokens_of_what_was_not_delivered(self: Tokens, queue: TopicQueue, count: int) -> None:
    queue.allowed_count -= count


@in_place_of(Tokens, "refresh")
def delivers_what_is_paused(self: Tokens, queue: TopicQueue) -> None:
    _seen["refresh"](self, queue)
    queue.is_paused = False


@in_place_of(Deliveries, "resume")
def does_not_serve_a_topic_that_goes_on(self: Deliveries, queue: TopicQueue) -> None:
    return None


@in_place_of(Rings, "detach")
def keeps_a_place_in_topics_that_a_call_has_left(self: Rings, call: DequeueCall, queue: TopicQueue) -> None:
    want = call.wants[queue]
    _seen["detach"](self, call, queue)
    queue.waiting_count += want


@in_place_of(Rings, "enter")
def does_not_tell_calls_for_any_topic_of_a_new_one(self: Rings, queue: TopicQueue) -> None:
    return None

"""Defects of limits of items in flight: of the books of permits, and of hosts that use them."""

from __future__ import annotations

from collections.abc import Mapping
from unittest.mock import patch

from foqs.host.dispatch import permits
from foqs.host.dispatch.permits import Permits
from foqs.host.dispatch.topic_queue import TopicQueue
from foqs.model.permit_book import PermitAnswer, PermitAsk, PermitBook, PermitFacts
from foqs.model.stocks import Topic
from tests.sim.permits import run_permits
from tests.sim.planting import in_place_of, plant, runs_with

runs_with(__name__, run_permits)

_answer, _ask = PermitBook.answer, PermitBook.ask
_ask_of, _answered, _limit = Permits._ask_of, Permits.answered, Permits.limit


def _permits_of(self: Permits, topic: Topic) -> dict[int, int]:
    queue = self._queues.by_topic[topic]
    return {shard_id: part.permits or 0 for shard_id, part in queue.parts.items()}


@in_place_of(PermitBook, "free_count")
def grants_before_it_knows_what_others_have(self: PermitBook, limit: int) -> int:
    return limit


@in_place_of(PermitBook, "ask")
def drops_the_use_of_a_moved_shard(self: PermitBook, ask: PermitAsk, now_ms: int) -> PermitAnswer:
    moved = {one.shard_id for one in ask.shards if self.shards.get(one.shard_id) is None
             or self.shards[one.shard_id].epoch < one.epoch}  # fmt: skip
    shards = [one._replace(used_count=0) if one.shard_id in moved else one for one in ask.shards]
    return _ask(self, ask._replace(shards=tuple(shards)), now_ms)


@in_place_of(PermitBook, "ask")
def obeys_an_owner_of_an_earlier_epoch(self: PermitBook, ask: PermitAsk, now_ms: int) -> PermitAnswer:
    known = {shard_id: entry.epoch for shard_id, entry in self.shards.items()}
    shards = [one._replace(epoch=max(one.epoch, known.get(one.shard_id, 0))) for one in ask.shards]
    return _ask(self, ask._replace(shards=tuple(shards)), now_ms)


@in_place_of(PermitBook, "answer")
def leaves_permits_to_removed_shards(
    self: PermitBook, namespace: int, ask: PermitAsk, now_ms: int, facts: PermitFacts
) -> PermitAnswer:
    return _answer(self, namespace, ask, now_ms, facts._replace(removed={}))


@in_place_of(PermitBook, "answer")
def grants_by_a_limit_of_former_policies(
    self: PermitBook, namespace: int, ask: PermitAsk, now_ms: int, facts: PermitFacts
) -> PermitAnswer:
    return _answer(self, namespace, ask, now_ms, facts._replace(policies_versions={namespace: ask.policies_version}))


@in_place_of(PermitBook, "waiting_count")
def lets_permits_lie_idle_for_whoever_waits_with_its_share(self: PermitBook, limit: int, now_ms: int) -> int:
    return self.needy_count(limit, now_ms)


@in_place_of(Permits, "_ask_of")
def uses_permits_on_that_it_gives_back(self: Permits, topic: Topic) -> PermitAsk:
    before = _permits_of(self, topic)
    ask = _ask_of(self, topic)
    for shard_id, part in self._queues.by_topic[topic].parts.items():
        part.permits = max(before[shard_id], part.permits_granted)
    return ask


@in_place_of(Permits, "answered")
def uses_permits_that_no_book_has_answered_for(
    self: Permits, topic: Topic, ask: PermitAsk, answer: PermitAnswer | None
) -> TopicQueue | None:
    if answer is None:
        answer = PermitAnswer({one.shard_id: one.kept_count + one.wanted_count for one in ask.shards})
    return _answered(self, topic, ask, answer)


@in_place_of(Permits, "limit")
def goes_on_with_the_permits_of_a_higher_limit(self: Permits, queue: TopicQueue, in_flight_max: int) -> None:
    before = _permits_of(self, queue.topic)
    _limit(self, queue, in_flight_max)
    for shard_id, part in queue.parts.items():
        part.permits = before.get(shard_id, 0)


@in_place_of(Permits, "_share_out")
def gives_nothing_to_those_that_wait(self: Permits, *_: object) -> None:
    return None


@in_place_of(Permits, "books_read")
def does_not_look_into_the_books(self: Permits, books: Mapping[Topic, PermitBook], now_ms: int) -> None:
    return None


@in_place_of(PermitBook, "share")
def lets_each_keep_one_where_shards_have_turns(self: PermitBook, limit: int) -> int:
    return max(1, limit // max(1, len(self.shards)))


plant(__name__, "gives_permits_away_before_it_uses_them", lambda: patch.object(permits, "TURN_MS", -1), lambda _: True)

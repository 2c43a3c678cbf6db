"""Defects that leave items beside calls that wait for them: explanations must find no reason for these."""

from __future__ import annotations

from typing import Any

from foqs.host.dispatch.deliveries import Deliveries
from foqs.host.dispatch.prefetch import Prefetch
from foqs.host.dispatch.tokens import TokenWheel
from foqs.host.dispatch.topic_queue import TopicQueue
from foqs.model.topic import ReadyWindow, ShardTopic
from foqs.shard.state.ops.refill import Refills
from foqs.shard.writer.shard_writer import ShardWriter
from tests.sim.planting import in_place_of

_claim, _serve, _wake = Prefetch.claim, Deliveries.serve, ShardWriter.wake
_take_due, _want, _room = TokenWheel.take_due, Refills.want, ShardTopic._serial_room
_add_all = ReadyWindow.add_all


@in_place_of(Prefetch, "claim")
def claims_nothing_for_a_topic_that_many_wait_for(self: Prefetch, queue: TopicQueue) -> None:
    if queue.waiting_count < 6:
        _claim(self, queue)


@in_place_of(Deliveries, "serve")
def leaves_items_in_the_buffer_of_a_topic(self: Deliveries, queue: TopicQueue) -> None:
    if not (queue.name == "plain" and queue.buffer.sort_keys):
        _serve(self, queue)


@in_place_of(ShardWriter, "wake")
def wakes_no_writer_for_claims_alone(self: ShardWriter) -> None:
    if not (self.shard is not None and self.shard.claims.waiting and not self.shard.inserts.waiting):
        _wake(self)


@in_place_of(TokenWheel, "take_due")
def forgets_a_topic_that_waits_for_a_token(self: TokenWheel[Any], *count_max: int) -> list[Any]:
    return [one for one in _take_due(self, *count_max) if not isinstance(one, TopicQueue) or _waits_on(one)]


def _waits_on(queue: TopicQueue) -> bool:
    if queue.name != "capped":
        return True
    queue.token_wait_slot = 1  # The wheel has it in no slot any more.
    return False


@in_place_of(Refills, "want")
def reads_on_no_topic_that_a_consumer_waits_for(self: Refills, topic: ShardTopic, *, with_payload: bool) -> None:
    if not with_payload:
        _want(self, topic, with_payload=with_payload)


@in_place_of(ShardTopic, "_serial_room")
def finds_no_room_in_a_serial_topic_with_many_items(self: ShardTopic) -> int:
    return 0 if self.rows > 4 else _room(self)


@in_place_of(ReadyWindow, "add_all")
def loses_an_item_on_the_way_into_its_window(self: ReadyWindow, added: list[int]) -> None:
    _add_all(self, added[1:] if len(added) > 8 else added)

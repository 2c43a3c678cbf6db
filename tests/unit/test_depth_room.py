"""The room in topics whose depth has a limit, for calls with dedup ids that wait for a check."""

from __future__ import annotations

from hashlib import sha256

from foqs.host.admission.depths import Depths, Room
from foqs.model import order
from foqs.model.calls import ItemContent
from foqs.model.item import Phase, ShardItem
from foqs.model.topic_name import fair
from foqs.shard.state.events import Completion, OnceOutcome
from tests.support.shards import NAMESPACE, Shards
from tests.unit.test_fair_turns import ack

TOPIC = "t"
DEPTH_MAX = 10


def digest(number: int) -> bytes:
    return sha256(b"%d" % number).digest()[:16]


class Limited:
    """A shard with a topic that takes DEPTH_MAX items."""

    def __init__(self, name: str = TOPIC) -> None:
        self.name = name
        self.shards = Shards(1)
        self.shards.allow_item_bytes(1_000)
        self.shards.set_policy(TOPIC, depth_max=DEPTH_MAX)
        self.shards.pass_ms(40)
        self.shard = self.shards.states[0]
        self.depths = Depths(self.shards.settings, self.shards.owned)

    def room(self) -> Room:
        policies = self.shards.settings.depth_limits(NAMESPACE)
        assert policies is not None
        return Room(self.depths, NAMESPACE, policies)

    def enqueue_once(self, numbers: list[int]) -> OnceOutcome:
        """Begin to enqueue items with these dedup ids."""
        room, completion = self.room(), Completion(lambda _: None)
        room.hold_until(completion)
        outcome = OnceOutcome(None, None, room)
        items = [self._item() for _ in numbers]
        completion.open_count += 1
        self.shard.insert_once(items, list(map(digest, numbers)), 10, completion, outcome)
        completion.open_count -= 1
        return outcome

    def _item(self) -> ShardItem:
        key, now_ms = self.shard.index.next_key(), self.shards.clock_ms
        topic = self.shard.index.draft_topic(NAMESPACE, self.name)
        return ShardItem(
            key, topic, 0, now_ms, order.sort_key(0, now_ms, key, 0), Phase.INSERTING, now_ms, now_ms + 10**9, 0, False,
            ItemContent(b"p", b""),
        )  # fmt: skip

    def free_ids(self, numbers: list[int]) -> None:
        """Enqueue and ack items with these ids, which an operator then makes free again: each needs a check."""
        self.enqueue_once(numbers)
        self.shards.run(0)
        call = self.shards.dequeue({self.name: 100})
        self.shards.pass_ms(60)
        ack(self.shards, call.items or [])
        self.shards.pass_ms(60)
        done = Completion(lambda _: None)
        self.shard.free_dedup_ids(NAMESPACE, list(map(digest, numbers)), list(range(len(numbers))), done)
        self.shards.run(0)
        assert self.depth == 0

    @property
    def depth(self) -> int:
        return self.depths.here((NAMESPACE, TOPIC))


def test_items_that_waited_for_a_check_have_only_the_room_that_others_have_left() -> None:
    for name in (TOPIC, fair(TOPIC, "a")):
        limited = Limited(name)
        limited.free_ids(list(range(1, 10)))
        outcome = limited.enqueue_once([100, *range(1, 10)])
        room = limited.room()
        others_count = 0
        while room.take([name]) is None:
            others_count += 1
        assert others_count == DEPTH_MAX - 1, name
        limited.shards.run(0)
        assert (len(outcome.made), len(outcome.errors), limited.depth) == (1, 9, DEPTH_MAX), name


def test_a_call_has_all_the_room_that_is_there_also_if_some_of_its_items_wait_for_a_check() -> None:
    for name in (TOPIC, fair(TOPIC, "a")):
        limited = Limited(name)
        limited.free_ids(list(range(1, 10)))
        outcome = limited.enqueue_once([100, *range(1, 10)])
        limited.shards.run(0)
        assert (len(outcome.made), outcome.errors, limited.depth) == (DEPTH_MAX, {}, DEPTH_MAX), name
        assert not limited.depths.arriving, name

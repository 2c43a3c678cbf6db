"""No call waits for an item that could be handed out, whatever stands still beside it."""

from __future__ import annotations

import random
from collections import Counter
from unittest.mock import Mock

import pytest

from foqs.host.topic_queue import DequeueCall
from foqs.host.ttl_scan import TtlScan
from foqs.model import limits
from foqs.model.item import Phase, ShardItem
from foqs.shard.state.events import Completion
from tests.support.shards import NAMESPACE, Shards


def sicken(shards: Shards, number: int, *, healthy: bool = False) -> None:
    shards.dispatcher.shard_health(number, shards.states[number].index.topics.values(), healthy=healthy)


def ack(shards: Shards, items: list[ShardItem]) -> None:
    for item in items:
        shard = shards.states[item.topic.shard_id]
        shard.end_lease(item)
        shard.settle([item])


def test_claims_that_a_sick_shard_keeps_do_not_count_for_the_well_ones() -> None:
    shards = Shards(2)
    shards.enqueue(0, "a", 0)
    shards.enqueue(1, "a", 1)
    call = shards.dequeue({"a": 1})
    shards.begin(0)
    sicken(shards, 0)
    shards.run(1)
    assert [item.topic.shard_id for item in call.items or []] == [1]


def test_a_call_does_not_hope_for_what_a_sick_shard_keeps() -> None:
    shards = Shards(1)
    shards.enqueue(0, "a")
    shards.run(0)
    call = shards.dequeue({"a": 1})
    assert shards.dispatcher.has_candidates(call)
    shards.begin(0)
    sicken(shards, 0)
    assert not shards.dispatcher.has_candidates(call)


def test_a_steady_consumer_gets_full_batches() -> None:
    shards, sizes = Shards(1), []
    shards.allow_item_bytes(10_000)
    for _ in range(20):
        shards.enqueue(0, "a", count=1_000)
        shards.run(0)
        call = shards.dequeue({"a": 100})
        shards.run(0)
        shards.clock_ms += 120
        shards.dispatcher.tick()
        shards.run(0)
        assert call.items is not None
        sizes.append(len(call.items))
        ack(shards, call.items)
    assert sizes == [100] * 20


def test_a_consumer_that_has_just_begun_waits_for_its_first_item_alone() -> None:
    shards, waits = Shards(1), []
    shards.enqueue(0, "a", count=100)
    shards.run(0)
    shards.rest()
    for _ in range(20):
        call = shards.dequeue({"a": 1})
        waits.append(not call.items)
        shards.run(0)
        shards.clock_ms += 16
    assert waits == [True] + [False] * 19


def test_a_claim_is_made_though_others_are_made_with_all_that_is_enqueued() -> None:
    shards, batch = Shards(1), 250
    hot = [shards.dequeue({"hot": batch}) for _ in range(limits.TRANSACTION_CLAIMS_MAX // batch)]
    shards.enqueue(0, "modest")
    shards.run(0)
    shards.rest()
    modest = shards.dequeue({"modest": 1})
    for _ in range(3):
        for _ in range(2 * limits.TRANSACTION_INSERTS_MAX // batch):
            shards.enqueue(0, "hot", count=batch)
        shards.begin(0)
        shards.end(0)
        done = [call for call in hot if call.items]
        hot = [call for call in hot if not call.items] + [shards.dequeue({"hot": batch}) for _ in done]
        for call in done:
            ack(shards, call.items or [])
    assert modest.items


def test_who_waits_behind_a_call_that_ends_is_served_at_once() -> None:
    shards = Shards(2)
    for number, priority in ((0, -1), (1, 0)):
        shards.enqueue(number, "a", priority, count=3)
        shards.run(number)
    greedy = shards.dequeue({"a": 6})
    for number in (0, 1):
        shards.begin(number)
    shards.end(0)
    modest = shards.dequeue({"a": 1})
    assert (greedy.items, modest.items) == (None, None), "the first one waits for the other shard's"
    shards.dispatcher.end(greedy)
    assert [item.priority for item in modest.items or []] == [-1]


def test_a_topic_that_is_named_behind_one_with_enough_is_claimed_too() -> None:
    shards, taken = Shards(1), Counter[str]()
    shards.enqueue(0, "a", count=2_000)
    shards.run(0)
    for number in range(1_500):
        call = shards.dequeue({"a": 1, "b": 1})
        shards.run(0)
        if number == 1_000:
            shards.enqueue(0, "b", -1, count=10)
            shards.run(0)
        assert call.items
        taken.update(item.topic.name for item in call.items)
        ack(shards, call.items)
        shards.clock_ms += 5
        shards.dispatcher.tick()
        shards.run(0)
    assert taken["b"] == 10


def test_who_waits_for_more_topics_does_not_pass_who_has_waited_for_longer() -> None:
    shards = Shards(1)
    shards.states[0].index.topic(NAMESPACE, "a")  # known before b
    old = shards.dequeue({"b": 1})
    new = shards.dequeue({"a": 1, "b": 1})
    shards.enqueue(0, "a")
    shards.enqueue(0, "b")
    shards.run(0)
    assert [item.topic.name for item in old.items or []] == ["b"]
    assert [item.topic.name for item in new.items or []] == ["a"]


def test_claims_on_the_way_take_the_room_of_their_own_namespace_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    shards, large = Shards(1), NAMESPACE + 1
    shards.allow_item_bytes(10_000)
    shards.allow_item_bytes(1_100_000, large)
    shards.enqueue(0, "small", count=100)
    with monkeypatch.context() as patch:
        patch.setattr("tests.support.shards.NAMESPACE", large)
        shards.enqueue(0, "large", count=20)
    shards.run(0)
    shards.dequeue({"small": 100})
    monkeypatch.setattr("tests.support.shards.NAMESPACE", large)
    call = shards.dequeue({"large": 20})
    transaction = shards.begin(0)
    assert transaction is not None
    shards.end(0)
    assert len(call.items or []) == 20


def test_what_has_expired_before_a_live_item_costs_few_transactions() -> None:
    shards = Shards(1)
    for item in shards.enqueue(0, "a", count=2_000):
        item.expires_at = shards.clock_ms + 1_000
    shards.enqueue(0, "a", 1)
    shards.run(0)
    shards.clock_ms += 2_000
    call = shards.dequeue({"a": 1})
    transactions_count = 0
    while call.items is None:
        assert shards.begin(0) is not None
        shards.end(0)
        transactions_count += 1
    assert transactions_count < 50


def test_a_failed_refill_is_tried_again_at_once() -> None:
    shards = Shards(1)
    shards.enqueue(0, "a")
    shards.run(0)
    shards.take_over()
    call = shards.dequeue({"a": 1})
    shards.begin(0)
    shards.end(0, well=False)
    shards.run(0)
    assert call.items


def test_an_ack_on_a_shard_with_as_many_leases_as_it_may_have_makes_room_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "OPEN_LEASES_MAX", 1)
    shards = Shards(1)
    shards.enqueue(0, "a", count=2)
    first, second = shards.dequeue({"a": 1}), shards.dequeue({"a": 1})
    shards.run(0)
    assert first.items
    assert second.items is None
    ack(shards, first.items)
    shards.run(0)
    assert second.items


def test_a_shard_without_room_for_claims_holds_up_nothing_of_other_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "OPEN_LEASES_MAX", 1)
    shards = Shards(2)
    shards.enqueue(0, "hog", count=2)
    hog = shards.dequeue({"hog": 1})
    shards.run(0)
    assert hog.items
    shards.rest()
    shards.enqueue(0, "a", -5)
    shards.enqueue(1, "a", count=3)
    for number in (0, 1):
        shards.run(number)
    for _ in range(3):
        call = shards.dequeue({"a": 1})
        shards.run(1)
        assert [item.topic.shard_id for item in call.items or []] == [1]
        ack(shards, call.items or [])
        shards.run(1)
    call = shards.dequeue({"a": 1})
    assert not shards.dispatcher.has_candidates(call)
    ack(shards, hog.items)
    shards.run(0)
    shards.dispatcher.sweep()
    shards.run(0)
    assert [item.priority for item in call.items or []] == [-5]


def test_a_topic_that_never_settles_leaves_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "OPEN_LEASES_MAX", 100)
    shards = Shards(1)
    taken = {}
    for topic, count in (("hog", 200), ("greedy", 200), ("modest", 2)):
        shards.enqueue(0, topic, count=count)
        shards.run(0)
        calls = [shards.dequeue({topic: 1}) for _ in range(count)]
        shards.run(0)
        taken[topic] = sum(bool(call.items) for call in calls)
        for call in calls:
            shards.dispatcher.end(call)
    assert taken == {"hog": 80, "greedy": 16, "modest": 2}


def test_a_topic_without_room_goes_on_as_its_own_leases_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "OPEN_LEASES_MAX", 10)
    shards = Shards(1)
    shards.enqueue(0, "a", count=40)
    shards.run(0)
    calls = [shards.dequeue({"a": 1}) for _ in range(40)]
    shards.run(0)
    for _ in range(40):
        settled = next((call for call in calls if call.items), None)
        assert settled is not None
        calls.remove(settled)
        ack(shards, settled.items or [])
        shards.run(0)


@pytest.mark.parametrize("is_leased", [True, False])
def test_the_ttl_scan_comes_back_for_what_it_could_not_delete(*, is_leased: bool) -> None:
    shards = Shards(1)
    (item,) = shards.enqueue(0, "a")
    item.expires_at = shards.clock_ms + 1_000
    shards.run(0)
    if is_leased:
        assert shards.dequeue({"a": 1}, 5_000).items is None
        shards.run(0)
    shards.clock_ms += 2_000
    shard = shards.states[0]
    shard.index.expires_first_ms = shards.clock_ms + limits.EXPIRY_LAP_MS_MAX
    writer = Mock(shard_id=0, shard=shard, now=lambda: shards.now(0), now_ms=lambda: shards.clock_ms)
    TtlScan(writer, Mock(), Mock(), Mock())._expire(shard, [item.key])
    shards.begin(0)
    shards.end(0, well=is_leased)
    assert shard.index.expires_first_ms <= shards.clock_ms + 5_000


class Chaos:
    """Small limits, and a step at random after the other."""

    def __init__(self, seed: int, *, sick: bool) -> None:
        self.chance = random.Random(seed)
        self.shards = Shards(self.chance.randint(1, 3))
        self.shards.allow_item_bytes(10)
        self.sick: set[int] = set()
        self.calls: list[DequeueCall] = []
        self.leased: list[ShardItem] = []
        self.steps = [
            (self.enqueue, 20), (self.dequeue, 20), (self.end_call, 5), (self.begin, 15), (self.end, 15),
            (self.pass_time, 5), (self.shards.dispatcher.sweep, 3), (self.settle, 7), (self.settle_down, 4),
            (self.change_health, 3 if sick else 0),
        ]  # fmt: skip

    def step(self) -> None:
        steps, weights = zip(*self.steps, strict=True)
        self.chance.choices(steps, weights)[0]()
        self.leased += [item for call in self.calls for item in call.items or []]
        self.calls = [call for call in self.calls if not call.done]

    def number(self) -> int:
        return self.chance.choice(list(self.shards.states))

    def enqueue(self) -> None:
        chance = self.chance
        items = self.shards.enqueue(
            self.number(), chance.choice("abcd"), chance.randint(-2, 2), lease_ms=chance.choice([0, 0, 0, 60_000]),
            delay_ms=chance.choice([0, 0, 0, 300]), count=chance.randint(1, 12), at_most_once=chance.random() < 0.2,
        )  # fmt: skip
        for item in items:
            if chance.random() < 0.2:
                item.expires_at = self.shards.clock_ms + chance.randint(100, 3_000)

    def dequeue(self) -> None:
        chance = self.chance
        wants = {topic: chance.randint(1, 6) for topic in chance.sample("abcd", chance.randint(1, 3))}
        self.calls.append(self.shards.dequeue(wants, chance.choice([None, 1_000, 2_000, 40_000])))

    def end_call(self) -> None:
        if self.calls:
            self.shards.dispatcher.end(self.chance.choice(self.calls))

    def begin(self) -> None:
        number = self.number()
        if self.shards.states[number].in_flight is None:
            self.shards.begin(number)

    def end(self) -> None:
        number = self.number()
        if self.shards.states[number].in_flight is not None:
            self.shards.end(number, well=self.chance.random() > 0.15)

    def pass_time(self, *, elapsed_ms: int = 0) -> None:
        self.shards.clock_ms += elapsed_ms or self.chance.choice([5, 20, 200, 1_500])
        self.shards.dispatcher.tick()

    def settle(self) -> None:
        if not self.leased:
            return
        item = self.leased.pop(self.chance.randrange(len(self.leased)))
        shard = self.shards.states[item.topic.shard_id]
        if item.phase is Phase.LEASED and shard.index.leases.get(item.key) is item:
            is_nack = self.chance.random() < 0.5
            rewrite = shard.failed_attempt(item, self.shards.clock_ms) if is_nack else None
            shard.end_lease(item)
            shard.settle([item], [rewrite], Completion(lambda _: None), [0])

    def change_health(self) -> None:
        number = self.number()
        self.sick ^= {number}
        sicken(self.shards, number, healthy=number not in self.sick)

    def settle_down(self) -> None:
        """Let the well shards work, without a sweep: nobody may wait for what they have then."""
        well = [number for number in self.shards.states if number not in self.sick]
        for _ in range(12):
            for number in well:
                self._work_off(number)
            self.pass_time(elapsed_ms=20)
        for call in self.calls:
            if call.done:
                continue
            for queue in call.wants:
                assert not [item for item in queue.buffer.items if item.topic.shard_id in well]
                for number in well:
                    topic = self.shards.states[number].index.topics.get((NAMESPACE, queue.name))
                    assert topic is None or (topic.window.complete and not topic.window.sort_keys)

    def _work_off(self, number: int) -> None:
        for _ in range(300):
            if self.shards.states[number].in_flight is not None:
                self.shards.end(number)
            elif self.shards.begin(number) is None:
                return
        raise AssertionError(f"shard {number} goes round and round")


@pytest.mark.parametrize("sick", [False, True])
@pytest.mark.parametrize("seed", range(40))
def test_once_all_is_calm_nobody_waits_for_what_a_well_shard_has(
    seed: int, *, sick: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {
        "WINDOW_ITEMS_MAX": 8, "WINDOW_ITEMS_MIN": 8, "TRANSACTION_INSERTS_MAX": 10, "TRANSACTION_CLAIMS_MAX": 6,
        "TRANSACTION_CHANGES_MAX": 5, "PREFETCH_BYTES_MAX": 40, "RESIDENT_BYTES_MAX": 3_000, "DEQUEUE_ITEMS_MAX": 5,
        "TRANSACTION_REFILLS_MAX": 2,
    }  # fmt: skip
    for name, value in small.items():
        monkeypatch.setattr(limits, name, value)
    chaos = Chaos(seed, sick=sick)
    for _ in range(250):
        chaos.step()

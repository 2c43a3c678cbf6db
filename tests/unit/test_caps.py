"""Caps of topics and namespaces, and pauses, on the dispatcher itself, in the time of the test."""

from __future__ import annotations

from collections import Counter

import pytest

from foqs.host.dispatch.tokens import UNTIL_FED, TokenWheel
from foqs.host.dispatch.topic_queue import DequeueCall
from foqs.model import limits
from foqs.model.caps import TokenBucket, burst_of
from tests.support.dispatcher_invariants import dispatcher_problems
from tests.support.shards import NAMESPACE, Shards


class Consumers:
    """One consumer of each topic, or `any_count` of any topic, who ask again as soon as they got something."""

    def __init__(
        self, shards: Shards, topics: list[str], count: int = 10, any_count: int = 0, prefix: str = ""
    ) -> None:
        self.got: Counter[str] = Counter()
        self._shards = shards
        self._count = count
        self._prefix = prefix
        self._calls: list[tuple[str, DequeueCall]] = []
        for topic in [*topics, *[""] * any_count]:
            self._ask(topic)

    def _ask(self, topic: str) -> None:
        for _ in range(1_000):
            call = (
                self._shards.dequeue({topic: self._count})
                if topic
                else self._shards.dequeue_any(self._count, self._prefix)
            )
            if not call.done:
                self._calls.append((topic, call))
                return
            self._take(call)

    def _take(self, call: DequeueCall) -> None:
        for item in call.items or []:
            self.got[item.topic.name] += 1
            shard = self._shards.states[item.topic.shard_id]
            shard.end_leases([item])

    def pass_ms(self, passed_ms: int, step_ms: int = 20) -> None:
        for _ in range(passed_ms // step_ms):
            self._shards.pass_ms(step_ms, step_ms)
            self.ask_again()

    def ask_again(self) -> None:
        """Those whose calls are over."""
        calls, self._calls = self._calls, []
        for topic, call in calls:
            if call.done:
                self._take(call)
                self._ask(topic)
            else:
                self._calls.append((topic, call))
        for number in self._shards.states:
            self._shards.run(number)


def stocked(topics: dict[str, int], shard_count: int = 1) -> Shards:
    shards = Shards(shard_count)
    for topic, count in topics.items():
        for number in range(shard_count):
            shards.enqueue(number, topic, count=count // shard_count)
            shards.run(number)
    return shards


def check(shards: Shards) -> None:
    assert not list(dispatcher_problems(shards.dispatcher, list(shards.states.values())))


@pytest.mark.parametrize("rate", [0.5, 3, 40, 700])
@pytest.mark.parametrize("shard_count", [1, 3])
def test_a_topic_with_a_cap_is_delivered_at_it(rate: float, shard_count: int) -> None:
    shards = stocked({"a": 12_000}, shard_count)
    shards.set_policy("a", deliveries_per_second_max=rate)
    shards.dispatcher.tick()
    consumers = Consumers(shards, ["a"], 100)
    consumers.pass_ms(10_000)
    assert abs(consumers.got["a"] - rate * 10) <= max(rate * 0.2, burst_of(rate))
    assert consumers.got["a"] <= rate * 10 + burst_of(rate)
    check(shards)


def test_all_priorities_of_a_topic_share_its_cap() -> None:
    shards = stocked({})
    for priority in range(5):
        shards.enqueue(0, "a", priority, count=100)
    shards.run(0)
    shards.set_policy("a", deliveries_per_second_max=20)
    shards.dispatcher.tick()
    consumers = Consumers(shards, ["a"])
    consumers.pass_ms(5_000)
    assert 98 <= consumers.got["a"] <= 103


def test_nothing_is_claimed_of_a_capped_topic_that_may_not_go() -> None:
    shards = stocked({"a": 1_000})
    shards.set_policy("a", deliveries_per_second_max=2)
    shards.dispatcher.tick()
    consumers = Consumers(shards, ["a"], 100)
    for _ in range(100):
        consumers.pass_ms(20)
        shard = shards.states[0]
        held = shards.dispatcher.queues.prefetched(NAMESPACE, "a")
        assert len(held) + sum(topic.claiming_count for topic in shard.index.topics.values()) <= 2
        assert not held or shards.dispatcher.queues.by_topic[NAMESPACE, "a"].allowed_count


def test_a_capped_topic_that_waits_is_neither_active_nor_in_a_ring() -> None:
    shards = stocked({"a": 100})
    shards.set_policy("a", deliveries_per_second_max=0.1)
    shards.dispatcher.tick()
    consumers = Consumers(shards, ["a"])
    consumers.pass_ms(200)
    queue = shards.dispatcher.queues.by_topic[NAMESPACE, "a"]
    assert queue.calls
    assert queue not in shards.dispatcher.queues.active
    assert not queue.in_ring
    assert queue.token_wait_slot


def with_a_low_cap(*, is_of_namespace: bool) -> Shards:
    """A shard with items of a topic, of which the topic or its namespace lets one through in hours."""
    shards = stocked({"a": 100})
    if is_of_namespace:
        shards.change_settings(deliveries_per_second_max=0.0001)
    else:
        shards.set_policy("a", deliveries_per_second_max=0.0001)
    shards.dispatcher.tick()
    return shards


@pytest.mark.parametrize("is_of_namespace", [False, True])
def test_a_token_that_comes_back_is_used_by_whoever_waits_for_the_next_one(is_of_namespace: bool) -> None:
    shards = with_a_low_cap(is_of_namespace=is_of_namespace)
    queue = shards.dispatcher.queues.by_topic[NAMESPACE, "a"]
    shards.dispatcher.tokens.refresh(queue)
    assert shards.dispatcher.tokens.take(queue, 1, shards.clock_ms / 1000) == 1
    queue.allowed_count, held_count = 0, 1  # A claim has it.
    call = shards.dequeue({"a": 1})
    shards.pass_ms(1_000)
    assert not call.done
    queue.allowed_count = held_count
    shards.dispatcher.tokens._refund(queue, held_count)
    shards.pass_ms(100)
    assert call.done


@pytest.mark.parametrize("is_of_namespace", [False, True])
def test_a_token_whose_delivery_reached_nobody_is_used_again(is_of_namespace: bool) -> None:
    shards = with_a_low_cap(is_of_namespace=is_of_namespace)
    lost = shards.dequeue({"a": 1})
    shards.pass_ms(100)
    assert lost.done
    call = shards.dequeue({"a": 1})
    shards.pass_ms(1_000)
    assert not call.done
    shards.dispatcher.tokens.undelivered((NAMESPACE, "a"), 1)
    shards.pass_ms(100)
    assert call.done
    other = shards.dequeue({"a": 1})
    shards.pass_ms(1_000)
    assert not other.done


def test_no_more_tokens_come_back_than_a_cap_can_save_up() -> None:
    bucket = TokenBucket(0.001, 0.0, tokens=2.0)
    assert bucket.take(2, 0.0) == 2
    bucket.spend(2, 0.0)
    assert bucket.count(0.0) == 0
    for _ in range(100):
        bucket.unspend(10, 0.0)
    assert bucket.count(0.0) == burst_of(0.001)


class Asked(TokenBucket):
    """It knows how often somebody has waited for a token, which another host would be asked for."""

    asked_count = 0

    def wait_s(self, now_s: float) -> float:
        Asked.asked_count += 1
        return super().wait_s(now_s)


@pytest.mark.interpreted
def test_consumers_of_a_topic_without_items_wait_for_none_of_its_tokens() -> None:
    """Another host may have the items, and would wait for the next token."""
    shards = Shards(1, new_cap=lambda key, rate, now_s: Asked(rate, now_s, 0.0))
    shards.set_policy("a", deliveries_per_second_max=0.001)
    Asked.asked_count = 0
    for _ in range(5):
        call = shards.dequeue({"a": 1})
        shards.pass_ms(100)
        assert not call.done
    assert Asked.asked_count == 0
    shards.enqueue(0, "a")
    shards.pass_ms(100)
    assert Asked.asked_count > 0


def test_a_cap_holds_nobody_else_up() -> None:
    shards = stocked({"a": 100, "b": 100})
    shards.set_policy("a", deliveries_per_second_max=0.1)
    shards.dispatcher.tick()
    call = shards.dequeue({"a": 10, "b": 10})
    shards.pass_ms(100)
    assert call.items is not None
    assert {item.topic.name for item in call.items} >= {"b"} or len(call.items) == 1
    call = shards.dequeue({"a": 10, "b": 10})
    shards.pass_ms(100)
    assert Counter(item.topic.name for item in call.items or []) == {"b": 10}


def test_a_cap_may_change_while_calls_wait() -> None:
    shards = stocked({"a": 10_000})
    shards.set_policy("a", deliveries_per_second_max=0.01)
    shards.dispatcher.tick()
    consumers = Consumers(shards, ["a"], 100)
    consumers.pass_ms(1_000)
    assert consumers.got["a"] == 1
    shards.set_policy("a", deliveries_per_second_max=100)
    consumers.pass_ms(1_000)
    assert 90 <= consumers.got["a"] <= 111
    shards.set_policy("a", deliveries_per_second_max=0)
    consumers.pass_ms(1_000)
    assert consumers.got["a"] > 2_000
    check(shards)


def test_a_namespace_with_a_cap_gives_each_of_its_topics_a_turn() -> None:
    shards = stocked({f"t{number}": 1_000 for number in range(10)})
    shards.change_settings(deliveries_per_second_max=100.0)
    shards.dispatcher.tick()
    consumers = Consumers(shards, [f"t{number}" for number in range(10)], 50)
    consumers.pass_ms(10_000)
    assert 980 <= consumers.got.total() <= 1_012
    assert min(consumers.got.values()) >= 80
    check(shards)


def test_calls_for_any_topic_and_for_certain_ones_share_the_cap_of_a_namespace() -> None:
    shards = stocked({f"t{number}": 2_000 for number in range(4)})
    shards.change_settings(deliveries_per_second_max=50.0)
    shards.dispatcher.tick()
    named = Consumers(shards, ["t0", "t1"], 50)
    anyone = Consumers(shards, [], 50, any_count=2)
    for _ in range(500):
        named.pass_ms(20)
        anyone.ask_again()
    total = named.got.total() + anyone.got.total()
    assert 485 <= total <= 506
    assert named.got.total() > 100
    assert anyone.got.total() > 100
    check(shards)


def test_when_a_namespace_has_no_cap_any_more_all_its_topics_go_on_however_many_have_waited() -> None:
    names = [f"t{number}" for number in range(2 * limits.SWEEP_QUEUES_MAX + 100)]
    shards = stocked({})
    shards.change_settings(deliveries_per_second_max=0.01)
    shards.dispatcher.tick()
    for name in names:
        shards.enqueue(0, name, count=2)
    for _ in range(20):
        shards.run(0)
    calls = [shards.dequeue({name: 1}) for name in names]
    shards.pass_ms(1_000)
    assert sum(call.done for call in calls) < 10
    shards.change_settings(deliveries_per_second_max=0.0)
    shards.pass_ms(1_000)
    assert all(call.done for call in calls)
    check(shards)


def test_a_paused_topic_ends_its_calls_and_is_delivered_again_when_it_is_resumed() -> None:
    shards = stocked({"a": 10})
    waiting = shards.dequeue({"empty": 1})
    shards.set_policy("empty", dequeue_paused=True)
    shards.set_policy("a", dequeue_paused=True)
    shards.pass_ms(20)
    assert waiting.is_paused
    call = shards.dequeue({"a": 1, "b": 1})
    shards.pass_ms(1_000)
    assert not call.done
    check(shards)
    shards.set_policy("a", dequeue_paused=False)
    shards.pass_ms(20)
    assert call.items
    check(shards)


def test_what_was_prefetched_of_a_topic_goes_back_when_it_is_paused() -> None:
    shards = stocked({"a": 100})
    for _ in range(3):
        shards.dequeue({"a": 10})
        shards.run(0)
    assert len(shards.dispatcher.queues.prefetched(NAMESPACE, "a"))
    shards.set_policy("a", dequeue_paused=True)
    shards.pass_ms(20)
    assert not len(shards.dispatcher.queues.prefetched(NAMESPACE, "a"))
    check(shards)


def test_a_topic_that_comes_and_goes_keeps_its_cap() -> None:
    shards = stocked({})
    shards.set_policy("a", deliveries_per_second_max=0.01)
    shards.dispatcher.tick()
    got = 0
    for _ in range(20):
        shards.enqueue(0, "a")
        call = shards.dequeue({"a": 1})
        shards.pass_ms(100)
        got += len(call.items or [])
        shards.dispatcher.end(call)
    assert got == 1


def test_a_bucket_gives_its_rate_and_never_more_than_its_burst_at_once() -> None:
    bucket = TokenBucket(10.0, 0.0)
    spent = 0
    for step in range(1, 10_001):
        taken = bucket.take(5, step / 1000)
        spent += taken
        bucket.spend(taken, step / 1000)
    assert 100 <= spent <= 102
    assert bucket.take(100, 1_000.0) == 2
    assert bucket.take(100, 2_000.0) == 0, "what is held counts"
    bucket.refund(2, 2_000.0)
    assert bucket.take(100, 2_000.0) == 2


def test_a_claim_that_takes_long_lets_no_more_through_at_its_end() -> None:
    bucket = TokenBucket(40.0, 0.0)
    assert bucket.take(10, 10.0) == 4
    bucket.spend(4, 20.0)
    assert bucket.take(10, 20.0) == 0
    assert bucket.take(10, 20.05) == 2


def test_tokens_that_are_held_while_the_rate_is_touched_come_back_to_the_new_bucket() -> None:
    bucket = TokenBucket(0.01, 0.0)
    assert bucket.take(1, 0.0) == 1
    other = bucket.at_rate(0.02, 1.0)
    bucket.refund(1, 1.0)
    assert other.count(1.0) == 1
    assert TokenBucket(0.01, 0.0, 2.0).at_rate(50.0, 1.0).count(1.0) == 2


class Waiting:
    """Waits for tokens, and counts how often it was looked at."""

    looks_count = 0

    def __init__(self) -> None:
        self.cap = None
        self._slot = UNTIL_FED

    @property
    def token_wait_slot(self) -> int:
        Waiting.looks_count += 1
        return self._slot

    @token_wait_slot.setter
    def token_wait_slot(self, slot: int) -> None:
        self._slot = slot


def test_a_tick_looks_at_those_alone_that_it_takes_however_many_are_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Waiting, "looks_count", 0)
    wheel: TokenWheel[Waiting] = TokenWheel(lambda: 0.0)
    all_of_them = [Waiting() for _ in range(1_000)]
    for one in [*all_of_them, *all_of_them]:
        wheel.wake(one)
    Waiting.looks_count = 0
    assert wheel.take_due(10) == all_of_them[:10]
    assert Waiting.looks_count == 10
    wheel.leave(all_of_them[10])
    assert wheel.take_due() == all_of_them[11:]


def test_a_topic_that_is_forgotten_in_the_turn_of_another_one_has_no_turn() -> None:
    """A call waited for both, and the turn of the first one has ended it."""
    shards = Shards(1)
    tokens, queues = shards.dispatcher.tokens, shards.dispatcher.queues
    waiting = [queues.get(NAMESPACE, name) for name in ("a", "b", "c")]
    tenant = queues.tenant(NAMESPACE)
    tenant.waiting_topics.update(dict.fromkeys(waiting))
    served = []
    for queue in tokens.turns(tenant):
        served.append(queue)
        if queue is waiting[0]:
            tokens.forget(waiting[1])
    assert [queue for queue in served if queue is not None] == [waiting[0], waiting[2]]

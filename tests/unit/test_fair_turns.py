"""The turns of fairness keys, on the dispatcher itself, against an oracle that reads the log of all deliveries."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from foqs.host.dispatch import rings, tenant
from foqs.host.dispatch.levels import Levels
from foqs.host.dispatch.rings import Rings
from foqs.host.dispatch.tenant import ReadyRing
from foqs.host.dispatch.topic_queue import TopicQueue
from foqs.model import limits, order
from foqs.model.item import ShardItem
from foqs.model.topic_name import fair, ordered
from foqs.shard.state.events import Completion
from tests.support.deep import deep_but
from tests.support.shards import NAMESPACE, Shards
from tests.unit.test_caps import check

TOPIC = "t"
KEYS = (None, "a", "b", "c", "d")
SLACK = 1
"""Items by which keys differ that both had items all the time: each has had its turn in the round or not."""


def name_of(key: str | None) -> str:
    return TOPIC if key is None else fair(TOPIC, key)


def with_shards(count: int) -> Shards:
    shards = Shards(count)
    shards.allow_item_bytes(1_000)  # Else memory bounds the items of an answer.
    return shards


def ack(shards: Shards, items: list[ShardItem]) -> None:
    for item in items:
        shard = shards.states[item.topic.shard_id]
        shard.end_leases([item])
        shard.settle([item], None, Completion(lambda _: None), [0])


class Oracle:
    """The waiting items of each key and priority, and the deliveries in their order. It knows no rings."""

    def __init__(self) -> None:
        self.waiting: Counter[tuple[int, str]] = Counter()
        """By priority and name of the keyed topic."""
        self._since: dict[tuple[int, str], int] = {}
        """The length of the log at which a key began to have items of a priority without a gap."""
        self._log: list[tuple[int, str]] = []

    def add(self, priority: int, name: str, count: int = 1) -> None:
        if not self.waiting[priority, name]:
            self._since[priority, name] = len(self._log)
        self.waiting[priority, name] += count

    def take(self, items: list[ShardItem], wanted: int) -> None:
        """Check an answer: its items are the most urgent ones, and no key has more than its turns.

        An answer is short if some claims bring less urgent items than have come meanwhile, as of any topic.
        """
        ready = sorted([priority for (priority, _), count in self.waiting.items() for _ in range(count)])
        assert [item.priority for item in items] == ready[: len(items)]
        for item in items:
            place = item.priority, item.topic.name
            self.waiting[place] -= 1
            assert self.waiting[place] >= 0, place
            self._log.append(place)
        if len(items) < min(wanted, len(ready)):
            self._since = dict.fromkeys(self._since, len(self._log))
        for priority in {item.priority for item in items}:
            self._check_turns(priority)

    def _check_turns(self, priority: int) -> None:
        names = [name for (of, name), count in self.waiting.items() if of == priority and count]
        for one in names:
            for other in names:
                since = max(self._since[priority, one], self._since[priority, other])
                seen = Counter(self._log[since:])
                difference = seen[priority, one] - seen[priority, other]
                assert difference <= SLACK, (priority, one, other, self._log[since:])


def run_by_chance(seed: int, steps: int = 120) -> None:
    """Enqueues, dequeues, failures and expiries by chance, each seen to its end."""
    chance = random.Random(seed)
    shards = with_shards(chance.choice([1, 3]))
    priorities = chance.choice([(0,), (0, 1), (-3, 0, 0, 7)])
    keys = chance.choice([KEYS, KEYS[1:], KEYS[:2]])
    oracle = Oracle()
    for _ in range(steps):
        match chance.choice(["enqueue", "dequeue", "dequeue"]):
            case "enqueue":
                for _ in range(chance.choice([1, 1, 4])):
                    name, priority = name_of(chance.choice(keys)), chance.choice(priorities)
                    count = chance.choice([1, 2, 30])
                    shards.enqueue(chance.choice(list(shards.states)), name, priority, count=count)
                    oracle.add(priority, name, count)
                shards.pass_ms(20)
            case "dequeue":
                wanted = chance.choice([1, 1, 3, 10, 100])
                call = shards.dequeue({TOPIC: wanted})
                shards.pass_ms(60)
                shards.dispatcher.end(call)
                items = call.items or []
                assert items or not oracle.waiting.total()
                oracle.take(items, wanted)
                ack(shards, items)
        check(shards)


@pytest.mark.parametrize("seed", deep_but(range(8), range(60)))
def test_the_most_urgent_items_come_first_and_their_keys_take_turns(seed: int) -> None:
    run_by_chance(seed)


def test_a_key_with_very_many_items_delays_the_others_by_its_share_alone() -> None:
    shards = with_shards(2)
    for number in (0, 1):
        shards.enqueue(number, name_of("many"), count=5_000)
        for key in range(50):
            shards.enqueue(number, name_of(f"k{key}"), count=10)
        shards.run(number)
    got: Counter[str] = Counter()
    while got.total() - got[name_of("many")] < 950:
        call = shards.dequeue({TOPIC: 40})
        shards.pass_ms(40)
        got += Counter([item.topic.name for item in call.items or []])
        shards.dispatcher.end(call)
    assert got[name_of("many")] <= 950 / 50 * 1.2
    check(shards)


def test_many_calls_at_once_share_the_keys() -> None:
    shards = with_shards(1)
    for key in ("a", "b", "c"):
        shards.enqueue(0, name_of(key), count=100)
    shards.run(0)
    calls = [shards.dequeue({TOPIC: 5}) for _ in range(12)]
    shards.pass_ms(60)
    got = Counter([item.topic.name for call in calls for item in call.items or []])
    assert got == {name_of(key): 20 for key in ("a", "b", "c")}
    check(shards)


def test_an_urgent_item_of_any_key_is_next_also_for_a_call_for_any_topic() -> None:
    shards = with_shards(1)
    shards.enqueue(0, name_of("a"), 5, count=20)
    shards.enqueue(0, name_of("b"), 5, count=20)
    shards.run(0)
    for dequeue in (lambda: shards.dequeue({TOPIC: 1}), lambda: shards.dequeue_any(1)):
        shards.enqueue(0, name_of("c"), 5)
        shards.enqueue(0, name_of("b"), -1)
        shards.run(0)
        call = dequeue()
        shards.pass_ms(40)
        assert [item.priority for item in call.items or []] == [-1]
    check(shards)


def test_permits_of_the_topic_are_shared_by_priority_and_then_by_turns() -> None:
    shards = with_shards(1)
    shards.set_policy(TOPIC, in_flight_max=6)
    shards.dispatcher.tick()
    for key in ("a", "b", "c"):
        shards.enqueue(0, name_of(key), 5, count=20)
    shards.enqueue(0, TOPIC, 5, count=20)
    shards.run(0)
    base = shards.states[0].index.topics[NAMESPACE, TOPIC]
    base.permits = 4
    shards.dispatcher.deliveries.resume(shards.dispatcher.queues.by_topic[NAMESPACE, TOPIC])
    call = shards.dequeue({TOPIC: 100})
    shards.pass_ms(100)
    assert Counter([item.topic.name for item in call.items or []]) == {name_of(key): 1 for key in (None, "a", "b", "c")}
    assert base.out_count == 4
    shards.enqueue(0, name_of("b"), -1, count=2)
    shards.run(0)
    waiting = shards.dequeue({TOPIC: 100})
    shards.pass_ms(100)
    assert waiting.items is None
    ack(shards, (call.items or [])[:2])
    shards.pass_ms(100)
    assert [(item.topic.name, item.priority) for item in waiting.items or []] == [(name_of("b"), -1)] * 2


def test_a_ring_of_ordering_keys_takes_its_topics_over_step_by_step() -> None:
    shards = with_shards(1)
    for key in range(300):
        shards.enqueue(0, ordered(TOPIC, f"o{key}"))
    shards.run(0)
    for key in range(5):
        shards.enqueue(0, name_of(f"f{key}"), count=2)
    shards.run(0)
    check(shards)
    got: list[str] = []
    while len(got) < 310:
        call = shards.dequeue({TOPIC: 50})
        shards.pass_ms(40)
        assert call.items, len(got)
        got += [item.topic.name for item in call.items]
        check(shards)
    assert len(set(got)) == 305


# ---- planted defects ----

_turn, _place = ReadyRing.turn, Levels.place


def turns_by_the_number_of_items(self: ReadyRing) -> tuple[TopicQueue, int] | None:
    found = _turn(self)
    return None if found is None else (found[0], found[0].spare_count(limits.BATCH_ITEMS_MAX))


def priority_ignored(queue: TopicQueue, *, needs_room: bool = True) -> int:
    return 0


def wanted_items_counted_again(queue: TopicQueue, *, needs_room: bool = True) -> int:
    heads = [part.first_sort_key for part in queue.parts.values()]
    return order.urgency_of(min([queue.buffer.first, *heads]))


def more_urgent_items_unnoticed(self: Rings, queue: TopicQueue) -> None:
    return None


def stays_first(self: Levels, queue: TopicQueue, level: int) -> None:
    self.place(queue, level)


def loses_its_place_by_an_urgent_item(self: Levels, queue: TopicQueue, level: int) -> bool:
    if self._levels_of.get(queue, [level])[0] != level:
        self.remove(queue)
    return _place(self, queue, level)


@pytest.mark.interpreted
@pytest.mark.parametrize(
    ("owners", "name", "defect"),
    [
        ([ReadyRing], "turn", turns_by_the_number_of_items),
        ([tenant, rings], "level_of", priority_ignored),
        ([tenant, rings], "level_of", wanted_items_counted_again),
        ([Rings], "relevel", more_urgent_items_unnoticed),
        ([Levels], "end_turn", stays_first),
        ([Levels], "place", loses_its_place_by_an_urgent_item),
    ],
)
def test_a_defect_is_seen(
    owners: list[Any], name: str, defect: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for owner in owners:
        monkeypatch.setattr(owner, name, defect)
    seen = 0
    for seed in range(12):
        try:
            run_by_chance(seed)
        except AssertionError:
            seen += 1
    assert seen

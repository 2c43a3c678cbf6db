"""Dequeues from any topic, on the dispatcher itself, in the time of the test."""

from __future__ import annotations

from collections import Counter

import pytest

from foqs.model import limits
from foqs.model.errors import OverloadedError
from foqs.model.groups import TopicGroup
from foqs.model.topic_name import parts
from tests.support.shards import NAMESPACE, Shards
from tests.unit.test_caps import Consumers, check, stocked


def topics_of(shards: Shards, count: int, prefix: str = "", group: str = "") -> Counter[str]:
    call = shards.dequeue_any(count, prefix, group=group)
    shards.pass_ms(20)
    shards.dispatcher.end(call)
    return Counter(item.topic.name for item in call.items or [])


@pytest.mark.parametrize("shard_count", [1, 3])
def test_a_topic_with_very_many_items_gets_no_more_than_its_share(shard_count: int) -> None:
    shards = stocked({"big": 18_000} | {f"t{number}": 2_700 for number in range(5)}, shard_count)
    shards.set_policy("t1", weight=2)
    shards.set_policy("t2", weight=5)
    shards.dispatcher.tick()
    consumers = Consumers(shards, [], 40, any_count=3)
    weights = {"big": 1, "t0": 1, "t1": 2, "t2": 5, "t3": 1, "t4": 1}
    while consumers.got["t2"] < 2_200:
        before = consumers.got.copy()
        while (consumers.got - before).total() < 550:
            consumers.pass_ms(20)
        got, total = consumers.got - before, (consumers.got - before).total()
        for topic, weight in weights.items():
            share = total * weight / sum(weights.values())
            assert abs(got[topic] - share) <= share * 0.05 + weight + 1, (topic, got)
    check(shards)


def test_topics_that_have_nothing_more_leave_their_share_to_the_others() -> None:
    shards = stocked({"big": 5_000, **{f"t{number}": 100 for number in range(99)}})
    consumers = Consumers(shards, [], 100, any_count=2)
    while consumers.got.total() < 9_900:
        consumers.pass_ms(20)
    assert consumers.got["big"] <= 250
    assert all(consumers.got[f"t{number}"] >= 95 for number in range(99))


def test_within_a_topic_the_most_urgent_comes_first() -> None:
    shards = Shards(2)
    for number in (0, 1):
        for priority in (5, 1, 3):
            shards.enqueue(number, "a", priority, count=2)
            shards.enqueue(number, "b", priority, count=2)
        shards.run(number)
    call = shards.dequeue_any(8)
    shards.pass_ms(40)
    assert call.items is not None
    for topic in ("a", "b"):
        assert [item.priority for item in call.items if item.topic.name == topic] == [1, 1, 1, 1]


def test_a_call_gets_items_of_topics_with_its_prefix_alone() -> None:
    shards = stocked({"a/1": 5, "a/2": 5, "b/1": 5, "a": 5})
    assert topics_of(shards, 100, "a/") == {"a/1": 5, "a/2": 5}
    assert topics_of(shards, 100, "c") == {}
    assert topics_of(shards, 100) == {"b/1": 5, "a": 5}
    check(shards)


@pytest.mark.parametrize("prefix", ["", "n"])
def test_a_waiting_call_gets_what_comes_in_a_topic_that_is_new_with_the_transaction_that_writes_it(prefix: str) -> None:
    shards = stocked({"old": 1})
    shards.run(0)
    first = shards.dequeue_any(10, "o")
    shards.run(0)
    assert first.items
    call = shards.dequeue_any(10, prefix)
    shards.enqueue(0, "other" if prefix == "n" else "new")
    shards.enqueue(0, "new")
    shards.begin(0)
    shards.end(0)
    assert call.items
    assert call.items[0].topic.name == "new"
    check(shards)


def test_many_waiting_calls_share_what_comes_at_once() -> None:
    shards = stocked({})
    calls = [shards.dequeue_any(10) for _ in range(5)]
    shards.enqueue(0, "a", count=30)
    for _ in range(5):
        shards.pass_ms(20)
    assert sum(len(call.items or []) for call in calls) == 30
    for call in calls:
        shards.dispatcher.end(call)
    check(shards)


def test_a_call_that_was_outrun_looks_elsewhere() -> None:
    shards = stocked({})
    anyone, named = shards.dequeue_any(10), shards.dequeue({"a": 10})
    shards.enqueue(0, "a", count=1)
    shards.pass_ms(20)
    assert bool(anyone.items) != bool(named.items)
    if anyone.items is None:
        shards.enqueue(0, "b", count=1)
        shards.pass_ms(40)
        assert anyone.items
    check(shards)


def test_capped_and_paused_topics_hold_calls_for_any_topic_up_no_longer_than_they_must() -> None:
    shards = stocked({"capped": 1_000, "paused": 1_000, "free": 1_000})
    shards.set_policy("capped", deliveries_per_second_max=5)
    shards.set_policy("paused", dequeue_paused=True)
    shards.dispatcher.tick()
    consumers = Consumers(shards, [], 10, any_count=2)
    consumers.pass_ms(2_000)
    assert 9 <= consumers.got["capped"] <= 12
    assert consumers.got["free"] == 1_000
    assert not consumers.got["paused"]
    shards.set_policy("paused", dequeue_paused=False)
    consumers.pass_ms(2_000)
    assert consumers.got["paused"] == 1_000
    check(shards)


def test_a_call_for_any_topic_ends_when_its_namespace_is_paused() -> None:
    shards = stocked({})
    call = shards.dequeue_any(10)
    shards.change_settings(dequeue_paused=True)
    shards.dispatcher.tick()
    assert call.is_paused
    check(shards)


def test_nested_prefixes_and_all_prefixes_are_bounded_and_forgotten_when_they_are_idle() -> None:
    shards = stocked({})
    for length in range(1, limits.TOPIC_PREFIXES_NESTED_MAX + 1):
        shards.dispatcher.rings.ring(NAMESPACE, "x" * length)
    with pytest.raises(OverloadedError):
        shards.dispatcher.rings.ring(NAMESPACE, "xx" * length)
    shards.dispatcher.rings.ring(NAMESPACE, "y")
    shards.clock_ms += limits.TOPIC_PREFIX_IDLE_MS + 1
    shards.dispatcher.rings.forget_prefixes()
    assert not shards.dispatcher.rings._prefixed
    for number in range(limits.TOPIC_PREFIXES_MAX):
        shards.dispatcher.rings.ring(NAMESPACE, f"{number:04}")
    with pytest.raises(OverloadedError):
        shards.dispatcher.rings.ring(NAMESPACE, "z")


def test_prefixes_of_one_namespace_leave_room_for_those_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TOPIC_PREFIXES_MAX", 4)
    monkeypatch.setattr(limits, "TOPIC_PREFIXES_OF_HOST_MAX", 6)
    dispatcher = stocked({}).dispatcher
    for number in range(4):
        dispatcher.rings.ring(NAMESPACE, f"{number}")
    with pytest.raises(OverloadedError, match="named 4 prefixes"):
        dispatcher.rings.ring(NAMESPACE, "z")
    dispatcher.rings.ring(NAMESPACE + 1, "a")
    dispatcher.rings.ring(NAMESPACE + 1, "b")
    with pytest.raises(OverloadedError, match="6 of all"):
        dispatcher.rings.ring(NAMESPACE + 2, "a")
    assert NAMESPACE + 2 not in dispatcher.queues.tenants, "what was refused leaves nothing behind"


def test_a_call_with_a_new_prefix_finds_what_was_there_before() -> None:
    shards = stocked({f"{'ab'[number % 2]}/{number}": 1 for number in range(400)})
    assert topics_of(shards, 1_000, "a/").total() == limits.ANY_TOPICS_PER_CALL_MAX
    assert topics_of(shards, 1_000, "a/").total() == 200 - limits.ANY_TOPICS_PER_CALL_MAX
    assert not topics_of(shards, 1_000, "a/")


def with_groups(shards: Shards, *names: str, deleted: tuple[str, ...] = ()) -> None:
    """Declare the groups of these hidden names."""
    by_name = {name: TopicGroup(*parts(name), name in deleted) for name in (*names, *deleted)}
    shards.settings.replace_groups({NAMESPACE: by_name})


def test_a_call_for_a_group_of_any_topic_gets_its_items_alone() -> None:
    a, b, other, x = "a\x1fg", "b\x1fg", "a\x1fh", "x\x1fg"
    shards = stocked({"a": 10, "b": 10, a: 10, b: 10, other: 10, x: 10})
    with_groups(shards, a, b, other, x)
    shards.dispatcher.tick()
    call = shards.dequeue_any(100, "", group="g")
    shards.pass_ms(20)
    assert call.items is not None
    assert Counter(item.topic.name for item in call.items) == {a: 10, b: 10, x: 10}
    check(shards)
    assert topics_of(shards, 100) == {"a": 10, "b": 10}
    assert topics_of(shards, 100, group="h") == {other: 10}
    check(shards)


def test_a_prefix_of_a_group_is_one_of_topics() -> None:
    shards = stocked({"ab\x1fg": 10, "ac\x1fg": 10, "b\x1fg": 10, "ab": 10, "a\x1fgg": 10})
    with_groups(shards, "ab\x1fg", "ac\x1fg", "b\x1fg", "a\x1fgg")
    shards.dispatcher.tick()
    waiting = shards.dequeue_any(100, "c", group="g")
    assert topics_of(shards, 100, "a", "g") == {"ab\x1fg": 10, "ac\x1fg": 10}
    assert topics_of(shards, 100, "b", "g") == {"b\x1fg": 10}
    shards.enqueue(0, "cc\x1fgg")
    shards.enqueue(0, "cc")
    shards.run(0)
    shards.pass_ms(20)
    assert waiting.items is None
    with_groups(shards, "cc\x1fg")
    shards.enqueue(0, "cc\x1fg", count=2)
    shards.run(0)
    shards.pass_ms(20)
    assert [item.topic.name for item in waiting.items or []] == ["cc\x1fg"] * 2
    check(shards)


def test_of_groups_that_were_deleted_or_are_unknown_a_call_gets_nothing() -> None:
    live, gone, unknown = "a\x1fg", "b\x1fg", "c\x1fg"
    shards = stocked({live: 5, gone: 5, unknown: 5})
    with_groups(shards, live, gone)
    shards.dispatcher.tick()
    named = shards.dequeue({"d\x1fg": 1})
    with_groups(shards, live, deleted=(gone,))
    shards.dispatcher.tick()
    assert topics_of(shards, 100, group="g") == {live: 5}
    with_groups(shards, gone, unknown)
    shards.dispatcher.tick()
    assert topics_of(shards, 100, group="g") == {gone: 5, unknown: 5}
    with_groups(shards, gone, deleted=("d\x1fg",))
    shards.pass_ms(20)
    assert named.items == []
    assert named.is_paused
    check(shards)


def test_topics_of_a_group_get_turns_by_their_weights() -> None:
    shards = stocked({f"{name}\x1fg": 1_000 for name in "abc"} | {"a": 1_000})
    with_groups(shards, *[f"{name}\x1fg" for name in "abc"])
    shards.set_policy("b\x1fg", weight=3)
    shards.dispatcher.tick()
    got: Counter[str] = Counter()
    for _ in range(20):
        got += topics_of(shards, 10, group="g")
    assert got == {"a\x1fg": 40, "b\x1fg": 120, "c\x1fg": 40}


def test_rings_of_groups_are_bounded_and_forgotten_like_those_of_prefixes() -> None:
    shards = stocked({})
    for length in range(1, limits.TOPIC_PREFIXES_NESTED_MAX + 1):
        shards.dispatcher.rings.ring(NAMESPACE, "x" * length)
    shards.dispatcher.rings.ring(NAMESPACE, "xx", "g")
    for number in range(limits.TOPIC_PREFIXES_MAX - limits.TOPIC_PREFIXES_NESTED_MAX - 1):
        shards.dispatcher.rings.ring(NAMESPACE, "", f"{number}")
    with pytest.raises(OverloadedError, match="prefixes of topics, or groups"):
        shards.dispatcher.rings.ring(NAMESPACE, "", "z")
    shards.clock_ms += limits.TOPIC_PREFIX_IDLE_MS + 1
    shards.dispatcher.rings.forget_prefixes()
    assert not shards.dispatcher.queues.tenants

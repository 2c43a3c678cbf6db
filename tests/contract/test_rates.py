"""Rates of topics and namespaces: of a MemoryQueue as of a host with MySQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import foqs
from foqs import NewItem, RateOrder, TopicRates
from foqs.host.metrics import rates as host_rates
from foqs.testing import MemoryQueue
from tests.contract.queue_world import NS, SECOND_MS, World

ROUND_MS = 100
SLOT_MS = 10_000


@pytest.fixture(autouse=True)
def _short_rounds(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Hosts sample often, so that a test on a real one need not wait for 10 s."""
    if "queue" not in request.fixturenames:
        monkeypatch.setattr(host_rates, "ROUND_MS", ROUND_MS)


@pytest.fixture
def queue() -> Iterator[MemoryQueue]:
    with MemoryQueue(NS) as made:
        yield made


def put(world: World, topic: str = "t", count: int = 10, **item: Any) -> None:
    world.client.enqueue_many(NS, [NewItem(topic, b"x", **item)] * count)


def take(world: World, count: int, topic: str = "t", **wanted: Any) -> list[foqs.Item]:
    items: list[foqs.Item] = []
    while len(items) < count:
        items += world.client.dequeue(NS, topic, count - len(items), wait_ms=SECOND_MS, **wanted)
    return items


def rates_of(world: World, topic: str = "t", group: str | None = None) -> TopicRates:
    (found,) = world.admin.get_rates(NS, topic, group=group).topics
    assert (found.topic, found.group) == (topic, group)
    return found


def until(world: World, holds: Callable[[TopicRates], bool], topic: str = "t", group: str | None = None) -> TopicRates:
    """The rates of a topic once they are right."""
    for _ in range(100):
        found = rates_of(world, topic, group)
        if holds(found):
            return found
        world.let_pass(2 * ROUND_MS)
    raise AssertionError(found)


def ratio(one: float, other: float) -> float:
    return pytest.approx(one / other, rel=0.1)  # type: ignore[return-value]


def test_each_event_has_its_rate(world: World) -> None:
    put(world, count=40)
    items = take(world, 20)
    world.client.ack(NS, items[:10])
    world.client.nack(NS, items[10:14], delay_ms=600_000)
    world.client.nack(NS, items[14:16], dead_letter=True)
    world.client.release(NS, items[16:18])
    # 40 in, 20 delivered, 12 of them gone, 6 failed; a busy host takes the last ones some rounds after the first.
    found = until(world, lambda rates: rates.ready == 22 and rates.ended_1min > 0.27 * rates.enqueued_1min)
    assert found.delivered_1min / found.enqueued_1min == ratio(20, 40)
    assert found.ended_1min / found.enqueued_1min == ratio(12, 40)
    assert found.failed_1min / found.enqueued_1min == ratio(6, 40)
    assert 0 < found.enqueued_15min < found.enqueued_1min
    assert found.enqueued_series is None


def test_items_with_delays_and_dedup_ids_are_counted_once(world: World) -> None:
    put(world, "plain", 10)
    put(world, "delayed", 10, delay_ms=600_000)
    for _ in range(2):
        world.client.enqueue_many(NS, [NewItem("known", b"x", dedup_id=str(number)) for number in range(10)])
    plain = until(world, lambda rates: rates.enqueued_1min > 0, "plain").enqueued_1min
    until(world, lambda rates: rates.enqueued_1min > 0, "known")
    assert rates_of(world, "delayed").enqueued_1min == pytest.approx(plain, rel=0.2)
    assert rates_of(world, "known").enqueued_1min == pytest.approx(plain, rel=0.2)


def test_items_of_keys_count_for_their_topic(world: World) -> None:
    world.client.enqueue_many(NS, [NewItem("t", b"x", ordering_key=key) for key in "abcd"])
    world.client.enqueue_many(NS, [NewItem("t", b"x", fairness_key=key) for key in "abcd"])
    world.client.ack(NS, take(world, 8))
    found = until(world, lambda rates: rates.ended_1min > 0)
    assert found.ended_1min / found.enqueued_1min == ratio(8, 8)
    assert found.delivered_1min / found.enqueued_1min == ratio(8, 8)
    assert [row.topic for row in world.admin.get_rates(NS).topics] == ["t"]


def test_a_group_has_rates_of_its_own(world: World) -> None:
    world.admin.create_group(NS, "t", "audit")
    put(world, count=10)
    world.client.ack(NS, take(world, 5))
    own = until(world, lambda rates: rates.ended_1min > 0)
    copies = rates_of(world, group="audit")
    assert copies.enqueued_1min == pytest.approx(own.enqueued_1min, rel=0.1)
    assert (copies.delivered_1min, copies.ended_1min) == (0, 0)
    rows = world.admin.get_rates(NS, prefix="t").topics
    assert sorted((row.topic, row.group or "") for row in rows) == [("t", ""), ("t", "audit")]


def test_topics_come_in_the_wanted_order_and_by_prefix(world: World) -> None:
    for topic, count in (("a.slow", 5), ("a.fast", 50), ("b.fast", 40)):
        put(world, topic, count)
    world.client.ack(NS, take(world, 5, "a.slow"))
    until(world, lambda rates: rates.ended_1min > 0, "a.slow")
    until(world, lambda rates: rates.ready > 0, "b.fast")

    def names(**wanted: Any) -> list[str]:
        return [row.topic for row in world.admin.get_rates(NS, **wanted).topics]

    assert names() == ["a.fast", "b.fast", "a.slow"]
    assert names(order=RateOrder.ENDED, limit=1) == ["a.slow"]
    assert names(order=RateOrder.READY) == ["a.fast", "b.fast", "a.slow"]
    assert names(prefix="a.") == ["a.fast", "a.slow"]
    assert names(prefix="a.f", limit=1_000) == ["a.fast"]
    assert names(prefix="nothing") == []
    found = world.admin.get_rates(NS, ["b.fast", "unknown", "b.fast", "a.slow"]).topics
    assert [(row.topic, row.enqueued_1min > 0) for row in found] == [
        ("b.fast", True), ("unknown", False), ("a.slow", True),
    ]  # fmt: skip


def test_the_topics_of_a_list_have_their_rates_if_they_are_asked_for(world: World) -> None:
    put(world, count=10)
    found = until(world, lambda rates: rates.enqueued_1min > 0)
    (stats,) = world.client.topics(NS)
    assert stats.rates is None
    (stats,) = world.client.topics(NS, with_rates=True)
    assert stats.rates is not None
    assert stats.rates.topic == "t"
    assert stats.rates.enqueued_1min == pytest.approx(found.enqueued_1min, rel=0.2)


def test_a_namespace_has_the_sum_of_its_topics(world: World) -> None:
    put(world, "a", 10)
    put(world, "b", 30)
    one = until(world, lambda rates: rates.enqueued_1min > 0, "a")
    until(world, lambda rates: rates.enqueued_1min > 0, "b")
    (row,) = world.admin.namespace_rates(NS).topics
    assert row.topic == ""
    assert row.enqueued_1min / one.enqueued_1min == ratio(4, 1)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"limit": 0}, "limit 0 is not within 1..1000"),
    ({"limit": 1_001}, "limit 1001"),
    ({"limit": -(2**31)}, "limit -2147483648"),
    ({"order": 5}, "order 5 is not within 0..4"),
    ({"order": -1}, "order -1"),
    ({"topics": ["a\x1fb"]}, "without control characters"),
    ({"topics": [""]}, "must be text of 1 to"),
    ({"topics": ["x" * 300]}, "over the limit"),
    ({"topics": ["t"] * 1_001}, "1001 topics in one call are over the limit of 1000"),
    ({"topics": ["t"], "prefix": "t"}, "topic_prefix 't' is given beside 1 topics"),
    ({"prefix": "t\x1f"}, "topic_prefix"),
    ({"group": "g"}, "given without topics"),
    ({"topics": ["t"], "group": "g\x1d"}, "group"),
    ({"with_series": True}, "with_series is set with 0 topics, and needs 1 to 50"),
    ({"topics": [str(number) for number in range(51)], "with_series": True}, "with 51 topics"),
]


def test_a_wrong_request_is_refused_with_the_limit(world: World) -> None:
    for arguments, text in WRONG:
        with pytest.raises((foqs.InvalidArgumentError, foqs.TooLargeError)) as refused:
            world.admin.get_rates(NS, **arguments)
        assert text in refused.value.message, arguments
    with pytest.raises(foqs.UnknownNamespaceError):
        world.admin.get_rates("nowhere")


def test_series_have_the_events_of_their_slots(queue: MemoryQueue) -> None:
    client, admin = queue.client(), queue.admin()
    for number in range(6):
        client.enqueue_many(NS, [NewItem("t", b"x")] * (number + 1))
        client.ack(NS, client.dequeue(NS, "t", 1))
        queue.clock.advance(SLOT_MS)
    queue.clock.advance(2 * SLOT_MS)
    page = admin.get_rates(NS, ["t", "still"], with_series=True)
    moving, still = page.topics
    assert page.slot_ms == SLOT_MS
    assert page.first_slot_ms % SLOT_MS == 0
    assert moving.enqueued_series is not None
    # The first slot, in which the host has begun, is not known; the host may sample a slot's end a tick later.
    assert sum(moving.enqueued_series) == pytest.approx(sum(range(2, 7)), abs=1)
    assert moving.ended_series is not None
    assert sum(moving.ended_series) == pytest.approx(5, abs=1)
    assert moving.ready_series is not None
    assert moving.ready_series[-1] == moving.ready == 15
    assert set(still.enqueued_series or ()) == {-1}
    assert len(still.enqueued_series or ()) == len(moving.enqueued_series)
    whole = admin.namespace_rates(NS, with_series=True)
    assert whole.topics[0].enqueued_series == moving.enqueued_series


def test_rates_sink_when_nothing_happens_any_more(queue: MemoryQueue) -> None:
    client, admin = queue.client(), queue.admin()
    for _ in range(60):
        client.enqueue_many(NS, [NewItem("t", b"x")] * 50)
        queue.clock.advance(5_000)
    (row,) = admin.get_rates(NS).topics
    assert row.enqueued_1min == pytest.approx(10, rel=0.03)
    queue.clock.advance(60_000)
    (row,) = admin.get_rates(NS).topics
    assert 10 * 0.3 < row.enqueued_1min < 10 * 0.45
    queue.clock.advance(16 * 60_000)
    assert admin.get_rates(NS).topics == []


def test_history_needs_an_event_log_and_says_how_to_set_it(world: World) -> None:
    with pytest.raises(foqs.InvalidArgumentError, match="event_log_dir"):
        world.admin.get_history(NS)


WRONG_HISTORY: list[tuple[dict[str, Any], str]] = [
    ({"since_ms": 5, "until_ms": 5}, "from_ms 5 is not within 0..4"),
    ({"since_ms": -1, "until_ms": 5}, "from_ms -1"),
    ({"since_ms": 0, "until_ms": 2**62}, "to_ms"),
    ({"since_ms": 0, "until_ms": 32 * 86_400_000}, "the limit is 2678400000 (31 days)"),
    ({"since_ms": 0, "until_ms": 60_000, "step_minutes": 1_441}, "step_minutes 1441 is not within 0..1440"),
    ({"since_ms": 0, "until_ms": 60_000, "step_minutes": -1}, "step_minutes -1"),
    ({"since_ms": 0, "until_ms": 86_400_000, "step_minutes": 1}, "makes 1440 rows, and the limit is 500"),
    ({"topics": ["t"] * 11}, "11 topics in one call are over the limit of 10"),
    ({"topics": [""]}, "must be text of 1 to"),
    ({"group": "g"}, "given without topics"),
]


def test_a_wrong_request_for_history_is_refused_with_the_limit(world: World) -> None:
    for arguments, text in WRONG_HISTORY:
        with pytest.raises((foqs.InvalidArgumentError, foqs.TooLargeError)) as refused:
            world.admin.get_history(NS, **arguments)
        assert text in refused.value.message, arguments

"""Claims of runs that come late, or whose first item dies: what is behind an item that did not end is not delivered."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from foqs.host.dispatch.topic_queue import DequeueCall
from foqs.model import limits
from foqs.model.item import Phase, ShardItem
from foqs.model.serial import OnDead
from foqs.shard.state.events import Completion
from tests.support.shards import NAMESPACE, Shards


def with_serial(batch: int = 3, on_dead: OnDead = OnDead.CONTINUE) -> Shards:
    shards = Shards(1)
    shards.set_policy("s", serial=True, key_batch=batch, on_dead=on_dead)
    shards.dispatcher.tick()
    topic = shards.states[0].index.topic(NAMESPACE, "s")
    topic.follow(shards.settings.serial_policy(NAMESPACE, "s"))
    return shards


def put(shards: Shards, *, at_most_once: bool = False, ttl_ms: int = 10**9, failed: int = 0) -> ShardItem:
    (item,) = shards.enqueue(0, "s", at_most_once=at_most_once)
    item.expires_at, item.failed_attempts = shards.clock_ms + ttl_ms, failed
    return item


def fail(shards: Shards, item: ShardItem, delay_ms: int = 0) -> None:
    state = shards.states[0]
    state.end_leases([item])
    rewrite = state.failed_attempt(item, shards.clock_ms, delay_ms=delay_ms)
    state.settle([item], [rewrite], Completion(lambda _: None), [0])


def keys_of(items: list[ShardItem] | None) -> list[int]:
    return [item.key for item in items or []]


def counts(shards: Shards) -> tuple[int, int]:
    """The ready items and the dead letters."""
    topic = shards.states[0].index.topic(NAMESPACE, "s")
    return topic.ready, topic.dead


@pytest.mark.parametrize("batch", [1, 3])
def test_an_item_that_dies_of_its_ttl_holds_those_that_are_claimed_with_it(batch: int) -> None:
    shards = with_serial(batch, OnDead.HOLD)
    dying, behind = put(shards, ttl_ms=100, failed=1), put(shards)
    shards.run(0)
    shards.clock_ms += 200
    call = shards.dequeue({"s": 3})
    shards.pass_ms(400)
    assert (call.items, counts(shards)) == (None, (1, 1))
    assert (dying.phase, behind.phase) == (Phase.GONE, Phase.READY)


@pytest.mark.parametrize("on_dead", list(OnDead))
def test_an_item_whose_ttl_ends_between_its_claim_and_its_delivery_holds_those_behind_it(
    on_dead: OnDead, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = with_serial(3, on_dead)
    items = [put(shards, ttl_ms=100, failed=1), put(shards), put(shards)]
    shards.run(0)
    monkeypatch.setattr(limits, "TRANSACTION_CLAIMS_MAX", 2)
    call = shards.dequeue({"s": 3})
    assert shards.begin(0) is not None
    shards.end(0)
    assert shards.begin(0) is not None, "the claim of the last item takes long, and the call waits for it a little"
    assert [item.phase for item in items] == [Phase.PREFETCHED, Phase.PREFETCHED, Phase.CLAIMING]
    shards.clock_ms += 200
    shards.dispatcher.tick()
    shards.end(0)
    shards.pass_ms(400)
    is_held = on_dead is OnDead.HOLD
    assert keys_of(call.items) == ([] if is_held else [items[1].key])
    assert counts(shards) == (2 if is_held else 1, 1)


def claimed_late(shards: Shards, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[list[ShardItem], DequeueCall]]:
    """Yield four items of which one call has the first, while the claims of the next ones are under way, and the call
    behind it; and again when the transaction that ends the first one has those claims as well.
    """
    items = [put(shards), put(shards, at_most_once=True), put(shards), put(shards)]
    shards.run(0)
    monkeypatch.setattr(limits, "TRANSACTION_CLAIMS_MAX", 2)
    first, second = shards.dequeue({"s": 3}), shards.dequeue({"s": 3})
    assert shards.begin(0) is not None
    shards.end(0)
    assert shards.begin(0) is not None
    monkeypatch.undo()
    while first.items is None:
        shards.clock_ms += 20
        shards.dispatcher.tick()
    assert keys_of(first.items) == [items[0].key]
    yield items, second
    shards.end(0)
    assert items[1].phase is Phase.CLAIMING, "it is claimed for the first call, which is over"
    yield items, second


def test_a_late_claim_waits_while_the_item_before_it_waits_for_its_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    shards = with_serial()
    steps = claimed_late(shards, monkeypatch)
    items, second = next(steps)
    fail(shards, items[0], delay_ms=60_000)
    next(steps)
    shards.pass_ms(400)
    assert (second.items, counts(shards)) == (None, (3, 0))
    shards.pass_ms(61_000)
    assert keys_of(second.items) == [item.key for item in items[:3]]


def test_a_late_claim_waits_while_a_dead_letter_holds_its_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    shards = with_serial(on_dead=OnDead.HOLD)
    steps = claimed_late(shards, monkeypatch)
    items, second = next(steps)
    items[0].failed_attempts = limits.ATTEMPTS_MAX
    fail(shards, items[0])
    next(steps)
    shards.pass_ms(400)
    assert (second.items, counts(shards)) == (None, (3, 1))


def test_a_late_claim_waits_for_the_item_before_it_that_came_back(monkeypatch: pytest.MonkeyPatch) -> None:
    shards = with_serial()
    steps = claimed_late(shards, monkeypatch)
    items, second = next(steps)
    fail(shards, items[0])
    next(steps)
    shards.pass_ms(400)
    assert keys_of(second.items) == [item.key for item in items[:3]]


def test_what_a_call_leaves_of_a_run_is_not_for_the_call_behind_it() -> None:
    shards = with_serial()
    items = [put(shards), put(shards), put(shards)]
    shards.run(0)
    gone = shards.dequeue({"s": 3})
    one, other = shards.dequeue({"s": 1}), shards.dequeue({"s": 1})
    assert shards.begin(0) is not None
    shards.dispatcher.end(gone)
    shards.end(0)
    shards.pass_ms(400)
    assert (keys_of(one.items), other.items) == ([items[0].key], None)
    assert [item.phase for item in items] == [Phase.LEASED, Phase.READY, Phase.READY]

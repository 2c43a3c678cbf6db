"""Items in bundles on a queue in memory: each can take another way than the rest, as if it had always been alone."""

from __future__ import annotations

import random
from collections import Counter
from datetime import timedelta
from unittest.mock import patch

import pytest

import foqs
from foqs import NewItem
from foqs.host.verbs import made
from foqs.model.errors import FoqsError, StaleLeaseError
from foqs.testing import MemoryQueue
from tests.sim.bundles import counted_bundles

STEPS = 60
STEP_KINDS = ["enqueue", "take", "take", "ack", "ack", "nack", "extend", "delete", "wait", "counts"]


def life(seed: int, bundle_items_max: int) -> tuple[list[object], Counter[str]]:
    """Return all that a client sees in a life by chance, and how often each kind of step came."""
    chance, seen, steps = random.Random(seed), list[object](), Counter[str]()
    with patch.object(made, "BUNDLE_ITEMS_MAX", bundle_items_max), MemoryQueue() as queue:
        client, admin = queue.client(), queue.admin()
        held: list[foqs.Item] = []
        number = 0
        for _ in range(STEPS):
            step = chance.choice(STEP_KINDS)
            steps[step] += 1
            if step == "enqueue":
                kinds, ttl = chance.choice([1, 1, 3]), chance.choice([None, None, timedelta(seconds=20)])
                items = []
                for _ in range(chance.choice([2, 5, 30])):
                    number += 1
                    items.append(NewItem("t", b"%d" % number, chance.randrange(kinds), ttl=ttl))
                seen.append(client.enqueue_many("default", items))
            elif step == "take":
                taken = client.dequeue("default", "t", count=chance.choice([1, 3, 10, 100]))
                seen.append([(item.payload, item.id, item.receipt, item.priority, item.attempt) for item in taken])
                held += taken
            elif step == "wait":
                queue.clock.advance(timedelta(seconds=chance.choice([1, 10, 31])))
            elif step == "counts":
                found = client.topics("default")
                seen.append([(one.ready, one.leased, one.dead) for one in found])
            elif held:
                chance.shuffle(held) if chance.random() < 0.5 else held.sort(key=lambda item: item.receipt)
                count = chance.choice([1, 2, len(held)])
                some, held = held[:count], held[count:]
                receipts = [item.receipt for item in some]
                if chance.random() < 0.2:
                    receipts.append(receipts[0])
                seen.append(_settle(step, client, admin, receipts))
                if step == "extend":
                    held += some
        rest = True
        while rest:
            taken = client.dequeue("default", "t", count=100)
            seen.append([(item.payload, item.attempt) for item in taken])
            seen.append(client.ack("default", [item.receipt for item in taken]))
            rest = bool(taken)
    return seen, steps


def _settle(step: str, client: foqs.Client, admin: foqs.AdminClient, receipts: list[str]) -> object:
    try:
        if step == "ack":
            return _shown(client.ack("default", receipts, return_errors=True))
        if step == "nack":
            return _shown(client.nack("default", [foqs.Nack(receipt) for receipt in receipts], return_errors=True))
        if step == "extend":
            return _shown(client.extend("default", receipts, lease=timedelta(seconds=60), return_errors=True))
        return _shown(admin.delete_items("default", [one.partition(":")[0] for one in dict.fromkeys(receipts)]))
    except FoqsError as error:
        return type(error).__name__


def _shown(errors: object) -> object:
    return {at: type(error).__name__ for at, error in errors.items()} if isinstance(errors, dict) else repr(errors)


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_a_client_cannot_tell_items_in_bundles_from_items_by_themselves(first: int) -> None:
    all_steps, bundles = Counter[str](), Counter[str]()
    for seed in range(first, first + 10):
        with counted_bundles(bundles):
            in_bundles, steps = life(seed, 256)
        alone, _ = life(seed, 1)
        assert in_bundles == alone, seed
        all_steps += steps
    assert min(all_steps.values()) > 10
    assert bundles["items in bundles"] > 300
    assert bundles["bundles that were divided"] > 10


def in_work(queue: MemoryQueue, count: int) -> tuple[foqs.Client, list[str]]:
    client = queue.client()
    client.enqueue_many("default", [NewItem("t", b"%d" % number) for number in range(count)])
    return client, [item.receipt for item in client.dequeue("default", "t", count=count)]


def test_a_receipt_that_comes_twice_ends_a_lease_once() -> None:
    with MemoryQueue() as queue:
        client, receipts = in_work(queue, 4)
        errors = client.ack("default", [*receipts, receipts[2]], return_errors=True)
        assert {at: type(error) for at, error in errors.items()} == {4: StaleLeaseError}
        client, receipts = in_work(queue, 4)
        errors = client.ack("default", [*receipts, *receipts], return_errors=True)
        assert {at: type(error) for at, error in errors.items()} == dict.fromkeys(range(4, 8), StaleLeaseError)
        assert not list(client.topics("default"))


def test_items_of_a_topic_that_ages_no_more_are_stored_with_their_payloads() -> None:
    with MemoryQueue() as queue:
        client, admin = queue.client(), queue.admin()
        admin.set_topic_policy("default", "t", aging_ms_per_priority=60_000)
        client.enqueue("default", "t", b"old")
        admin.set_topic_policy("default", "t", aging_ms_per_priority=0)
        client.enqueue_many("default", [NewItem("t", b"%d" % number) for number in range(3)])
        page = admin.peek_items("default", "t")
        assert sorted(item.payload for item in page.items) == [b"0", b"1", b"2", b"old"]


def test_leases_that_end_together_end_within_the_bound_of_a_tick() -> None:
    with MemoryQueue() as queue:
        client, _ = in_work(queue, 400)
        (writer,) = queue._traffic.host._host._shards.writers.values()
        assert writer.shard is not None
        due_at = next(iter(writer.shard.index.leases.values())).lease_due_at
        counts = [len(writer.shard.leases.pop_due(due_at + 200, 100)) for _ in range(5)]
        assert sum(counts) == 400
        assert max(counts) < 100 + made.BUNDLE_ITEMS_MAX
        assert client.dequeue("default", "t") == []


def test_an_invalid_item_makes_no_topic() -> None:
    with MemoryQueue() as queue:
        client = queue.client()
        items = [NewItem("bad", b"", ttl_ms=-1)] * 2 + [NewItem("good", b"")] * 2
        result = client.enqueue_many("default", items, return_errors=True)
        assert sorted(result.errors) == [0, 1]
        (writer,) = queue._traffic.host._host._shards.writers.values()
        assert writer.shard is not None
        assert [name for _, name in writer.shard.index.topics] == ["good"]

"""A host that drains with many calls and topics: each turn of the event loop does some of it, and nothing is left."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pytest

from foqs.contract.requests import DequeueRequest
from foqs.host.dispatch import prefetch, rings
from foqs.host.dispatch.consumers import Consumers
from foqs.host.verbs.dequeues import Dequeues
from foqs.model import limits
from foqs.model.calls import CallContext
from foqs.model.item import Phase
from foqs.model.namespace import Namespace, NamespaceSettings
from foqs.model.principal import EVERYBODY
from tests.support.shards import NAMESPACE, NamespacesOf, Shards

JOBS = Namespace(NAMESPACE, "jobs", NamespaceSettings(), 0)
CALL = CallContext("test", principal=EVERYBODY)
CALL_COUNT = 5
PER_TURN = 2
SOON_S = limits.WAIT_MS_MAX / 2_000
"""Less than the calls would wait by themselves."""


def dequeues_of(shards: Shards) -> Dequeues:
    namespaces, clock = cast(Any, NamespacesOf(JOBS)), lambda: shards.clock_ms / 1000
    return Dequeues(namespaces, cast(Any, shards), shards.dispatcher, clock, lambda *_: None, Consumers(clock))


@pytest.mark.parametrize(
    ("topics", "prefix", "ended_of_turn"), [(["a"], None, 1), (["a", "b", "c"], None, 1), ([], "", 2), ([], "x", 2)]
)
async def test_calls_that_wait_end_in_several_turns(topics: list[str], prefix: str | None, ended_of_turn: int) -> None:
    """A call counts once for itself and once for each topic that it names."""
    shards = Shards(1)
    dequeues = dequeues_of(shards)
    demands = [cast(Any, SimpleNamespace(topic=name, count=1, group=None)) for name in topics]
    count = None if prefix is None else 1
    waiting = [
        asyncio.create_task(dequeues.dequeue(CALL, DequeueRequest(JOBS.name, demands, None, 30_000, prefix, count)))
        for _ in range(CALL_COUNT)
    ]
    await asyncio.sleep(0)
    assert shards.dispatcher.queues.waiting_count == CALL_COUNT
    left: list[int] = []
    with patch.object(limits, "DEQUEUES_ENDED_PER_TICK", PER_TURN):
        draining = asyncio.create_task(cast(Any, dequeues.drain()))
        while not draining.done():
            await asyncio.sleep(0)
            left.append(shards.dispatcher.queues.waiting_count)
    ended = [before - after for before, after in zip([CALL_COUNT, *left], left, strict=False) if before > after]
    assert sum(ended) == CALL_COUNT
    assert max(ended) == ended_of_turn
    assert await asyncio.wait_for(asyncio.gather(*waiting), SOON_S) == [[]] * CALL_COUNT
    assert shards.dispatcher.queues.waiting_count == shards.dispatcher.queues.waiting_topics_count == 0
    assert (
        await asyncio.wait_for(
            dequeues.dequeue(CALL, DequeueRequest(JOBS.name, demands, None, 30_000, prefix, count)), SOON_S
        )
        == []
    )


async def test_a_call_whose_topics_are_still_being_found_does_not_wait_on() -> None:
    shards = Shards(1)
    for name in ("a", "b", "c"):
        shards.enqueue(0, name)
    shards.run(0)
    dequeues = dequeues_of(shards)
    with patch.object(rings, "RING_SLICE_TOPICS", 1):
        waiting = asyncio.create_task(dequeues.dequeue(CALL, DequeueRequest(JOBS.name, [], None, 30_000, "x", 1)))
        await asyncio.sleep(0)
        assert shards.dispatcher.queues.waiting_count == 0
        await dequeues.drain()
        assert await asyncio.wait_for(waiting, SOON_S) == []


def claimed_count(shards: Shards) -> int:
    """The items that are claimed and that no caller has got."""
    return sum(item.phase is not Phase.LEASED for item in shards.states[0].index.leases.values())


def test_what_is_prefetched_goes_back_in_several_turns() -> None:
    shards = Shards(1)
    names = ["a", "b", "c", "d", "e"]
    for name in names:
        shards.dequeue({name: 1})
        shards.enqueue(0, name, count=4)
    for _ in range(5):
        if shards.begin(0) is not None:
            shards.end(0)
    kept = [len(shards.dispatcher.queues.prefetched(NAMESPACE, name).sort_keys) for name in names]
    assert all(kept), kept
    assert claimed_count(shards) == sum(kept)
    with patch.object(prefetch, "DRAINED_PER_TURN", 2):
        left = [
            sum(len(shards.dispatcher.queues.prefetched(NAMESPACE, name).sort_keys) for name in names)
            for _ in shards.dispatcher.prefetch.drain()
        ]
    assert left == [sum(kept[at:]) for at in range(1, len(names) + 1)]
    shards.run(0)
    assert claimed_count(shards) == 0, "what no caller has got is free"

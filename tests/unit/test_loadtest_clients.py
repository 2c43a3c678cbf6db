"""How the bench's clients take time, and how its processes are charged."""

from __future__ import annotations

import asyncio
import itertools
import math
import multiprocessing
import os
import queue
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any, cast

import pytest

from loadtest.bench import clients
from loadtest.bench.clients import Gate, Job, Outcome
from loadtest.bench.figures import Ledger, RunError
from loadtest.bench.scenario import parse
from loadtest.bench.stamp import OF_BACKLOG, STAMP, Lateness, histogram
from loadtest.bench.ticker import Ticker, at_random, evenly
from loadtest.bench.usage import memory_mib, usage
from loadtest.peers.adapter import Adapter, Offer
from tests.support.waiting import PATIENCE_S

_MS_NS = 1_000_000


async def _ticks(times_ns: Iterator[int]) -> list[int]:
    found: list[int] = []
    done = asyncio.Event()
    with Ticker(times_ns, found.append, done.set):
        await asyncio.wait_for(done.wait(), PATIENCE_S)
    return found


async def test_every_event_of_an_open_loop_has_its_own_time() -> None:
    first_ns = time.monotonic_ns() + 2 * _MS_NS
    found = await _ticks(evenly(first_ns, 0.5 * _MS_NS, first_ns + 10 * _MS_NS))
    assert found == [first_ns + n * _MS_NS // 2 for n in range(20)]


async def test_what_was_due_during_a_stall_comes_after_it_with_the_time_at_which_it_was_due() -> None:
    first_ns = time.monotonic_ns() - 50 * _MS_NS
    found = await _ticks(evenly(first_ns, _MS_NS, first_ns + 40 * _MS_NS))
    assert found == [first_ns + n * _MS_NS for n in range(40)]


async def test_an_open_loop_without_events_is_done() -> None:
    assert await _ticks(evenly(5, 1, 5)) == []


def test_calls_at_random_times_have_the_rate_that_was_asked_for_and_come_at_any_distance() -> None:
    times_ns = list(at_random(0, _MS_NS, 10_000 * _MS_NS, Random(7)))
    distances_ns = sorted(b - a for a, b in itertools.pairwise(times_ns))
    assert len(times_ns) == pytest.approx(10_000, rel=0.05)
    assert times_ns == sorted(times_ns)
    assert times_ns[-1] < 10_000 * _MS_NS
    assert distances_ns[len(distances_ns) // 2] == pytest.approx(math.log(2) * _MS_NS, rel=0.1)


def test_stamps_tell_how_late_items_are_and_whether_one_is_missing() -> None:
    found = Lateness()
    claimed_ns = 100 * _MS_NS
    stamps = [(90 * _MS_NS, 7, 0), (40 * _MS_NS, 8, 1), (0, OF_BACKLOG | 9, 1)]
    found.read(claimed_ns, b"".join(STAMP.pack(*stamp) for stamp in stamps))
    assert found.ready.get_total_count() == 2
    assert found.ready.get_max_value() == pytest.approx(60_000, rel=0.01)
    assert found.backlog.get_max_value() == pytest.approx(100_000, rel=0.01)
    assert (found.topics[1].count, found.topics[1].max_ns) == (2, 100 * _MS_NS)
    assert found.check == 7 + 8 + 9 + OF_BACKLOG


def test_a_latency_outside_of_the_histogram_is_its_bound() -> None:
    assert histogram([-5, 10**18]).get_total_count() == 2


def test_a_process_is_charged_for_its_ended_children_too() -> None:
    before = usage(os.getpid())
    code = "import time; end = time.process_time() + 0.2\nwhile time.process_time() < end: pass"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert usage(os.getpid()).since(before).cpu_s >= 0.15


def test_a_process_is_charged_for_its_running_children_and_their_memory() -> None:
    before_mib = memory_mib(os.getpid())
    code = "x = bytearray(64 << 20); x[::4096] = b'x' * len(x[::4096]); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        grown_mib = memory_mib(os.getpid()) - before_mib
        child.communicate(b"\n", 10)
    assert grown_mib >= 60


@pytest.mark.parametrize("taken", [[2, 3], [2, 3, 3], [2, 3, 5]])
def test_an_item_that_was_lost_or_acked_twice_fails_the_run(taken: list[int]) -> None:
    ledger = Ledger()
    producer = Outcome("producer", 3, 0, 0.0, 2 + 3 + 4)
    consumer = Outcome("consumer", len(taken), 0, 0.0, sum(taken))
    ledger.settle([producer])
    if len(taken) < 3:
        ledger.settle([consumer])
        assert ledger.held == 1, "it may still be there"
        consumer = Outcome("consumer", 1, 0, 0.0, 3)
    with pytest.raises(RunError, match="lost or acked twice"):
        ledger.settle([consumer])


class _Taking:
    """A client of two shards that notes what each call had."""

    def __init__(self, calls: list[list[Offer]]) -> None:
        self.calls = calls

    async def enqueue(self, offers: Sequence[Offer]) -> None:
        self.calls.append(list(offers))

    async def shards_of(self, offers: Sequence[Offer]) -> list[int]:
        return [int(offer.dedup_id or "", 16) % 3 % 2 for offer in offers]

    async def close(self) -> None:
        """Nothing to be closed."""


class _Adapter:
    batch_max = 8

    def __init__(self) -> None:
        self.calls: list[list[Offer]] = []

    async def connect(self, in_flight: int) -> _Taking:
        return _Taking(self.calls)


async def test_a_producer_puts_items_of_one_shard_into_a_call_and_leaves_none_behind() -> None:
    base = {"items": 100, "producers": {"batch": 8, "in_flight": 3, "dedup_ids": "by shard"}}
    scenario = parse({"name": "x", "title": "", "variant": "full", "base": base})
    adapter, gate, results = _Adapter(), Gate(multiprocessing.get_context(), 0), queue.Queue[Any]()
    gate.begin.set()
    job = Job(cast(Adapter, adapter), scenario, scenario.phases["all"], 0, 1 << 40)
    await clients._Producer(job, gate).run(cast(Any, results))
    shards = [{int(offer.dedup_id or "", 16) % 3 % 2 for offer in call} for call in adapter.calls]
    assert all(len(of_call) == 1 for of_call in shards)
    assert all(len(call) <= 8 for call in adapter.calls)
    assert sum(len(call) < 8 for call in adapter.calls) <= 2
    ids = [int(offer.dedup_id or "", 16) for call in adapter.calls for offer in call]
    assert sorted(ids) == [(1 << 40) + number for number in range(100)]

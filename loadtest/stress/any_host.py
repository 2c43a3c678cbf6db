"""Hosts of one cluster: how soon a consumer that waits on any of them has an item, and what a hop costs."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from typing import Any

from foqs import Client
from loadtest.stress.hosts import SHARD_COUNT, cluster
from loadtest.stress.verdict import Bound, Verdict
from tests.support.faults import FaultError
from tests.support.faults.load import NAMESPACE

DELIVERY_MS_MAX = 50.0
HOP_MS_MAX = 0.5


@dataclass(frozen=True, slots=True)
class Course:
    hosts: int = 4
    trials: int = 1_000
    calls: int = 2_000


def run(course: Course) -> Verdict:
    verdict = Verdict(f"any of {course.hosts} hosts")
    with cluster(course.hosts) as hosts:
        hosts.create([NAMESPACE])
        addresses, shards = hosts.addresses, hosts.shards()
        latencies = sorted(_waits(addresses, course.trials))
        hops = _hops(addresses, shards, course.calls)
    verdict.rows.append(
        {
            "trials": len(latencies),
            "p50 ms": latencies[len(latencies) // 2],
            "p99 ms": latencies[int(len(latencies) * 0.99)],
            "max ms": latencies[-1],
            **hops,
        }
    )
    verdict.bounds += [
        Bound("p99 from an enqueue to a consumer on another host, ms", verdict.rows[0]["p99 ms"], DELIVERY_MS_MAX),
        Bound("p50 of an ack through another host beyond that of the owner, ms", hops["hop p50 ms"], HOP_MS_MAX),
    ]
    verdict.facts |= {"hosts": course.hosts, "shards": SHARD_COUNT}
    return verdict


def _waits(addresses: list[str], trials: int) -> list[float]:
    """Milliseconds from the begin of an enqueue to its delivery, for a consumer that waits on another host."""
    chance = random.Random(1)
    found: list[float] = []
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(address)) for address in addresses]
        waiting = stack.enter_context(ThreadPoolExecutor(1))
        for number in range(trials):
            producer, consumer = chance.sample(range(len(addresses)), 2)
            topic = f"single-{number % 50}"

            def wait(client: Client = clients[consumer], topic: str = topic) -> tuple[float, list[Any]]:
                items = client.dequeue(NAMESPACE, topic, 1, wait_ms=10_000)
                return time.monotonic(), items

            delivered = waiting.submit(wait)
            time.sleep(0.02 + chance.random() * 0.03)
            began_s = time.monotonic()
            clients[producer].enqueue(NAMESPACE, topic, b"x" * 200)
            ended_s, items = delivered.result()
            if len(items) != 1:
                raise FaultError(f"{len(items)} items came in trial {number}")
            found.append((ended_s - began_s) * 1000)
            clients[consumer].ack(NAMESPACE, items)
    return found


def _hops(addresses: list[str], shards: list[set[int]], calls: int) -> dict[str, float]:
    """The time of an ack of one item at the owner of its shard and at another host, by turns."""
    with ExitStack() as stack:
        owner = stack.enter_context(Client(addresses[0]))
        other = stack.enter_context(Client(addresses[1]))
        topic = "hop"
        times: dict[str, list[float]] = {"here": [], "there": []}
        for number in range(calls):
            owner.enqueue(NAMESPACE, topic, b"x" * 200)
            items = owner.dequeue(NAMESPACE, topic, 1, wait_ms=5_000)
            mine = [item for item in items if int(item.id.split("-")[0], 16) in shards[0]]
            if not mine:
                owner.ack(NAMESPACE, items)
                continue
            name, client = ("here", owner) if number % 2 else ("there", other)
            times[name].append(_timed_ms(lambda client=client, items=items: client.ack(NAMESPACE, items)))  # type: ignore[misc]
    here, there = median(times["here"]), median(times["there"])
    return {"ack p50 ms": here, "ack through another p50 ms": there, "hop p50 ms": there - here}


def _timed_ms(work: Callable[[], object]) -> float:
    began_s = time.monotonic()
    work()
    return (time.monotonic() - began_s) * 1000

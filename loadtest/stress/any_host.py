"""Hosts of one cluster: how soon a consumer that waits on any of them has an item, and what a hop costs."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from foqs import AdminClient, Client
from foqs.client.retry import RetryPolicy
from foqs.dev.local_server import LocalServer
from loadtest.stress.stand import NO_QUOTA
from loadtest.stress.verdict import Bound, Verdict
from tests.support.faults import FaultError
from tests.support.faults.cluster import make_databases
from tests.support.faults.load import NAMESPACE
from tests.support.faults.programs import HostProgram, free_port

SHARD_COUNT = 8
DELIVERY_MS_MAX = 50.0
HOP_MS_MAX = 0.5
_PATIENCE_S = 60.0
_ONCE = RetryPolicy(deadline_ms=0)


@dataclass(frozen=True, slots=True)
class Course:
    hosts: int = 4
    trials: int = 1_000
    calls: int = 2_000


def run(course: Course) -> Verdict:
    verdict = Verdict(f"any of {course.hosts} hosts")
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="foqs-any-host-")))
        server = stack.enter_context(LocalServer(home / "mysql"))
        databases = make_databases(server, dict.fromkeys(range(SHARD_COUNT), server))
        hosts = [
            HostProgram(f"host-{number}", free_port(), databases.meta_url, databases.shard_urls)
            for number in range(course.hosts)
        ]
        for host in hosts:
            stack.callback(host.close)
        addresses = [host.address for host in hosts]
        shards = shards_by_host(addresses)
        with AdminClient(addresses[0]) as admin:
            admin.create_namespace(NAMESPACE, enqueues_per_minute_max=NO_QUOTA)
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


def shards_by_host(addresses: list[str]) -> list[set[int]]:
    """Those of each host, once all have about as many."""
    until_s = time.monotonic() + _PATIENCE_S
    while time.monotonic() < until_s:
        shards = []
        for address in addresses:
            with AdminClient(address, retry=_ONCE) as admin:
                shards.append({shard.shard_id for shard in admin.host_status().shards if shard.state == "owned"})
        counts = [len(some) for some in shards]
        if sum(counts) == SHARD_COUNT and max(counts) - min(counts) <= 1:
            return shards
        time.sleep(0.2)
    raise FaultError(f"the hosts have not shared the shards within {_PATIENCE_S:.0f} s: {shards}")


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

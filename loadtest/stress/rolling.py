"""Every host of a cluster is restarted in turn under load: what clients notice, while leases lie on each shard."""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foqs import AdminClient, Client, FoqsError, NewItem
from foqs.dev.local_server import LocalServer
from foqs.model import limits
from loadtest.stress.stand import NO_QUOTA
from loadtest.stress.verdict import Bound, Verdict
from tests.support.faults import FaultError
from tests.support.faults.cluster import Databases, make_databases
from tests.support.faults.load import NAMESPACE
from tests.support.faults.programs import HostProgram, free_port
from tests.support.steady_traffic import Traffic, owned_count

HOLD_MS_MAX = 1_000
_LEASED_TOPIC = "leased"
_LEASE_MS = 60 * limits.MINUTE_MS
_PAYLOAD = b"x" * 200
_BATCH = 1_000
_PATIENCE_S = 120.0
_VERBS = ("enqueue", "dequeue", "ack")
_CALM_ITEMS = 300
"""Consumed between one change and the next."""


@dataclass(frozen=True, slots=True)
class Course:
    hosts: int = 4
    shards: int = 8
    servers: int = 2
    leases: int = 10_000
    """A shard."""
    rounds: int = 1
    """How often each host is restarted."""


def run(course: Course) -> Verdict:
    verdict = Verdict("rolling-restart")
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="foqs-rolling-")))
        servers = [stack.enter_context(LocalServer(home / f"mysql-{at}")) for at in range(course.servers)]
        databases = make_databases(servers[0], {at: servers[at % course.servers] for at in range(course.shards)})
        ports = {f"host-{at}": free_port() for at in range(1, course.hosts + 1)}
        hosts: dict[str, HostProgram] = {}
        stack.callback(_close_all, hosts)
        for name, port in ports.items():
            hosts[name] = HostProgram(name, port, databases.meta_url, databases.shard_urls)
        with AdminClient(hosts["host-1"].address) as admin:
            admin.create_namespace(NAMESPACE, enqueues_per_minute_max=NO_QUOTA)
        _wait_until_even(hosts, course)
        leased = sum(_lease(host.address, course) for host in hosts.values())
        with Traffic([host.address for host in hosts.values()]) as traffic:
            traffic.go_on(consumed=_CALM_ITEMS)
            verdict.rows.append(_row("none", 0.0, 0.0, traffic))
            for name in [name for _ in range(course.rounds) for name in ports]:
                verdict.rows.append(_restart(name, ports[name], hosts, databases, course, traffic))
            traffic.end()
    _judge(verdict, traffic)
    verdict.facts |= {"hosts": course.hosts, "shards": course.shards, "items leased all the time": leased}
    return verdict


def _close_all(hosts: Mapping[str, HostProgram]) -> None:
    for host in hosts.values():
        host.close()


def _judge(verdict: Verdict, traffic: Traffic) -> None:
    consumed = set(traffic.consumed)
    longest_ms = max(row[f"longest {verb} ms"] for row in verdict.rows[1:] for verb in _VERBS)
    verdict.facts |= {"items delivered": len(traffic.consumed), "failures": "; ".join(map(str, traffic.failures[:3]))}
    verdict.bounds += [
        Bound("calls failed", len(traffic.failures), 0),
        Bound("items lost", len(traffic.enqueued - consumed), 0),
        Bound("items delivered twice", len(traffic.consumed) - len(consumed), 0),
        Bound("longest call, ms", longest_ms, HOLD_MS_MAX),
    ]


def _row(name: str, ended_s: float, even_s: float, traffic: Traffic) -> dict[str, Any]:
    """With the longest call of each verb since the last look."""
    longest_ms = traffic.take_longest_ms()
    return {
        "restarted": name,
        "to end s": round(ended_s, 2),
        "to have its shards again s": round(even_s, 2),
        **{f"longest {verb} ms": round(longest_ms.get(verb, 0.0), 1) for verb in _VERBS},
    }


def _restart(
    name: str, port: int, hosts: dict[str, HostProgram], databases: Databases, course: Course, traffic: Traffic
) -> dict[str, Any]:
    began_s = time.monotonic()
    hosts[name].signal(signal.SIGTERM)
    if (code := hosts[name].wait()) != 0:
        raise FaultError(f"{name} ended with {code}: {hosts[name].output[-2_000:]}")
    ended_s = time.monotonic()
    traffic.go_on(consumed=_CALM_ITEMS)
    hosts[name] = HostProgram(name, port, databases.meta_url, databases.shard_urls)
    _wait_until_even(hosts, course)
    even_s = time.monotonic()
    traffic.go_on(consumed=_CALM_ITEMS)
    return _row(name, ended_s - began_s, even_s - ended_s, traffic)


def _wait_until_even(hosts: Mapping[str, HostProgram], course: Course) -> None:
    until_s = time.monotonic() + _PATIENCE_S
    share = course.shards // course.hosts
    while time.monotonic() < until_s:
        # A host that has just been started does not listen yet.
        with suppress(FoqsError):
            if all(owned_count(host) == share for host in hosts.values()):
                return
        time.sleep(0.1)
    raise FaultError(f"the hosts do not have {share} shards each within {_PATIENCE_S:.0f} s")


def _lease(address: str, course: Course) -> int:
    """Fill the shards of a host, and lease it all for longer than the run takes."""
    wanted = course.leases * course.shards // course.hosts
    with Client(address) as client:
        for _ in range(0, wanted, _BATCH):
            client.enqueue_many(NAMESPACE, [NewItem(topic=_LEASED_TOPIC, payload=_PAYLOAD)] * _BATCH)
        left = wanted
        while left > 0:
            left -= len(client.dequeue(NAMESPACE, _LEASED_TOPIC, min(left, _BATCH), lease_ms=_LEASE_MS, wait_ms=1_000))
    return wanted

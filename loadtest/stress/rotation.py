"""The secret of a running cluster is replaced again and again under load: no call fails, though none is repeated."""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foqs import AdminClient, FoqsError
from foqs.client.retry import RetryPolicy
from foqs.dev.local_server import LocalServer
from loadtest.stress.stand import NO_QUOTA
from loadtest.stress.verdict import Bound, Verdict
from tests.support.faults import FaultError
from tests.support.faults.cluster import make_databases
from tests.support.faults.load import NAMESPACE
from tests.support.faults.programs import HostProgram, foqs, free_port
from tests.support.steady_traffic import Traffic, owned_count

HOLD_MS_MAX = 1_000
_PATIENCE_S = 120.0
_VERBS = ("enqueue", "dequeue", "ack")
_CALM_ITEMS = 300
"""Consumed between one step and the next."""


@dataclass(frozen=True, slots=True)
class Course:
    hosts: int = 2
    shards: int = 4
    rotations: int = 10


def run(course: Course) -> Verdict:
    verdict = Verdict("secret-rotation")
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="foqs-rotation-")))
        server = stack.enter_context(LocalServer(home / "mysql"))
        databases = make_databases(server, dict.fromkeys(range(course.shards), server))
        hosts = []
        for number in range(1, course.hosts + 1):
            host = HostProgram(f"host-{number}", free_port(), databases.meta_url, databases.shard_urls)
            stack.callback(host.close)
            hosts.append(host)
        with AdminClient(hosts[0].address) as admin:
            admin.create_namespace(NAMESPACE, enqueues_per_minute_max=NO_QUOTA)
        _wait_until_even(hosts, course)
        traffic = Traffic([host.address for host in hosts], retry=RetryPolicy(deadline_ms=0))
        with traffic:
            traffic.go_on(consumed=_CALM_ITEMS)
            verdict.rows.append(_row("none", 0.0, 0.0, 0, traffic))
            for _ in range(course.rotations):
                verdict.rows.append(_rotate(databases.meta_url, hosts, traffic))
            traffic.end()
    _judge(verdict, course, traffic)
    return verdict


def _rotate(meta_url: str, hosts: list[HostProgram], traffic: Traffic) -> dict[str, Any]:
    began_s = time.monotonic()
    new_id = foqs("peers", "new-secret", "--meta-url", meta_url).strip()
    traffic.go_on(consumed=_CALM_ITEMS)
    finishing_s = time.monotonic()
    foqs("peers", "new-secret", "--finish", "--wait-s", "60", "--meta-url", meta_url)
    ended_s = time.monotonic()
    traffic.go_on(consumed=_CALM_ITEMS)
    # Each host has the connection of each other one anew, also where no call of a client needs it: hosts report.
    until_s = time.monotonic() + _PATIENCE_S
    while (moved := sum(_has_admitted(host, new_id) for host in hosts)) < len(hosts) and time.monotonic() < until_s:
        time.sleep(0.05)
    return _row(new_id, finishing_s - began_s, ended_s - finishing_s, moved, traffic)


def _has_admitted(host: HostProgram, new_id: str) -> bool:
    return any("peer_admitted" in line and new_id in line for line in list(host.lines))


def _row(name: str, begun_s: float, finish_s: float, moved: int, traffic: Traffic) -> dict[str, Any]:
    """With the longest call of each verb since the last look."""
    longest_ms = traffic.take_longest_ms()
    return {
        "secret": name,
        "both count s": round(begun_s, 2),
        "to finish s": round(finish_s, 2),
        "hosts called by it": moved,
        **{f"longest {verb} ms": round(longest_ms.get(verb, 0.0), 1) for verb in _VERBS},
    }


def _judge(verdict: Verdict, course: Course, traffic: Traffic) -> None:
    consumed, rotated = set(traffic.consumed), verdict.rows[1:]
    longest_ms = max(row[f"longest {verb} ms"] for row in rotated for verb in _VERBS)
    verdict.facts |= {
        "hosts": course.hosts,
        "shards": course.shards,
        "items delivered": len(traffic.consumed),
        "failures": "; ".join(map(str, traffic.failures[:3])),
    }
    verdict.bounds += [
        Bound("rotations", len(rotated), course.rotations, is_least=True),
        Bound("calls failed", len(traffic.failures), 0),
        Bound("hosts called by each new secret", min(row["hosts called by it"] for row in rotated), course.hosts, True),
        Bound("items lost", len(traffic.enqueued - consumed), 0),
        Bound("items delivered twice", len(traffic.consumed) - len(consumed), 0),
        Bound("longest call, ms", longest_ms, HOLD_MS_MAX),
    ]


def _wait_until_even(hosts: list[HostProgram], course: Course) -> None:
    until_s = time.monotonic() + _PATIENCE_S
    share = course.shards // course.hosts
    while time.monotonic() < until_s:
        with suppress(FoqsError):
            if all(owned_count(host) == share for host in hosts):
                return
        time.sleep(0.1)
    raise FaultError(f"the hosts do not have {share} shards each within {_PATIENCE_S:.0f} s")

"""Very many leases of one shard end at once: how soon all their items are ready again, and who waits meanwhile.

The host is stopped shortly before they end and goes on after it, so that all of them are over in its first tick.
"""

from __future__ import annotations

import signal
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from foqs import AdminClient, Client, NewItem
from foqs.dev.local_server import LocalServer
from foqs.model import limits
from loadtest.stress.stand import NO_QUOTA
from loadtest.stress.verdict import Bound, Verdict
from tests.support.faults import FaultError
from tests.support.faults.cluster import make_databases, wait_until_owned
from tests.support.faults.load import NAMESPACE
from tests.support.faults.own_thread import OwnThread
from tests.support.faults.programs import HostProgram, free_port

READY_A_SECOND_MIN = 40_000
STALL_MS_MAX = 150
_TOPIC, _BESIDE = "leased", "beside"
_PAYLOAD = b"x" * 200
_BATCH = limits.BATCH_ITEMS_MAX
_STOPPED_BEFORE_S, _STOPPED_AFTER_S = 0.5, 1.0
_BESIDE_EVERY_S = 0.01
_LOOK_EVERY_S = 0.005
_PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Course:
    """`lease_s`: from the first call that leases to the end of all leases; the calls have to be done by then."""

    rounds: int = 3
    leases: int = 150_000
    lease_s: float = 30.0


class _Beside(OwnThread):
    """Enqueues to another topic of the shard, now and then. `calls`: when each began and ended."""

    def __init__(self, address: str) -> None:
        super().__init__("beside")
        self.calls: list[tuple[float, float]] = []
        self._client = Client(address)

    def _run(self) -> None:
        with self._client as client:
            while not self._stopped.wait(_BESIDE_EVERY_S):
                began_s = time.monotonic()
                client.enqueue(NAMESPACE, _BESIDE, b"x")
                self.calls.append((began_s, time.monotonic()))

    def longest_ms(self, from_s: float, until_s: float) -> float:
        """Of the calls that began in this time."""
        return max([(end_s - began_s) * 1000 for began_s, end_s in self.calls if from_s <= began_s < until_s])


def run(course: Course) -> Verdict:
    verdict = Verdict("leases that end together")
    for _ in range(course.rounds):
        verdict.rows.append(_round(course))
    speed, stall = ([row[name] for row in verdict.rows] for name in ("ready again a second", "longest enqueue ms"))
    verdict.bounds += [
        Bound("median of the items that are ready again a second", median(speed), READY_A_SECOND_MIN, is_least=True),
        Bound("median of the longest enqueues meanwhile, ms", median(stall), STALL_MS_MAX),
    ]
    verdict.facts |= {"leases": course.leases, "rounds": course.rounds}
    return verdict


def _round(course: Course) -> dict[str, Any]:
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="foqs-lease-ends-")))
        server = stack.enter_context(LocalServer(home / "mysql"))
        databases = make_databases(server, {0: server})
        metrics_port = free_port()
        variables = {"FOQS_METRICS_PORT": str(metrics_port)}
        host = HostProgram("host-1", free_port(), databases.meta_url, databases.shard_urls, variables)
        stack.callback(host.close)
        wait_until_owned(host.address)
        admin = stack.enter_context(AdminClient(host.address))
        client = stack.enter_context(Client(host.address))
        admin.create_namespace(NAMESPACE, enqueues_per_minute_max=NO_QUOTA)
        end_s = _lease_all(client, course)
        beside = stack.enter_context(_Beside(host.address))
        stopped_s = end_s - _STOPPED_BEFORE_S
        time.sleep(max(0.0, stopped_s - time.monotonic()))
        if _open_leases(admin) != course.leases:
            raise FaultError(f"{_open_leases(admin)} of {course.leases} leases are open just before they end")
        late_before = _late_ticks(metrics_port)
        host.signal(signal.SIGSTOP)
        time.sleep(max(0.0, end_s + _STOPPED_AFTER_S - time.monotonic()))
        host.signal(signal.SIGCONT)
        began_s = time.monotonic()
        answer_ms = _until_ready(admin, began_s)
        ready_s = time.monotonic()
        late_ms = _latest_ms(late_before, _late_ticks(metrics_port))
        time.sleep(10 * _BESIDE_EVERY_S)
        _check_delivered_again(client)
        return {
            "ready again ms": round((ready_s - began_s) * 1000),
            "ready again a second": round(course.leases / (ready_s - began_s)),
            "longest enqueue ms": round(beside.longest_ms(began_s, ready_s), 1),
            "longest enqueue before ms": round(beside.longest_ms(0, stopped_s - 0.1), 1),
            "longest getHostStatus ms": round(answer_ms, 1),
            "event loop late by ms, at most": late_ms,
        }


def _lease_all(client: Client, course: Course) -> float:
    """Returns when all the leases end, give or take the time of a call."""
    for start in range(0, course.leases, _BATCH):
        client.enqueue_many(NAMESPACE, [NewItem(_TOPIC, _PAYLOAD)] * min(_BATCH, course.leases - start))
    end_s = time.monotonic() + course.lease_s
    left = course.leases
    while left > 0:
        lease_ms = round((end_s - time.monotonic()) * 1000)
        if lease_ms < limits.LEASE_MS_MIN:
            raise FaultError(f"{left} of {course.leases} items could not be leased within {course.lease_s} s")
        left -= len(client.dequeue(NAMESPACE, _TOPIC, min(left, _BATCH), lease_ms=lease_ms, wait_ms=1_000))
    return end_s


def _open_leases(admin: AdminClient) -> int:
    return sum(shard.open_leases for shard in admin.host_status().shards)


def _until_ready(admin: AdminClient, began_s: float) -> float:
    """Look on until no lease is open; returns how many milliseconds the host's longest answer took."""
    longest_ms, asked_s, open_count = 0.0, began_s, -1
    while open_count:
        if asked_s - began_s > _PATIENCE_S:
            raise FaultError(f"{open_count} leases are open {_PATIENCE_S:.0f} s after they were over")
        open_count = _open_leases(admin)
        longest_ms = max(longest_ms, (time.monotonic() - asked_s) * 1000)
        time.sleep(_LOOK_EVERY_S)
        asked_s = time.monotonic()
    return longest_ms


def _check_delivered_again(client: Client) -> None:
    items = client.dequeue(NAMESPACE, _TOPIC, _BATCH, wait_ms=1_000)
    if {item.attempt for item in items} != {2}:
        raise FaultError(f"of items whose lease has ended these attempts came: {sorted({i.attempt for i in items})}")


def _late_ticks(metrics_port: int) -> dict[float, int]:
    """How many ticks of the host's event loop were late by so many seconds at most."""
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/metrics", timeout=_PATIENCE_S) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    (family,) = [family for family in families if family.name == "foqs_event_loop_lag_seconds"]
    return {float(s.labels["le"]): int(s.value) for s in family.samples if s.name.endswith("_bucket")}


def _latest_ms(before: dict[float, int], after: dict[float, int]) -> float:
    """The bound of the latest tick, but for the one that the stop itself made late."""
    ticks = {bound_s: after[bound_s] - before[bound_s] for bound_s in after}
    count = max(ticks.values()) - 1
    return min(bound_s for bound_s, no_later_count in ticks.items() if no_later_count >= count) * 1000

"""A host with many leases is killed or stopped: how soon another one delivers, and what its other shard notices."""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from foqs import AdminClient, Client, FoqsError, NewItem
from foqs.dev.local_server import LocalServer
from foqs.model import limits
from foqs.storage.sessions.session import connect
from loadtest.stress.stand import NO_QUOTA
from loadtest.stress.verdict import Bound, Verdict
from tests.support.faults import FaultError
from tests.support.faults.cluster import make_databases, wait_until_owned
from tests.support.faults.load import NAMESPACE
from tests.support.faults.own_thread import OwnThread
from tests.support.faults.programs import HostProgram, free_port

KINDS = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}
"""What happens to the owner: its sessions end with it, or stay as those of a machine that is gone."""
KILLED_MEDIAN_MS_MAX = 2_000
KILLED_MS_MAX = 3_000
STOPPED_MS_MAX = 5_000
"""After the last heartbeat."""
STALL_MS_MAX = 100
_TOPIC, _BESIDE = "backlog", "beside"
_LEASE_MS = 10 * limits.MINUTE_MS
_PAYLOAD = b"x" * 200
_QUIET_S = 4.0
_PATIENCE_S = 60.0
_TRY_WAIT_MS = 1_000


@dataclass(frozen=True, slots=True)
class Course:
    rounds: int = 5
    """Of each kind."""
    items: int = 100_000
    leased: int = 90_000
    kinds: Sequence[str] = tuple(KINDS)


class _Beside(OwnThread):
    """Enqueues to the standby's own shard, one item after the other. `calls`: when each began and ended."""

    def __init__(self, address: str) -> None:
        super().__init__("beside")
        self.calls: list[tuple[float, float]] = []
        self._client = Client(address)

    def _run(self) -> None:
        with self._client as client:
            while not self._stopped.is_set():
                began_s = time.monotonic()
                client.enqueue(NAMESPACE, _BESIDE, b"x")
                self.calls.append((began_s, time.monotonic()))

    def longest_ms(self, from_s: float, until_s: float) -> float:
        """Of the calls that had something of this time."""
        return max([(end_s - start_s) * 1000 for start_s, end_s in self.calls if end_s > from_s and start_s < until_s])


def run(course: Course) -> Verdict:
    verdict = Verdict("take-over")
    for _ in range(course.rounds):
        verdict.rows += [_round(course, kind) for kind in course.kinds]

    def found(kind: str, what: str) -> list[float]:
        return [row[what] for row in verdict.rows if row["owner"] == kind]

    for kind in course.kinds:
        after_signal, after_beat = found(kind, "after the signal ms"), found(kind, "after the last beat ms")
        verdict.facts[f"{kind}: median after the signal, ms"] = median(after_signal)
        verdict.facts[f"{kind}: worst after the signal, ms"] = max(after_signal)
        verdict.facts[f"{kind}: median after the last beat, ms"] = median(after_beat)
        if kind == "killed":
            verdict.bounds += [
                Bound("killed: median after the signal, ms", median(after_signal), KILLED_MEDIAN_MS_MAX),
                Bound("killed: worst after the signal, ms", max(after_signal), KILLED_MS_MAX),
            ]
        else:
            verdict.bounds.append(Bound("stopped: worst after the last beat, ms", max(after_beat), STOPPED_MS_MAX))
        stall = median(found(kind, "longest beside ms"))
        verdict.bounds.append(Bound(f"{kind}: median of the longest calls on the other shard, ms", stall, STALL_MS_MAX))
    verdict.facts |= {"items": course.items, "leased": course.leased, "rounds of each": course.rounds}
    return verdict


def _round(course: Course, kind: str) -> dict[str, Any]:
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="foqs-take-over-")))
        server = stack.enter_context(LocalServer(home / "mysql"))
        databases = make_databases(server, {0: server, 1: server})
        both = databases.shard_urls
        owner = HostProgram("owner", free_port(), databases.meta_url, {0: both[0]})
        stack.callback(owner.close)
        wait_until_owned(owner.address)
        with AdminClient(owner.address) as admin:
            admin.create_namespace(NAMESPACE, enqueues_per_minute_max=NO_QUOTA)
        _fill(owner.address, course)
        standby = HostProgram("standby", free_port(), databases.meta_url, both)
        stack.callback(standby.close)
        beside = stack.enter_context(_Beside(standby.address))
        time.sleep(_QUIET_S)
        _require_owner(databases.meta_url, "owner#")
        signalled_s = time.monotonic()
        owner.signal(KINDS[kind])
        # Only now: a host delivers what is ready at any other one.
        delivered_s, delivered_ms = _first_delivery(standby.address), time.time() * 1000
        beaten_ms = _last_beat_ms(databases.meta_url, "owner#")
        time.sleep(1)
        return {
            "owner": kind,
            "after the signal ms": round((delivered_s - signalled_s) * 1000),
            "after the last beat ms": round(delivered_ms - beaten_ms),
            "longest beside ms": round(beside.longest_ms(signalled_s, delivered_s + 1), 1),
            "longest beside before ms": round(beside.longest_ms(signalled_s - _QUIET_S / 2, signalled_s), 1),
        }


def _require_owner(meta_url: str, process: str) -> None:
    """Raises FaultError when shard 0 has moved: the host that is to be ended would not be its owner."""
    with closing(connect(meta_url)) as session, session.cursor() as cursor:
        cursor.execute("SELECT owner FROM shard WHERE shard_id = 0")
        ((name,),) = cursor.fetchall()
    if not name.decode().startswith(process):
        raise FaultError(f"shard 0 is owned by {name.decode()}")


def _last_beat_ms(meta_url: str, process: str) -> int:
    """By the clock of the server, which is that of this machine."""
    with closing(connect(meta_url)) as session, session.cursor() as cursor:
        cursor.execute("SELECT heartbeat_at FROM host WHERE name LIKE %s", (process + "%",))
        ((heartbeat_at,),) = cursor.fetchall()
    return int(heartbeat_at)


def _fill(address: str, course: Course) -> None:
    with Client(address) as client:
        for start in range(0, course.items, 1_000):
            count = min(1_000, course.items - start)
            client.enqueue_many(NAMESPACE, [NewItem(topic=_TOPIC, payload=_PAYLOAD)] * count)
        left = course.leased
        while left > 0:
            left -= len(client.dequeue(NAMESPACE, _TOPIC, min(left, 1_000), lease_ms=_LEASE_MS, wait_ms=1_000))


def _first_delivery(address: str) -> float:
    """When it came, of a consumer that waits all the time."""
    until_s = time.monotonic() + _PATIENCE_S
    with Client(address) as client:
        while time.monotonic() < until_s:
            try:
                if client.dequeue(NAMESPACE, _TOPIC, 1, wait_ms=_TRY_WAIT_MS):
                    return time.monotonic()
            except FoqsError:
                time.sleep(0.01)
    raise FaultError(f"nothing was delivered within {_PATIENCE_S:.0f} s after the host was ended")

"""Many dedup ids on one shard: what they cost MySQL and the host's memory, and how soon a new owner knows them.

The ids are written past any host. Then an owner is killed, and a standby takes the shard over: what matters is when it
answers the first enqueue with an id of that namespace, that it knows all ids then, and that nobody else waits for them.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foqs import AdminClient, Client, FoqsError, NewItem
from foqs.client.retry import RetryPolicy
from foqs.dev.local_server import LocalServer
from foqs.model import limits
from foqs.storage.sessions.session import connect
from loadtest.stress.metrics import gauge, wait_for_gauge
from loadtest.stress.seen_ids import Cost, SeenFiller, dedup_id, log_bytes
from loadtest.stress.stand import NO_QUOTA
from loadtest.stress.verdict import Bound, Verdict
from tests.support.faults import FaultError
from tests.support.faults.cluster import Databases, make_databases, wait_until_owned
from tests.support.faults.own_thread import OwnThread
from tests.support.faults.programs import HostProgram, free_port

CPU_US_MAX = 1.5
WRITTEN_BYTES_MAX = 60
FLAT_FACTOR_MAX = 1.5
FALSE_POSITIVES_MAX = 1e-4
STALL_MS_MAX = 100
FIRST_S_OF_MILLION, FIRST_S_OF_TEN_MILLION = 1.5, 5.0
_MILLION = 1_000_000
_FILTER_BYTES_OF_ID_MAX = 64 * limits.MIB / (10 * _MILLION)
_ROOM_FACTOR_MAX = 1.6
"""Smaller windows are in three tables of half a window, of which one is being filled and one is half forgotten."""
_BIG, _SMALL = "big", "small"
_TOPIC = "t"
_OLD_SHARD, _BESIDE_SHARD = 0, 1
_CACHE_MIB = 128
_PATIENCE_S = 120.0
_QUIET_S = 2.0
_IMAGES_DONE_S = 5
"""Nothing has been written for so long."""
_CALL_ITEMS = 1_000
_SMALL_LOG_IDS = 1_000


def first_s_max(ids_count: int) -> float:
    """By the number of ids: 1.5 s up to a million, 5 s for ten million, and evenly in between and beyond."""
    more = max(0, ids_count - _MILLION) / (9 * _MILLION)
    return FIRST_S_OF_MILLION + more * (FIRST_S_OF_TEN_MILLION - FIRST_S_OF_MILLION)


@dataclass(frozen=True, slots=True)
class Course:
    """`ids` are in the window, and `new_ids` are enqueued in the end: so false positives are counted."""

    ids: int = 1_000_000
    new_ids: int = 100_000


def filter_bytes_of_id_max(ids_count: int) -> float:
    return _FILTER_BYTES_OF_ID_MAX * (1 if ids_count >= 10 * _MILLION else _ROOM_FACTOR_MAX)


def run(course: Course) -> Verdict:
    verdict = Verdict("a window full of dedup ids")
    ids_count = course.ids
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="foqs-dedup-")))
        server = stack.enter_context(LocalServer(home / "mysql", buffer_pool_mib=_CACHE_MIB, log_file_mib=512))
        databases = make_databases(server, {_OLD_SHARD: server, _BESIDE_SHARD: server})
        filler = _fill(server, databases, ids_count, verdict)
        began_s = time.monotonic()
        owner = stack.enter_context(_Host("owner", databases, [_OLD_SHARD]))
        _first_answer(owner.address, _BIG, "a-cold-one")
        verdict.facts["start of a host on that database to the first enqueue with an id, s"] = _since(began_s)
        wait_for_gauge(owner.metrics_port, "foqs_dedup_ids", ids_count, _PATIENCE_S)
        verdict.facts["images in the database, B an id"] = (
            _wait_for_images(databases.shard_urls[_OLD_SHARD]) / ids_count
        )
        standby = stack.enter_context(_Host("standby", databases, [_OLD_SHARD, _BESIDE_SHARD]))
        _take_over(owner, standby, ids_count, verdict)
        _look_at_ids(standby, filler, course, verdict)
    verdict.facts["ids in the window"] = ids_count
    return verdict


class _Host(HostProgram):
    def __init__(self, name: str, databases: Databases, shards: Sequence[int]) -> None:
        self.metrics_port = free_port()
        urls = {shard: databases.shard_urls[shard] for shard in shards}
        super().__init__(name, free_port(), databases.meta_url, urls, {"FOQS_METRICS_PORT": str(self.metrics_port)})

    def __enter__(self) -> _Host:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _fill(server: LocalServer, databases: Databases, ids_count: int, verdict: Verdict) -> SeenFiller:
    """The namespaces are made by a host, so that their slots lead to the shard, and have some ids from there."""
    window_ids = max(ids_count, limits.DEDUP_IDS_MIN)
    with _Host("first", databases, [_OLD_SHARD]) as host:
        wait_until_owned(host.address)
        with AdminClient(host.address) as admin, Client(host.address) as client:
            admin.create_namespace(_BIG, enqueues_per_minute_max=NO_QUOTA, dedup_ids=window_ids)
            admin.create_namespace(_SMALL, enqueues_per_minute_max=NO_QUOTA)
            for namespace in (_BIG, _SMALL):
                client.enqueue_many(namespace, [_item(f"of-{number}") for number in range(_SMALL_LOG_IDS)])
    url = databases.shard_urls[_OLD_SHARD]
    stretch = max(1, ids_count // 10)
    with SeenFiller(url, _OLD_SHARD, _BIG, window_ids) as filler:
        costs = {"at the begin": filler.append(stretch, server.pid)}
        filler.append(max(0, ids_count - 2 * stretch), server.pid)
        costs["when the window is nearly full"] = filler.append(stretch, server.pid)
        costs["as many are deleted"] = filler.append(stretch, server.pid)
    verdict.rows += [
        {"ids": when, "MySQL µs an id": cost.cpu_us, "written B an id": cost.written_bytes}
        for when, cost in costs.items()
    ]
    verdict.facts["the log on the disk, B an id"] = log_bytes(url) / ids_count
    verdict.bounds += _cost_bounds(list(costs.values()))
    return filler


def _cost_bounds(costs: Sequence[Cost]) -> list[Bound]:
    cpu_us, written = ([cost[field] for cost in costs] for field in (0, 1))
    return [
        Bound("MySQL's CPU for an id, µs, in the dearest stretch", max(cpu_us), CPU_US_MAX),
        Bound("bytes written for an id, in the dearest stretch", max(written), WRITTEN_BYTES_MAX),
        Bound("MySQL's CPU for an id, window nearly full by begin", cpu_us[1] / max(cpu_us[0], 1e-9), FLAT_FACTOR_MAX),
    ]


def _wait_for_images(url: str) -> int:
    """How large they are, once the owner has made all that are missing: it takes its time."""
    until_s = time.monotonic() + _PATIENCE_S
    sizes: deque[int] = deque(maxlen=_IMAGES_DONE_S)
    with closing(connect(url)) as session, session.cursor() as cursor:
        if not cursor.execute("SHOW TABLES LIKE 'seen_table'"):
            return 0  # A schema without images.
        while len(sizes) < _IMAGES_DONE_S or len(set(sizes)) > 1:
            if time.monotonic() > until_s:
                raise FaultError(f"images of ids are still being made after {_PATIENCE_S:.0f} s")
            cursor.execute("SELECT COALESCE(SUM(LENGTH(body)), 0) FROM seen_table")
            ((size_bytes,),) = cursor.fetchall()
            session.commit()
            sizes.append(int(size_bytes))
            time.sleep(1)
    return sizes[-1]


class _Beside(OwnThread):
    """Calls of one kind to the standby, one after the other. `calls`: when each began and ended, if it was done."""

    def __init__(self, address: str, work: Callable[[Client], Any]) -> None:
        super().__init__("beside")
        self.calls: list[tuple[float, float]] = []
        self._client = Client(address)
        self._work = work

    def _run(self) -> None:
        with self._client as client:
            while not self._stopped.is_set():
                began_s = time.monotonic()
                self._work(client)
                self.calls.append((began_s, time.monotonic()))

    def longest_ms(self, from_s: float, until_s: float) -> float:
        """Of the calls that had something of this time."""
        return max([(end_s - start_s) * 1000 for start_s, end_s in self.calls if end_s > from_s and start_s < until_s])


def _take_over(owner: _Host, standby: _Host, ids_count: int, verdict: Verdict) -> None:
    with (
        _Beside(standby.address, lambda client: client.enqueue(_SMALL, _TOPIC, b"x")) as beside,
        ThreadPoolExecutor(2) as waiting,
    ):
        time.sleep(_QUIET_S)
        killed_s = time.monotonic()
        owner.kill()
        small = waiting.submit(_first_answer, standby.address, _SMALL, "a-small-one")
        big = waiting.submit(_first_answer, standby.address, _BIG, "a-big-one")
        owned_s = _when_owned(standby.address)
        small_s, big_s = small.result(), big.result()
        owned_s = min(owned_s, small_s, big_s)  # It was asked now and then.
        time.sleep(1)
    verdict.facts |= {
        "killed to owned by the standby, s": owned_s - killed_s,
        "owned to the first enqueue with an id of a small namespace of the shard, s": small_s - owned_s,
        "killed to the first enqueue with an id of the large one, s": big_s - killed_s,
        "longest enqueue without ids before, ms": beside.longest_ms(killed_s - _QUIET_S / 2, killed_s),
    }
    verdict.bounds += [
        Bound("owned to the first enqueue with an id of the full window, s", big_s - owned_s, first_s_max(ids_count)),
        Bound("longest enqueue without ids meanwhile, ms", beside.longest_ms(killed_s, big_s + 0.5), STALL_MS_MAX),
    ]  # fmt: skip


def _look_at_ids(standby: _Host, filler: SeenFiller, course: Course, verdict: Verdict) -> None:
    """The newest ids and some of the others are repeats of what they were; others are not, and few are looked for."""
    port, ids_count, new_ids = standby.metrics_port, course.ids, course.new_ids
    known = int(gauge(port, "foqs_dedup_ids"))
    filter_bytes = gauge(port, "foqs_dedup_filter_bytes")
    end = filler.appended_count
    chance = random.Random(ids_count)
    # What the owner has made room for since is not in the window any more.
    oldest = end - ids_count + 2 * _CALL_ITEMS
    asked = [*range(end - _CALL_ITEMS, end), *(chance.randrange(oldest, end) for _ in range(4 * _CALL_ITEMS))]
    with Client(standby.address) as client:
        repeats = client.enqueue_many(_BIG, [_item(dedup_id(number)) for number in asked])
        wrong = sum(found != expected for found, expected in zip(repeats.ids, filler.known(asked), strict=True)) + (
            len(asked) - len(repeats.duplicates)
        )
        misses = gauge(port, "foqs_dedup_misses")
        made = 0
        for start in range(0, new_ids, _CALL_ITEMS):
            news = [_item(f"new-{number}") for number in range(start, min(start + _CALL_ITEMS, new_ids))]
            made += len(news) - len(client.enqueue_many(_BIG, news).duplicates)
        misses = gauge(port, "foqs_dedup_misses") - misses
    verdict.facts |= {
        "ids that the new owner knows": known,
        "memory an id in the filter, B": filter_bytes / known,
        "known ids that were enqueued again": len(asked),
        "new ids that were enqueued, and looked for in the log": f"{new_ids:,}, {misses:.0f}",
    }
    verdict.bounds += [
        Bound("ids that the new owner does not know", max(0, ids_count - known), 0),
        Bound("known ids that were not answered with their item", wrong, 0),
        Bound("new ids that made no item", new_ids - made, 0),
        Bound("filter, B an id", filter_bytes / known, filter_bytes_of_id_max(ids_count)),
        Bound("filters of the shard, MiB", filter_bytes / limits.MIB, 64),
        Bound("false positives", misses / new_ids, FALSE_POSITIVES_MAX),
    ]


def _first_answer(address: str, namespace: str, dedup_id: str) -> float:
    """When the first enqueue with an id was done; it is tried all the time."""
    until_s = time.monotonic() + _PATIENCE_S
    with Client(address, retry=RetryPolicy(deadline_ms=0)) as client:
        while time.monotonic() < until_s:
            try:
                client.enqueue(namespace, _TOPIC, b"x", dedup_id=dedup_id)
            except FoqsError:
                time.sleep(0.01)
            else:
                return time.monotonic()
    raise FaultError(f"no enqueue with an id was done within {_PATIENCE_S:.0f} s")


def _when_owned(address: str) -> float:
    wait_until_owned(address)
    return time.monotonic()


def _since(began_s: float) -> float:
    return time.monotonic() - began_s


def _item(dedup_id: str) -> NewItem:
    return NewItem(_TOPIC, b"x" * 100, dedup_id=dedup_id)

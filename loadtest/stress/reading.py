"""A tenant that enqueues, and next to it one that calls each verb that reads or administers as often as it can."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from sqlalchemy import update

from foqs import AdminClient, Client
from foqs.client.queue_items import NewItem
from foqs.model import ids, limits
from foqs.model.namespace import NamespaceSettings
from foqs.storage.meta.meta_store import MetaStore
from foqs.storage.meta.meta_tables import NAMESPACE, NAMESPACE_NUMBER
from foqs.wire.codec import Codec, structs
from loadtest.stress.clients import Stream, run_streams, wait_until
from loadtest.stress.stand import NO_QUOTA, Stand
from loadtest.stress.verdict import Bound, Verdict
from tests.support.faults.own_thread import OwnThread

P99_FACTOR_MAX = 2.0
_CALM, _READER = "calm", "reader"
_AT_REST, _SCRAPES = "at rest", "GET /metrics"
_BATCH = 1_000
_JOB = "load"
_PAGES = 50
"""Places in the list of topics or namespaces from which pages are asked for, by turns."""


@dataclass(frozen=True, slots=True)
class Course:
    stretch_s: float = 10.0
    topics_count: int = 100_000
    namespaces_count: int = limits.NAMESPACES_MAX - 2
    callers: int = 8
    calm_calls_per_s: float = 40.0
    batch: int = 10


def run(course: Course) -> Verdict:
    """Each stretch is of one verb, the first and the last of none."""
    with Stand(partial(make_namespaces, course.namespaces_count)) as stand:
        for name in (_CALM, _READER):
            stand.make_namespace(name, NO_QUOTA)
        item_id = _fill(stand, course)
        asks = _asks(course, item_id)
        kinds = [_AT_REST, *asks, _SCRAPES, f"{_AT_REST} again"]
        begins = {kind: number * course.stretch_s for number, kind in enumerate(kinds)}
        streams = [_calm(course, len(kinds) * course.stretch_s)]
        streams += [_reader(course, kind, frames, begins[kind]) for kind, frames in asks.items()]
        scrapes = _Scrapes(stand.metrics_port, course.stretch_s)
        found = run_streams(
            stand.port, streams, lambda begin_ns: _watch(begin_ns, begins, course, scrapes)
        )  # fmt: skip
    verdict = Verdict("reading")
    p99s = {}
    for kind in kinds:
        from_s, until_s = begins[kind] + course.stretch_s / 10, begins[kind] + course.stretch_s
        enqueues = found["enqueue"].between(from_s, until_s)
        reads = found[kind].between(from_s, until_s) if kind in asks else None
        whole = found[kind].whole() if kind in asks else None
        p99s[kind] = enqueues.latency_ms(99)
        verdict.rows.append(
            {
                "next to": kind,
                "enqueue p50 ms": enqueues.latency_ms(50),
                "enqueue p99 ms": p99s[kind],
                "enqueues refused": sum(enqueues.refused.values()),
                "its calls a second": reads.taken_count / (until_s - from_s) if reads else 0.0,
                "its p99 ms": reads.latency_ms(99) if reads else 0.0,
                "its calls answered": whole.taken_count if whole else 0,
                "its calls refused": sum(whole.refused.values()) if whole else 0,
            }
        )
    at_rest_ms = max(p99s[_AT_REST], p99s[kinds[-1]], 1e-3)
    verdict.bounds += [
        Bound(f"enqueue p99 next to {kind}, by that at rest", p99s[kind] / at_rest_ms, P99_FACTOR_MAX)
        for kind in kinds[1:-1]
    ]
    refused = sum(row["enqueues refused"] for row in verdict.rows)
    verdict.bounds.append(Bound("enqueues that were refused", refused, 0))
    verdict.bounds.append(Bound("scrapes", scrapes.count, 1, is_least=True))
    return verdict


def make_namespaces(count: int, meta_url: str) -> None:
    """By hand: to ask all shards for each of them would take an hour."""
    settings = {field.name: _stored(getattr(NamespaceSettings(), field.name)) for field in fields(NamespaceSettings)}
    rows: list[dict[str, Any]] = [
        {"number": number, "name": b"n%05d" % number, "former_name": b"", "created_at": 0, **settings}
        for number in range(1, count + 1)
    ]
    with closing(MetaStore(meta_url)) as meta, meta._sessions.transaction() as connection:
        if rows:
            connection.execute(NAMESPACE.insert(), rows)
        connection.execute(update(NAMESPACE_NUMBER).values(last=count))


def _stored(setting: str | float) -> bytes | float:
    """A setting as its column has it."""
    if isinstance(setting, str):
        return setting.encode()
    return int(setting) if isinstance(setting, bool) else setting


def _fill(stand: Stand, course: Course) -> str:
    """One item in each topic, and a job; returns the id of one."""
    with AdminClient(stand.host.address) as admin:
        admin.create_job(_READER, _JOB)
    with Client(stand.host.address) as client:
        last = ""
        for first in range(0, course.topics_count, _BATCH):
            numbers = range(first, min(first + _BATCH, course.topics_count))
            news = [NewItem(_topic(number), b"x" * 200) for number in numbers]
            last = client.enqueue_many(_READER, news).ids[-1]
    return last


def _topic(number: int) -> str:
    return f"topic-{number:06d}"


def _asks(course: Course, item_id: str) -> dict[str, tuple[bytes, ...]]:
    """By verb the frames of its calls."""
    topics = [_topic(number * course.topics_count // _PAGES) for number in range(_PAGES)]
    names = [f"n{number * course.namespaces_count // _PAGES:05d}" for number in range(_PAGES)]
    shard_id, key, _ = ids.parse(item_id)
    s = structs
    requests: dict[str, Sequence[Any]] = {
        "getActiveTopics": [s.ActiveTopicsRequest(_READER, page_token=token) for token in topics],
        "peekItems": [s.PeekItemsRequest(_READER, topic) for topic in topics],
        "getItem": [s.GetItemRequest(_READER, item_id)],
        "planExport": [s.PlanExportRequest(_READER, 8)],
        "exportItems": [s.ExportItemsRequest(_READER, s.ExportSplit(shard_id, 0, key, 0))],
        "listDeadLetters": [s.ListDeadLettersRequest(_READER, topic) for topic in topics],
        "redriveDeadLetters": [s.RedriveDeadLettersRequest(_READER, topic) for topic in topics],
        "purgeDeadLetters": [s.PurgeDeadLettersRequest(_READER, topic) for topic in topics],
        "getJob": [s.GetJobRequest(_READER, _JOB)],
        "listJobs": [s.ListJobsRequest(_READER)],
        "updateJob": [s.UpdateJobRequest(_READER, _JOB, rows_count=1)],
        "getHostStatus": [s.HostStatusRequest()],
        "listNamespaces": [s.ListNamespacesRequest(page_token=token) for token in names],
        "getNamespace": [s.GetNamespaceRequest(_READER)],
        "updateNamespace": [s.UpdateNamespaceRequest(_READER, s.NamespaceSettings())],
    }
    codec = Codec()
    return {
        verb: tuple(codec.encode_call(verb, request, 0) for request in of_verb) for verb, of_verb in requests.items()
    }


def _calm(course: Course, until_s: float) -> Stream:
    return Stream(
        name="enqueue",
        verb="enqueue",
        namespace=_CALM,
        topics=("a", "b"),
        from_s=0.0,
        until_s=until_s,
        batch=course.batch,
        calls_per_s=course.calm_calls_per_s,
    )


def _reader(course: Course, kind: str, frames: tuple[bytes, ...], from_s: float) -> Stream:
    return Stream(
        name=kind,
        verb="ask",
        namespace=_READER,
        topics=("a",),
        from_s=from_s,
        until_s=from_s + course.stretch_s,
        connections=course.callers,
        in_flight=1,
        asks=frames,
    )


def _watch(begin_ns: int, begins: dict[str, float], course: Course, scrapes: _Scrapes) -> None:
    wait_until(begin_ns, begins[_SCRAPES])
    with scrapes:
        wait_until(begin_ns, begins[_SCRAPES] + course.stretch_s)
    wait_until(begin_ns, max(begins.values()) + course.stretch_s)


class _Scrapes(OwnThread):
    """One after the other, as many as the host gives."""

    def __init__(self, port: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__("scrapes")
        self.count = 0
        self._url = f"http://127.0.0.1:{port}/metrics"
        self._seconds = seconds
        self._clock = clock

    def _run(self) -> None:
        until_s = self._clock() + self._seconds
        while self._clock() < until_s and not self._stopped.is_set():
            with urllib.request.urlopen(self._url, timeout=30) as answer:
                answer.read()
            self.count += 1

"""Deliveries at rest, and beside an export of a million items of the same namespace, by turns."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat

from foqs import AdminClient, Client
from foqs.client.queue_items import NewItem
from foqs.model import limits
from foqs.model.calls import ExportSplit
from foqs.model.errors import FoqsError
from loadtest.stress.clients import Stream, run_streams, wait_until
from loadtest.stress.record import Record, Slice
from loadtest.stress.stand import NO_QUOTA, Stand
from loadtest.stress.verdict import Bound, Verdict
from tests.support.faults import FaultError

P99_FACTOR_MAX = 1.5
_NAMESPACE = "tenant"
_SETTLE_S = 1.0
"""Of each stretch, which does not count: a page that was asked for in the last one may still be read."""
_FILL_THREADS = 4
_FILL_BATCH = 1_000
_JOIN_S = 60.0
_AT_REST, _EXPORTING = "at rest", "beside an export"


@dataclass(frozen=True, slots=True)
class Course:
    """Rounds of a stretch at rest and one beside the export. Calls of one item, so many a second of each verb."""

    items: int = 1_000_000
    """That are stored all along, and exported."""
    rounds: int = 5
    stretch_s: float = 20.0
    calls_per_s: float = 200.0
    payload_bytes: int = 200
    splits_per_shard: int = 2


def run(course: Course) -> Verdict:
    """The export stands still in the stretches at rest: a page needs nothing of the one before it but a key."""
    length_s = course.stretch_s + _SETTLE_S
    end_s = 2 * course.rounds * length_s
    with Stand() as stand:
        stand.make_namespace(_NAMESPACE, NO_QUOTA)
        began_s = time.monotonic()
        _fill(stand.host.address, course)
        filled_s = time.monotonic() - began_s
        reader = _Reader(stand.host.address, course, length_s, end_s)
        found = run_streams(stand.port, _deliveries(course, end_s), lambda begin_ns: _watch(reader, begin_ns, end_s))
    verdict = _judge(course, length_s, found, reader)
    verdict.facts["seconds to store the items"] = filled_s
    return verdict


def _watch(reader: _Reader, begin_ns: int, end_s: float) -> None:
    reader.start(begin_ns)
    wait_until(begin_ns, end_s)
    reader.join()


def _judge(course: Course, length_s: float, found: Mapping[str, Record], reader: _Reader) -> Verdict:
    verdict = Verdict("export")
    p99s: dict[str, dict[str, float]] = {}
    refused_count = 0
    for first, kind in enumerate((_AT_REST, _EXPORTING)):
        begins = [(2 * number + first) * length_s for number in range(course.rounds)]
        spans = [(begin_s + _SETTLE_S, begin_s + length_s) for begin_s in begins]
        enqueues, takes = (_of(found[name], spans) for name in ("enqueue", "dequeue"))
        p99s[kind] = {
            "dequeue": takes.latency_ms(99),
            "ack": takes.ack_latency_ms(99),
            "enqueue": enqueues.latency_ms(99),
        }
        refused_count += sum(enqueues.refused.values()) + sum(takes.refused.values())
        row: dict[str, object] = {"deliveries": kind, "dequeue p50 ms": takes.latency_ms(50)}
        row |= {f"{verb} p99 ms": p99_ms for verb, p99_ms in p99s[kind].items()}
        row |= {"delivered a second": takes.taken_count / (course.rounds * course.stretch_s)}
        verdict.rows.append(row)
    exporting_s = course.rounds * length_s
    verdict.facts |= {
        "items stored all along": course.items,
        "exported, items a second": reader.items_count / exporting_s,
        "pages": reader.pages_count,
        "pages that were refused": reader.refused_count,
        "whole exports": len(reader.whole_counts),
    }
    for verb, at_rest_ms in p99s[_AT_REST].items():
        ratio = p99s[_EXPORTING][verb] / max(at_rest_ms, 1e-3)
        verdict.bounds.append(Bound(f"{verb} p99 beside an export, by that at rest", ratio, P99_FACTOR_MAX))
    verdict.bounds.append(Bound("items of all exports together", reader.kept_count, course.items, is_least=True))
    wrong = sum([count != course.items for count in reader.whole_counts])
    verdict.bounds.append(Bound("exports that lack an item or have one twice", wrong, 0))
    verdict.bounds.append(Bound("calls beside it that were refused", refused_count, 0))
    return verdict


def _of(record: Record, spans: Sequence[tuple[float, float]]) -> Slice:
    whole = Slice()
    for span in spans:
        whole.add(record.between(*span))
    return whole


def _deliveries(course: Course, until_s: float) -> list[Stream]:
    """A producer and a consumer, open loop, from the first to the last stretch."""
    whole = Stream(
        name="enqueue",
        verb="enqueue",
        namespace=_NAMESPACE,
        topics=("a", "b"),
        from_s=0.0,
        until_s=until_s,
        batch=1,
        calls_per_s=course.calls_per_s,
    )
    # Somewhat slower, so that a dequeue finds something.
    return [whole, replace(whole, name="dequeue", verb="dequeue", from_s=0.5, calls_per_s=course.calls_per_s * 0.8)]


def _fill(address: str, course: Course) -> None:
    """Store what is exported, from a few threads. Raises FaultError."""
    failures: list[BaseException] = []

    def store(number: int) -> None:
        try:
            count = len(range(number, course.items, _FILL_THREADS))
            news = repeat(NewItem(f"kept-{number}", b"x" * course.payload_bytes), count)
            with Client(address) as client:
                client.enqueue_many(_NAMESPACE, news, bulk=True, calls_in_flight=4)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=store, args=(number,)) for number in range(_FILL_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise FaultError(f"the items could not be stored: {failures[0]!r}")


class _Reader:
    """Exports again and again with a thread for each split, in every other stretch of the run."""

    def __init__(
        self,
        address: str,
        course: Course,
        length_s: float,
        end_s: float,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.items_count = 0
        self.kept_count = 0
        """Without what was being delivered."""
        self.pages_count = 0
        self.refused_count = 0
        self.whole_counts: list[int] = []
        """How many of the kept items each export had that came to its end."""
        self._address = address
        self._course = course
        self._length_s = length_s
        self._end_s = end_s
        self._clock_ns = clock_ns
        self._begin_ns = 0
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="export")

    def start(self, begin_ns: int) -> None:
        self._begin_ns = begin_ns
        self._thread.start()

    def join(self) -> None:
        """Raises FaultError when it failed."""
        self._stopped.set()
        self._thread.join(_JOIN_S)
        if self._failure is not None or self._thread.is_alive():
            raise FaultError(f"the export failed: {self._failure!r}")

    def _run(self) -> None:
        try:
            while self._await_turn():
                self._export_once()
        except Exception as error:
            self._failure = error

    def _export_once(self) -> None:
        with AdminClient(self._address) as admin:
            splits = admin.plan_export(_NAMESPACE, self._course.splits_per_shard).splits
        counts = [0] * len(splits)
        failures: list[Exception] = []

        def read(number: int) -> None:
            try:
                for count in self._pages(splits[number]):
                    counts[number] += count
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=read, args=(number,)) for number in range(len(splits))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
        if not self._stopped.is_set():
            self.whole_counts.append(sum(counts))

    def _pages(self, split: ExportSplit) -> Iterator[int]:
        """How many kept items each page has, until the split or the run is over."""
        after_key = 0
        with AdminClient(self._address) as admin:
            while self._await_turn():
                try:
                    page = admin.export_items(_NAMESPACE, split, after_key, limits.PAGE_ITEMS_MAX)
                except FoqsError:
                    with self._lock:
                        self.refused_count += 1
                    continue
                count = sum([item.topic.startswith("kept-") for item in page.items])
                with self._lock:
                    self.pages_count += 1
                    self.items_count += len(page.items)
                    self.kept_count += count
                yield count
                after_key = page.next_after_key
                if not after_key:
                    return

    def _await_turn(self) -> bool:
        """Wait for a stretch that is the export's; False once the run is over."""
        while not self._stopped.is_set():
            at_s = (self._clock_ns() - self._begin_ns) / 1e9
            if at_s >= self._end_s:
                self._stopped.set()
            elif at_s >= 0 and int(at_s / self._length_s) % 2:
                return True
            else:
                next_s = (int(max(at_s, 0.0) / self._length_s) + 1) * self._length_s
                self._stopped.wait(next_s - at_s)
        return False

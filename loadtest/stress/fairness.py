"""A customer with very many items beside others with few, in one topic: each has the share of a fairness key.

All items are there before the first delivery, those of the large customer first. A customer's wait is the number of
deliveries, of all customers, until its last item; its share of them is what turns of one item each come to.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from foqs import Client, NewItem
from loadtest.stress.stand import Stand
from loadtest.stress.verdict import Bound, Verdict
from tests.support.faults import FaultError

WAIT_FACTOR_MAX = 1.2
"""By which the wait of a customer can be longer than its share."""
_NAMESPACE = "shared"
_TOPIC = "exports"
_LARGE = "large"
_PAYLOAD = b"x" * 200
_DEQUEUE_WAIT_MS = 5_000


@dataclass(frozen=True, slots=True)
class Course:
    """`customers` with `items_each`, beside one with `large_items`. `consumers` take `batch` items at a time."""

    large_items: int = 1_000_000
    customers: int = 100
    items_each: int = 100
    consumers: int = 4
    batch: int = 50


class _Deliveries:
    """What consumers have got, in one order."""

    def __init__(self, course: Course) -> None:
        self._guard = threading.Lock()
        self._left_count = course.customers * course.items_each
        self.count = 0
        self.of_key: Counter[str] = Counter()
        self.last_at: dict[str, int] = {}
        """The number of the delivery that was the last one of a key."""
        self.large_count = 0
        """Deliveries of the large customer until the others had all of theirs."""

    @property
    def is_over(self) -> bool:
        return self._left_count <= 0

    def note(self, keys: list[str]) -> None:
        with self._guard:
            for key in keys:
                if self.is_over:
                    return
                self.count += 1
                self.of_key[key] += 1
                self.last_at[key] = self.count
                self.large_count += key == _LARGE
                self._left_count -= key != _LARGE


def run(course: Course) -> Verdict:
    """Let consumers take items until the small customers have all of theirs."""
    found = _Deliveries(course)
    with Stand() as stand:
        stand.make_namespace(_NAMESPACE)
        with Client(stand.host.address) as client:
            client.enqueue_many(_NAMESPACE, _items_of_large(course), bulk=True, calls_in_flight=4)
            client.enqueue_many(_NAMESPACE, _items_of_others(course), calls_in_flight=4)
        began_s = time.monotonic()
        with ThreadPoolExecutor(course.consumers) as threads:
            for done in [threads.submit(_consume, stand.host.address, course, found) for _ in range(course.consumers)]:
                done.result()
        seconds = time.monotonic() - began_s
    return _verdict(course, found, seconds)


def _verdict(course: Course, found: _Deliveries, seconds: float) -> Verdict:
    share = course.items_each * (course.customers + 1)
    waits = sorted([at for key, at in found.last_at.items() if key != _LARGE])
    verdict = Verdict("fairness")
    verdict.rows.append(
        {
            "customers": course.customers,
            "items each": course.items_each,
            "items of the large one": course.large_items,
            "deliveries": found.count,
            "of the large one": found.large_count,
            "share of a customer": share,
            "p50 wait": waits[len(waits) // 2],
            "longest wait": waits[-1],
            "deliveries a second": found.count / max(seconds, 1e-3),
        }
    )
    verdict.bounds += [
        Bound("longest wait of a customer by its share", waits[-1] / share, WAIT_FACTOR_MAX),
        Bound(
            "deliveries of the large customer by those of another",
            found.large_count / course.items_each,
            WAIT_FACTOR_MAX,
        ),
        Bound("customers with all their items", len(waits), course.customers, is_least=True),
    ]
    verdict.facts |= {"consumers": course.consumers, "batch": course.batch}
    return verdict


def _items_of_large(course: Course) -> Iterator[NewItem]:
    for _ in range(course.large_items):
        yield NewItem(_TOPIC, _PAYLOAD, fairness_key=_LARGE)


def _items_of_others(course: Course) -> Iterator[NewItem]:
    for _ in range(course.items_each):
        for customer in range(course.customers):
            yield NewItem(_TOPIC, _PAYLOAD, fairness_key=f"customer-{customer}")


def _consume(address: str, course: Course, found: _Deliveries) -> None:
    with Client(address) as client:
        while not found.is_over:
            items = client.dequeue(_NAMESPACE, _TOPIC, course.batch, wait_ms=_DEQUEUE_WAIT_MS)
            if not items and not found.is_over:
                raise FaultError(f"nothing comes any more, after {found.count} deliveries")
            found.note([item.fairness_key or "" for item in items])
            client.ack(_NAMESPACE, items)

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from importlib.metadata import version
from typing import Any

import pytest

import foqs
from foqs.client.client_errors import NotSentError, OutcomeUnknownError
from foqs.client.leases import TAKEN_MAX, BaseLeasedItem, LeaseSchedule, TakenItems
from foqs.client.queue_items import Nack
from foqs.client.settling import (
    DeadLetter,
    NackBackoff,
    Release,
    Retry,
    SettleBatch,
    SettlementBuffer,
    settlement_of,
)
from foqs.client.sync.settler import Settler
from foqs.client.worker_core import count_of_each, topic_names
from foqs.model import limits
from foqs.model.errors import InvalidArgumentError, NotFoundError, StaleLeaseError
from foqs.testing import MemoryQueue

LEASE_MS = 10_000
BACKOFF = NackBackoff(delay_ms=100, delay_ms_max=1_000)


def leased(name: str, settlements: SettlementBuffer | None = None, attempt: int = 1) -> BaseLeasedItem:
    return BaseLeasedItem(
        name, f"{name}.1", "t", 0, b"", b"", 0, 0, 0, attempt, None, settlements or SettlementBuffer(), LEASE_MS
    )


def test_a_lease_is_extended_at_its_half_and_again_half_a_lease_after_that() -> None:
    schedule, item = LeaseSchedule(LEASE_MS), leased("a")
    schedule.hold([item], now_ms=0)
    assert schedule.due(4_999) == []
    assert schedule.next_due_ms() == 5_000
    assert schedule.due(5_000) == [item]
    assert schedule.extended([item], {}, asked_at_ms=5_000, now_ms=5_400) == []
    assert schedule.next_due_ms() == 10_000


def test_a_lease_that_the_host_calls_lost_is_flagged_and_forgotten() -> None:
    schedule, items = LeaseSchedule(LEASE_MS), [leased("a"), leased("b"), leased("c")]
    schedule.hold(items, now_ms=0)
    errors = {0: StaleLeaseError("x"), 2: NotFoundError("x")}
    assert schedule.extended(items, errors, 5_000, 5_000) == [items[0], items[2]]
    assert [item.lease_lost for item in items] == [True, False, True]
    assert schedule.due(10**6) == [items[1]]


def test_an_extension_of_unknown_outcome_is_tried_until_the_lease_must_have_ended() -> None:
    schedule, item = LeaseSchedule(LEASE_MS), leased("a")
    schedule.hold([item], now_ms=0)
    unknown = OutcomeUnknownError("x")
    assert schedule.extended([item], unknown, 5_000, 6_000) == []
    assert schedule.next_due_ms() == 7_000
    assert schedule.extended([item], unknown, 7_000, 9_900) == []
    assert schedule.next_due_ms() == 10_000
    assert schedule.extended([item], unknown, 10_000, 10_001) == [item]
    assert item.lease_lost
    assert schedule.next_due_ms() is None


def test_a_lease_that_its_handler_extended_is_not_cut_short() -> None:
    schedule, item = LeaseSchedule(LEASE_MS), leased("a")
    schedule.hold([item], now_ms=0)
    schedule.extended_by(item, 60_000, asked_at_ms=1_000)
    assert schedule.next_due_ms() == 56_000, "the extension to 10 s from then ends later than the handler's"
    assert schedule.extended([item], NotSentError("away"), 56_000, 60_999) == []
    schedule.extended_by(item, 2_000, asked_at_ms=61_000)
    assert schedule.next_due_ms() == 62_000, "a short one is extended in time"
    schedule.drop(item)
    schedule.extended_by(item, 60_000, asked_at_ms=62_000)
    assert schedule.next_due_ms() is None


def test_the_keeper_hears_of_an_extension_by_the_handler() -> None:
    told: list[tuple[str, int]] = []
    with MemoryQueue() as queue:
        client = queue.client()
        client.enqueue("default", "t", b"x")
        settler = Settler(client, "default", lambda item, lease_ms, _: told.append((item.id, lease_ms)))
        (item,) = settler.lease(client.dequeue("default", "t"), LEASE_MS)
        item.extend(lease_ms=60_000)
        assert told == [(item.id, 60_000)]
        queue.clock.advance(61_000)
        with pytest.raises(StaleLeaseError):
            item.extend()
    assert len(told) == 1


def test_a_settled_item_is_not_extended_and_its_late_extension_flags_nothing() -> None:
    schedule, item = LeaseSchedule(LEASE_MS), leased("a")
    schedule.hold([item], now_ms=0)
    schedule.drop(item)
    assert schedule.due(10**6) == []
    assert schedule.extended([item], {0: NotFoundError("acked")}, 0, 0) == []
    assert not item.lease_lost


def test_the_rest_of_a_batch_that_waited_half_a_lease_is_extended_before_it_is_yielded() -> None:
    taken, items = TakenItems[BaseLeasedItem](LEASE_MS), [leased(name) for name in "abc"]
    taken.take(items, now_ms=0)
    assert taken.due(4_999) == []
    assert taken.next() is items[0]
    assert taken.due(5_000) == items[1:]
    assert taken.extended(items[1:], {0: StaleLeaseError("x")}, asked_at_ms=5_000) == [items[1]]
    assert taken.due(9_999) == []
    assert taken.next() is items[2]
    assert taken.next() is None


def test_what_is_neither_settled_nor_lost_is_given_back_at_the_end() -> None:
    taken, items = TakenItems[BaseLeasedItem](LEASE_MS), [leased(name) for name in "abcd"]
    taken.take(items, now_ms=0)
    taken.next()
    items[0].ack()
    items[1].lease_lost = True
    assert taken.unsettled() == items[2:]
    assert taken.next() is None


def test_a_consumer_forgets_what_it_no_longer_has() -> None:
    taken, old = TakenItems[BaseLeasedItem](LEASE_MS), leased("old")
    taken.take([old], now_ms=0)
    taken.take([], now_ms=9_999)
    assert taken.unsettled() == [old]
    taken.take([], now_ms=10_000)
    assert taken.unsettled() == []
    taken.take([leased(str(n)) for n in range(TAKEN_MAX + 1)], now_ms=0)
    assert len(taken.unsettled()) == TAKEN_MAX


def test_an_item_is_settled_once() -> None:
    item = leased("a")
    item.release(delay_ms=5)
    with pytest.raises(RuntimeError, match="settled already"):
        item.ack()


@pytest.mark.parametrize(
    ("error", "nack"),
    [
        (None, None),
        (ValueError("defect"), Nack("a.1", 200)),
        (Retry(), Nack("a.1", 200)),
        (Retry(7, b"m"), Nack("a.1", 7, b"m")),
        (Release(9), Nack("a.1", 9, release=True)),
        (DeadLetter("broken"), Nack("a.1", dead_letter=True)),
    ],
)
def test_a_handler_s_end_says_what_becomes_of_the_item(error: Exception | None, nack: Nack | None) -> None:
    assert settlement_of(leased("a", attempt=2), error, None, BACKOFF, lambda: 1.0) == nack


def test_the_delay_of_a_failed_item_doubles_with_its_attempts_up_to_a_bound() -> None:
    assert [BACKOFF.next_ms(attempt, lambda: 1.0) for attempt in (1, 2, 3, 4, 5, 1_000)] == [
        100,
        200,
        400,
        800,
        1_000,
        1_000,
    ]
    assert BACKOFF.next_ms(3, lambda: 0.0) == 200


def test_settlements_count_only_what_the_host_confirmed() -> None:
    settlements = SettlementBuffer()
    items = [leased(name, settlements) for name in "abcdefg"]
    for item in items[:3]:
        item.ack()
    items[3].nack(delay_ms=5)
    items[4].release()
    items[5].nack(dead_letter=True)
    items[6].nack()
    batch = settlements.take()
    assert settlements.pending_count == 7
    settlements.settled(batch, {1: StaleLeaseError("x"), 2: OutcomeUnknownError("x")}, {3: NotFoundError("x")})
    assert settlements.pending_count == 0
    stats = settlements.stats
    assert (stats.acked, stats.nacked, stats.released, stats.dead_lettered) == (1, 1, 1, 1)
    assert (stats.lease_lost, stats.unsettled) == (2, 1)
    assert [item.lease_lost for item in items] == [False, True, False, False, False, False, True]


def test_settlements_go_in_batches_of_one_call() -> None:
    settlements = SettlementBuffer()
    for n in range(1_001):
        leased(str(n), settlements).ack()
    assert [len(settlements.take().acks) for _ in range(3)] == [1_000, 1, 0]
    assert not SettleBatch([], [])


def worker(**settings: Any) -> foqs.Worker:
    return foqs.Worker(foqs.Client("127.0.0.1:1"), "ns", ["a", "b"], print, **settings)


def test_worker_settings_are_checked() -> None:
    assert worker(concurrency=3)._settings.capacity == 6
    assert worker(concurrency=3, prefetch_count=0)._settings.capacity == 3
    for wrong in (
        {"concurrency": 0},
        {"concurrency": 1_001},
        {"concurrency": "2"},
        {"prefetch_count": -1},
        {"lease_ms": 999},
        {"wait_ms": 30_001},
        {"drain_ms": -1},
    ):
        (name,) = wrong
        with pytest.raises(InvalidArgumentError, match=f"{name} .* is not"):
            worker(**wrong)
    with pytest.raises(InvalidArgumentError, match="backoff 5 is no NackBackoff"):
        worker(backoff=5)


def test_a_worker_without_topics_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="at least one"):
        topic_names([])


def test_a_threaded_worker_refuses_an_async_handler_whose_items_it_would_ack_undone() -> None:
    async def handler(item: object) -> None: ...

    class Handler:
        async def __call__(self, item: object) -> None: ...

    with foqs.Client("127.0.0.1:1") as client:
        for wrong in (handler, Handler(), 5):
            with pytest.raises(InvalidArgumentError, match="AsyncWorker"):
                foqs.Worker(client, "ns", "t", wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [-1, 1.5, "1", 90 * limits.DAY_MS + 1])
def test_a_delay_that_would_spoil_the_nacks_of_others_is_refused_where_it_is_given(wrong: Any) -> None:
    settlements = SettlementBuffer()
    item = leased("a", settlements)
    for give_back in (item.nack, item.release, foqs.Retry, foqs.Release):
        with pytest.raises(InvalidArgumentError, match="delay_ms"):
            give_back(delay_ms=wrong)
    with pytest.raises(InvalidArgumentError, match="metadata is str, not bytes"):
        item.nack(metadata="text")  # type: ignore[arg-type]
    item.ack()
    assert settlements.pending_count == 1


def test_a_fetch_asks_for_about_what_there_is_room_for() -> None:
    assert count_of_each(10, ["a"]) == 10
    assert count_of_each(10, ["a", "b", "c"]) == 3
    assert count_of_each(1, ["a", "b", "c"]) == 1


def test_import_foqs_loads_neither_the_codec_nor_a_client() -> None:
    program = "import sys, foqs; sys.exit(any(m.startswith(('thriftpy2', 'foqs.')) for m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_every_public_name_can_be_imported() -> None:
    assert set(foqs.__all__) == set(foqs._MODULE_OF)
    for name in foqs.__all__:
        public = getattr(foqs, name)
        assert name == "PositionErrors" or public.__name__ == name
    with pytest.raises(AttributeError):
        foqs.no_such_name  # noqa: B018
    assert set(foqs.__all__) <= set(dir(foqs))


def test_the_package_tells_its_version() -> None:
    assert foqs.__version__ == version("foqs")


def test_what_a_client_returns_or_takes_has_a_public_name() -> None:
    named: set[str] = set()
    for client in (foqs.Client, foqs.AdminClient):
        for name, verb in inspect.getmembers(client, inspect.isfunction):
            if not name.startswith("_"):
                named.update(*[re.findall(r"\b[A-Z]\w+", str(hint)) for hint in verb.__annotations__.values()])
    words = {"None", "Iterable", "Iterator", "Callable", "Sequence", "Mapping"}
    types_of_arguments = {"Receipts", "Topics", "Nacks"}
    assert named - words - types_of_arguments <= set(foqs.__all__)


def test_the_core_of_the_client_does_no_io() -> None:
    modules = [
        "client_errors",
        "retry",
        "flows",
        "queue_items",
        "queue_verbs",
        "admin_verbs",
        "dialogue",
        "coalescing",
        "leases",
        "settling",
        "worker_core",
    ]
    program = (
        "import sys; from importlib import import_module\n"
        f"for name in {modules}: import_module('foqs.client.' + name)\n"
        "names = [vars(sys.modules['foqs.client.' + m]) for m in " + repr(modules) + "]\n"
        "sys.exit(any(x in n for n in names for x in ('socket', 'threading', 'asyncio', 'time', 'random')))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0

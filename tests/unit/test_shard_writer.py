"""The writer of a shard and a store that fails."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs

from foqs.model import limits
from foqs.model.calls import ItemContent
from foqs.model.item import Phase, ShardItem
from foqs.model.namespace import Namespace, NamespaceSettings
from foqs.shard.port import (
    DeadlockError,
    DiskFullError,
    OwnershipLostError,
    ReadOnlyError,
    SessionLostError,
    TransactionFailedError,
)
from foqs.shard.state.events import Completion
from foqs.shard.writer import keeper, ownership, shard_writer
from tests.support.slow_store import SlowStore, TickedWriter, run_one, start, until_health, writer_of
from tests.support.waiting import PATIENCE_S, until


@pytest.fixture
async def store() -> SlowStore:
    return SlowStore(asyncio.get_running_loop())


@pytest.fixture
async def writer(store: SlowStore) -> AsyncIterator[TickedWriter]:
    async with writer_of(store) as writer:
        yield writer


async def test_a_server_that_hangs_does_not_hold_up_the_start_and_is_served_once_it_answers(
    writer: TickedWriter, store: SlowStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_writer, "SHARD_OPEN_WAIT_MS_MAX", 50)
    store.answers.clear()
    async with asyncio.timeout(PATIENCE_S):
        await writer.start()
        assert (writer.shard, writer.detail) == (None, "its server does not answer")
        store.answers.set()
        await writer.counted.wait()
    assert (writer.shard is None, writer.detail) == (False, "owned")


@pytest.mark.parametrize("count", range(1, shard_writer.DEADLOCK_TRIES_MAX))
async def test_a_transaction_that_meets_deadlocks_is_run_again_as_it_is(
    writer: TickedWriter, store: SlowStore, count: int
) -> None:
    await start(writer, store)
    assert await run_one(writer, store, *[DeadlockError("a deadlock")] * count) == "done"
    assert len(store.numbers_run) == count + 1
    assert len(set(store.numbers_run)) == 1
    assert writer.health.healthy


async def test_a_transaction_that_meets_nothing_but_deadlocks_fails_in_the_end(
    writer: TickedWriter, store: SlowStore
) -> None:
    await start(writer, store)
    assert "a deadlock" in await run_one(
        writer, store, *[DeadlockError("a deadlock")] * shard_writer.DEADLOCK_TRIES_MAX
    )
    assert len(store.numbers_run) == shard_writer.DEADLOCK_TRIES_MAX
    assert await run_one(writer, store) == "done"


async def test_a_transaction_that_was_refused_for_another_reason_is_not_run_again(
    writer: TickedWriter, store: SlowStore
) -> None:
    await start(writer, store)
    assert "a lock wait" in await run_one(writer, store, TransactionFailedError("a lock wait"))
    assert len(store.numbers_run) == 1


async def test_a_transaction_whose_session_was_lost_is_run_once_more_if_it_has_not_happened(
    writer: TickedWriter, store: SlowStore
) -> None:
    await start(writer, store)
    lost = SessionLostError("somebody killed it")
    assert await run_one(writer, store, lost) == "done"
    assert len(store.numbers_run) == 2
    assert len(set(store.numbers_run)) == 1
    assert writer.health.healthy, "what was run once more is the probe"
    assert "killed" in await run_one(writer, store, lost, lost)
    assert len(store.numbers_run) == 2


async def test_a_server_that_ended_a_session_has_answered_nothing_until_it_gives_another_one(
    writer: TickedWriter, store: SlowStore
) -> None:
    await start(writer, store)
    await writer._idle.wait()
    answered_s = writer.server.answered_s
    store.answers.clear()
    ended = asyncio.create_task(run_one(writer, store, SessionLostError("somebody killed it")))
    await until(lambda: "reconnecting" in writer.detail)
    assert (writer.server.answered_s, writer.server.silent_since_s is None) == (answered_s, False)
    store.answers.set()
    assert await ended == "done"
    assert writer.server.answered_s > answered_s


async def test_a_new_session_is_asked_for_the_time_as_it_may_be_of_another_server(
    writer: TickedWriter, store: SlowStore
) -> None:
    await start(writer, store)
    asked_count = store.asked_count
    assert await run_one(writer, store) == "done"
    assert store.asked_count == asked_count
    assert await run_one(writer, store, SessionLostError("a fail-over")) == "done"
    await until(lambda: store.asked_count == asked_count + 1)


async def test_a_shard_that_is_opened_again_is_well_without_a_probe(
    writer: TickedWriter, store: SlowStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership, "REOPEN_PAUSE_MS", 1)
    monkeypatch.setattr(keeper, "BREAKER_PROBE_MS", 60_000)
    await start(writer, store)
    await writer._idle.wait()
    first = writer.shard
    writer._keeper.trip("for the test")
    writer._ownership.give_up("for the test")
    await until(lambda: writer.shard is not None and writer.shard is not first)
    assert writer.health.healthy
    assert writer.health.opened_count == 1, "it is counted over all take-overs"


@pytest.mark.interpreted
async def test_the_state_of_a_shard_that_was_lost_is_freed_without_a_collection_of_garbage(
    writer: TickedWriter, store: SlowStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can be most of the memory of a host, and a restart of its server loses all shards together."""
    monkeypatch.setattr(ownership, "REOPEN_PAUSE_MS", 1)
    await start(writer, store)
    await writer._idle.wait()
    assert await run_one(writer, store) == "done"
    assert writer.shard is not None
    first, number = weakref.ref(writer.shard), id(writer.shard)
    gc.collect()
    gc.disable()
    try:
        writer._ownership.give_up("for the test")
        await until(lambda: writer.shard is not None and (id(writer.shard) != number or first() is None))
        assert first() is None
    finally:
        gc.enable()


async def test_a_session_that_is_lost_while_the_shard_is_idle_is_noticed_by_the_next_tick(
    writer: TickedWriter, store: SlowStore
) -> None:
    await start(writer, store)
    await writer._idle.wait()
    store.is_lost = True
    writer.tick()
    await until(lambda: store.reopened_count == 1)
    assert writer.health.opened_count == 0, "the server is well"
    assert await run_one(writer, store) == "done"
    assert len(store.numbers_run) == 1, "no transaction met the loss"


@pytest.mark.parametrize("server", ["refuses", "hangs"])
async def test_a_server_that_gives_no_new_session_opens_the_breaker(
    writer: TickedWriter, store: SlowStore, monkeypatch: pytest.MonkeyPatch, server: str
) -> None:
    monkeypatch.setattr(ownership, "REOPEN_PAUSE_MS", 1)
    monkeypatch.setattr(keeper, "BREAKER_STALL_MS", 20)
    await start(writer, store)
    await writer._idle.wait()
    if server == "refuses":
        store.reopen_errors.append(SessionLostError("connection refused"))
    else:
        store.answers.clear()
    store.is_lost = True
    await until_health(writer, healthy=False)
    monkeypatch.setattr(keeper, "BREAKER_PROBE_MS", 0)
    store.answers.set()
    await until_health(writer, healthy=True)
    assert store.reopened_count == 1


async def test_a_transaction_whose_session_was_lost_is_not_run_again_if_it_has_happened(
    writer: TickedWriter, store: SlowStore
) -> None:
    await start(writer, store)
    store.number_stored += 1
    assert await run_one(writer, store, SessionLostError("its answer is lost")) == "done"
    assert store.numbers_run == [store.number_stored - 1, store.number_stored], "the look-up alone is run anew"


@pytest.mark.parametrize("error", [DiskFullError("it is full"), ReadOnlyError("it is read-only")])
async def test_a_server_that_takes_no_writes_opens_the_breaker_by_its_first_refusal(
    writer: TickedWriter, store: SlowStore, error: TransactionFailedError
) -> None:
    await start(writer, store)
    assert "it is" in await run_one(writer, store, error)
    assert not writer.health.healthy
    await until_health(writer, healthy=True)


async def test_a_server_that_has_become_read_only_is_looked_for_anew(writer: TickedWriter, store: SlowStore) -> None:
    await start(writer, store)
    assert "read-only" in await run_one(writer, store, ReadOnlyError("it is read-only"))
    assert len(store.numbers_run) == 1
    assert await run_one(writer, store) == "done"
    assert (store.opened_count, store.reopened_count) == (1, 1)


async def test_a_server_that_has_lost_transactions_is_opened_anew(writer: TickedWriter, store: SlowStore) -> None:
    await start(writer, store)
    store.number_stored -= 1
    first = writer.shard
    assert "lost transaction" in await run_one(writer, store, SessionLostError("a fail-over"))
    assert len(store.numbers_run) == 1
    await until(lambda: writer.shard is not None)
    assert writer.shard is not first
    assert store.opened_count == 2
    assert await run_one(writer, store) == "done"


@pytest.mark.parametrize(
    ("met", "nothing_done"),
    [
        (SessionLostError("its answer is lost"), False),
        (SessionLostError("it was not sent", nothing_done=True), True),
        (OwnershipLostError("it was rolled back"), True),
    ],
    ids=str,
)
@pytest.mark.parametrize("deadlocks_count", [0, 1])
async def test_only_an_enqueue_that_another_owner_may_have_found_has_an_unknown_outcome(
    writer: TickedWriter, store: SlowStore, met: Exception, deadlocks_count: int, *, nothing_done: bool
) -> None:
    """The last number in the shard is that of the other owner's transactions."""
    await start(writer, store)
    shard = writer.shard
    assert shard is not None
    store.errors = [*[DeadlockError("a deadlock")] * deadlocks_count, met]
    store.reopen_errors = [OwnershipLostError("it has another epoch")]
    topic = shard.index.new_topic(1, "topic", 0)
    shard.index.name_namespace(Namespace(1, "n", NamespaceSettings(), 0))
    shard.index.add_topic(topic)
    content = ItemContent(b"p", b"")
    item = ShardItem(shard.index.next_key(), topic, 0, 0, 0, Phase.INSERTING, content=content)
    ended: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
    shard.insert([item], content.size_bytes, Completion(ended.set_result))
    writer.wake()
    async with asyncio.timeout(PATIENCE_S):
        failure = (await ended).failure
    assert failure is not None
    assert failure.nothing_done is nothing_done


async def test_a_shard_that_is_drained_takes_nothing_new_from_then_on_and_does_all_that_it_took(
    writer: TickedWriter, store: SlowStore
) -> None:
    """Else what comes after the last transaction of the drain would be cut off, and nobody could tell its outcome."""
    await start(writer, store)
    shard = writer.shard
    store.answers_runs.clear()
    ended = asyncio.create_task(run_one(writer, store))
    await until(lambda: bool(store.numbers_run))
    draining = asyncio.create_task(writer.drain())
    await until(lambda: writer.shard is None)
    assert writer.held is shard
    assert not draining.done()
    store.answers_runs.set()
    assert await ended == "done"
    async with asyncio.timeout(PATIENCE_S):
        await draining
    assert (writer.shard, writer.held) == (None, shard)


async def test_a_defect_while_a_shard_is_stopped_keeps_its_lock_from_nobody(
    writer: TickedWriter, store: SlowStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await start(writer, store)
    closed: list[bool] = []
    monkeypatch.setattr(store, "close", lambda: closed.append(True))
    writer.listener.on_events.side_effect = RuntimeError("a defect")
    await writer.stop()
    assert closed == [True]
    assert writer.held is None


async def test_a_shard_that_is_lost_while_it_is_drained_and_opened_again_takes_nothing(
    writer: TickedWriter, store: SlowStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership, "REOPEN_PAUSE_MS", 1)
    await start(writer, store)
    store.answers_runs.clear()
    ended = asyncio.create_task(run_one(writer, store, OwnershipLostError("another host took it")))
    await until(lambda: bool(store.numbers_run))
    draining, opened_count = asyncio.create_task(writer.drain()), store.opened_count
    await until(lambda: writer.shard is None)
    store.answers_runs.set()
    assert "another host" in await ended
    await until(lambda: writer.held is not None and store.opened_count > opened_count)
    assert writer.shard is None
    async with asyncio.timeout(PATIENCE_S):
        await draining


async def test_a_shard_that_is_sick_before_the_drain_is_given_up_at_once(
    writer: TickedWriter, store: SlowStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "DRAIN_MS_MAX", 1 << 40)
    await start(writer, store)
    store.answers_runs.clear()
    ended = asyncio.create_task(run_one(writer, store))
    await until(lambda: bool(store.numbers_run))
    await until_health(writer, healthy=False)
    with capture_logs() as logs:
        async with asyncio.timeout(PATIENCE_S):
            await writer.drain()
            await writer.stop()
            assert "sick" in await ended
    assert "sick_shard_given_up" in {log["event"] for log in logs}


@pytest.mark.interpreted
@pytest.mark.parametrize("where", ["transaction", "loss", "abandon", "tick"])
async def test_a_defect_costs_a_take_over_and_not_the_shard(
    writer: TickedWriter, store: SlowStore, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Whatever is raised: nobody else would open the shard again, or notice."""
    monkeypatch.setattr(ownership, "REOPEN_PAUSE_MS", 1)
    await start(writer, store)
    first, opened_count = writer.shard, store.opened_count
    assert first is not None
    opened = asyncio.Event()
    writer.listener.shard_opened.side_effect = lambda *_: opened.set()  # type: ignore[attr-defined]
    if where == "loss":
        writer.listener.shard_lost.side_effect = [AssertionError("in the dispatcher"), None]  # type: ignore[attr-defined]
    if where == "abandon":
        abandon, tell = first.abandon, writer.listener.on_events
        monkeypatch.setattr(first, "abandon", lambda reason: (tell(abandon(reason)), {}["a completion"]))
    if where == "tick":
        first.leases.is_due = Mock(side_effect=KeyError("a receipt"))
        with capture_logs() as logs:
            writer.tick()
    else:
        with capture_logs() as logs:
            await run_one(writer, store, ValueError("an item that cannot be packed"))
    async with asyncio.timeout(PATIENCE_S):
        await opened.wait()
    assert "shard_defect" in {log["event"] for log in logs}
    assert store.opened_count == opened_count + 1
    assert await run_one(writer, store) == "done"


async def test_a_store_that_wants_a_transaction_of_its_own_gets_empty_ones_unless_its_server_is_sick(
    writer: TickedWriter, store: SlowStore
) -> None:
    await start(writer, store)
    await until(writer._idle.is_set)
    store.wants_count, store.numbers_run = 2, []
    for wants_count in (1, 0):
        writer.tick()
        await until(lambda count=wants_count: store.wants_count == count)  # type: ignore[misc]
        await until(writer._idle.is_set)
    writer.tick()
    assert len(store.numbers_run) == 2
    writer._keeper.trip("it takes no writes")
    store.wants_count, store.numbers_run = 1, []
    writer.tick()
    for _ in range(20):
        await asyncio.sleep(0)
    assert store.numbers_run == []


async def test_an_opening_that_fails_after_the_store_was_opened_closes_it(
    writer: TickedWriter, store: SlowStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership, "REOPEN_PAUSE_MS", 1)
    monkeypatch.setattr(ownership, "skip_leased", Mock(side_effect=[SessionLostError("it was killed"), None]))
    await writer.start()
    await until(lambda: writer.shard is not None)
    assert (store.opened_count, store.closed_count) == (2, 1)

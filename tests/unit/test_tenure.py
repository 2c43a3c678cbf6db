"""What a process remembers of a shard that it gave up, and an epoch whose keys come to their end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from unittest.mock import Mock

import pytest

from foqs.model import ids, limits
from foqs.model.errors import UnavailableError
from foqs.shard.port import OwnedError, SessionLostError
from foqs.shard.writer.runner import ShardRunner
from tests.support.slow_store import SlowStore, run_one, runner_of, start
from tests.support.waiting import until


@pytest.fixture
async def store() -> SlowStore:
    return SlowStore(asyncio.get_running_loop())


@pytest.fixture
async def runner(store: SlowStore) -> AsyncIterator[ShardRunner]:
    async with runner_of(store) as runner:
        yield runner


@pytest.mark.parametrize("loss", ["the count is lost", "the server stays away", "a defect"])
async def test_a_shard_that_was_given_up_is_opened_again_as_it_was_left(
    runner: ShardRunner, store: SlowStore, monkeypatch: pytest.MonkeyPatch, loss: str
) -> None:
    """P11: nothing of it needs the meta database, since the epoch stays."""
    monkeypatch.setattr(limits, "REOPEN_PAUSE_MS", 1)
    monkeypatch.setattr(limits, "REOPEN_TRIES_MAX", 2)
    store.counts.clear()
    await start(runner, store)
    await runner._idle.wait()
    first = runner.shard
    assert first is not None
    keys = [first.index.next_key() for _ in range(3)]
    number = store.number_stored
    if loss == "the count is lost":
        store.count_errors.append(SessionLostError("somebody killed the counting session"))
    store.counts.set()
    if loss == "the server stays away":
        store.reopen_errors = [SessionLostError("it is away")] * 2
        store.is_lost = True
        runner.tick()
    elif loss == "a defect":
        monkeypatch.setattr(first, "tick", Mock(side_effect=ZeroDivisionError))
        runner.tick()
    await until(lambda: runner.shard is not None and runner.shard is not first)
    assert runner.shard is not None
    tenure = store.tenures[-1]
    assert tenure is not None
    assert (tenure.epoch, tenure.last_key) == (1, keys[-1])
    assert tenure.transaction_number >= number
    assert runner.shard.index.next_key() == keys[-1] + 1


async def test_a_shard_that_was_never_opened_here_is_opened_without_a_tenure(
    runner: ShardRunner, store: SlowStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "REOPEN_PAUSE_MS", 1)
    store.open_errors = [SessionLostError("its server is away"), UnavailableError("the meta database is away")]
    await runner.start()
    await until(lambda: runner.shard is not None)
    assert store.tenures == [None, None, None]


async def test_a_tenure_outlives_openings_that_fail(
    runner: ShardRunner, store: SlowStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "REOPEN_PAUSE_MS", 1)
    await start(runner, store)
    store.open_errors = [SessionLostError("its server is away")] * 3
    runner._give_up("somebody wants it so")
    await until(lambda: len(store.tenures) == 5)
    assert len(set(store.tenures[1:])) == 1
    assert store.tenures[1] is not None


async def test_a_shard_of_a_living_owner_is_waited_for_and_not_polled(
    runner: ShardRunner, store: SlowStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "REOPEN_PAUSE_MS", 1 << 40)
    monkeypatch.setattr(limits, "OWNER_RETURN_MS", 1)
    store.open_errors = [OwnedError("a living one has it")] * 2
    await runner.start()
    await until(lambda: runner.shard is not None)
    assert store.waited_count == 2


async def test_an_epoch_is_renewed_before_its_keys_are_used_up_and_nobody_notices(
    runner: ShardRunner, store: SlowStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await start(runner, store)
    shard = runner.shard
    assert shard is not None
    monkeypatch.setattr(limits, "KEYS_LEFT_TO_RENEW", shard.index.keys_left_count - 5)
    assert await run_one(runner, store) == "done"
    before = [shard.index.next_key() for _ in range(6)]
    assert await run_one(runner, store) == "done"
    await until(lambda: shard.epoch == 2)
    assert runner.shard is shard
    assert (store.opened_count, store.epoch) == (1, 2)
    assert before[-1] < 2 << ids.SEQUENCE_BITS < shard.index.next_key()


async def test_without_a_new_epoch_the_last_keys_are_kept_and_the_shard_waits(
    runner: ShardRunner, store: SlowStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P9 before P11: a key of the next epoch might be another owner's."""
    monkeypatch.setattr(limits, "REOPEN_PAUSE_MS", 1)
    monkeypatch.setattr(limits, "EPOCH_RETRY_MS", 0)
    await start(runner, store)
    shard = runner.shard
    assert shard is not None
    keys_left = shard.index.keys_left_count
    monkeypatch.setattr(limits, "KEYS_LEFT_TO_RENEW", keys_left)
    monkeypatch.setattr(limits, "KEYS_LEFT_MIN", keys_left - 3)
    away = UnavailableError("the meta database is away")
    store.epoch_errors, store.open_errors = [away] * 100, [away] * 3
    shard.index.next_key()
    assert await run_one(runner, store) == "done", "there are keys left"
    assert runner.shard is shard
    for _ in range(3):
        shard.index.next_key()
    assert "keys left" in await run_one(runner, store)
    await until(lambda: runner.shard is not None and runner.shard is not shard)
    assert store.tenures == [None] * 5, "what was left of the epoch is not gone on with"

"""What a process remembers of a shard that it gave up, and an epoch whose keys come to their end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs

from foqs.model import ids
from foqs.model.errors import UnavailableError
from foqs.model.shard_place import Tenure
from foqs.shard.port import BeingTakenError, OwnedError, SessionLostError, ShardImage
from foqs.shard.writer import ownership
from tests.support.slow_store import SlowStore, TickedWriter, run_one, start, writer_of
from tests.support.waiting import until


@pytest.fixture
async def store() -> SlowStore:
    return SlowStore(asyncio.get_running_loop())


@pytest.fixture
async def writer(store: SlowStore) -> AsyncIterator[TickedWriter]:
    async with writer_of(store) as writer:
        yield writer


@pytest.mark.parametrize(
    "loss", ["the count is lost", "the server stays away", pytest.param("a defect", marks=pytest.mark.interpreted)]
)
async def test_a_shard_that_was_given_up_is_opened_again_as_it_was_left(
    writer: TickedWriter, store: SlowStore, monkeypatch: pytest.MonkeyPatch, loss: str
) -> None:
    """P11: nothing of it needs the meta database, since the epoch stays."""
    monkeypatch.setattr(ownership, "REOPEN_PAUSE_MS", 1)
    monkeypatch.setattr(ownership, "REOPEN_TRIES_MAX", 2)
    store.counts.clear()
    await start(writer, store)
    await writer._idle.wait()
    first = writer.shard
    assert first is not None
    keys = [first.index.next_key() for _ in range(3)]
    number = store.number_stored
    if loss == "the count is lost":
        store.count_errors.append(SessionLostError("somebody killed the counting session"))
    store.counts.set()
    if loss == "the server stays away":
        store.reopen_errors = [SessionLostError("it is away")] * 2
        store.is_lost = True
        writer.tick()
    elif loss == "a defect":
        monkeypatch.setattr(first, "tick", Mock(side_effect=ZeroDivisionError))
        writer.tick()
    await until(lambda: writer.shard is not None and writer.shard is not first)
    assert writer.shard is not None
    tenure = store.tenures[-1]
    assert tenure is not None
    assert (tenure.epoch, tenure.last_key) == (1, keys[-1])
    assert tenure.transaction_number >= number
    assert writer.shard.index.next_key() == keys[-1] + 1


async def test_a_shard_that_was_never_opened_here_is_opened_without_a_tenure(
    writer: TickedWriter, store: SlowStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership, "REOPEN_PAUSE_MS", 1)
    store.open_errors = [SessionLostError("its server is away"), UnavailableError("the meta database is away")]
    await writer.start()
    await until(lambda: writer.shard is not None)
    assert store.tenures == [None, None, None]


async def test_the_next_writer_of_a_shard_that_was_handed_on_goes_on_where_the_last_one_stopped(
    writer: TickedWriter, store: SlowStore
) -> None:
    """P11: whoever was to have it may have got no epoch, and nor would this process get another one."""
    await start(writer, store)
    assert writer.shard is not None
    keys = [writer.shard.index.next_key() for _ in range(3)]
    await writer.drain()
    await writer.stop()
    assert writer.tenure is not None
    assert (writer.tenure.epoch, writer.tenure.last_key) == (1, keys[-1])
    assert writer.tenure.transaction_number == store.number_stored
    async with writer_of(store, tenure=writer.tenure) as again:
        await start(again, store)
        assert store.tenures == [None, writer.tenure]
        assert again.shard is not None
        assert again.shard.index.next_key() > keys[-1]


@pytest.mark.parametrize("is_held", [True, False], ids=["while it is held", "once it is lost"])
async def test_a_shard_whose_server_was_left_is_taken_anew(
    writer: TickedWriter, store: SlowStore, *, is_held: bool
) -> None:
    """The others may have it elsewhere: the epoch that this process had is not enough."""
    owner = writer._ownership
    await owner.open()
    if is_held:
        writer.leave_server()
    await owner.lost(SessionLostError("its server is away"))
    assert (owner.tenure is None) == is_held
    if not is_held:
        writer.leave_server()
    await owner.open()
    assert store.tenures == [None, None]


async def test_a_tenure_outlives_openings_that_fail(
    writer: TickedWriter, store: SlowStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership, "REOPEN_PAUSE_MS", 1)
    await start(writer, store)
    store.open_errors = [SessionLostError("its server is away")] * 3
    writer._ownership.give_up("somebody wants it so")
    await until(lambda: len(store.tenures) == 5)
    assert len(set(store.tenures[1:])) == 1
    assert store.tenures[1] is not None


async def test_a_shard_of_a_living_owner_is_waited_for_and_not_polled(
    writer: TickedWriter, store: SlowStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership, "REOPEN_PAUSE_MS", 1 << 40)
    monkeypatch.setattr(ownership, "OWNER_RETURN_MS", 1)
    store.open_errors = [OwnedError("a living one has it")] * 2
    await writer.start()
    await until(lambda: writer.shard is not None)
    assert store.waited_count == 2


async def test_a_writer_stands_by_only_while_the_shard_is_reached_and_a_living_owner_has_it(
    writer: TickedWriter, store: SlowStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host asks the owner for no shard that it could not open."""
    monkeypatch.setattr(ownership, "REOPEN_PAUSE_MS", 1)
    monkeypatch.setattr(ownership, "OWNER_RETURN_MS", 1)
    found: list[bool] = []
    open_now = store.open

    def note_and_open(tenure: Tenure | None = None) -> ShardImage:
        found.append(writer.is_standing_by)
        return open_now(tenure)

    monkeypatch.setattr(store, "open", note_and_open)
    store.open_errors = [
        SessionLostError("its server is away"), OwnedError("a living one has it"), OwnedError("it still has it"),
        SessionLostError("its server is away"),
    ]  # fmt: skip
    await writer.start()
    await until(lambda: writer.shard is not None)
    assert found == [False, False, True, True, False]
    assert not writer.is_standing_by


async def test_who_stands_by_warns_of_nothing_and_an_owner_that_loses_its_shard_does(
    writer: TickedWriter, store: SlowStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership, "REOPEN_PAUSE_MS", 1)
    monkeypatch.setattr(ownership, "OWNER_RETURN_MS", 1)
    store.open_errors = [BeingTakenError("another one takes it"), *[OwnedError("a living one has it")] * 2]
    with capture_logs() as logs:
        await writer.start()
        await until(lambda: writer.shard is not None)
        writer._ownership.give_up("somebody wants it so")
        await until(lambda: store.opened_count == 5)
    told = [(log["event"], log["log_level"]) for log in logs if log["event"].startswith("shard_")]
    assert told[:3] == [("shard_awaited", "info"), ("shard_opened", "info"), ("shard_lost", "warning")]


async def test_a_writer_that_cannot_wait_for_the_lock_does_not_stand_by(
    writer: TickedWriter, store: SlowStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership, "REOPEN_PAUSE_MS", 1 << 40)

    def wait_in_vain(*, stay: bool = False) -> bool:
        store.waited_count += 1
        raise SessionLostError("its server is away")

    monkeypatch.setattr(store, "wait_for_owner", wait_in_vain)
    store.open_errors = [OwnedError("a living one has it")]
    await writer.start()
    await until(lambda: store.waited_count > 0 and not writer.is_standing_by)


async def test_an_epoch_is_renewed_before_its_keys_are_used_up_and_nobody_notices(
    writer: TickedWriter, store: SlowStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await start(writer, store)
    shard = writer.shard
    assert shard is not None
    monkeypatch.setattr(ownership, "KEYS_LEFT_TO_RENEW", shard.index.keys_left_count - 5)
    assert await run_one(writer, store) == "done"
    before = [shard.index.next_key() for _ in range(6)]
    writer.tick()
    assert await run_one(writer, store) == "done"
    await until(lambda: shard.epoch == 2)
    assert writer.shard is shard
    assert (store.opened_count, store.epoch) == (1, 2)
    assert before[-1] < 2 << ids.SEQUENCE_BITS < shard.index.next_key()


async def test_an_owner_takes_an_epoch_later_than_one_that_was_given_to_a_host_which_never_had_the_shard(
    writer: TickedWriter, store: SlowStore
) -> None:
    """Else all hosts would take that one for the owner, for as long as this one has the shard."""
    await start(writer, store)
    shard = writer.shard
    assert shard is not None
    writer.knows_epoch(1)
    writer.tick()
    assert await run_one(writer, store) == "done"
    assert shard.epoch == 1
    store.epoch = 4  # The next one is the fifth.
    writer.knows_epoch(4)

    def has_renewed() -> bool:
        writer.tick()
        return shard.epoch == 5

    await until(has_renewed)
    assert writer.shard is shard
    writer.tick()
    assert await run_one(writer, store) == "done"
    assert (shard.epoch, store.opened_count) == (5, 1)


async def test_without_a_new_epoch_the_last_keys_are_kept_and_the_shard_waits(
    writer: TickedWriter, store: SlowStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P9 before P11: a key of the next epoch might be another owner's."""
    monkeypatch.setattr(ownership, "REOPEN_PAUSE_MS", 1)
    monkeypatch.setattr(ownership, "EPOCH_RETRY_MS", 0)
    await start(writer, store)
    shard = writer.shard
    assert shard is not None
    keys_left = shard.index.keys_left_count
    monkeypatch.setattr(ownership, "KEYS_LEFT_TO_RENEW", keys_left)
    monkeypatch.setattr(ownership, "KEYS_LEFT_MIN", keys_left - 3)
    away = UnavailableError("the meta database is away")
    store.epoch_errors, store.open_errors = [away] * 100, [away] * 3
    shard.index.next_key()
    writer.tick()
    assert await run_one(writer, store) == "done", "there are keys left"
    assert writer.shard is shard
    for _ in range(3):
        shard.index.next_key()
    writer.tick()
    assert "keys left" in await run_one(writer, store)
    await until(lambda: writer.shard is not None and writer.shard is not shard)
    assert store.tenures == [None] * 5, "what was left of the epoch is not gone on with"


@pytest.mark.parametrize("loss", ["while it was opened", "before the state took it up"])
async def test_a_renewed_epoch_is_gone_on_with_although_the_shard_was_lost_before_the_state_had_it(
    writer: TickedWriter, store: SlowStore, monkeypatch: pytest.MonkeyPatch, *, loss: str
) -> None:
    """P11: the database has the later epoch, so a tenure of the earlier one would need the meta database."""
    owner = writer._ownership
    await owner.open()
    if loss == "while it was opened":
        await owner.lost(SessionLostError("its server is away"))
        writer.leave_server()
        owner.place.leave()
        monkeypatch.setattr(owner.place, "opening", owner.place.leave)
        monkeypatch.setattr(owner, "_state_of", Mock(side_effect=SessionLostError("it is lost once more")))
        with pytest.raises(SessionLostError):
            await owner.open()
    else:
        await owner._renew(store.number_stored)
        await owner.lost(SessionLostError("its server is away"))
    epoch = store.epoch
    assert owner.tenure == Tenure(epoch, store.number_stored, epoch << ids.SEQUENCE_BITS, store.server)

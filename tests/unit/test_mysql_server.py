"""What the shards of one server have in common: it answers one of them or none."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Iterator
from unittest.mock import Mock, patch

import pytest

from foqs.model import limits
from foqs.shard import mysql_server
from foqs.shard.mysql_server import MysqlServer, TurningTime
from foqs.shard.port import SessionLostError
from foqs.shard.state.events import LookUp
from foqs.shard.writer.keeper import BREAKER_STALL_MS, Keeper
from tests.sim.loop import VirtualLoop
from tests.support.slow_store import SlowStore, TickedWriter, start, until_health, writer_of

PULSE_S = mysql_server.PULSE_MS / 1000
STALL_S = BREAKER_STALL_MS / 1000
TICK_S = limits.TICK_MS / 1000
STEP_S = 0.001


class Clock:
    now_s = 100.0


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def server() -> MysqlServer:
    return MysqlServer("here", Mock(), TurningTime())


@pytest.fixture
def keeper(clock: Clock, server: MysqlServer) -> Keeper:
    """That of a shard of the server, which has answered just now."""
    with patch("asyncio.get_running_loop", lambda: Mock(time=lambda: clock.now_s)):
        keeper = Keeper(0, Mock(is_session_lost=lambda: False), server, Mock(), Mock())
    keeper.began()
    keeper.ended("committed")
    return keeper


# ---- its silence ----


def test_it_is_silent_since_the_first_question_that_it_was_asked_after_its_last_answer(
    clock: Clock, server: MysqlServer, keeper: Keeper
) -> None:
    assert server.silent_since_s is None
    keeper.began()
    clock.now_s = 101.0
    with keeper.question():
        assert server.silent_since_s == 100.0
    assert (server.silent_since_s, server.answered_s) == (None, 101.0), "what the first one waits for is its own matter"
    clock.now_s = 102.0
    keeper.began()
    assert server.silent_since_s == 102.0


def test_a_lost_session_is_no_answer(clock: Clock, server: MysqlServer, keeper: Keeper) -> None:
    for lose in (_lose_in_a_question, _lose_in_a_transaction):
        clock.now_s = 101.0
        lose(keeper)
        assert (server.silent_since_s, server.answered_s) == (101.0, 100.0)
    with keeper.question():
        clock.now_s = 102.0
    assert (server.silent_since_s, server.answered_s) == (None, 102.0)


def _lose_in_a_question(keeper: Keeper) -> None:
    with pytest.raises(SessionLostError), keeper.question():
        raise SessionLostError("somebody killed it")


def _lose_in_a_transaction(keeper: Keeper) -> None:
    keeper.began()
    keeper.ended("unknown")


def test_one_of_its_shards_is_to_ask_when_it_was_not_heard_for_a_while_and_another_one_if_that_has_no_answer(
    clock: Clock, keeper: Keeper
) -> None:
    def ticks() -> list[bool]:
        """Of four shards, as if nothing were due but that."""
        asks = []
        for _ in range(4):
            keeper.is_due, keeper._clock_probed_s, keeper._durable_s = False, clock.now_s, clock.now_s
            asks.append(keeper.tick(is_owned=True, is_idle=True))
        return asks

    clock.now_s += PULSE_S - TICK_S
    assert ticks() == [False] * 4
    clock.now_s += 2 * TICK_S
    assert ticks() == [True, False, False, False]
    clock.now_s += PULSE_S + TICK_S
    assert ticks() == [True, False, False, False]
    keeper.began()
    keeper.ended("committed")
    clock.now_s += PULSE_S / 2
    assert ticks() == [False] * 4


# ---- two shards on it, in virtual time ----


class Shards:
    """Two of one server, which has answered both of them what every owner reads first."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.stores = [SlowStore(loop), SlowStore(loop)]
        self.writers: list[TickedWriter] = []

    async def tick_for(self, seconds: float) -> None:
        until_s = self.loop.time() + seconds
        while self.loop.time() < until_s:
            for writer in self.writers:
                writer.tick()
            await asyncio.sleep(TICK_S)

    def hang(self, *stores: SlowStore) -> None:
        for store in stores:
            store.tells_time.clear()
            store.answers_runs.clear()

    def write(self, number: int) -> None:
        shard = self.writers[number].shard
        assert shard is not None
        shard.look_up(LookUp([1], Mock(), Mock()))
        self.writers[number].wake()

    @property
    def asked_count(self) -> int:
        return sum(store.asked_count for store in self.stores)

    @property
    def healthy(self) -> list[bool]:
        return [writer.health.healthy for writer in self.writers]


def on_two_shards(test: Callable[[Shards], Coroutine[None, None, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(loop: VirtualLoop) -> None:
        async def main() -> None:
            shards = Shards(loop)
            async with writer_of(shards.stores[0]) as first, writer_of(shards.stores[1], first) as second:
                shards.writers = [first, second]
                for writer, store in zip(shards.writers, shards.stores, strict=True):
                    await start(writer, store)
                    await writer._idle.wait()
                await test(shards)

        loop.run_until_complete(main())

    del run.__wrapped__  # type: ignore[attr-defined]
    return run


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    loop = VirtualLoop(lambda _: (STEP_S, STEP_S), lambda: 0.0)
    yield loop
    loop.end_tasks()
    loop.close()
    assert loop.failures == []


@on_two_shards
async def test_shards_with_nothing_to_do_ask_their_server_no_more_often_than_one_would(shards: Shards) -> None:
    asked_count = shards.asked_count
    await shards.tick_for(20 * PULSE_S)
    assert 10 <= shards.asked_count - asked_count <= 20


@on_two_shards
async def test_a_server_that_hangs_makes_all_its_shards_sick_at_once_whichever_asked_it(shards: Shards) -> None:
    shards.hang(*shards.stores)
    while shards.healthy == [True, True]:
        await shards.tick_for(TICK_S)
    assert shards.healthy == [False, False]
    assert shards.loop.time() < 2 * limits.BREAKER_OPENS_MS_MAX / 1000
    for store in shards.stores:
        store.tells_time.set()
        store.answers_runs.set()
    for writer in shards.writers:
        await until_health(writer, healthy=True)


@on_two_shards
async def test_a_shard_that_hangs_by_itself_makes_no_other_one_of_its_server_sick(shards: Shards) -> None:
    """As when somebody has locked its tables."""
    hung, _ = shards.stores
    shards.hang(hung)
    shards.write(0)
    await shards.tick_for(4 * STALL_S)
    assert shards.healthy == [False, True]


@on_two_shards
async def test_a_session_that_hangs_by_itself_makes_no_other_shard_sick(shards: Shards) -> None:
    """As when a firewall has forgotten one connection: who asks next is another one."""
    hung, well = shards.stores
    shards.hang(hung)
    asked_counts = [hung.asked_count, well.asked_count]
    while hung.asked_count == asked_counts[0]:
        await shards.tick_for(TICK_S)
    await shards.tick_for(2 * STALL_S)
    assert shards.healthy == [False, True]
    assert well.asked_count > asked_counts[1]


@on_two_shards
async def test_a_shard_that_this_host_does_not_own_is_not_sick_by_what_its_server_leaves_unanswered(
    shards: Shards,
) -> None:
    _, lost = shards.writers
    shards.stores[1].open_errors = [SessionLostError("its database is away")] * 100
    lost._ownership.give_up("for the test")
    while lost.shard is not None:
        await shards.tick_for(TICK_S)
    shards.hang(shards.stores[0])
    await shards.tick_for(2 * STALL_S + PULSE_S)
    assert shards.healthy == [False, True]
    assert lost.health.opened_count == 0

"""Connections are accepted a few in a turn, and those that may not stay cost no transport."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest
from structlog.testing import capture_logs

from foqs.transport import listener
from foqs.transport.listener import Listener
from tests.support.loops import on_each_loop
from tests.support.waiting import PATIENCE_S


class World:
    """A listener on a free port, and what it did."""

    def __init__(self) -> None:
        self.turned_away: set[str] = set()
        self.made: list[asyncio.Transport] = []
        self.asked_by_turn: Counter[int] = Counter()
        self.changed = asyncio.Event()
        self.port = 0
        self._turn = 0
        self.listener = Listener(asyncio.get_running_loop(), self._protocol, self._turns_away)
        self._count_turns()

    def _protocol(self) -> asyncio.Protocol:
        world = self

        class Noting(asyncio.Protocol):
            def connection_made(self, transport: Any) -> None:
                world.made.append(transport)
                world.changed.set()

        return Noting()

    def _turns_away(self, address: str) -> bool:
        self.asked_by_turn[self._turn] += 1
        self.changed.set()
        return address in self.turned_away

    def _count_turns(self) -> None:
        self._turn += 1
        asyncio.get_running_loop().call_soon(self._count_turns)

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not holds():
                self.changed.clear()
                await self.changed.wait()


@asynccontextmanager
async def world(address: str = "127.0.0.1") -> AsyncIterator[World]:
    found = World()
    found.port = await found.listener.open(address, 0)
    try:
        yield found
    finally:
        found.listener.close()
        await found.listener.wait_closed()
        for transport in found.made:
            transport.abort()


def connected(stack: ExitStack, port: int, count: int, address: str = "127.0.0.1") -> list[socket.socket]:
    made = [stack.enter_context(socket.socket()) for _ in range(count)]
    for peer in made:
        peer.bind((address, 0))
        peer.connect(("127.0.0.1", port))
    return made


@on_each_loop
async def test_a_turn_accepts_a_few_connections_however_many_came() -> None:
    async with world() as w:
        with ExitStack() as stack:
            connected(stack, w.port, 30)
            await w.until(lambda: len(w.made) == 30)
        assert max(w.asked_by_turn.values()) == listener.ACCEPTS_PER_TURN_MAX
        turns = sorted(w.asked_by_turn)
        assert all(later - turn > 1 for turn, later in pairwise(turns)), "others have turns in between"


@on_each_loop
async def test_who_is_turned_away_is_hung_up_on_and_no_connection_is_made_of_it() -> None:
    async with world() as w:
        w.turned_away.add("127.0.0.2")
        with ExitStack() as stack:
            (away,) = connected(stack, w.port, 1, "127.0.0.2")
            connected(stack, w.port, 1)
            await w.until(lambda: len(w.made) == 1)
            away.settimeout(PATIENCE_S)
            assert await asyncio.to_thread(away.recv, 1) == b""
        assert w.asked_by_turn.total() == 2


@on_each_loop
async def test_a_turn_turns_away_more_than_it_accepts() -> None:
    async with world() as w:
        w.turned_away.add("127.0.0.2")
        with ExitStack() as stack:
            connected(stack, w.port, 100, "127.0.0.2")
            connected(stack, w.port, 1)
            await w.until(lambda: len(w.made) == 1)
        assert max(w.asked_by_turn.values()) == listener.ACCEPTS_PER_TURN_MAX * listener.TURN_AWAYS_PER_ACCEPT


@on_each_loop
async def test_a_system_out_of_files_is_asked_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "ACCEPT_PAUSE_MS", 1)

    async with world() as w:
        with ExitStack() as stack, capture_logs() as logs:
            connected(stack, w.port, 1)
            files = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, files[1]))
            try:
                async with asyncio.timeout(PATIENCE_S):
                    while len(logs) < 3:  # noqa: ASYNC110 - nobody tells of a line in the log
                        await asyncio.sleep(0)
                assert w.made == []
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, files)
            await w.until(lambda: len(w.made) == 1)
        assert {entry["event"] for entry in logs} == {"accept_failed"}


@on_each_loop
async def test_all_addresses_have_one_port() -> None:
    async with world("") as w:
        assert len(w.listener._sockets) == 1 + socket.has_ipv6
        with ExitStack() as stack:
            connected(stack, w.port, 1)
            peer = stack.enter_context(socket.socket(socket.AF_INET6))
            peer.connect(("::1", w.port))
            await w.until(lambda: len(w.made) == 2)


@on_each_loop
async def test_a_port_that_is_taken_is_an_error_and_leaves_nothing_open() -> None:
    async with world("::1" if socket.has_ipv6 else "127.0.0.1") as w:
        other = World()
        with pytest.raises(OSError, match="in use"):
            await other.listener.open("", w.port)
        assert other.listener._sockets == []


@on_each_loop
async def test_an_address_that_is_not_there_is_an_error() -> None:
    with pytest.raises(OSError, match="assign"):
        await World().listener.open("2001:db8::1", 0)

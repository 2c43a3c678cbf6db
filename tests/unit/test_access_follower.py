"""What a host knows of access when a change of it is told, and what becomes of readings that hang or are given up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Collection

import pytest

from foqs.host.access.book import AccessBook
from foqs.host.access.follower import AccessFollower
from foqs.model import limits
from foqs.model.access import AccessMode, AccessRows
from foqs.model.errors import UnavailableError
from tests.support.waiting import PATIENCE_S, until


class Tables:
    """A meta database whose readings stand still, after they have seen the rows, until `gate` is set."""

    def __init__(self) -> None:
        self.version = 1
        self.gate: threading.Event | None = None
        self.reads_count = 0
        self.error: UnavailableError | None = None

    def read(self, version: int, changed_at_ms: int) -> AccessRows | None:
        seen, self.reads_count = self.version, self.reads_count + 1
        if self.gate is not None:
            assert self.gate.wait(PATIENCE_S)
        if self.error is not None:
            raise self.error
        return None if seen == version else AccessRows(AccessMode.OPEN, seen, (), (), (), 0)

    def note_used(self, token_ids: Collection[str], used_at_ms: int) -> None:
        raise UnavailableError("no writes")


class World:
    def __init__(self) -> None:
        self.tables = Tables()
        self.book = AccessBook(self.tables, lambda: 0.0)
        self.follower = AccessFollower(self.book, lambda: 0.0)


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr(limits, "HEARTBEAT_MS", 1)
    found = World()
    await found.follower.start()
    yield found
    if found.tables.gate is not None:
        found.tables.gate.set()
    await found.follower.stop()


async def begun(world: World) -> threading.Event:
    """Let a reading stand still that has seen the rows already."""
    gate = world.tables.gate = threading.Event()
    count = world.tables.reads_count
    await until(lambda: world.tables.reads_count > count)
    return gate


async def test_whoever_has_changed_something_waits_for_a_reading_that_began_after_it(world: World) -> None:
    gate = await begun(world)
    world.tables.version = 2
    refreshing = asyncio.create_task(world.follower.refresh())
    await asyncio.sleep(0)
    world.tables.gate = None
    gate.set()
    await refreshing
    assert world.book.snapshot.version == 2


async def test_a_caller_that_gives_up_takes_nobody_elses_reading_with_it(world: World) -> None:
    gate = await begun(world)
    callers = [asyncio.create_task(world.follower.refresh()) for _ in range(3)]
    await asyncio.sleep(0)
    for caller in callers[:2]:
        caller.cancel()
    await asyncio.wait(callers[:2])
    world.tables.gate = None
    gate.set()
    await callers[2]
    world.tables.version = 3
    await until(lambda: world.book.snapshot.version == 3)


async def test_it_reads_on_after_an_outage_and_though_uses_cannot_be_written(world: World) -> None:
    world.tables.error = UnavailableError("away")
    count = world.tables.reads_count
    await until(lambda: world.tables.reads_count > count + 3)
    world.book._unwritten = (("token",), 7)
    world.tables.version, world.tables.error = 4, None
    await until(lambda: world.book.snapshot.version == 4)
    world.tables.version = 5
    await until(lambda: world.book.snapshot.version == 5)
    assert world.book._unwritten == (("token",), 7), "they are written once that is possible"

"""A host's heartbeats go on, whatever goes wrong between two of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from foqs.cluster.members.membership import Membership
from foqs.model import limits
from foqs.model.cluster import HostRow
from foqs.testing.manual_loop import ManualLoop
from tests.support.waiting import PATIENCE_S


class Backend:
    """It counts the heartbeats."""

    def __init__(self) -> None:
        self.beats_count = 0

    def beat(self, host: HostRow) -> list[HostRow]:
        self.beats_count += 1
        return [host]

    def join(self, host: HostRow) -> None: ...

    def announce(self, host: HostRow) -> None: ...

    def leave(self, host: HostRow) -> None: ...

    def close(self) -> None: ...


@pytest.fixture
def loop() -> Iterator[ManualLoop]:
    loop = ManualLoop()
    yield loop
    loop.close()


def test_heartbeats_go_on_when_the_pause_between_them_fails(loop: ManualLoop) -> None:
    backend = Backend()
    meta: Any = SimpleNamespace(shards=SimpleNamespace(read_all=list), hosts=None, close=lambda: None)

    def choose(count: int) -> int:
        raise ZeroDivisionError("no number between 0 and 0")

    membership = loop.call(
        lambda: Membership(cast(Any, backend), meta, HostRow("one", "", 1, 0), {}, loop.time, choose)
    )
    starting: asyncio.Task[None] = loop.call(loop.create_task, membership.start())
    loop.turn()
    assert starting.done()
    with capture_logs() as logs:
        for _ in range(10):
            loop.move_to(loop.time() + limits.HEARTBEAT_MS / 1000)
    assert backend.beats_count == 11, "one at the start, and then one in each period: no more for want of a pause"
    assert {entry["event"] for entry in logs} == {"host_defect"}
    loop.call(loop.create_task, membership.stop())
    loop.turn()


async def test_the_loop_turns_while_a_membership_stops_that_waits_for_the_meta_database() -> None:
    """Supervisors ask whether the host lives, and the other parts of it end meanwhile."""
    loop = asyncio.get_running_loop()
    is_hanging, is_to_answer = threading.Event(), threading.Event()

    def read_all() -> list[Any]:
        if is_started:
            is_hanging.set()
            is_to_answer.wait(2 * PATIENCE_S)
        return []

    is_started = False
    meta: Any = SimpleNamespace(shards=SimpleNamespace(read_all=read_all), hosts=None, close=lambda: None)
    membership = Membership(cast(Any, Backend()), meta, HostRow("one", "", 1, 0), {}, loop.time, lambda count: 0)
    await membership.start()
    is_started = True
    await asyncio.to_thread(is_hanging.wait, PATIENCE_S)
    turned: list[bool] = []

    def turn() -> None:
        turned.append(not is_to_answer.is_set())
        is_to_answer.set()

    loop.call_later(0.05, turn)
    bound = threading.Timer(PATIENCE_S, is_to_answer.set)
    bound.start()
    await membership.stop()
    bound.cancel()
    assert turned == [True]

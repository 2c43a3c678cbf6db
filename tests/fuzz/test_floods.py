"""The programs that measure the front door: their inputs are bounded work, their floods begin and end."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from foqs.model import limits
from foqs.transport.bounds import TransportLimits
from foqs.transport.tls.contexts import TlsFiles
from foqs.wire import frames
from foqs.wire.codec import LENGTH_BYTES, structs
from foqs.wire.frames import FrameError, scan_call
from loadtest.fuzz.floods import Row, floods, handshake_floods, median
from loadtest.fuzz.inputs import worst_inputs
from loadtest.fuzz.peers import Flood, Tally
from loadtest.fuzz.tls_door import TlsDoor, tls_door
from tests.support.front_door import World, world
from tests.support.loops import on_uvloop
from tests.support.tls_world import tls_world
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.deep

LINES_PER_ELEMENT = 20
HEALTHY_ADDRESS = "127.0.0.9"
"""No flood comes from there."""


@pytest.mark.interpreted
@pytest.mark.parametrize("name", [name for name in worst_inputs() if not name.startswith("a megabyte of")])
def test_the_scan_of_a_worst_input_is_bounded_work(name: str) -> None:
    message = worst_inputs()[name][LENGTH_BYTES:]
    lines = 0

    def count(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        if frame.f_code.co_filename != frames.__file__:
            return None
        lines += event == "line"
        return count

    tracer = sys.gettrace()
    sys.settrace(count)
    try:
        reason = _refusal(message)
    finally:
        sys.settrace(tracer)
    assert reason in (None, "elements")
    assert 0 < lines < LINES_PER_ELEMENT * limits.FRAME_ELEMENTS_MAX


def _refusal(message: bytes) -> str | None:
    try:
        scan_call(message, 0, len(message))
    except FrameError as error:
        return error.reason
    return None


def test_of_several_measurements_the_median_ratio_counts_and_every_failure() -> None:
    def row(p99_ms: float, *, failures: int = 0, stall_ms: float = 1.0) -> Row:
        return Row("flood", 1, 1, 1.0, 2.0, 1.0, p99_ms, 100, failures, stall_ms, 1.0, 1.0)

    of_three = median([row(30.0, stall_ms=7.0), row(3.9), row(3.0)])
    assert (of_three.ratio, of_three.ratios, of_three.stall_ms) == (1.95, (1.5, 1.95, 15.0), 7.0)
    assert not of_three.is_bad
    assert median([row(3.0), row(4.1), row(4.2)]).is_bad
    assert median([row(3.0, failures=1), row(3.0), row(3.0)]).is_bad


async def serves_until(w: World, condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            assert await w.is_healthy(HEALTHY_ADDRESS)


@pytest.mark.parametrize("flood", floods(), ids=lambda flood: flood.name)
@on_uvloop
async def test_a_flood_leaves_a_server_that_serves_and_nothing_behind(flood: Flood) -> None:
    async with world(TransportLimits(connections_per_address_max=5)) as w:
        tally = Tally()
        attack = asyncio.create_task(flood.run(w.server.port, tally))
        try:
            await serves_until(w, lambda: tally.opened >= 5)
            assert w.counts.open <= 5 * len(flood.addresses) + 1, "the healthy client is one more"
        finally:
            attack.cancel()
            await asyncio.gather(attack, return_exceptions=True)
        await serves_until(w, lambda: not tally.peers and w.counts.open <= 1)


@pytest.fixture(scope="module")
def door() -> Iterator[TlsDoor]:
    with tls_door() as made:
        yield made


def test_every_flood_of_handshakes_is_tried(door: TlsDoor) -> None:
    assert {flood.name for flood in handshake_floods(door)} <= set(BY_TLS)


BY_TLS = [
    "slow headers",
    "connections that come and go",
    "peers that never read",
    "pipelined enqueues",
    "bad frames",
    "handshakes that are slow",
    "handshakes that stop",
    "handshakes of 16 MiB that do not end",
    "handshakes that are none",
    "plain calls",
]


@pytest.mark.parametrize("name", BY_TLS)
@on_uvloop
async def test_a_flood_by_tls_leaves_a_server_that_serves_and_nothing_behind(door: TlsDoor, name: str) -> None:
    (flood,) = [one for one in [*floods(), *handshake_floods(door)] if one.name == name]
    tls = door.context()
    files = TlsFiles(cert_file=door.settings["tls_cert_file"], key_file=door.settings["tls_key_file"])
    async with tls_world(files, is_required=True, bounds=TransportLimits(connections_per_address_max=5)) as w:

        async def is_served() -> None:
            async with w.connect(HEALTHY_ADDRESS, tls=tls) as client:
                assert (await client.call("getHostStatus", structs.HostStatusRequest())).error is None

        tally = Tally()
        attack = asyncio.create_task(flood.run(w.server.port, tally, tls))
        try:
            async with asyncio.timeout(PATIENCE_S):
                while tally.opened < 5:
                    await is_served()
            assert w.counts.open <= 5 * len(flood.addresses) + 1, "the healthy client is one more"
        finally:
            attack.cancel()
            await asyncio.gather(attack, return_exceptions=True)
        async with asyncio.timeout(PATIENCE_S):
            while tally.peers or w.counts.open > 1:
                await is_served()

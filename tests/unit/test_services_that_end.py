"""Every service ends, whatever step of its start, its drain or its stop it is at: it leaves no task and no thread.

A host in memory has most of them. At each step of its event loop the caller gives up, or another one ends the host.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from unittest.mock import Mock

import pytest
from prometheus_client import CollectorRegistry

from foqs.background.service import Service, ServiceState
from foqs.console.poller import Poller
from foqs.console.reach import HostReach
from foqs.dev.local_authority import LocalAuthority
from foqs.host.event_log.log_service import EventLog, EventLogOptions, EventLogSource
from foqs.transport.operator_port import OperatorPort
from foqs.transport.server import ThriftServer
from foqs.transport.tls.certificates import Certificates
from foqs.transport.tls.contexts import TlsFiles
from tests.support.stepped_host import SteppedHost, all_awaited, stepped_host

PAUSE_S_AFTER = 5.0
"""The time for which nothing may happen any more, in seconds."""


def _new(one: SteppedHost) -> None:
    return None


def _started(one: SteppedHost) -> None:
    starting = one.begin(one.host.start())
    one.until_done(starting)
    starting.result()


def _drained(one: SteppedHost) -> None:
    _started(one)
    one.until_done(one.begin(one.host.drain()))


def _steps(prepare: Callable[[SteppedHost], None], work: str) -> int:
    """Return the number of steps that the work takes."""
    with stepped_host() as one:
        prepare(one)
        count = one.until_done(one.begin(getattr(one.host, work)()))
        assert _end(one) == []
    return count


def _end(one: SteppedHost) -> list[str]:
    """Stop the host, and return what is left of it."""
    stopping = one.begin(one.host.stop())
    one.until_done(stopping)
    stopping.result()
    until_s = one.loop.time() + PAUSE_S_AFTER
    while (when_s := one.loop.next_timer_s()) is not None and when_s < until_s:
        one.loop.step()
    one.loop.turn()
    return list(one.watch.problems(one.loop))


def _given_up(one: SteppedHost, task: asyncio.Task[None]) -> list[str]:
    task.cancel()
    one.until_done(task)
    assert task.cancelled()
    return _end(one)


def _stopped_beside(one: SteppedHost, task: asyncio.Task[None]) -> list[str]:
    left = _end(one)
    one.until_done(task)
    return left


@pytest.mark.parametrize("ends", [_given_up, _stopped_beside])
@pytest.mark.parametrize(
    ("prepare", "work"),
    [(_new, "start"), (_started, "drain"), pytest.param(_drained, "stop", marks=pytest.mark.deep)],
)
def test_a_host_that_ends_at_any_step_ends_with_all_its_services(
    prepare: Callable[[SteppedHost], None], work: str, ends: Callable[[SteppedHost, asyncio.Task[None]], list[str]]
) -> None:
    found: dict[int, list[str]] = {}
    with all_awaited():
        for steps_count in range(_steps(prepare, work)):
            with stepped_host() as one:
                prepare(one)
                task = one.begin(getattr(one.host, work)())
                one.go(steps_count)
                if left := ends(one, task):
                    found[steps_count] = left
    assert found == {}


def _event_log(directory: Path) -> Service:
    source = EventLogSource(lambda number: None, lambda number: 1_000, dict)
    return EventLog(EventLogOptions("host", directory, 1 << 20, 1), source)


def _operator_port(_: Path) -> Service:
    return OperatorPort("127.0.0.1", 0, {}, CollectorRegistry())


def _server(_: Path) -> Service:
    return ThriftServer(Mock(), namespaces=Mock(), metrics=Mock(), address="127.0.0.1", port=0)


def _certificates(directory: Path) -> Service:
    authority = LocalAuthority(directory)
    authority.prepare(datetime.now(UTC))
    files = TlsFiles(cert_file=str(authority.cert_file), key_file=str(authority.key_file))
    return Certificates(files, lambda: time.time_ns() // 1_000_000)


def _poller(_: Path) -> Service:
    """No host answers it."""
    return Poller(HostReach({"addresses": "127.0.0.1:1"}), lambda: 0)


@pytest.mark.parametrize("make", [_event_log, _operator_port, _server, _certificates, _poller])
async def test_a_service_with_threads_or_sockets_ends_at_any_turn_of_its_start(
    make: Callable[[Path], Service], tmp_path: Path
) -> None:
    threads = set(threading.enumerate())
    for turns_count in range(8):
        service = make(tmp_path)
        starting = asyncio.create_task(service.start())
        for _ in range(turns_count):
            await asyncio.sleep(0)
        starting.cancel()
        await asyncio.wait([starting])
        if not starting.cancelled():
            await service.drain()
        await service.stop()
        await service.stop()
        assert service.state is ServiceState.STOPPED
        assert len(service._tasks) == 0
    left = [one.name for one in set(threading.enumerate()) - threads if not one.name.startswith("asyncio_")]
    assert left == []


def _subclasses(of: type[Service]) -> Iterator[type[Service]]:
    for one in of.__subclasses__():
        if one.__module__.startswith("foqs."):
            yield one
        yield from _subclasses(one)


def test_no_service_is_left_out() -> None:
    with stepped_host() as one:
        _started(one)
        ended = {type(service) for service in one.watch.services}
        assert _end(one) == []
    assert set(_subclasses(Service)) == ended | {Certificates, EventLog, OperatorPort, Poller, ThriftServer}

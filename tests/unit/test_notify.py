"""What a supervisor hears of a host, by the datagrams of sd_notify."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from foqs.notify import BEAT_MS_MAX, Notifier


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[socket.socket]:
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as bound:
        bound.bind(str(tmp_path / "notify"))
        bound.setblocking(False)
        yield bound


def _heard(supervisor: socket.socket) -> list[str]:
    reports = []
    while True:
        try:
            reports.append(supervisor.recv(4_096).decode())
        except BlockingIOError:
            return reports


def _notifier(supervisor: socket.socket, watchdog_us: int = 0) -> Notifier:
    return Notifier(supervisor.getsockname(), watchdog_us)


def test_a_life_is_reported(supervisor: socket.socket) -> None:
    notifier = _notifier(supervisor)
    notifier.beat("the host is starting")
    notifier.beat("the host is starting")
    notifier.serves("serves 4 shards")
    notifier.beat("serves 4 shards")
    notifier.reloads()
    notifier.serves("serves\n4 shards")
    notifier.stops("SIGTERM")
    heard = _heard(supervisor)
    reload = heard.pop(4)
    assert heard == [
        "WATCHDOG=1\nSTATUS=the host is starting",
        "WATCHDOG=1",
        "READY=1\nSTATUS=serves 4 shards",
        "WATCHDOG=1",
        "READY=1\nSTATUS=serves 4 shards",
        "STOPPING=1\nSTATUS=drains and stops: SIGTERM",
    ]
    state, monotonic, status = reload.splitlines()
    assert (state, status) == ("RELOADING=1", "STATUS=reloads its configuration")
    assert monotonic.partition("=")[0] == "MONOTONIC_USEC"
    assert int(monotonic.partition("=")[2]) > 0


def test_the_address_can_be_abstract() -> None:
    name = f"foqs-notify-{os.getpid()}"
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as bound:
        bound.bind(f"\0{name}")
        bound.setblocking(False)
        Notifier(f"@{name}").serves("serves")
        assert _heard(bound) == ["READY=1\nSTATUS=serves"]


def test_a_host_beats_twice_within_the_time_of_its_watchdog() -> None:
    assert Notifier("/x", 4_000_000).beat_ms == 2_000
    assert Notifier("/x", 60_000_000).beat_ms == BEAT_MS_MAX
    assert Notifier("/x").beat_ms == BEAT_MS_MAX
    assert Notifier("/x", 1).beat_ms == 1


def test_the_variables_are_taken_out_so_that_children_do_not_report() -> None:
    environment = {"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "4000000", "WATCHDOG_PID": "7", "HOME": "/"}
    assert Notifier.from_environment(environment, 7).beat_ms == 2_000
    assert environment == {"HOME": "/"}
    for watched in ({"WATCHDOG_USEC": "4000000", "WATCHDOG_PID": "8"}, {"WATCHDOG_USEC": "soon"}, {}):
        assert Notifier.from_environment(dict(watched), 7).beat_ms == BEAT_MS_MAX, watched


def test_without_a_supervisor_nothing_is_reported_and_nothing_fails() -> None:
    with capture_logs() as logged:
        notifier = Notifier.from_environment({}, 7)
        notifier.serves("serves")
        notifier.beat("serves")
    assert logged == []


def test_a_report_that_the_supervisor_could_not_take_is_repeated_with_the_next_beat(supervisor: socket.socket) -> None:
    notifier = _notifier(supervisor)
    count = 0
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as other:
        other.setblocking(False)
        with suppress(BlockingIOError):
            while count < 10_000:
                other.sendto(b"x", supervisor.getsockname())
                count += 1
    assert count < 10_000, "its queue is full"
    with capture_logs() as logged:
        notifier.serves("serves")
        notifier.beat("serves")
        notifier.beat("serves")
    assert [event["event"] for event in logged] == ["supervisor_not_notified"], "once, however often it fails"
    assert _heard(supervisor) == ["x"] * count
    notifier.beat("serves")
    notifier.beat("serves")
    assert _heard(supervisor) == ["READY=1\nSTATUS=serves", "WATCHDOG=1", "WATCHDOG=1"]


def test_a_supervisor_that_is_gone_does_not_end_the_host() -> None:
    with capture_logs() as logged:
        Notifier("/nowhere/notify").serves("serves")
    assert logged[0]["log_level"] == "warning"

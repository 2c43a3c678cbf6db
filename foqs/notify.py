"""The reports of a host to the supervisor that asked for them by NOTIFY_SOCKET, as systemd does (sd_notify)."""

from __future__ import annotations

import socket
import time
from collections.abc import MutableMapping
from typing import Final

import structlog

from foqs.model import limits

BEAT_MS_MAX: Final = 5 * limits.SECOND_MS
"""The longest time between two beats of a host that has a supervisor."""

_VARIABLES: Final = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")

_log = structlog.get_logger(__name__)


class Notifier:
    """Reports that a host serves, reloads, stops and lives. Without a supervisor it reports nothing.

    A report never waits, because it is made on the event loop. One that the supervisor could not take is repeated with
    the next beat.
    """

    def __init__(self, address: str = "", watchdog_us: int = 0) -> None:
        """`address` is that of the supervisor's socket; one that begins with @ is abstract.

        `watchdog_us` is the time without a beat after which the supervisor ends the host; 0 if it does not.
        """
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self.beat_ms = min(BEAT_MS_MAX, max(1, watchdog_us // 2_000)) if watchdog_us else BEAT_MS_MAX
        """The time between two beats."""
        self._status = ""
        self._unsent = ""
        """The last report if the supervisor did not take it, else empty."""

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str], process_number: int) -> Notifier:
        """Take the variables of the supervisor out of an environment, so that no child reports in place of the host."""
        address, watchdog_us, watched = (environment.pop(name, "") for name in _VARIABLES)
        is_watched = watchdog_us.isdecimal() and watched in ("", str(process_number))
        return cls(address, int(watchdog_us) if is_watched else 0)

    def serves(self, status: str) -> None:
        """Report that the host has started, or has reloaded."""
        self._send("READY=1", status)

    def reloads(self) -> None:
        """Report that the host reads its configuration; `serves` ends this."""
        now_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1_000
        self._send(f"RELOADING=1\nMONOTONIC_USEC={now_us}", "reloads its configuration")

    def stops(self, reason: str) -> None:
        """Report that the host drains and stops."""
        self._send("STOPPING=1", f"drains and stops: {reason}")

    def beat(self, status: str) -> None:
        """Report that the event loop turns, and the status of the host if it is another one."""
        if self._unsent:
            self._deliver(self._unsent)
        if status != self._status:
            self._send("WATCHDOG=1", status)
        elif not self._unsent:
            self._deliver("WATCHDOG=1")

    def _send(self, state: str, status: str) -> None:
        self._status = status
        self._deliver(f"{state}\nSTATUS={' '.join(status.split())}")

    def _deliver(self, report: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as way:
                way.setblocking(False)
                way.sendto(report.encode(), self._address)
        except OSError as error:
            if not self._unsent:
                _log.warning("supervisor_not_notified", report=report, error=str(error))
            self._unsent = report
        else:
            self._unsent = ""

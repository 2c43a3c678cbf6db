"""What the worst inputs of up to a megabyte cost a host: its event loop's longest turn, and its memory."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from foqs.model import limits
from loadtest.fuzz.inputs import worst_inputs
from loadtest.fuzz.watched import WatchedHost

STALL_MS_MAX = 50.0
GROWTH_MIB_MAX = 2 * limits.FRAME_BYTES_MAX / limits.MIB
REPEATS = 3
_QUIET_S = 0.15
_INPUT_S_MAX = 8.0
"""So long an input's answers are read: a megabyte of small calls may be gigabytes of answers."""


_SILENCE_S = 1.0


@dataclass(frozen=True, slots=True)
class Stall:
    name: str
    input_bytes: int
    stall_ms: float
    lag_ms: float
    growth_mib: float

    @property
    def is_bad(self) -> bool:
        return self.stall_ms > STALL_MS_MAX or self.growth_mib > GROWTH_MIB_MAX


def is_meant(name: str, only: Sequence[str]) -> bool:
    """Whether the name has one of these parts, or there are none."""
    return not only or any(part in name for part in only)


async def measure(host: WatchedHost, only: Sequence[str] = (), tls: ssl.SSLContext | None = None) -> list[Stall]:
    """Each input by itself, some times over; the worst of each. With `tls` it is sent encrypted."""
    found = []
    for name, data in worst_inputs().items():
        if not is_meant(name, only):
            continue
        before = host.look().rss_mib
        stall_ms = lag_ms = most_mib = 0.0
        for _ in range(REPEATS):
            await _send(host.port, data, tls)
            await asyncio.sleep(_QUIET_S)
            seen = host.look()
            stall_ms, lag_ms = max(stall_ms, seen.stall_ms), max(lag_ms, seen.lag_ms)
            most_mib = max(most_mib, seen.rss_mib_max)
        found.append(Stall(name, len(data), stall_ms, lag_ms, most_mib - before))
    return found


async def _send(port: int, data: bytes, tls: ssl.SSLContext | None) -> None:
    """Send all at once, read what comes until the host has nothing more to say."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
    writer.write(data)
    try:
        async with asyncio.timeout(_INPUT_S_MAX):
            if tls is None:
                writer.write_eof()
                while await reader.read(1 << 16):
                    pass
            else:  # TLS has no half-close: the host waits for more, so its silence ends the answers.
                await writer.drain()
                while await asyncio.wait_for(reader.read(1 << 16), _SILENCE_S):
                    pass
    except OSError:
        return
    finally:
        writer.transport.abort()


def table(stalls: list[Stall]) -> Table:
    found = Table(
        "input", "bytes", "longest turn, ms", "lag, ms", "memory, MiB", title="worst inputs: the host's event loop"
    )
    for stall in sorted(stalls, key=lambda stall: -stall.stall_ms):
        mark = "[red]" if stall.is_bad else ""
        found.add_row(
            mark + stall.name,
            f"{stall.input_bytes:,}",
            f"{stall.stall_ms:.1f}",
            f"{stall.lag_ms:.1f}",
            f"{stall.growth_mib:+.1f}",
        )
    return found

"""`python -m loadtest.fuzz.connections`: what an idle connection costs a host of memory, plain and by TLS.

Each connection has made one call. Two client processes hold them; a host of its own serves each kind.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import resource
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import click
import uvloop
from rich.console import Console
from rich.table import Table

from foqs.wire.codec import LENGTH_BYTES, Codec, structs
from loadtest.fuzz.tls_door import TlsDoor, tls_door
from loadtest.fuzz.watched import WatchedHost, raise_file_limit, watched_host

TLS_BYTES_MAX = 60_000
"""Above a plain connection."""
PROCESSES = 2
ADDRESSES_PER_PROCESS = 2
_OPENING_AT_ONCE = 20
_TRIES = 20
"""For a connection: while the machine does much else, one may not come to its first call in time."""
_SPARE_CONNECTIONS = 100
_SPARE_FILES = 500
_OPEN_S_MAX = 600.0
_END_S_MAX = 60.0
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Held:
    """What `connections` idle connections of one kind added to a host."""

    kind: str
    connections: int
    before_mib: float
    after_mib: float

    @property
    def bytes_each(self) -> float:
        return (self.after_mib - self.before_mib) * _MIB / self.connections


def fitting(wanted: int) -> int:
    """As many of them as the files of one host allow here."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(wanted, hard - _SPARE_FILES)


def measure(count: int, door: TlsDoor | None) -> Held:
    """Hold so many connections to a new host, by TLS if there is a `door`."""
    with watched_host(door=door, settings={"connections_max": count + _SPARE_CONNECTIONS}) as host:
        # The first ones bring in what all of them share.
        with held(host, _OPENING_AT_ONCE, door):
            pass
        before_mib = host.look().rss_mib
        with held(host, count, door):
            after_mib = host.look().rss_mib
    return Held("TLS 1.3" if door else "plain", count, before_mib, after_mib)


@contextmanager
def held(host: WatchedHost, count: int, door: TlsDoor | None) -> Iterator[None]:
    """So many connections, which have been answered, until the end of the block."""
    context = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        pipes = []
        for number in range(PROCESSES):
            share = len(range(number, count, PROCESSES))
            here, there = context.Pipe()
            process = context.Process(target=_hold, args=(there, host.port, share, number, door))
            process.start()
            there.close()
            stack.callback(process.join, _END_S_MAX)
            stack.callback(here.close)
            pipes.append((here, share))
        for here, share in pipes:
            if not here.poll(_OPEN_S_MAX) or here.recv() != share:
                raise SystemExit(f"not all of {share} connections were answered within {_OPEN_S_MAX:.0f} s")
        yield


def _hold(pipe: Connection, port: int, count: int, number: int, door: TlsDoor | None) -> None:
    raise_file_limit()
    uvloop.run(_hold_all(pipe, port, count, number, door))


async def _hold_all(pipe: Connection, port: int, count: int, number: int, door: TlsDoor | None) -> None:
    loop = asyncio.get_running_loop()
    turns = asyncio.Semaphore(_OPENING_AT_ONCE)
    tls = None if door is None else door.context()
    frame = Codec().encode_call("whoAmI", structs.WhoAmIRequest(), 1)
    writers = []

    async def open_one(at: int) -> None:
        address = f"127.0.0.{2 + number * ADDRESSES_PER_PROCESS + at % ADDRESSES_PER_PROCESS}"
        async with turns:
            for _ in range(_TRIES):
                with suppress(OSError, asyncio.IncompleteReadError):
                    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls, local_addr=(address, 0))
                    writer.write(frame)
                    await reader.readexactly(int.from_bytes(await reader.readexactly(LENGTH_BYTES), "big"))
                    writers.append(writer)
                    return

    await asyncio.gather(*map(open_one, range(count)))
    pipe.send(sum(not writer.is_closing() for writer in writers))
    ended = asyncio.Event()
    loop.add_reader(pipe.fileno(), ended.set)
    await ended.wait()
    loop.remove_reader(pipe.fileno())
    for writer in writers:
        writer.transport.abort()


def table(found: list[Held]) -> Table:
    shown = Table("connections", "count", "host before, MiB", "host with them, MiB", "each, bytes")
    for one in found:
        figures = (f"{one.before_mib:.1f}", f"{one.after_mib:.1f}", f"{one.bytes_each:,.0f}")
        shown.add_row(one.kind, f"{one.connections:,}", *figures)
    return shown


@click.command()
@click.option("--count", default=10_000, show_default=True, help="Connections of each kind.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write all figures there.")
def main(count: int, json_path: Path | None) -> None:
    """Measure the memory of idle connections; exits with 1 when one by TLS has too much above a plain one."""
    console = Console()
    raise_file_limit()
    if (fits := fitting(count)) < count:
        console.print(f"{fits:,} instead of {count:,} connections, because a process has no more files here")
    with tls_door() as door:
        plain, encrypted = measure(fits, None), measure(fits, door)
    above = encrypted.bytes_each - plain.bytes_each
    console.print(table([plain, encrypted]))
    console.print(f"TLS above plain: {above:,.0f} bytes each, at most {TLS_BYTES_MAX:,}", highlight=False)
    if json_path is not None:
        json_path.parent.mkdir(parents=True, exist_ok=True)
        json_path.write_text(json.dumps({"held": [asdict(plain), asdict(encrypted)], "above_bytes": above}, indent=1))
    sys.exit(above > TLS_BYTES_MAX)


if __name__ == "__main__":
    main()

"""`python -m loadtest.fuzz.floods`: the worst inputs and floods of connections against a real host.

A good client works all the while: its p99 in the flood against the one just before. The host has half of the cores to
itself; its database, the good client and the flood have the other half, and there the flood runs only when nobody else
wants to: elsewhere it would have processors of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import sys
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import click
import uvloop
from rich.console import Console
from rich.table import Table

from foqs.model import limits
from foqs.wire.codec import structs
from loadtest.cores import Cores
from loadtest.fuzz import stalls
from loadtest.fuzz.good_client import GOOD_ADDRESS, GoodClient, Seen, good_client
from loadtest.fuzz.inputs import call
from loadtest.fuzz.peers import Flood, Tally
from loadtest.fuzz.tls_door import TlsDoor, tls_door
from loadtest.fuzz.watched import NAMESPACE, OTHER_NAMESPACE, WatchedHost, raise_file_limit, watched_host
from tests.support.tls_world import hello_of

RATIO_MAX = 2.0
SETTLE_S = 2.0
OPENING_S_MAX = 20.0
_STREAM_BYTES = 64 * limits.KIB
_INVENTED_COUNT = 500


@dataclass(frozen=True, slots=True)
class Row:
    """`kept` of the flood's connections were open at the end; memory is what the host's grew by at most.

    Of several measurements: that with the median ratio, the ratios of all, their failures, and the worst of the host.
    """

    name: str
    connections: int
    kept: int
    p50_before_ms: float
    p99_before_ms: float
    p50_ms: float
    p99_ms: float
    calls: int
    failures: int
    stall_ms: float
    lag_ms: float
    growth_mib: float
    ratios: tuple[float, ...] = ()

    @property
    def ratio(self) -> float:
        return self.p99_ms / self.p99_before_ms

    @property
    def is_bad(self) -> bool:
        return bool(self.failures) or self.ratio > RATIO_MAX


def median(rows: list[Row]) -> Row:
    """Each measurement lasts seconds, and one moment in which the machine stands still is its p99."""
    ordered = sorted(rows, key=lambda row: row.ratio)
    return replace(
        ordered[len(ordered) // 2],
        failures=sum(row.failures for row in rows),
        stall_ms=max(row.stall_ms for row in rows),
        lag_ms=max(row.lag_ms for row in rows),
        growth_mib=max(row.growth_mib for row in rows),
        ratios=tuple(row.ratio for row in ordered),
    )


def floods() -> list[Flood]:
    s = structs
    item = s.NewItem("flood", b"x" * 100)
    enqueue = call("enqueue", s.EnqueueRequest(NAMESPACE, [item]))
    bad = call("enqueue", s.EnqueueRequest(NAMESPACE, [s.NewItem("\x01" * 200, b"x")] * limits.BATCH_ITEMS_MAX))
    topics = [s.TopicDemand(f"none-{number}", 1) for number in range(limits.DEQUEUE_TOPICS_MAX)]
    long_poll = call("dequeue", s.DequeueRequest(NAMESPACE, topics, None, limits.WAIT_MS_MAX))
    nobody = b"\0\0\0\x0e\x80\x01\0\1\0\0\0\1m\0\0\0\1\0"
    invented = b"".join(
        [call("enqueue", s.EnqueueRequest(f"invented-{number}", [item])) for number in range(_INVENTED_COUNT)]
    )
    other = call("enqueue", s.EnqueueRequest(OTHER_NAMESPACE, [item]))
    status = call("getHostStatus", s.HostStatusRequest())
    header = limits.FRAME_BYTES_MAX.to_bytes(4, "big")
    three = ("127.0.0.2", "127.0.0.3", "127.0.0.4")

    def stream(frame: bytes) -> bytes:
        return frame * max(1, _STREAM_BYTES // len(frame))

    return [
        Flood(name="slow headers", count=2_000, first=b"\0", drip=b"\0"),
        Flood(name="slow bodies", count=2_000, first=header + b"x" * 1_000, drip=b"x" * 10),
        Flood(name="large frames that do not end", count=500, first=header + b"x" * limits.MIB),
        Flood(name="10,000 connections of one address", count=10_000),
        Flood(name="12,000 connections of three addresses", count=12_000, addresses=three),
        Flood(name="connections that come and go", count=100, hangs_up=True),
        Flood(name="peers that never read", count=200, stream=stream(status), reads=False),
        Flood(name="pipelined calls of no method", count=50, stream=stream(nobody)),
        Flood(name="pipelined enqueues", count=50, stream=stream(enqueue)),
        Flood(name="pipelined batches of 1,000 bad items", count=20, stream=bad),
        Flood(name="long polls on 1,000 topics each", count=200, stream=long_poll),
        Flood(name="bad frames", count=100, first=b"\0\0\0\1\0"),
        Flood(name="enqueues to invented namespaces", count=50, stream=invented),
        Flood(name="two namespaces behind one address", count=50, addresses=(GOOD_ADDRESS,), stream=stream(other)),
    ]


def handshake_floods(door: TlsDoor) -> list[Flood]:
    """Of connections that do not come to be encrypted."""
    hello = hello_of(door.context())
    enqueue = call("enqueue", structs.EnqueueRequest(NAMESPACE, [structs.NewItem("flood", b"x" * 100)]))
    endless = b"\x16\x03\x01\x40\x00\x01\xff\xff\xff" + b"x" * 0x3FFC
    return [
        Flood(name="handshakes that are slow", count=2_000, first=hello[:5], drip=hello[5:6], below_tls=True),
        Flood(name="handshakes that stop", count=2_000, first=hello, below_tls=True),
        Flood(name="handshakes of 16 MiB that do not end", count=500, first=endless, below_tls=True),
        Flood(name="handshakes that are none", count=100, first=b"\x16\x03\x01\x00\x05wrong", below_tls=True),
        Flood(name="plain calls", count=100, first=enqueue, below_tls=True),
    ]


async def measure(
    flood: Flood,
    host: WatchedHost,
    client: GoodClient,
    seconds: float,
    settle_s: float = SETTLE_S,
    tls: ssl.SSLContext | None = None,
) -> Row:
    """The good client's calls for so many seconds before and in the flood, whose connections speak TLS with `tls`."""
    await _look_at(client)
    await asyncio.sleep(seconds)
    before = await _look_at(client)
    rss_mib = (await asyncio.to_thread(host.look)).rss_mib
    tally = Tally(flood.count)
    attack = asyncio.create_task(flood.run(host.port, tally, tls))
    try:
        with suppress(TimeoutError):
            await asyncio.wait_for(tally.all_opened.wait(), OPENING_S_MAX)
        await asyncio.sleep(settle_s)
        await _look_at(client)
        await asyncio.sleep(seconds)
        seen = await _look_at(client)
        watch = await asyncio.to_thread(host.look)
        kept = len(tally.peers)
    finally:
        attack.cancel()
        await asyncio.gather(attack, return_exceptions=True)
    return Row(
        flood.name,
        tally.opened,
        kept,
        before.p50_ms,
        before.p99_ms,
        seen.p50_ms,
        seen.p99_ms,
        seen.count,
        seen.failures,
        watch.stall_ms,
        watch.lag_ms,
        watch.rss_mib_max - rss_mib,
    )


async def _look_at(client: GoodClient) -> Seen:
    return await asyncio.to_thread(client.look)


def told(row: Row) -> str:
    return f"{row.name}: p99 {row.p99_before_ms:.2f} ms before, {row.p99_ms:.2f} ms in it, ratio {row.ratio:.2f}"


def table(rows: list[Row]) -> Table:
    found = Table(
        "flood",
        "opened",
        "kept",
        "p50 before",
        "p99 before",
        "p50 in it",
        "p99 in it",
        "ratio",
        "of all",
        "calls",
        "failed",
        "turn, ms",
        "lag, ms",
        "memory, MiB",
        title="floods: a good client's latency in ms, and the host",
    )
    for row in rows:
        mark = "[red]" if row.is_bad else ""
        found.add_row(
            mark + row.name,
            f"{row.connections:,}",
            f"{row.kept:,}",
            *[f"{value:.2f}" for value in (row.p50_before_ms, row.p99_before_ms, row.p50_ms, row.p99_ms, row.ratio)],
            " ".join(f"{ratio:.2f}" for ratio in row.ratios),
            f"{row.calls:,}",
            str(row.failures),
            f"{row.stall_ms:.1f}",
            f"{row.lag_ms:.1f}",
            f"{row.growth_mib:+.1f}",
        )
    return found


@click.command()
@click.option("--only", multiple=True, help="Floods and inputs whose name has this in it, or another one of these.")
@click.option("--seconds", default=6.0, show_default=True, help="How long each flood is measured, and the time before.")
@click.option(
    "--runs", type=click.IntRange(min=1), default=3, show_default=True, help="Of each; the median ratio counts."
)
@click.option("--inputs/--no-inputs", default=True, show_default=True, help="The worst inputs, before the floods.")
@click.option("--tls", "is_by_tls", is_flag=True, help="A host that requires TLS, and floods of handshakes as well.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write all figures there.")
def main(
    only: tuple[str, ...], seconds: float, runs: int, inputs: bool, is_by_tls: bool, json_path: Path | None
) -> None:
    """Measure the front door; exits with 1 when an input stalls the host or the good client fails or is held up."""
    console = Console(width=170)
    raise_file_limit()
    found: list[stalls.Stall] = []
    rows: list[Row] = []
    with tls_door() if is_by_tls else nullcontext() as door:
        tls = None if door is None else door.context()
        if inputs:
            with watched_host(door=door) as host:
                found = uvloop.run(stalls.measure(host, only, tls))
            console.print(stalls.table(found))
        with Cores() as cores:
            cores.go_on_with_clients()
            options = {} if door is None else door.client_options
            with watched_host(cores, door) as host, good_client(host.port, options) as client:
                os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
                for flood in [*floods(), *(handshake_floods(door) if door else [])]:
                    if stalls.is_meant(flood.name, only):
                        measured = [uvloop.run(measure(flood, host, client, seconds, tls=tls)) for _ in range(runs)]
                        rows.append(median(measured))
                        console.print(told(rows[-1]))
    console.print(table(rows))
    if json_path is not None:
        figures = {"inputs": [asdict(stall) for stall in found], "floods": [asdict(row) for row in rows]}
        json_path.write_text(json.dumps(figures, indent=1))
    sys.exit(any(stall.is_bad for stall in found) or any(row.is_bad for row in rows))


if __name__ == "__main__":
    main()

"""`python -m loadtest.fuzz.port --frames N --seed S`: mutated frames at the port of a running host.

Frames are sent whole, in pieces, in a row, cut off, with a wrong length and without one, and their connections end in
every way.
After each batch a well-behaved client must be answered; the host must not die, hang, or keep what it was sent.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import click
import uvloop
from rich.console import Console
from rich.table import Table

from foqs.client.aio import AsyncAdminClient, AsyncClient
from foqs.client.retry import RetryPolicy
from foqs.model.errors import ErrorCode, FoqsError
from foqs.transport.unframed import UNFRAMED_EXCEPTION
from foqs.wire.codec import LENGTH_BYTES, UNKNOWN_METHOD, Codec
from foqs.wire.frames import FrameError, scan_call
from loadtest.fuzz.corpus import seed_answers, seed_messages
from loadtest.fuzz.judge import STALL_S_MAX
from loadtest.fuzz.mutations import Mutator
from loadtest.fuzz.watched import NAMESPACE, WatchedHost, WatchedHostError, watched_host

BATCH_FRAMES = 2_000
CONNECTIONS = 16
FRAMES_PER_CONNECTION = 40
PASSING_SHARE = 0.95
UNFRAMED_SHARE = 0.05
"""Of the connections: their first message comes without a frame, and is answered without one."""
GROWTH_MIB_MAX = 64.0
"""From the second batch to the last; what the fuzzer enqueues by the way is held in memory up to a bound."""
ANSWER_S_MAX = 30.0
_ONCE = RetryPolicy(deadline_ms=0)


@dataclass
class Findings:
    frames: int = 0
    connections: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    stall_ms: float = 0.0
    rss_mib: list[float] = field(default_factory=list)
    defects: list[str] = field(default_factory=list)

    @property
    def growth_mib(self) -> float:
        return self.rss_mib[-1] - self.rss_mib[min(1, len(self.rss_mib) - 1)] if self.rss_mib else 0.0


async def fuzz(
    port: int,
    frames: int,
    seed: int,
    *,
    look: Callable[[], Awaitable[tuple[float, float]]],
    batch_frames: int = BATCH_FRAMES,
) -> Findings:
    """Send so many frames to the host at `port`; `look` tells its longest turn in ms and its memory in MiB.

    Stops at the first batch with a defect.
    """
    findings = Findings()
    seeds = seed_messages() + seed_answers()
    batch = 0
    while findings.frames < frames and not findings.defects:
        count = min(batch_frames, frames - findings.frames)
        workers = [_Worker(port, (seed, batch, number), seeds, findings) for number in range(CONNECTIONS)]
        shares = [count // CONNECTIONS + (number < count % CONNECTIONS) for number in range(CONNECTIONS)]
        await asyncio.gather(*[worker.run(share) for worker, share in zip(workers, shares, strict=True)])
        where = f"seed {seed} batch {batch}"
        try:
            await _use(port)
            stall_ms, rss_mib = await look()
        except (FoqsError, WatchedHostError, OSError, TimeoutError) as error:
            findings.defects.append(f"{where}: the host does not serve: {error!r}")
            break
        findings.stall_ms = max(findings.stall_ms, stall_ms)
        findings.rss_mib.append(rss_mib)
        if stall_ms > STALL_S_MAX * 1000:
            findings.defects.append(f"{where}: a turn of the event loop took {stall_ms:.0f} ms")
        batch += 1
    if findings.growth_mib > GROWTH_MIB_MAX:
        findings.defects.append(f"the host's memory grew by {findings.growth_mib:.0f} MiB")
    return findings


async def _use(port: int) -> None:
    """An item's whole life, and an end to what the fuzzer has made."""
    address = f"127.0.0.1:{port}"
    async with asyncio.timeout(ANSWER_S_MAX), AsyncAdminClient(address, retry=_ONCE) as admin:
        await admin.host_status()
        names = [namespace.name async for namespace in admin.list_namespaces()]
        if NAMESPACE not in names:
            await admin.create_namespace(NAMESPACE)
        # What was paused or made narrow by chance is brought back.
        await admin.update_namespace(
            NAMESPACE, enqueue_paused=False, dequeue_paused=False, batch_items_max=1_000, payload_bytes_max=10_240
        )
        async with AsyncClient(address, retry=_ONCE) as client:
            item_id = await client.enqueue(NAMESPACE, "good", b"good")
            items = await client.dequeue(NAMESPACE, "good", wait_ms=5_000)
            if [item.id for item in items] != [item_id]:
                raise WatchedHostError(f"enqueued {item_id}, dequeued {items}")
            errors = await client.ack(NAMESPACE, items, return_errors=True)
            if errors:
                raise WatchedHostError(f"not acked: {errors}")


class _Worker:
    """One connection after the other."""

    def __init__(self, port: int, seed: object, seeds: list[bytes], findings: Findings) -> None:
        self._port = port
        self._chance = random.Random(repr(seed))
        self._mutator = Mutator(seed, seeds)
        self._findings = findings
        self._codec = Codec()

    async def run(self, frames: int) -> None:
        while frames > 0:
            count = min(frames, self._chance.randrange(1, FRAMES_PER_CONNECTION))
            frames -= count
            self._findings.connections += 1
            try:
                async with asyncio.timeout(ANSWER_S_MAX):
                    await self._connection(count)
            except (ConnectionError, OSError):
                self._findings.answers["connection reset"] += 1
            except TimeoutError:
                self._findings.defects.append("a connection was neither answered nor closed")

    async def _connection(self, count: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            reading = asyncio.create_task(self._read(reader))
            if self._chance.random() < UNFRAMED_SHARE:
                await self._send(writer, self._mutator.message())
            for _ in range(count):
                if reading.done():
                    break
                await self._send(writer, self._frame())
                self._findings.frames += 1
            if self._chance.random() < 0.1:
                writer.transport.abort()
            elif not writer.transport.is_closing():
                writer.write_eof()
            await reading
        finally:
            writer.transport.abort()

    def _frame(self) -> bytes:
        """Most are calls that the scan lets pass: what it does not ends the connection, and those behind it with it."""
        message = self._mutator.message()
        if self._chance.random() < PASSING_SHARE:
            while not _passes(message):
                message = self._mutator.message()
            return len(message).to_bytes(LENGTH_BYTES, "big") + message
        length = len(message)
        if self._chance.random() < 0.2:
            length = max(0, length + self._chance.choice((-100, -1, 1, 5, 1 << 20, 1 << 31)))
        return length.to_bytes(LENGTH_BYTES, "big") + message

    async def _send(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        if self._chance.random() < 0.2:
            at = self._chance.randrange(len(data))
            writer.write(data[:at])
            await writer.drain()
            await asyncio.sleep(0)
            data = data[at:]
        writer.write(data)
        if self._chance.random() < 0.5:
            await writer.drain()
            await asyncio.sleep(0)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        """Every byte that comes must be an answer by contract."""
        try:
            header = await reader.readexactly(LENGTH_BYTES)
            if header == UNFRAMED_EXCEPTION:
                self._judge(header + await reader.read())
            else:
                while self._judge(await reader.readexactly(int.from_bytes(header, "big"))):
                    header = await reader.readexactly(LENGTH_BYTES)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        self._findings.answers["closed"] += 1

    def _judge(self, message: bytes) -> bool:
        """Whether it is an answer, and another one may follow."""
        answers = self._findings.answers
        try:
            reply = self._codec.decode_reply(message)
        except FrameError as error:
            self._findings.defects.append(f"an answer that is none: {error}")
            return False
        if reply.error is None:
            answers["OK"] += 1
        elif isinstance(reply.error, FoqsError):
            answers[reply.error.code.name] += 1
            if reply.error.code is ErrorCode.INTERNAL:
                self._findings.defects.append(f"INTERNAL: {reply.error.message}")
        else:
            answers["unknown method" if reply.error.kind == UNKNOWN_METHOD else "told to use frames"] += 1
        return True


def _passes(message: bytes) -> bool:
    try:
        scan_call(message, 0, len(message))
    except FrameError:
        return False
    return True


def table(findings: Findings) -> Table:
    found = Table("answer", "count", title=f"{findings.frames:,} frames, {findings.connections:,} connections")
    for answer, count in sorted(findings.answers.items()):
        found.add_row(answer, f"{count:,}")
    found.add_section()
    found.add_row("longest turn, ms", f"{findings.stall_ms:.1f}")
    if findings.rss_mib:
        found.add_row("resident memory, MiB", f"{findings.rss_mib[0]:.1f} to {findings.rss_mib[-1]:.1f}")
    found.add_row("defects", str(len(findings.defects)))
    return found


async def fuzz_host(host: WatchedHost, frames: int, seed: int) -> Findings:
    async def look() -> tuple[float, float]:
        watch = await asyncio.to_thread(host.look)
        return watch.stall_ms, watch.rss_mib

    return await fuzz(host.port, frames, seed, look=look)


@click.command()
@click.option("--frames", default=50_000, show_default=True, help="How many frames.")
@click.option("--seed", default=1, show_default=True, help="The same seed sends the same frames.")
def main(frames: int, seed: int) -> None:
    """Fuzz the port of a real host on real shards; exits with 1 on a crash, a hang, a leak or any other defect."""
    console = Console()
    with watched_host() as host:
        findings = uvloop.run(fuzz_host(host, frames, seed))
    console.print(table(findings))
    for defect in findings.defects[:20]:
        console.print(defect)
    sys.exit(bool(findings.defects))


if __name__ == "__main__":
    main()

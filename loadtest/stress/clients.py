"""Client processes, each with one stream of calls: closed loop, or open loop, in which a call is due at its time."""

from __future__ import annotations

import asyncio
import multiprocessing
import queue
import time
import traceback
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count, cycle
from multiprocessing.context import ForkServerProcess
from multiprocessing.queues import Queue as Results
from random import Random
from typing import Any, Literal

import uvloop

from foqs.model import ids
from foqs.model.errors import FoqsError
from foqs.wire.codec import Codec, structs
from loadtest.bench.ticker import Ticker, at_random
from loadtest.bench.wire import Wire
from loadtest.stress.record import Record, merged
from tests.support.faults import FaultError

LATE_US = 250_000
"""An enqueue that takes longer was held up by something."""
LAST_ANSWERS_S_MAX = 30.0
"""For calls that are open when a stream ends; more than the host lets any of these wait."""
_READY = "ready"
Verb = Literal["enqueue", "dequeue", "ask"]
_START_S_MAX = 60.0
_BEGIN_AFTER_NS = 1_000_000_000
_CONNECT_NS = 500_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Calls of one process, from one time until another since the begin of the run. Streams of one name are counted
    together.

    calls_per_s: open loop, at random times: streams in step would all wake on one core at once. Without it `in_flight`
        calls are open at any time on each connection.
    open_max: in an open loop, calls that are due while so many are open are not sent, but counted.
    retried_share: so much of what is refused with retry_after_ms is tried again once, that much later.
    bulk: the enqueues say so.  address: where the calls come from; without it each process has one of its own.
    asks: for the verb "ask", frames of calls that are sent one after the other, again and again.
    A dequeue is followed by the ack of its items, which its latency does not count.
    """

    name: str
    verb: Verb
    namespace: str
    topics: tuple[str, ...]
    from_s: float
    until_s: float
    batch: int = 10
    calls_per_s: float | None = None
    connections: int = 8
    in_flight: int = 8
    open_max: int = 20_000
    payload_bytes: int = 200
    wait_ms: int = 1_000
    retried_share: float = 0.0
    asks: tuple[bytes, ...] = ()
    bulk: bool = False
    address: str | None = None


def run_streams(port: int, streams: Sequence[Stream], meanwhile: Callable[[int], None]) -> Mapping[str, Record]:
    """Run them all in processes of their own; `meanwhile(begin_ns)` runs here. What each name's streams saw.

    Raises FaultError when a client fails.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    begin, begin_ns, results = context.Event(), context.Value("q", 0, lock=False), context.Queue()
    processes = [
        context.Process(
            target=_main, args=(port, stream, begin, begin_ns, results), name=f"{stream.name}-{number}", daemon=True
        )
        for number, stream in enumerate(streams)
    ]
    with ExitStack() as stack:
        stack.callback(results.close)
        for process in processes:
            process.start()
            stack.callback(_end, process)
        for _ in processes:
            _receive(results, _START_S_MAX)
        # Shared memory without a lock: it is written before the event says so.
        begin_ns.value = time.monotonic_ns() + _BEGIN_AFTER_NS
        begin.set()
        meanwhile(begin_ns.value)
        patience_s = max(stream.until_s for stream in streams) + 2 * LAST_ANSWERS_S_MAX
        found = defaultdict(list)
        for _ in processes:
            name, record = _receive(results, patience_s)
            found[name].append(record)
    return {name: merged(records) for name, records in found.items()}


def wait_until(begin_ns: int, at_s: float) -> None:
    """Until so long after the begin."""
    time.sleep(max(0.0, (begin_ns - time.monotonic_ns()) / 1e9 + at_s))


def _receive(results: Results[Any], patience_s: float) -> Any:
    try:
        message = results.get(timeout=patience_s)
    except queue.Empty:
        raise FaultError(f"a client did not say anything for {patience_s:.0f} s") from None
    if isinstance(message, str) and message != _READY:
        raise FaultError(f"a client failed:\n{message}")
    return message


def _end(process: ForkServerProcess) -> None:
    process.kill()
    process.join(_START_S_MAX)


def _main(port: int, stream: Stream, begin: Any, begin_ns: Any, results: Results[Any]) -> None:
    try:
        uvloop.run(_Calls(port, stream).run(begin, begin_ns, results))
    except Exception:
        results.put(traceback.format_exc())


def _encode_enqueue(stream: Stream, topic: str) -> bytes:
    payload = b"x" * stream.payload_bytes
    news = [structs.NewItem(topic, payload, number % 10) for number in range(stream.batch)]
    return Codec().encode_call("enqueue", structs.EnqueueRequest(stream.namespace, news, stream.bulk), 0)


async def _sleep_until(time_ns: int) -> None:
    await asyncio.sleep(max(0.0, (time_ns - time.monotonic_ns()) / 1e9))


class _Calls:
    def __init__(self, port: int, stream: Stream) -> None:
        self._port = port
        self._stream = stream
        self._record = Record()
        self._begin_ns = 0
        self._open: set[asyncio.Task[None]] = set()
        self._topics = cycle(stream.topics)
        # Encoded once: clients that are busy would slow a host that runs on the other thread of their core.
        self._enqueues = cycle([_encode_enqueue(stream, topic) for topic in stream.topics])
        self._rng = Random(stream.name)
        self._asks = cycle(stream.asks)
        calls: Mapping[Verb, Callable[[Wire, int], Awaitable[None]]] = {
            "enqueue": self._enqueue,
            "dequeue": self._dequeue,
            "ask": self._ask_next,
        }
        self._call = calls[stream.verb]

    async def run(self, begin: Any, begin_ns: Any, results: Results[Any]) -> None:
        results.put(_READY)
        await asyncio.to_thread(begin.wait)
        self._begin_ns = begin_ns.value
        start_ns, end_ns = (self._begin_ns + int(at * 1e9) for at in (self._stream.from_s, self._stream.until_s))
        # Not sooner: the host closes a connection that does not begin to speak.
        await _sleep_until(start_ns - _CONNECT_NS)
        wires = [await Wire.connect(self._port, self._stream.address) for _ in range(self._stream.connections)]
        await _sleep_until(start_ns)
        work = self._closed_loop if self._stream.calls_per_s is None else self._open_loop
        await work(wires, start_ns, end_ns)
        give_up_s = time.monotonic() + LAST_ANSWERS_S_MAX
        while self._open and (left_s := give_up_s - time.monotonic()) > 0:
            await asyncio.wait(list(self._open), timeout=left_s)  # A dequeue that ends brings an ack.
        for task in self._open:
            self._now().refused["no answer"] += 1
            task.cancel()
        for wire in wires:
            wire.close()
        results.put((self._stream.name, self._record))

    async def _closed_loop(self, wires: Sequence[Wire], start_ns: int, end_ns: int) -> None:
        async def go_on(wire: Wire) -> None:
            while (now_ns := time.monotonic_ns()) < end_ns:
                self._record.at(now_ns - self._begin_ns).due_count += 1
                await self._call(wire, now_ns)

        await asyncio.gather(*[go_on(wire) for wire in wires for _ in range(self._stream.in_flight)])

    async def _open_loop(self, wires: Sequence[Wire], start_ns: int, end_ns: int) -> None:
        assert self._stream.calls_per_s is not None
        numbers = count()
        done = asyncio.Event()

        def due(due_ns: int) -> None:
            of = self._record.at(due_ns - self._begin_ns)
            of.due_count += 1
            if len(self._open) >= self._stream.open_max:
                of.unsent_count += 1
                return
            self._spawn(self._call(wires[next(numbers) % len(wires)], due_ns))

        times_ns = at_random(start_ns, 1e9 / self._stream.calls_per_s, end_ns, self._rng)
        with Ticker(times_ns, due, done.set):
            await done.wait()

    def _spawn(self, work: Awaitable[None]) -> None:
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    def _now(self) -> Any:
        return self._record.at(time.monotonic_ns() - self._begin_ns)

    # ---- the calls ----

    async def _enqueue(self, wire: Wire, due_ns: int) -> None:
        frame = next(self._enqueues)
        hint_ms = await self._try(wire, frame, due_ns)
        if hint_ms is not None and self._rng.random() < self._stream.retried_share:
            await asyncio.sleep(hint_ms / 1_000)
            retried = self._now()
            retried.retried_count += 1
            retried.retried_taken_count += await self._try(wire, frame, None) is None

    async def _try(self, wire: Wire, frame: bytes, due_ns: int | None) -> int | None:
        """retry_after_ms when it was refused with one. Retries, which are not due at any time, have no latency."""
        response = await self._ask(wire, frame)
        if isinstance(response, FoqsError):
            return response.retry_after_ms
        if response is None:
            return None
        now = self._now()
        now.taken_count += self._stream.batch
        if due_ns is not None and self._note_latency(due_ns) > LATE_US:
            now.late_by_shard[ids.parse(response.ids[0])[0]] += 1
        return None

    async def _dequeue(self, wire: Wire, due_ns: int) -> None:
        demand = [structs.TopicDemand(next(self._topics), self._stream.batch)]
        request = structs.DequeueRequest(self._stream.namespace, demand, None, self._stream.wait_ms)
        response = await self._ask(wire, wire.codec.encode_call("dequeue", request, 0))
        if response is None or isinstance(response, FoqsError) or not response.items:
            return
        self._note_latency(due_ns)
        self._now().taken_count += len(response.items)
        receipts = [item.receipt for item in response.items]
        by_shard: dict[int, list[str]] = defaultdict(list)
        for receipt in receipts:
            by_shard[ids.parse(receipt)[0]].append(receipt)
        # One that is sick shall not keep the others' items from being acked.
        acks = [self._ack(wire, group) for group in by_shard.values()]
        if self._stream.calls_per_s is None:
            await asyncio.gather(*acks)
        else:
            for ack in acks:
                self._spawn(ack)

    async def _ask_next(self, wire: Wire, due_ns: int) -> None:
        response = await self._ask(wire, next(self._asks))
        if response is not None and not isinstance(response, FoqsError):
            self._note_latency(due_ns)
            self._now().taken_count += 1

    async def _ack(self, wire: Wire, receipts: list[str]) -> None:
        request = structs.AckRequest(self._stream.namespace, receipts)
        sent_ns = time.monotonic_ns()
        response = await self._ask(wire, wire.codec.encode_call("ack", request, 0))
        if response is not None and not isinstance(response, FoqsError):
            latency_us = (time.monotonic_ns() - sent_ns) // 1_000
            self._record.at(sent_ns - self._begin_ns).ack_latencies_us.append(latency_us)
            self._now().acked_count += len(receipts) - len(response.errors or ())

    async def _ask(self, wire: Wire, frame: bytes) -> Any:
        """The answer, the refusal, or None when the connection is lost."""
        try:
            return await wire.send(frame)
        except FoqsError as error:
            now = self._now()
            now.refused[error.code.name] += 1
            now.hints_ms[-1 if error.retry_after_ms is None else error.retry_after_ms] += 1
            return error
        except ConnectionError:
            self._now().refused["connection lost"] += 1
            return None

    def _note_latency(self, due_ns: int) -> int:
        latency_us = (time.monotonic_ns() - due_ns) // 1_000
        self._record.at(due_ns - self._begin_ns).latencies_us.append(latency_us)
        return latency_us

"""The course of the demo: starts the processes, listens to them, kills one consumer, and waits until all is done."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from loadtest.demo.clients import run_consumer, run_producer
from loadtest.demo.history import History
from loadtest.demo.messages import Answer, Command, Enqueued, Failed, Handout, Holding, Message, Produced, Settled
from loadtest.flights import Flight

PRODUCERS = 2
CONSUMERS = 3
STEADY_ITEMS = 8_000
STEADY_PER_S = 1_000
_SILENCE_S_MAX = 60
_JOIN_S_MAX = 20
_KILL_AT = 1 / 3
"""The share of the records after which a consumer is killed."""


class DemoError(Exception):
    """The demo cannot go on; the message says why."""


@dataclass(slots=True)
class Course:
    """What the run looked like, beside its history."""

    flood_count: int
    flood_s: float = 0.0
    flood_enqueue_s: float = 0.0
    held: list[Handout] = field(default_factory=list)
    """What the killed consumer had under lease."""


@dataclass(frozen=True, slots=True)
class _Peer:
    process: BaseProcess
    pipe: Connection
    number: int
    is_producer: bool


class Demo:
    """`owners`: the number of the host that serves each shard, in `addresses`.

    `steady_count`: how many of the records, the last ones, come at a steady pace.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        owners: Mapping[int, int],
        records: list[Flight],
        console: Console,
        steady_count: int = STEADY_ITEMS,
    ) -> None:
        steady_from = len(records) - steady_count
        self._flood, self._steady = records[:steady_from], records[steady_from:]
        self._addresses = addresses
        self._topics = sorted({record.topic for record in records})
        self._progress = Progress(
            TextColumn("{task.description:<10}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            console=console,
        )  # fmt: skip
        self._producers_busy = PRODUCERS
        self._peers: dict[Connection, _Peer] = {}
        self._victim: _Peer | None = None
        self._asked_to_hold = False
        self.history = History((time.time_ns() - time.monotonic_ns()) / 1_000_000, owners)
        self.course = Course(len(self._flood))

    def run(self) -> None:
        """Raises DemoError; every process has ended when this returns."""
        with self._progress as progress, self._processes():
            tasks = [progress.add_task(name, total=len(self._flood)) for name in ("enqueued", "settled")]
            started_s = time.monotonic()
            self._listen(tasks)
            self.course.flood_s = time.monotonic() - started_s
            last = max(message.answered_ns for message in self.history.enqueued.values())
            self.course.flood_enqueue_s = last / 1e9 - started_s
            for task in tasks:
                progress.update(task, total=len(self._flood) + len(self._steady))
            self._producers_busy = PRODUCERS
            for peer in self._peers.values():
                if peer.is_producer:
                    peer.pipe.send(Command.STEADY)
            self._listen(tasks)

    @contextmanager
    def _processes(self) -> Iterator[None]:
        producers = [
            self._spawn(
                run_producer, n, self._flood[n::PRODUCERS], self._steady[n::PRODUCERS], STEADY_PER_S // PRODUCERS
            )
            for n in range(PRODUCERS)
        ]
        consumers = [self._spawn(run_consumer, n, self._topics) for n in range(CONSUMERS)]
        self._peers = {peer.pipe: peer for peer in (*producers, *consumers)}
        self._victim = consumers[0]
        try:
            yield
        finally:
            for peer in (*producers, *consumers):
                _end(peer)

    def _spawn(self, target: Any, number: int, *arguments: Any) -> _Peer:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        # Each process knows one host only: any of them does any call.
        address = self._addresses[number % len(self._addresses)]
        process = context.Process(target=target, args=(address, *arguments, theirs), daemon=True)
        process.start()
        theirs.close()
        return _Peer(process, ours, number, target is run_producer)

    def _listen(self, tasks: Sequence[TaskID]) -> None:
        """Take messages until the producers are through and everything stored is settled."""
        history = self.history
        heard_s = time.monotonic()
        while self._producers_busy or history.settled_count < len(history.enqueued):
            ready = wait(list(self._peers), timeout=1.0)
            if ready:
                heard_s = time.monotonic()
            elif time.monotonic() - heard_s > _SILENCE_S_MAX:
                missing = len(history.enqueued) - history.settled_count
                raise DemoError(f"nothing happened for {_SILENCE_S_MAX} s; {missing} items are not settled")
            for pipe in ready:
                assert isinstance(pipe, Connection)
                self._hear(self._peers[pipe])
            for task, count in zip(tasks, (len(history.enqueued), history.settled_count), strict=True):
                self._progress.update(task, completed=count)

    def _hear(self, peer: _Peer) -> None:
        try:
            message: Message = peer.pipe.recv()
        except EOFError:
            peer.process.join(_JOIN_S_MAX)
            name = f"{'producer' if peer.is_producer else 'consumer'} {peer.number}"
            raise DemoError(f"{name} ended with exit code {peer.process.exitcode}") from None
        match message:
            case Enqueued():
                self.history.add_enqueued(message)
            case Answer():
                self.history.add_answer(peer.number, message)
            case Settled():
                self.history.add_settled(peer.number, message)
                self._maybe_hold()
            case Holding():
                self._kill(peer)
            case Produced():
                self._producers_busy -= 1
            case Failed():
                raise DemoError(message.reason)

    def _maybe_hold(self) -> None:
        if not self._asked_to_hold and self.history.settled_count > self.course.flood_count * _KILL_AT:
            assert self._victim is not None
            self._victim.pipe.send(Command.HOLD)
            self._asked_to_hold = True

    def _kill(self, victim: _Peer) -> None:
        """The consumer has told what it holds and does nothing more: now it goes, with its leases running."""
        assert victim.process.pid is not None
        self.course.held = self.history.held_by(victim.number)
        os.kill(victim.process.pid, signal.SIGKILL)
        victim.process.join()
        del self._peers[victim.pipe]
        victim.pipe.close()
        held_count = len(self.course.held)
        self._progress.console.print(f"consumer {victim.number} killed with kill -9 while it held {held_count} items")


def _end(peer: _Peer) -> None:
    if not peer.pipe.closed:
        with suppress(BrokenPipeError, ConnectionResetError):  # It may have ended by itself.
            peer.pipe.send(Command.STOP)
        peer.pipe.close()  # Ends a send that it is blocked in.
    peer.process.join(_JOIN_S_MAX)
    if peer.process.exitcode is None:
        peer.process.kill()
        peer.process.join()

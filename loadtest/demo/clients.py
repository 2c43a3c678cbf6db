"""The producer and consumer processes: ordinary clients of the queue that also write down what they see."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import NoReturn

from foqs import Client, FoqsError, Item, NewItem, RetryPolicy
from foqs.model import ids, order
from loadtest.demo.messages import (
    Answer,
    Command,
    Enqueued,
    Failed,
    Handout,
    Holding,
    Phase,
    Produced,
    Settled,
)
from loadtest.flights import Flight, never_left

NAMESPACE = "default"
LEASE_MS = 5_000
_ENQUEUE_ITEMS = 200
_DEQUEUE_ITEMS_PER_TOPIC = 100
_WAIT_MS = 100
_STEADY_ITEMS = 10
_HOLD_ITEMS_MIN = 500
_HOLD_S_MAX = LEASE_MS / 1000 / 3
_ONCE = RetryPolicy(deadline_ms=0)
"""A call that fails ends the demo: a silent repetition would blur what was handed out when."""


class _StopError(Exception):
    """The parent wants no more."""


def run_producer(address: str, flood: list[Flight], steady: list[Flight], steady_per_s: int, pipe: Connection) -> None:
    """Enqueue `flood` at full speed, then, when told, `steady` at so many items a second."""

    def work() -> None:
        with Client(address, retry=_ONCE) as client:
            for start in range(0, len(flood), _ENQUEUE_ITEMS):
                _enqueue(client, Phase.FLOOD, flood[start : start + _ENQUEUE_ITEMS], pipe)
                _obey(pipe)
            pipe.send(Produced())
            while _obey(pipe, wait=True) is not Command.STEADY:
                continue
            started_s = time.monotonic()
            for start in range(0, len(steady), _STEADY_ITEMS):
                _sleep_until(started_s + start / steady_per_s)
                _enqueue(client, Phase.STEADY, steady[start : start + _STEADY_ITEMS], pipe)
                _obey(pipe)
            pipe.send(Produced())
            _obey(pipe, wait=True)

    _run(work, pipe)


def run_consumer(address: str, topics: Sequence[str], pipe: Connection) -> None:
    """Dequeue, write down, ack; records of cancelled flights go to the dead letters."""

    def work() -> None:
        turn = 0
        with Client(address, retry=_ONCE) as client:
            while True:
                if _obey(pipe) is Command.HOLD:
                    _hold(client, topics, pipe)
                # An answer is filled topic by topic: each gets its turn to be the first.
                turn = (turn + 1) % len(topics)
                items = _dequeue(client, [*topics[turn:], *topics[:turn]], pipe)
                if items:
                    pipe.send(_settle(client, items))

    _run(work, pipe)


def _enqueue(client: Client, phase: Phase, flights: list[Flight], pipe: Connection) -> None:
    now_ms = time.time_ns() // 1_000_000
    result = client.enqueue_many(
        NAMESPACE,
        [
            NewItem(
                flight.topic,
                flight.payload,
                priority=flight.priority,
                deliver_after_ms=now_ms + flight.offset_ms if flight.offset_ms else None,
            )
            for flight in flights
        ],
    )
    pipe.send(Enqueued(phase, time.monotonic_ns(), result.ids))


def _dequeue(client: Client, topics: list[str], pipe: Connection) -> list[Item]:
    asked_ns = time.monotonic_ns()
    wants = [(topic, _DEQUEUE_ITEMS_PER_TOPIC) for topic in topics]
    items = client.dequeue(NAMESPACE, wants, lease_ms=LEASE_MS, wait_ms=_WAIT_MS)
    if items:
        answered_ns, answered_at_ms = time.monotonic_ns(), time.time_ns() / 1_000_000
        pipe.send(Answer(asked_ns, answered_ns, answered_at_ms, [_handout(item) for item in items]))
    return items


def _hold(client: Client, topics: Sequence[str], pipe: Connection) -> NoReturn:
    """Take some items, tell that they are held, and wait to be killed."""
    held_count = 0
    until_s = time.monotonic() + _HOLD_S_MAX
    while not held_count or (held_count < _HOLD_ITEMS_MIN and time.monotonic() < until_s):
        held_count += len(_dequeue(client, list(topics), pipe))
    pipe.send(Holding())
    while True:
        signal.pause()


def _handout(item: Item) -> Handout:
    shard_id, key, _ = ids.parse(item.id)
    return Handout(
        id=item.id,
        topic=item.topic,
        place=order.sort_key(item.priority, item.deliver_after_ms, key, shard_id),
        attempt=item.attempt,
        deliver_after_ms=item.deliver_after_ms,
        lease_expires_at_ms=item.lease_expires_at_ms,
        delayed=item.deliver_after_ms > item.enqueued_at_ms,
        shard_id=shard_id,
    )


def _settle(client: Client, items: list[Item]) -> Settled:
    cancelled = [item for item in items if never_left(item.payload)]
    flown = [item for item in items if not never_left(item.payload)]
    settled = Settled()
    if flown:
        settled.refused += [flown[position].id for position in client.ack(NAMESPACE, flown, return_errors=True)]
    if cancelled:
        refused = client.nack(NAMESPACE, cancelled, dead_letter=True, return_errors=True)
        settled.refused += [cancelled[position].id for position in refused]
        settled.dead = [item.id for position, item in enumerate(cancelled) if position not in refused]
    return settled


def _run(work: Callable[[], None], pipe: Connection) -> None:
    # Ctrl-C reaches every process of a terminal; the parent ends this one in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with pipe:
        try:
            work()
        except (_StopError, EOFError, BrokenPipeError):
            return
        except FoqsError as error:
            pipe.send(Failed(f"{type(error).__name__}: {error}"))


def _obey(pipe: Connection, *, wait: bool = False) -> Command | None:
    """The parent's next command, if there is one. Raises _StopError."""
    if not wait and not pipe.poll():
        return None
    command: Command = pipe.recv()
    if command is Command.STOP:
        raise _StopError
    return command


def _sleep_until(at_s: float) -> None:
    time.sleep(max(0.0, at_s - time.monotonic()))

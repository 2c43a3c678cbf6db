"""A host with nothing to do costs next to nothing: a part without due work is not entered."""

from __future__ import annotations

import asyncio
import io
import select
import socket
import struct
import sys
from collections import Counter
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from pymysql.protocol import FieldDescriptorPacket

import foqs
from foqs.bootstrap import Host
from foqs.model import limits
from foqs.storage.sessions import login
from foqs.storage.sessions import session as sessions
from foqs.storage.sessions.exchange import Exchange
from foqs.storage.sessions.login import GuardedConnection
from foqs.testing.memory_queue import MemoryQueue

FOQS = str(Path(foqs.__file__).parent)
NAMESPACE = "default"
TICKS = 50
CALLS_OF_HOST_MAX = 25
"""As many were 34 when each part was entered in each tick, and 44 for each shard."""
CALLS_OF_SHARD_MAX = 22
QUIET_MS = 2 * limits.TOPIC_IDLE_MS
"""After this time no topic of an idle host is left, and no item that it has prefetched."""


def calls_of_ticks(shard_count: int, ms: int = TICKS * limits.TICK_MS) -> Counter[str]:
    """Count the functions of foqs that the ticks of an idle host call, without those that end in a wait."""
    calls: Counter[str] = Counter()
    inside = 0
    tick = Host._tick.__code__

    def profile(frame: FrameType, event: str, _: Any) -> None:
        nonlocal inside
        code = frame.f_code
        if code is tick:
            inside += (event == "call") - (event == "return")
        elif inside and event == "call" and code.co_filename.startswith(FOQS) and "ManualLoop" not in code.co_qualname:
            calls[code.co_qualname] += 1

    with MemoryQueue(shard_count=shard_count) as queue:
        client = queue.client()
        client.enqueue(NAMESPACE, "work", b"")
        client.ack(NAMESPACE, client.dequeue(NAMESPACE, "work", 1))
        queue.clock.advance(QUIET_MS)
        host = queue._traffic.host
        sys.setprofile(profile)
        try:
            host.pass_time(ms)
        finally:
            sys.setprofile(None)
    return calls


@pytest.mark.interpreted
def test_a_tick_of_an_idle_host_calls_few_functions() -> None:
    of_one, of_four = calls_of_ticks(1), calls_of_ticks(4)
    ticks_count = of_one["ShardWriter.tick"]
    assert ticks_count >= TICKS - 1
    per_shard = (of_four.total() - of_one.total()) / 3 / ticks_count
    assert per_shard <= CALLS_OF_SHARD_MAX, of_four
    assert of_one.total() / ticks_count - per_shard <= CALLS_OF_HOST_MAX, of_one


@pytest.mark.interpreted
def test_an_idle_host_enters_no_part_without_work() -> None:
    calls = calls_of_ticks(2)
    entered = {
        "Deliveries.serve_any", "Dispatcher._follow_bases", "Forgetfulness.tick", "PrefixSweep.take",
        "Refills.warm_up", "Settlements.tick", "ShardState._forget_idle_topics", "ShardState._is_steady_due",
        "ShardState._report_room", "SlotMoves.is_due",
    }.intersection(calls)  # fmt: skip
    assert not entered


async def test_the_end_of_an_idle_session_is_seen_by_the_poll_that_its_exchange_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here, there = socket.socketpair()
    with here, there:
        exchange = Exchange(here)
        session = SimpleNamespace(_sock=here, exchange=exchange)
        monkeypatch.setattr(select, "poll", Mock(side_effect=AssertionError("one more for each tick and shard")))
        assert not sessions.has_ended(session)
        there.close()
        assert sessions.has_ended(session), "before the event loop has reported it"
        while not exchange.lost:  # noqa: ASYNC110 - the loop reports it in one of its next turns
            await asyncio.sleep(0)
        assert sessions.has_ended(session)
        exchange.leave_loop()


def column(name: bytes) -> bytes:
    """Return the description of a column in MySQL's text protocol."""
    texts = b"".join(bytes([len(text)]) + text for text in (b"def", b"", b"t", b"t", name, name))
    return texts + b"\x0c" + struct.pack("<HIBHBxx", 63, 20, 8, 0, 0)


def read_column(session: GuardedConnection, body: bytes) -> Any:
    session._rfile = io.BytesIO(len(body).to_bytes(3, "little") + b"\0" + body)
    session._next_seq_id = 0  # type: ignore[attr-defined]
    return session._read_packet(FieldDescriptorPacket)


def test_the_description_of_a_column_is_parsed_once_unless_it_is_long() -> None:
    session = GuardedConnection(defer_connect=True)
    session._current_timeout = session._read_timeout
    first = read_column(session, column(b"shard_id"))
    assert (first.name, first.charsetnr, first.type_code) == ("shard_id", 63, 8)
    assert read_column(session, column(b"shard_id")) is first
    assert read_column(session, column(b"epoch")).name == "epoch"
    long = column(b"n" * 250) + bytes(login.COLUMN_BYTES_MAX)
    assert read_column(session, long).name == "n" * 250
    assert read_column(session, long) is not read_column(session, long), "a server could fill the memory"

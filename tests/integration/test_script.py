"""Scripts of statements over a real session: what comes back is what pymysql itself would have read."""

from __future__ import annotations

import asyncio
import select
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from types import SimpleNamespace

import pymysql
import pytest
import uvloop
from pymysql.constants import CR

from foqs.model import limits
from foqs.storage.sessions.exchange import ReplyReader, run_script
from foqs.storage.sessions.session import connect, is_lost
from tests.support.waiting import PATIENCE_S, until

HOSTILE = [b"", b"\x00", b"\xff" * 300, b"\xfb\xfc\xfd\xfe", b"';--\\", "ü€😀".encode(), b"x" * 251, b"y" * 70_000]
"""Lengths of one, three and four bytes, and all that a reader could take for a mark."""

pytestmark = pytest.mark.database


@pytest.fixture
def session(shard_urls):
    with closing(connect(shard_urls[0])) as found:
        with found.cursor() as cursor:
            cursor.execute("CREATE TEMPORARY TABLE t (id BIGINT PRIMARY KEY, small SMALLINT, b MEDIUMBLOB)")
        yield found


def fill(session):
    with session.cursor() as cursor:
        rows = [(-(2**63) + n, None if n == 2 else -n, None if n == 3 else value) for n, value in enumerate(HOSTILE)]
        cursor.executemany("INSERT INTO t VALUES (%s, %s, %s)", rows)
    session.commit()


async def test_rows_of_every_form_are_those_that_pymysql_reads(session):
    fill(session)
    select = "SELECT id, small, b, NULL, 7 AS n, OCTET_LENGTH(b) FROM t ORDER BY id"
    with session.cursor() as cursor:
        cursor.execute(select)
        expected = list(cursor.fetchall())
    none, rows, again = await run_script(session, ["SELECT 1 FROM t WHERE id = 5", select, select])
    assert none == []
    assert rows == again == expected
    assert [row[2] for row in rows if row[2] is not None] == [value for n, value in enumerate(HOSTILE) if n != 3]


async def test_an_answer_may_come_in_any_pieces(session):
    fill(session)
    with session.cursor() as cursor:
        cursor.execute("SET @one = 1")
    session._sock.sendall(b"\x2d\x00\x00\x00\x03SELECT id, b FROM t;SET @one = 2;SELECT @one")
    whole, answer = ReplyReader(), b""
    while not whole.done:
        chunk = session._sock.recv(1 << 20)
        answer += chunk
        whole.feed(chunk)
    for size in (1, 2, 3, 7, 1_000):
        pieces = ReplyReader()
        for at in range(0, len(answer), size):
            assert not pieces.done
            pieces.feed(answer[at : at + size])
        assert pieces.done
        assert pieces.results == whole.results
    assert whole.results[1:] == [[], [(2,)]]


async def test_a_failed_statement_ends_the_script_and_leaves_the_session_usable(session):
    with pytest.raises(pymysql.err.IntegrityError, match="Duplicate") as caught:
        await run_script(session, ["INSERT INTO t VALUES (1, 1, '')", "INSERT INTO t VALUES (1, 2, '')", "COMMIT"])
    assert not is_lost(caught.value)
    assert await run_script(session, ["ROLLBACK", "SELECT COUNT(*) FROM t"]) == [[], [(0,)]]
    with session.cursor() as cursor:
        cursor.execute("SELECT 5")
        assert cursor.fetchall() == ((5,),)


async def test_more_than_a_packet_goes_in_several_and_more_than_a_socket_buffer_in_pieces(session, monkeypatch):
    monkeypatch.setattr(limits, "PACKET_BYTES_MAX", limits.MIB)
    payload = "7a" * limits.MIB
    statements = [f"INSERT INTO t VALUES ({n}, 0, x'{payload}')" for n in range(5)]
    results = await run_script(session, [*statements, "SELECT b FROM t", "COMMIT"])
    assert results == [[]] * 5 + [[(bytes.fromhex(payload),)] * 5, []]


async def test_a_session_that_the_server_ends_is_lost(session, shard_urls):
    with closing(connect(shard_urls[0])) as other, other.cursor() as cursor:
        cursor.execute("SELECT one FROM writer FOR UPDATE")
        waiting = asyncio.create_task(run_script(session, ["SELECT one FROM writer FOR UPDATE"]))
        await asyncio.sleep(0)  # It is sent, and waits for the row's lock.
        cursor.execute(f"KILL {session.thread_id()}")
    with pytest.raises(pymysql.err.Error) as caught:
        await waiting
    assert is_lost(caught.value)
    with pytest.raises((pymysql.err.Error, OSError)) as caught:
        await run_script(session, ["SELECT 1"])
    assert is_lost(caught.value)


async def test_a_server_that_does_not_answer_in_time_is_a_lost_session(session, monkeypatch):
    monkeypatch.setattr(limits, "STATEMENT_MS_MAX", 50)
    with pytest.raises(pymysql.err.OperationalError, match="no answer in 50 ms") as caught:
        await run_script(session, ["SELECT SLEEP(60)"])
    assert is_lost(caught.value)


@pytest.mark.parametrize(
    "answer",
    [
        b"\x01\x00\x00\x01\x00",  # OK without its counts
        b"\xff\xff\xff\x01" + bytes(0xFFFFFF),
        b"\x00\x00\x00\x01",
        b"\x01\x00\x00\x01\x01\x02\x00\x00\x02de",  # one column, cut
        b"HTTP/1.1 400 Bad Request\r\n\r\n" * 9,
    ],
    ids=["short", "long", "empty", "column", "http"],
)
async def test_an_answer_that_is_none_is_a_lost_session(answer):
    here, there = socket.socketpair()
    with here, there, ThreadPoolExecutor(1) as thread:
        sending = thread.submit(lambda: (there.recv(100), there.sendall(answer), there.shutdown(socket.SHUT_WR)))
        with pytest.raises(pymysql.err.OperationalError) as caught:
            await run_script(SimpleNamespace(_sock=here, exchange=None), ["SELECT 1"])
        here.shutdown(socket.SHUT_RD)
        there.close()
        sending.exception()
    assert is_lost(caught.value)


async def test_a_session_that_the_server_ends_while_nobody_uses_it_is_lost(session, shard_urls):
    await run_script(session, ["SELECT 1"])
    with closing(connect(shard_urls[0])) as other, other.cursor() as cursor:
        cursor.execute(f"KILL {session.thread_id()}")
    await until(lambda: bool(session.exchange.lost))
    with pytest.raises(pymysql.err.OperationalError) as caught:
        await run_script(session, ["SELECT 1"])
    assert is_lost(caught.value)
    assert caught.value.args[0] == CR.CR_SERVER_GONE_ERROR, "nothing was sent"


async def test_nothing_is_sent_on_a_session_that_the_server_ended_before_the_loop_turned(session, shard_urls):
    """As it is with the first transaction of a process that goes on after it was stopped."""
    await run_script(session, ["SELECT 1"])
    with closing(connect(shard_urls[0])) as other, other.cursor() as cursor:
        cursor.execute(f"KILL {session.thread_id()}")
    assert select.select([session._sock], [], [], PATIENCE_S)[0]
    assert not session.exchange.lost
    with pytest.raises(pymysql.err.OperationalError) as caught:
        await run_script(session, ["SELECT 1"])
    assert is_lost(caught.value)
    assert caught.value.args[0] == CR.CR_SERVER_GONE_ERROR, "nothing was sent"


async def test_a_call_that_is_cancelled_leaves_a_session_that_is_lost(session):
    waiting = asyncio.create_task(run_script(session, ["SELECT SLEEP(60)"]))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    with pytest.raises(pymysql.err.OperationalError, match="given up") as caught:
        await run_script(session, ["SELECT 1"])
    assert is_lost(caught.value)


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_scripts_and_what_pymysql_does_on_a_thread_take_turns_on_a_session(session, run):
    def blocking():
        with session.cursor() as cursor:
            cursor.execute("SELECT SLEEP(0.01), 5")
            return cursor.fetchall()

    async def take_turns():
        for number in range(20):
            assert await run_script(session, [f"SELECT {number}"]) == [[(number,)]]
            assert await asyncio.to_thread(blocking) == ((0, 5),)

    run(take_turns())
    assert blocking() == ((0, 5),)


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_session_that_a_thread_closes_is_closed_when_that_returns(shard_urls, run):
    async def close():
        session = connect(shard_urls[0])
        await run_script(session, ["SELECT 1"])
        sock = session._sock
        await asyncio.to_thread(session._force_close)
        assert sock.fileno() == -1

    run(close())

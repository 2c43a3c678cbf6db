"""Connections of the asyncio client to the owners of shards: none is left open that nobody knows."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from foqs.client.addresses import Address
from foqs.client.aio.connections import AsyncConnectionPool
from foqs.client.client_options import IDLE_REUSE_MS_MAX, Options
from tests.support.waiting import PATIENCE_S


async def test_a_connection_is_closed_whose_successor_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ms = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            await reader.read()
        writer.close()
        ended.set()

    ended = asyncio.Event()
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    owner = Address(*server.sockets[0].getsockname())
    options = Options(clock_ms=lambda: now_ms)
    pool = AsyncConnectionPool(options, options.terms().book)
    old = await pool._to_owner(owner)
    assert old is not None
    now_ms += IDLE_REUSE_MS_MAX + 1

    async def hang(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", hang)
    call = asyncio.create_task(pool._to_owner(owner))
    await asyncio.sleep(0)
    call.cancel()
    await asyncio.wait([call])
    await pool.close()
    async with asyncio.timeout(PATIENCE_S):
        await old.lost.wait()
        await ended.wait()
    server.close()

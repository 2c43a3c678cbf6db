"""A pull whose items come after the call that wanted them has its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from unittest.mock import patch

from foqs.cluster.routing import pulls
from foqs.model.calls import CallContext
from foqs.transport.remote_host import RemoteHost
from tests.support.waiting import PATIENCE_S


class LatePull:
    """Items that one host has given and the other one has not got yet."""

    def __init__(self) -> None:
        self._is_there = asyncio.Event()
        self._is_let_through = asyncio.Event()
        self._call = RemoteHost.call

    async def begin(self, poll: Callable[[], Awaitable[list[Any]]], enqueue: Callable[[], Awaitable[str]]) -> str:
        """Poll until items are on their way, and the call is over. Returns the id of what is enqueued meanwhile."""
        call = self._call

        async def held_up(remote: RemoteHost, context: CallContext, verb: str, request: Any) -> Any:
            items = await call(remote, context, verb, request)
            if verb == "dequeue" and items:
                self._is_there.set()
                await self._is_let_through.wait()
            return items

        with patch.object(RemoteHost, "call", held_up), patch.object(pulls, "PULL_WAIT_MS_MAX", 50):
            polling = asyncio.create_task(self._poll(poll))
            item_id = await enqueue()
            await asyncio.wait_for(polling, PATIENCE_S)
        return item_id

    async def _poll(self, poll: Callable[[], Awaitable[list[Any]]]) -> None:
        while not self._is_there.is_set():
            assert await poll() == []

    def arrive(self) -> None:
        """Let the items come."""
        self._is_let_through.set()

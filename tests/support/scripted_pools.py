"""Clients whose calls are answered by a function of the test, over the bytes of the wire but without a socket."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from foqs.client.aio import AsyncClient
from foqs.client.aio.connections import AsyncConnectionPool
from foqs.client.dialogue import Dialogue
from foqs.client.flows import Send
from foqs.client.sync import Client
from foqs.client.sync.connections import ConnectionPool
from foqs.model.errors import ErrorCode
from foqs.wire import codec as wire
from tests.support.waiting import PATIENCE_S

S = wire.structs
Answer = Callable[[str, Any], Any]
"""Takes the method and the request as a host has decoded it; returns the response, or raises its error."""


def answered(step: Send, answer: Answer) -> Any:
    """What a host makes of the attempt: the call is encoded by the client, and decoded as a host does."""
    _, frame = Dialogue().frame_of(step.call)
    method, _, request, _ = wire.Codec().decode_call(frame[wire.LENGTH_BYTES :])
    step.is_sent = True
    return answer(method.name, request)


def item_error(code: ErrorCode, retry_after_ms: int | None = None, *, nothing_done: bool = True) -> Any:
    return S.ItemError(code, "as the test has planned", retry_after_ms, nothing_done)


def enqueue_all(request: Any, errors: dict[int, Any] | None = None) -> Any:
    """The response of a host that stores all items but those with an error; the id is the topic."""
    errors = errors or {}
    ids = ["" if position in errors else item.topic for position, item in enumerate(request.items)]
    return S.EnqueueResponse(ids=ids, errors=errors or None)


class ScriptedPool(ConnectionPool):
    """Its pauses end when the test says so. One call at a time is answered."""

    answer: Answer
    pauses: threading.Semaphore
    goes_on: threading.Event

    def exchange(self, step: Send) -> Any:
        return answered(step, self.answer)

    def pause(self, pause_ms: int) -> None:
        self.check_open()
        self.pauses.release()
        assert self.goes_on.wait(PATIENCE_S)
        self.check_open()


class ScriptedClient(Client):
    def __init__(self, answer: Answer, **options: Any) -> None:
        self.answer = answer
        super().__init__(**{"addresses": "scripted", **options})

    def _make_pool(self) -> ConnectionPool:
        self.pool = ScriptedPool(self.options, self._terms.book)
        self.pool.answer = self.answer
        self.pool.pauses, self.pool.goes_on = threading.Semaphore(0), threading.Event()
        return self.pool


class AsyncScriptedPool(AsyncConnectionPool):
    """The same for tasks."""

    answer: Answer
    pauses: asyncio.Semaphore
    goes_on: asyncio.Event

    async def exchange(self, step: Send) -> Any:
        await asyncio.sleep(0)
        response = answered(step, self.answer)
        return await response if asyncio.iscoroutine(response) else response

    async def pause(self, pause_ms: int) -> None:
        self.pauses.release()
        await self.goes_on.wait()


class AsyncScriptedClient(AsyncClient):
    def __init__(self, answer: Answer, **options: Any) -> None:
        self.answer = answer
        super().__init__(**{"addresses": "scripted", **options})

    def _make_pool(self) -> AsyncConnectionPool:
        self.pool = AsyncScriptedPool(self.options, self._terms.book)
        self.pool.answer = self.answer
        self.pool.pauses, self.pool.goes_on = asyncio.Semaphore(0), asyncio.Event()
        return self.pool

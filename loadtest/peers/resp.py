"""A thin pipelining Redis client for the bench: hiredis packs and parses, any number of calls share one connection."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

import hiredis

Command = tuple[bytes | str | int | float, ...]
_pack: Any = hiredis.pack_command  # Its annotation takes one word.


class RespError(Exception):
    """The server refused a command, or is gone."""


class Link(asyncio.Protocol):
    """One connection. `on_message` gets what is published on channels that it subscribes to."""

    def __init__(self, on_message: Callable[[bytes], None] | None = None) -> None:
        self._on_message = on_message
        self._reader = hiredis.Reader()
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[tuple[int, list[Any], asyncio.Future[list[Any]]]] = deque()
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @classmethod
    async def connect(cls, path: str, on_message: Callable[[bytes], None] | None = None) -> Link:
        _, link = await asyncio.get_running_loop().create_unix_connection(lambda: cls(on_message), path)
        return link

    async def call(self, *commands: Command) -> list[Any]:
        """Their replies. Raises RespError when one of them failed; the others have been done all the same."""
        assert self._transport is not None
        if self._transport.is_closing():
            raise RespError("the connection is closed")
        answered: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._waiting.append((len(commands), [], answered))
        self._transport.write(b"".join([_pack(command) for command in commands]))
        return await answered

    async def close(self) -> None:
        assert self._transport is not None
        self._transport.close()
        await self._ended

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        for _, _, answered in self._waiting:
            if not answered.done():
                answered.set_exception(RespError(f"the connection is lost: {exc}"))
        self._waiting.clear()
        self._ended.set_result(None)

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not False:
            if self._on_message is not None and isinstance(reply, list) and reply[0] == b"message":
                self._on_message(reply[2])
            else:
                self._take(reply)

    def _take(self, reply: Any) -> None:
        count, replies, answered = self._waiting[0]
        replies.append(reply)
        if len(replies) < count:
            return
        self._waiting.popleft()
        if answered.done():
            return
        error = next((reply for reply in replies if isinstance(reply, hiredis.ReplyError)), None)
        if error is None:
            answered.set_result(replies)
        else:
            answered.set_exception(RespError(str(error)))

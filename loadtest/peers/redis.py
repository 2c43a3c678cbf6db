"""Redis as a queue, the way its documentation builds reliable queues: sorted sets, and leases by a Lua script.

Of a topic, `ready` holds the ids in order of priority and age, `later` the ids of leased and delayed items by when they
become ready, `payloads` is a hash by id. A claim is one script, an enqueue and an ack one MULTI of a few commands for
all items, each sent as one pipeline. The server fsyncs once for all commands that it read in one turn of its event
loop. Whoever waits hears of items by PUBLISH. An ack by a client whose lease has ended is taken.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from struct import Struct
from typing import Any

from loadtest.peers.adapter import Held, Offer, OneServer
from loadtest.peers.program import Program, find_program, run
from loadtest.peers.resp import Command, Link, RespError
from loadtest.peers.waiting import ClientProcess, joined

_ID = Struct(">IQI")
"""Priority, a time in nanoseconds, the client: ids of one priority stand in a sorted set in order of age."""
_PRIORITY_OFFSET = 1 << 31
_CLIENT_BITS = 32
_POLL_S = 0.1
_CHANNEL = "items"
_NOW = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
"""
_CLAIM = (
    _NOW
    + """
local found, left, ends = {}, tonumber(ARGV[1]), now + ARGV[2]
for k = 1, #KEYS, 3 do
    local ready, later, payloads = KEYS[k], KEYS[k + 1], KEYS[k + 2]
    local due = redis.call('ZRANGEBYSCORE', later, '-inf', now, 'LIMIT', 0, 1000)
    for _, id in ipairs(due) do
        redis.call('ZADD', ready, struct.unpack('>I4', id), id)
        redis.call('ZREM', later, id)
    end
    local popped = redis.call('ZPOPMIN', ready, left)
    if #popped > 0 then
        local ids, leases = {}, {}
        for i = 1, #popped, 2 do
            ids[#ids + 1] = popped[i]
            leases[i] = ends
            leases[i + 1] = popped[i]
        end
        redis.call('ZADD', later, unpack(leases))
        found[#found + 1] = {(k - 1) / 3, ids, redis.call('HMGET', payloads, unpack(ids))}
        left = left - #ids
        if left == 0 then break end
    end
end
return found
"""
)
_LATER = _NOW + "for i = 1, #ARGV, 2 do redis.call('ZADD', KEYS[1], now + ARGV[i], ARGV[i + 1]) end"


class Redis(OneServer[Program]):
    """One server on a unix socket."""

    name = server_name = "redis"
    durability = "appendonly=yes, appendfsync=always: the append-only file is fsynced before the answer"
    batch_max = 1_000
    lacks: frozenset[str] = frozenset()

    def __init__(self) -> None:
        super().__init__()
        self.lease_ms = 30_000
        self._socket = ""
        self._process: _Process | None = None

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_process": None}

    def start(self, directory: Path, topics: Sequence[str]) -> None:
        home = directory / "redis"
        home.mkdir(exist_ok=True)
        self._socket = str(home / "socket")
        command = [
            find_program("redis-server"), "--port", "0", "--unixsocket", self._socket, "--dir", str(home),
            "--appendonly", "yes", "--appendfsync", "always", "--save", "", "--daemonize", "no",
        ]  # fmt: skip
        self._server = Program(command, home / "log")
        self._server.wait_until(lambda: asyncio.run(self._answers()))

    def version(self) -> str:
        return run(find_program("redis-server"), "--version")

    async def connect(self, in_flight: int) -> RedisClient:
        self._process = joined(self._process, lambda: _Process(self._socket))
        link = await Link.connect(self._socket)
        (claim,) = await link.call(("SCRIPT", "LOAD", _CLAIM))
        return RedisClient(link, self._process, claim, self.lease_ms)

    async def _answers(self) -> bool:
        try:
            link = await Link.connect(self._socket)
        except OSError:
            return False
        try:
            await link.call(("PING",))
        except RespError:
            return False  # It loads.
        finally:
            await link.close()
        return True


class _Process(ClientProcess):
    """Of all clients of a process together: hearing of new items."""

    def __init__(self, socket: str) -> None:
        super().__init__()
        self._socket = socket

    def listen(self) -> None:
        self._begin("redis-listen", self._listen)

    async def _end(self) -> None:
        for listening in self._tasks.values():
            await (await listening).close()

    async def _listen(self) -> Link:
        link = await Link.connect(self._socket, lambda topic: self.room.wake(topic.decode()))
        await link.call(("SUBSCRIBE", _CHANNEL))
        return link


class RedisClient:
    """One connection, which all calls in flight share."""

    def __init__(self, link: Link, process: _Process, claim: bytes, lease_ms: int) -> None:
        self._link, self._process, self._claim, self._lease_ms = link, process, claim, lease_ms
        self._client = secrets.randbits(_CLIENT_BITS)
        self._time_ns = 0

    async def enqueue(self, offers: Sequence[Offer]) -> None:
        by_topic: dict[str, list[tuple[bytes, Offer]]] = {}
        first = max(self._time_ns, time.time_ns())
        self._time_ns = first + len(offers)
        for time_ns, offer in enumerate(offers, first):
            member = _ID.pack(offer.priority + _PRIORITY_OFFSET, time_ns, self._client)
            by_topic.setdefault(offer.topic, []).append((member, offer))
        await self._transact([command for topic, items in by_topic.items() for command in _insert(topic, items)])

    async def claim(self, topics: Sequence[str], count: int, wait_ms: int) -> list[Held]:
        self._process.listen()

        async def find(asked: Sequence[str]) -> list[Held]:
            keys = [f"{topic}:{part}" for topic in asked for part in ("ready", "later", "payloads")]
            (found,) = await self._link.call(("EVALSHA", self._claim, len(keys), *keys, count, self._lease_ms))
            return [
                Held(payload, (asked[number], member))
                for number, members, payloads in found
                for member, payload in zip(members, payloads, strict=True)
            ]

        return await self._process.room.ask(find, topics, count, wait_ms, _POLL_S)

    async def ack(self, held: Sequence[Held]) -> None:
        commands: list[Command] = []
        for topic, members in _by_topic(held).items():
            commands += [("ZREM", f"{topic}:later", *members), ("HDEL", f"{topic}:payloads", *members)]
        await self._transact(commands)

    async def nack(self, held: Sequence[Held], delay_ms: int) -> None:
        for topic, members in _by_topic(held).items():
            delays = [part for member in members for part in (delay_ms, member)]
            await self._link.call(("EVAL", _LATER, 1, f"{topic}:later", *delays))
            self._process.room.wake(topic)

    async def close(self) -> None:
        await self._process.leave()
        await self._link.close()

    async def _transact(self, commands: Sequence[Command]) -> None:
        replies = await self._link.call(("MULTI",), *commands, ("EXEC",))
        if refused := [reply for reply in replies[-1] if isinstance(reply, Exception)]:
            raise RespError(str(refused[0]))


def _insert(topic: str, items: Sequence[tuple[bytes, Offer]]) -> list[Command]:
    payloads: list[bytes] = []
    ready: list[bytes | int] = []
    later: list[bytes | int] = []
    for member, offer in items:
        payloads += (member, offer.payload)
        if offer.delay_ms:
            later += (offer.delay_ms, member)
        else:
            ready += (offer.priority + _PRIORITY_OFFSET, member)
    commands: list[Command] = [("HSET", f"{topic}:payloads", *payloads)]
    if ready:
        commands += [("ZADD", f"{topic}:ready", *ready), ("PUBLISH", _CHANNEL, topic)]
    if later:
        commands.append(("EVAL", _LATER, 1, f"{topic}:later", *later))
    return commands


def _by_topic(held: Sequence[Held]) -> dict[str, list[bytes]]:
    found: dict[str, list[bytes]] = {}
    for one in held:
        topic, member = one.receipt
        found.setdefault(topic, []).append(member)
    return found

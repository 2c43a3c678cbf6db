"""beanstalkd, by its own text protocol: a tube for each topic, all commands of a batch sent in one write.

A job is reserved by a connection, which alone may delete it: so each call in flight has its own. The protocol has no
batches; what is pipelined here saves the round trips, not the fsync that the server does for each put and delete.
Reservations wait in whole seconds: waits of less than half a one poll every 5 ms. Delays are whole seconds, rounded up.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from loadtest.peers.adapter import Held, Offer, OneServer
from loadtest.peers.program import Program, accepts, find_program, free_port, run

_EOL = b"\r\n"
_POLL_S = 0.005
_NOTHING = (b"TIMED_OUT", b"DEADLINE_SOON")
_READ_BYTES = 1 << 20


class BeanstalkdError(Exception):
    """The server refused a command: what it said."""


class Beanstalkd(OneServer[Program]):
    """One server on a loopback port."""

    name = server_name = "beanstalkd"
    durability = "-b DIR -f 0: the log is fsynced for every put, delete and release before the answer"
    batch_max = 100
    lacks: frozenset[str] = frozenset()

    def __init__(self) -> None:
        super().__init__()
        self.lease_ms = 30_000
        self._port = free_port()

    def start(self, directory: Path, topics: Sequence[str]) -> None:
        log = directory / "beanstalkd"
        log.mkdir(exist_ok=True)
        command = [find_program("beanstalkd"), "-l", "127.0.0.1", "-p", str(self._port), "-b", str(log), "-f", "0"]
        self._server = Program(command, directory / "beanstalkd.log")
        self._server.wait_until(lambda: accepts(self._port))

    def version(self) -> str:
        return run(find_program("beanstalkd"), "-v")

    async def connect(self, in_flight: int) -> BeanstalkdClient:
        links = [
            _Link(*await asyncio.open_connection("127.0.0.1", self._port, limit=_READ_BYTES)) for _ in range(in_flight)
        ]
        return BeanstalkdClient(links, self.lease_ms)


class _Link:
    """One connection, for one call at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.lock = asyncio.Lock()
        self._used = b"default"
        self.watched: Sequence[str] = ("default",)

    async def put(self, offers: Sequence[Offer], lease_s: int) -> None:
        commands: list[bytes] = []
        answers: list[bytes] = []
        for offer in sorted(offers, key=_topic):
            if (topic := offer.topic.encode()) != self._used:
                commands.append(b"use %s\r\n" % topic)
                answers.append(b"USING")
                self._used = topic
            head = b"put %d %d %d %d\r\n" % (offer.priority, _seconds(offer.delay_ms), lease_s, len(offer.payload))
            commands += (head, offer.payload, _EOL)
            answers.append(b"INSERTED")
        await self._do(commands, answers)

    async def reserve(self, topics: Sequence[str], count: int, wait_s: int) -> list[tuple[bytes, bytes]]:
        """Payloads and ids. Waits for the first only."""
        if topics != self.watched:
            commands = [b"watch %s\r\n" % topic.encode() for topic in topics]
            commands += [b"ignore %s\r\n" % topic.encode() for topic in self.watched if topic not in topics]
            await self._do(commands, [b"WATCHING"] * len(commands))
            self.watched = topics
        first = await self._reserve(1, wait_s)
        return first + await self._reserve(count - 1, 0) if first and count > 1 else first

    async def settle(self, commands: Sequence[bytes], answer: bytes) -> None:
        await self._do(commands, [answer] * len(commands))

    def close(self) -> None:
        self._writer.close()

    async def closed(self) -> None:
        await self._writer.wait_closed()

    async def _reserve(self, count: int, wait_s: int) -> list[tuple[bytes, bytes]]:
        self._writer.write(b"reserve-with-timeout %d\r\n" % wait_s * count)
        found = []
        for _ in range(count):
            line = await self._reader.readuntil(_EOL)
            if line[:-2] in _NOTHING:
                continue
            word, number, size = line.split()
            if word != b"RESERVED":
                raise BeanstalkdError(line.decode())
            payload = await self._reader.readexactly(int(size) + 2)
            found.append((payload[:-2], number))
        return found

    async def _do(self, commands: Sequence[bytes], answers: Sequence[bytes]) -> None:
        self._writer.write(b"".join(commands))
        refused = None
        for answer in answers:
            line = await self._reader.readuntil(_EOL)
            if not line.startswith(answer):
                refused = refused or line
        if refused is not None:
            raise BeanstalkdError(refused.decode())


class BeanstalkdClient:
    def __init__(self, links: list[_Link], lease_ms: int) -> None:
        self._links, self._lease_s = links, _seconds(lease_ms)
        self._turn = itertools.count()

    async def enqueue(self, offers: Sequence[Offer]) -> None:
        async with self._free_link() as link:
            await link.put(offers, self._lease_s)

    async def claim(self, topics: Sequence[str], count: int, wait_ms: int) -> list[Held]:
        deadline_s = asyncio.get_running_loop().time() + wait_ms / 1_000
        while True:
            left_s = deadline_s - asyncio.get_running_loop().time()
            async with self._free_link(topics) as link:
                found = await link.reserve(topics, count, max(0, round(left_s)))
            if found:
                return [Held(payload, (link, number)) for payload, number in found]
            left_s = deadline_s - asyncio.get_running_loop().time()
            if left_s <= 0:
                return []
            await asyncio.sleep(min(left_s, _POLL_S))

    async def ack(self, held: Sequence[Held]) -> None:
        await self._settle(held, b"delete %s\r\n", b"DELETED")

    async def nack(self, held: Sequence[Held], delay_ms: int) -> None:
        await self._settle(held, b"release %%s 0 %d\r\n" % _seconds(delay_ms), b"RELEASED")

    async def close(self) -> None:
        for link in self._links:
            link.close()
        await asyncio.gather(*[link.closed() for link in self._links])

    async def _settle(self, held: Sequence[Held], command: bytes, answer: bytes) -> None:
        by_link: dict[_Link, list[bytes]] = {}
        for one in held:
            link, number = one.receipt
            by_link.setdefault(link, []).append(command % number)
        for link, commands in by_link.items():
            async with link.lock:
                await link.settle(commands, answer)

    @asynccontextmanager
    async def _free_link(self, topics: Sequence[str] = ()) -> AsyncIterator[_Link]:
        """One that is not in use, if there is one; best one that watches these topics already."""
        links = self._links
        free = [link for link in links if not link.lock.locked()] or [links[next(self._turn) % len(links)]]
        link = next((link for link in free if link.watched == topics), free[0])
        async with link.lock:
            yield link


def _topic(offer: Offer) -> str:
    return offer.topic


def _seconds(duration_ms: int) -> int:
    return -(-duration_ms // 1_000)

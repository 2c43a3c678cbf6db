"""RabbitMQ: a quorum queue for each topic, confirms pipelined, consumers with a prefetch, multiple acks.

The broker pushes: consumers of the topics of a claim begin with the first one of them, on a channel of their own, and
the prefetch of each is what the calls in flight can claim. An ack has no answer in AMQP, so that a power cut may bring
acked items again; what is sent after it on the same connection is handled after it. Quorum queues of this version have
no priorities and no delays; an item is held as long as its connection lives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pamqp import commands

from loadtest.peers.adapter import Held, Offer
from loadtest.peers.amqp import Channel, Link, routing
from loadtest.peers.program import Program, accepts, find_program, free_port, run
from loadtest.peers.waiting import WaitingRoom

_PREFETCH_MAX = 2_000
_NODE = "bench@localhost"
_CONF = """
listeners.tcp.local = 127.0.0.1:{port}
log.console = false
collect_statistics = none
disk_free_limit.absolute = 50MB
"""


class RabbitMQ:
    """One broker of one node, and the port mapper that Erlang wants, on loopback ports."""

    name = "rabbitmq"
    durability = "quorum queues of one node: the confirm follows the fsync of its write-ahead log; acks have no answer"
    batch_max = 250  # A call returns when all of it is confirmed.
    lacks = frozenset({"priority", "delay", "lease", "nack_delay"})

    def __init__(self) -> None:
        self._port = free_port()
        self._programs: dict[str, Program] = {}
        self._topics: tuple[str, ...] = ()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_programs": {}}

    def start(self, directory: Path, topics: Sequence[str]) -> None:
        self._topics = tuple(topics)
        home = directory / "rabbitmq"
        home.mkdir(exist_ok=True)
        (home / "rabbitmq.conf").write_text(_CONF.format(port=self._port))
        (home / "enabled_plugins").write_text("[].\n")
        mapper_port = free_port()
        self._programs["epmd"] = Program(
            [find_program("epmd"), "-address", "127.0.0.1", "-port", str(mapper_port)], home / "epmd.log"
        )
        self._programs["epmd"].wait_until(lambda: accepts(mapper_port))
        variables = {
            "HOME": str(home),
            "ERL_EPMD_PORT": str(mapper_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": _NODE,
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_CONFIG_FILE": str(home / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(home / "data"),
            "RABBITMQ_LOG_BASE": str(home / "logs"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(home / "generated"),
            "RABBITMQ_PID_FILE": str(home / "pid"),
            "RABBITMQ_CONF_ENV_FILE": str(home / "no-such-file"),
            "RABBITMQ_ALLOW_INPUT": "1",
            # https://www.rabbitmq.com/docs/runtime#busy-waiting: threads with no work let the cores go.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+sbwt none +sbwtdcpu none +sbwtdio none -noinput",
        }
        self._programs["rabbitmq"] = Program([find_program("rabbitmq-server")], home / "log", variables=variables)
        self._programs["rabbitmq"].wait_until(lambda: accepts(self._port))
        asyncio.run(self._declare())
        # Written a second after they were declared; a crash before that loses the queues, with all that is in them.
        names = home / "data" / _NODE / "quorum" / _NODE / "names.dets"
        self._programs["rabbitmq"].wait_until(lambda: _is_written(names))

    def stop(self) -> None:
        for program in reversed(self._programs.values()):
            program.stop()
        self._programs.clear()

    def pids(self) -> dict[str, int]:
        return {name: program.pid for name, program in self._programs.items()}

    def version(self) -> str:
        return "RabbitMQ " + run("dpkg-query", "--show", "--showformat", "${Version}", "rabbitmq-server")

    async def connect(self, in_flight: int) -> RabbitMQClient:
        link = await Link.connect(self._port)
        channel = await link.open_channel()
        await channel.call(commands.Confirm.Select())
        return RabbitMQClient(link, channel, in_flight)

    async def _declare(self) -> None:
        link = await Link.connect(self._port)
        channel = await link.open_channel()
        for topic in self._topics:
            queue = commands.Queue.Declare(queue=topic, durable=True, arguments={"x-queue-type": "quorum"})
            await channel.call(queue)
        await link.close()


class RabbitMQClient:
    """One connection; a channel for all confirms and one for each topic, or list of topics, that is claimed from."""

    def __init__(self, link: Link, publishing: Channel, in_flight: int) -> None:
        self._link, self._publishing, self._in_flight = link, publishing, in_flight
        self._consuming: dict[str, asyncio.Task[Channel]] = {}
        self._routings: dict[str, bytes] = {}
        self._room = WaitingRoom()

    async def enqueue(self, offers: Sequence[Offer]) -> None:
        routings = self._routings
        for topic in {offer.topic for offer in offers} - routings.keys():
            routings[topic] = routing(topic)
        await self._publishing.publish([(routings[offer.topic], offer.payload) for offer in offers])

    async def claim(self, topics: Sequence[str], count: int, wait_ms: int) -> list[Held]:
        listed = " ".join(topics)
        begun = self._consuming.get(listed)
        if begun is None:
            begun = self._consuming[listed] = asyncio.create_task(self._consume(topics, count, listed))
        channel = await begun
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + wait_ms / 1_000
        delivered = channel.delivered
        while not delivered:
            left_s = deadline_s - loop.time()
            if left_s <= 0:
                return []
            await self._room.wait([listed], left_s)
        found = [delivered.popleft() for _ in range(min(count, len(delivered)))]
        if delivered:
            self._room.wake(listed)
        return [Held(payload, (channel, tag)) for tag, payload in found]

    async def ack(self, held: Sequence[Held]) -> None:
        for channel, tags in _by_channel(held).items():
            channel.settle(tags)

    async def nack(self, held: Sequence[Held], delay_ms: int) -> None:
        for channel, tags in _by_channel(held).items():
            channel.requeue(tags)

    async def close(self) -> None:
        await self._link.close()

    async def _consume(self, topics: Sequence[str], count: int, listed: str) -> Channel:
        channel = await self._link.open_channel()
        channel.on_delivery = lambda: self._room.wake(listed)
        await channel.call(commands.Basic.Qos(0, min(_PREFETCH_MAX, count * self._in_flight), False))
        for topic in topics:
            await channel.call(commands.Basic.Consume(queue=topic))
        return channel


def _is_written(table: Path) -> bool:
    """Whether no change of the table is in memory alone. The mark is the third word of the file (OTP's dets_v9)."""
    return table.read_bytes()[8:12] == b"\0\0\0\1"


def _by_channel(held: Sequence[Held]) -> dict[Channel, list[int]]:
    found: dict[Channel, list[int]] = {}
    for one in held:
        channel, tag = one.receipt
        found.setdefault(channel, []).append(tag)
    return found

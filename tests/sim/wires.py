"""Connections of production on both ends, and a simulated network between them: what is sent arrives late, in order."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from foqs.client.addresses import Address
from foqs.client.aio.client import AsyncClient
from foqs.client.aio.connections import AsyncClientConnection, AsyncConnectionPool
from foqs.client.client_errors import ClientClosedError
from foqs.client.retry import RetryPolicy
from foqs.transport.bounds import TransportLimits
from foqs.transport.connection import Connection
from foqs.transport.connection_table import ConnectionTable
from foqs.transport.entrance import Entrance
from foqs.transport.sign_ins import OpenAccess, SignIns
from foqs.transport.verb_table import Verbs, request_ids
from foqs.wire.codec import Codec

if TYPE_CHECKING:
    from tests.sim.host import SimHost
    from tests.sim.world import World

_LATENCY_S_MAX = 0.01
_ADDRESS = Address("sim", 1)


Arriving = Callable[[Callable[[], None]], None]
"""Is given what arrives, and lets it come in."""


def _as_it_is(come_in: Callable[[], None]) -> None:
    come_in()


class NoMetrics:
    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


class FrontDoor:
    """The port of a simulated host."""

    def __init__(self, world: World, host: SimHost) -> None:
        codec, door = Codec(), host.door
        wall_ms, now_s, bounds = lambda: 0, asyncio.get_running_loop().time, TransportLimits()
        verbs = Verbs(door.call, door.is_living_peer, codec, request_ids(0))
        namespaces: Any = host.host._namespaces
        metrics: Any = NoMetrics()
        self.table = ConnectionTable(
            verbs,
            codec,
            metrics,
            bounds,
            namespaces,
            [Entrance(bounds, SignIns(OpenAccess(), wall_ms, now_s, bounds))],
        )
        self.world = world

    def connect(self, client: asyncio.Protocol, chance: random.Random, arriving: Arriving) -> asyncio.Transport:
        """Open a connection, and return the client's end. That of the host outlives the processes of clients."""
        return self.world.context.run(self._connect, client, chance, arriving)

    def _connect(self, client: asyncio.Protocol, chance: random.Random, arriving: Arriving) -> asyncio.Transport:
        at_host = Connection(self.table)
        there, back = _End(self.world, chance), _End(self.world, chance)
        there.join(at_host, back)
        back.join(client, there)
        back.arriving = arriving
        at_host.connection_made(back)
        client.connection_made(there)
        return there


class _End(asyncio.Transport):
    """What one end writes into. It arrives at `protocol`, at the other end."""

    def __init__(self, world: World, chance: random.Random) -> None:
        super().__init__({"peername": ("sim", 0), "socket": None})
        self._world = world
        self._chance = chance
        self._on_the_way: deque[tuple[Any, tuple[Any, ...]]] = deque()
        self._closing = False
        self.arriving: Arriving = _as_it_is

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return _NoSocket() if name == "socket" else super().get_extra_info(name, default)

    def join(self, protocol: asyncio.Protocol, other: _End) -> None:
        self._protocol, self._other = protocol, other

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._closing:
            self._later(self._protocol.data_received, bytes(data))

    def _later(self, work: Any, *args: Any) -> None:
        self._on_the_way.append((work, args))
        latency_s = self._chance.random() * _LATENCY_S_MAX
        self._world.loop.call_later(latency_s, self._arrive, context=self._world.context)

    def _arrive(self) -> None:
        """What was sent first arrives, whichever timer is the first one."""
        work, args = self._on_the_way.popleft()
        if not self._other._closing:
            self.arriving(partial(work, *args))

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._world.loop.call_soon(self._other._protocol.connection_lost, None)
            self._later(self._hung_up)

    def _hung_up(self) -> None:
        self._other._closing = True
        self._protocol.connection_lost(None)

    def abort(self) -> None:
        self.close()

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None:
        """Nothing: the bounds of a connection are of no interest here."""

    def resume_reading(self) -> None:
        """Nothing, as above."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing: what is written is taken at once."""

    def get_write_buffer_size(self) -> int:
        return 0


class _NoSocket:
    def setsockopt(self, *_: Any) -> None:
        """Nothing."""


class WirePool(AsyncConnectionPool):
    """The connections of a client to a simulated host."""

    front_door: FrontDoor
    chance: random.Random
    ends: list[asyncio.Transport]
    arriving: Arriving = staticmethod(_as_it_is)

    async def _connect(self, avoided: object) -> AsyncClientConnection:
        await asyncio.sleep(0)
        if self.closed.is_set():
            raise ClientClosedError("the client is closed")
        connection = AsyncClientConnection(self._options, _ADDRESS, self.late)
        self.ends.append(self.front_door.connect(connection, self.chance, self.arriving))
        self._connections.append(connection)
        return connection


class WireClient(AsyncClient):
    """A client of production whose host is simulated."""

    def __init__(self, front_door: FrontDoor, chance: random.Random) -> None:
        self._front_door = front_door
        self._wire_chance = chance
        loop = front_door.world.loop
        super().__init__(
            "sim:1",
            timeout_ms=2_000,
            retry=RetryPolicy(deadline_ms=2_000),
            clock_ms=lambda: int(loop.time() * 1000),
            random=chance.random,
        )

    def _make_pool(self) -> AsyncConnectionPool:
        pool = WirePool(self.options, self._terms.book)
        pool.front_door, pool.chance, pool.ends = self._front_door, self._wire_chance, []
        return pool

    def vanish(self) -> None:
        """As when its process ends: the system closes its connections."""
        assert isinstance(self._pool, WirePool)
        for end in self._pool.ends:
            end.abort()

"""The networks between the host and its servers, and between clients and the host."""

from __future__ import annotations

import random
from typing import ClassVar

from loadtest.chaos.fault import CLIENTS, Fault, shards_of
from loadtest.chaos.room import SERVER_COUNT, Room
from tests.support.faults.network import BadNetwork

_BYTES_TO_CUT_MAX = 20_000
_CLIENT_DELAYS_MS = (5, 20, 100, 300)
_SERVER_DELAYS_MS = (2, 5, 20)
"""A host that takes a shard over knows its server's clock no better than the way there and back, twice, is long."""
_LINKS_CUT_MAX = 3


class NetworkFault(Fault[Room]):
    """Of the clients' network, or of one server's, drawn by chance."""

    of_clients: ClassVar[bool]

    def __init__(self, rng: random.Random) -> None:
        self._number = rng.randrange(SERVER_COUNT)
        self._rng = random.Random(rng.random())
        self.targets = frozenset({CLIENTS if self.of_clients else f"network-{self._number}"})
        self.shards = frozenset() if self.of_clients else shards_of(self._number)

    def _network(self, room: Room) -> BadNetwork:
        return room.client_network if self.of_clients else room.networks[self._number]


class _Slow(NetworkFault):
    def begin(self, room: Room) -> None:
        delays_ms = _CLIENT_DELAYS_MS if self.of_clients else _SERVER_DELAYS_MS
        self._network(room).slow_down(self._rng.choice(delays_ms))

    def end(self, room: Room) -> None:
        self._network(room).slow_down(0)


class _Cut(NetworkFault):
    """Connections are reset at any byte, again and again."""

    length_ms = (1, 3_000)

    def begin(self, room: Room) -> None:
        self._network(room).cut(_LINKS_CUT_MAX, _BYTES_TO_CUT_MAX, self._rng)

    def tick(self, room: Room) -> None:
        if self._rng.random() < 0.3:
            self.begin(room)

    def end(self, room: Room) -> None:
        self.begin(room)


class _Gone(NetworkFault):
    """Half-open: whatever is sent is lost, and nobody is told."""

    length_ms = (200, 15_000)

    def begin(self, room: Room) -> None:
        self._network(room).lose()

    def end(self, room: Room) -> None:
        self._network(room).find()


class ServerNetworkSlow(_Slow):
    kind = "network host-server: slow"
    of_clients = False


class ServerNetworkCut(_Cut):
    kind = "network host-server: resets"
    of_clients = False


class ServerNetworkGone(_Gone):
    kind = "network host-server: half-open"
    of_clients = False


class ClientNetworkSlow(_Slow):
    kind = "network client-host: slow"
    of_clients = True


class ClientNetworkCut(_Cut):
    kind = "network client-host: resets"
    of_clients = True


class ClientNetworkGone(_Gone):
    kind = "network client-host: half-open"
    of_clients = True

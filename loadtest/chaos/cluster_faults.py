"""What goes wrong in a cluster: hosts, servers, the meta database and networks; and shards that move meanwhile."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar

from foqs import AdminClient
from foqs.client.retry import RetryPolicy
from foqs.model.errors import FoqsError
from loadtest.chaos.cluster_room import ClusterRoom, Layout
from loadtest.chaos.fault import META, Fault
from loadtest.chaos.packet_loss import Peer
from tests.support.faults import FaultError
from tests.support.faults.network import BadNetwork

ZOOKEEPER = "zookeeper"
_BYTES_TO_CUT_MAX = 20_000
_LINKS_CUT_MAX = 3
_DELAYS_MS = (2, 5, 20, 100)
_LOST_PERCENT = (2, 20)
_MOVE_MS_MAX = 2_000


class ClusterFault(Fault[ClusterRoom]):
    """Of a cluster. What it concerns is drawn by chance."""

    def __init__(self, layout: Layout, rng: random.Random) -> None:
        self.layout = layout
        self.shards = frozenset(layout.shards)
        self._draw(rng)

    def _draw(self, rng: random.Random) -> None:
        raise NotImplementedError


class HostFault(ClusterFault):
    """Of one host, which needs the meta database to start again."""

    def _draw(self, rng: random.Random) -> None:
        self.host = rng.randrange(1, self.layout.hosts + 1)
        self.targets = frozenset({f"host-{self.host}", META, ZOOKEEPER, *_links_to_start(self.layout, self.host)})


class HostKilled(HostFault):
    kind = "host: kill -9"
    length_ms = (1, 10_000)

    def begin(self, room: ClusterRoom) -> None:
        room.kill_host(self.host)

    def end(self, room: ClusterRoom) -> None:
        room.start_host(self.host)


class HostRestarted(HostFault):
    """It leaves in order, and comes back."""

    kind = "host: SIGTERM and start"
    length_ms = (300, 10_000)

    def begin(self, room: ClusterRoom) -> None:
        room.programs[self.host].signal(signal.SIGTERM)

    def end(self, room: ClusterRoom) -> None:
        _see_out(room, self.host)
        room.start_host(self.host)


class HostStopped(HostFault):
    """Others take it for dead after limits.HOST_DEAD_MS."""

    kind = "host: SIGSTOP"
    length_ms = (100, 15_000)

    def begin(self, room: ClusterRoom) -> None:
        room.programs[self.host].signal(signal.SIGSTOP)

    def end(self, room: ClusterRoom) -> None:
        room.programs[self.host].signal(signal.SIGCONT)


class HostCutOff(HostFault):
    """It reaches nobody, and nobody reaches it."""

    kind = "partition: a host and all others"
    length_ms = (500, 15_000)

    def begin(self, room: ClusterRoom) -> None:
        room.links.cut_off(self.host)
        for network in self._networks(room):
            network.lose()

    def end(self, room: ClusterRoom) -> None:
        room.links.take_back(self.host)
        for network in self._networks(room):
            network.find()

    def _networks(self, room: ClusterRoom) -> list[BadNetwork]:
        to_servers = [room.server_networks[self.host, server] for server in self.layout.server_numbers]
        return [*to_servers, room.doors[self.host], room.client_networks[self.host]]


class HostsApart(ClusterFault):
    """Two hosts do not reach each other, or one of them not the other; both reach all servers."""

    kind = "partition: two hosts"
    length_ms = (500, 15_000)

    def _draw(self, rng: random.Random) -> None:
        self.one, self.other = rng.sample(range(1, self.layout.hosts + 1), 2)
        self.is_mutual = rng.random() < 0.5
        self.targets = frozenset({f"pair-{min(self.one, self.other)}-{max(self.one, self.other)}"})

    def begin(self, room: ClusterRoom) -> None:
        room.links.part(self.one, self.other)
        if self.is_mutual:
            room.links.part(self.other, self.one)

    def end(self, room: ClusterRoom) -> None:
        room.links.join(self.one, self.other)
        if self.is_mutual:
            room.links.join(self.other, self.one)


class HostPacketsLost(HostFault):
    """Some packets from and to a host are lost: calls take seconds, and others may take it for dead."""

    kind = "packets lost: a host and all others"
    length_ms = (500, 15_000)

    def _draw(self, rng: random.Random) -> None:
        super()._draw(rng)
        self.percent = rng.randint(*_LOST_PERCENT)

    def begin(self, room: ClusterRoom) -> None:
        room.links.lose_packets(self.host, self.percent)

    def end(self, room: ClusterRoom) -> None:
        room.links.keep_packets(self.host)


class PeerPacketsLost(HostsApart):
    """Some packets of the calls from a host to another one are lost, or of those from either to the other."""

    kind = "packets lost: two hosts"

    def _draw(self, rng: random.Random) -> None:
        super()._draw(rng)
        self.percent = rng.randint(*_LOST_PERCENT)

    def begin(self, room: ClusterRoom) -> None:
        for one, other in self._ways():
            room.links.lose_packets(one, self.percent, Peer(room.links.door_address(other)))

    def end(self, room: ClusterRoom) -> None:
        for one, other in self._ways():
            room.links.keep_packets(one, Peer(room.links.door_address(other)))

    def _ways(self) -> list[tuple[int, int]]:
        ways = [(self.one, self.other)]
        return [*ways, (self.other, self.one)] if self.is_mutual else ways


class GuestComes(ClusterFault):
    """One more host joins, gets its part of the shards, and leaves."""

    kind = "host: joins and leaves"
    length_ms = (4_000, 20_000)

    def _draw(self, rng: random.Random) -> None:
        self.targets = frozenset({f"host-{self.layout.guest}", META, ZOOKEEPER})

    def begin(self, room: ClusterRoom) -> None:
        room.start_host(self.layout.guest)

    def end(self, room: ClusterRoom) -> None:
        room.programs[self.layout.guest].signal(signal.SIGTERM)
        _see_out(room, self.layout.guest)


class ShardMoved(ClusterFault):
    """An operator pins a shard to a host for a while. While the meta database is away nobody can."""

    kind = "shard: moved"
    length_ms = (1_000, 8_000)

    def _draw(self, rng: random.Random) -> None:
        self.shard = rng.choice(list(self.layout.shards))
        self.to = f"host-{rng.randrange(1, self.layout.hosts + 1)}"
        self.targets = frozenset({f"shard-{self.shard}", META})

    def begin(self, room: ClusterRoom) -> None:
        self._pin(room, self.to)

    def end(self, room: ClusterRoom) -> None:
        self._pin(room, "")

    def _pin(self, room: ClusterRoom, host_name: str) -> None:
        for host in room.programs:
            with (
                suppress(FoqsError),
                AdminClient(room.address_of(host), timeout_ms=_MOVE_MS_MAX, retry=RetryPolicy(deadline_ms=0)) as admin,
            ):
                admin.update_shard(self.shard, pinned_to=host_name)
                return
        raise FaultError(f"no host could pin shard {self.shard}")


class MetaKilled(ClusterFault):
    kind = "meta database: kill -9 and start"
    length_ms = (1, 8_000)

    def _draw(self, rng: random.Random) -> None:
        self.targets = frozenset({META, "server-0"})

    def begin(self, room: ClusterRoom) -> None:
        room.servers[0].kill()

    def end(self, room: ClusterRoom) -> None:
        room.servers[0].start()


class MetaStopped(MetaKilled):
    kind = "meta database: SIGSTOP"
    length_ms = (100, 10_000)

    def begin(self, room: ClusterRoom) -> None:
        room.servers[0].pause()

    def end(self, room: ClusterRoom) -> None:
        room.servers[0].resume()


class ZookeeperKilled(ClusterFault):
    kind = "ZooKeeper: kill -9 and start"
    length_ms = (1, 12_000)

    def _draw(self, rng: random.Random) -> None:
        self.targets = frozenset({ZOOKEEPER})

    def begin(self, room: ClusterRoom) -> None:
        assert room.zookeeper is not None
        room.zookeeper.kill()

    def end(self, room: ClusterRoom) -> None:
        assert room.zookeeper is not None
        room.zookeeper.start()


class ZookeeperStopped(ZookeeperKilled):
    kind = "ZooKeeper: SIGSTOP"
    length_ms = (100, 12_000)

    def begin(self, room: ClusterRoom) -> None:
        assert room.zookeeper is not None
        room.zookeeper.freeze()

    def end(self, room: ClusterRoom) -> None:
        assert room.zookeeper is not None
        room.zookeeper.thaw()


class ServerKilled(ClusterFault):
    kind = "server: kill -9 and start"
    length_ms = (1, 6_000)

    def _draw(self, rng: random.Random) -> None:
        self.server = rng.randrange(1, self.layout.servers + 1)
        self.targets = frozenset({f"server-{self.server}"})

    def begin(self, room: ClusterRoom) -> None:
        room.servers[self.server].kill()

    def end(self, room: ClusterRoom) -> None:
        room.servers[self.server].start()


class ServerStopped(ServerKilled):
    kind = "server: SIGSTOP"
    length_ms = (100, 10_000)

    def begin(self, room: ClusterRoom) -> None:
        room.servers[self.server].pause()

    def end(self, room: ClusterRoom) -> None:
        room.servers[self.server].resume()


class NetworkFault(ClusterFault):
    """Of a network between a host and a server, the meta database's too; between a host and those that call it; or
    between a host and its clients.
    """

    where: ClassVar[str]

    def _draw(self, rng: random.Random) -> None:
        self.host = rng.randrange(1, self.layout.hosts + 1)
        self.server = rng.choice(self.layout.server_numbers)
        self.rng = random.Random(rng.random())
        name = f"link-{self.host}-{self.server}" if self.where == "host-server" else f"{self.where}-{self.host}"
        # One that is cut off by another fault has no network that could be bad.
        self.targets = frozenset({name, f"host-{self.host}"})

    def network(self, room: ClusterRoom) -> BadNetwork:
        if self.where == "host-server":
            return room.server_networks[self.host, self.server]
        return (room.doors if self.where == "host-host" else room.client_networks)[self.host]


class NetworkSlow(NetworkFault):
    def begin(self, room: ClusterRoom) -> None:
        self.network(room).slow_down(self.rng.choice(_DELAYS_MS))

    def end(self, room: ClusterRoom) -> None:
        self.network(room).slow_down(0)


class NetworkCut(NetworkFault):
    """Connections are reset at any byte, again and again."""

    length_ms = (1, 3_000)

    def begin(self, room: ClusterRoom) -> None:
        self.network(room).cut(_LINKS_CUT_MAX, _BYTES_TO_CUT_MAX, self.rng)

    def tick(self, room: ClusterRoom) -> None:
        if self.rng.random() < 0.3:
            self.begin(room)

    def end(self, room: ClusterRoom) -> None:
        self.begin(room)


class NetworkGone(NetworkFault):
    """Half-open: whatever is sent is lost, and nobody is told."""

    length_ms = (200, 15_000)

    def begin(self, room: ClusterRoom) -> None:
        self.network(room).lose()

    def end(self, room: ClusterRoom) -> None:
        self.network(room).find()


class ServerNetworkSlow(NetworkSlow):
    where = "host-server"
    kind = "network host-server: slow"


class ServerNetworkCut(NetworkCut):
    where = "host-server"
    kind = "network host-server: resets"


class ServerNetworkGone(NetworkGone):
    where = "host-server"
    kind = "network host-server: half-open"


class ServerPacketsLost(NetworkFault):
    """Some packets between a host and a server are lost, each way."""

    where = "host-server"
    kind = "packets lost: a host and a server"
    length_ms = (500, 15_000)

    def _draw(self, rng: random.Random) -> None:
        super()._draw(rng)
        self.percent = rng.randint(*_LOST_PERCENT)

    def begin(self, room: ClusterRoom) -> None:
        room.links.lose_packets(self.host, self.percent, self._peer(room))

    def end(self, room: ClusterRoom) -> None:
        room.links.keep_packets(self.host, self._peer(room))

    def _peer(self, room: ClusterRoom) -> Peer:
        network = self.network(room)
        return Peer(network.address, network.port)


class PeerNetworkSlow(NetworkSlow):
    where = "host-host"
    kind = "network host-host: slow"


class PeerNetworkCut(NetworkCut):
    where = "host-host"
    kind = "network host-host: resets"


class PeerNetworkGone(NetworkGone):
    where = "host-host"
    kind = "network host-host: half-open"


class ClientNetworkSlow(NetworkSlow):
    where = "client-host"
    kind = "network client-host: slow"


class ClientNetworkCut(NetworkCut):
    where = "client-host"
    kind = "network client-host: resets"


class ClientNetworkGone(NetworkGone):
    where = "client-host"
    kind = "network client-host: half-open"


KINDS: dict[type[ClusterFault], int] = {
    HostKilled: 4,
    HostRestarted: 3,
    HostStopped: 3,
    HostCutOff: 3,
    HostsApart: 3,
    HostPacketsLost: 3,
    PeerPacketsLost: 2,
    GuestComes: 2,
    ShardMoved: 4,
    MetaKilled: 2,
    MetaStopped: 2,
    ZookeeperKilled: 2,
    ZookeeperStopped: 2,
    ServerKilled: 2,
    ServerStopped: 2,
    ServerNetworkSlow: 2,
    ServerNetworkCut: 2,
    ServerNetworkGone: 2,
    ServerPacketsLost: 2,
    PeerNetworkSlow: 2,
    PeerNetworkCut: 2,
    PeerNetworkGone: 2,
    ClientNetworkSlow: 1,
    ClientNetworkCut: 1,
    ClientNetworkGone: 1,
}
"""With how many of all faults are of each kind, in proportion."""


def kinds_for(
    layout: Layout, kinds: Mapping[type[ClusterFault], int] = KINDS
) -> dict[Callable[[random.Random], Fault[Any]], int]:
    """Those of the kinds that a cluster like this can have."""
    lacking = {
        HostsApart: not layout.can_part or layout.hosts < 2,
        HostPacketsLost: not layout.can_lose,
        PeerPacketsLost: not layout.can_lose or layout.hosts < 2,
        ServerPacketsLost: not layout.can_lose,
        ZookeeperKilled: not layout.by_zookeeper,
        ZookeeperStopped: not layout.by_zookeeper,
    }
    return {partial(kind, layout): weight for kind, weight in kinds.items() if not lacking.get(kind, False)}


def _links_to_start(layout: Layout, host: int) -> list[str]:
    """The names of the networks that the host cannot do without when it starts."""
    needed = [0, *([layout.server_numbers[-1]] if layout.by_zookeeper else [])]
    return [f"link-{host}-{server}" for server in needed]


def _see_out(room: ClusterRoom, host: int) -> None:
    """Wait for a host that was told to end, and tell it again if that takes long: it may wait for a server."""
    program = room.programs[host]
    program.wait_for_line("draining")
    try:
        program.wait()
    except FaultError:
        program.signal(signal.SIGKILL)
    room.kill_host(host)

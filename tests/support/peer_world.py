"""A real server with the door for peers, and the connections of a host that calls it. Nothing else of it is real."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Set
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

from foqs.cluster.homes.cap_homes import CapHomes
from foqs.cluster.homes.topic_homes import TopicHomes
from foqs.cluster.members.view import ClusterView
from foqs.cluster.ownership.owner_map import OwnerMap
from foqs.cluster.ownership.owner_reports import OwnerReports
from foqs.cluster.peers.peer_claims import PeerClaims
from foqs.cluster.routing.peer_door import PeerDoor
from foqs.model.calls import CallContext
from foqs.model.cluster import HostRow, ShardRow, ShardUse
from foqs.model.peer_proof import NONCE_BYTES, PROOF, Greeting
from foqs.transport.bounds import TransportLimits
from foqs.transport.peers import Peers
from foqs.transport.remote_host import RemoteHost
from foqs.transport.server import ThriftServer
from foqs.wire.codec import Reply, structs
from tests.support.fake_queue import FakeQueue
from tests.support.raw_client import RawClient

CLUSTER = "c"
SECRET = b"s" * 32
HOSTS = ("callee", "caller", "other")
SHARDS = {1: 5, 2: 7}
"""The epochs of shards that `other` has."""
SWEEP_MS = 20


class PeerWorld:
    """A host that is called, and the connections of one that calls."""

    def __init__(self, sweep_ms: int) -> None:
        self.queue = FakeQueue()
        self.secret: bytes | None = SECRET
        self.now_s = asyncio.get_running_loop().time
        self.owners = OwnerMap(self.now_s)
        self.proofs = dict.fromkeys(HOSTS, PROOF)
        """The newest proof that each living host knows."""
        self.news: Any = TopicHomes("callee", None, None, lambda count: 0, self.now_s)  # type: ignore[arg-type]
        local: Any = SimpleNamespace(cap_rate=lambda key: 0.0)
        self.caps = CapHomes("callee", None, local, self.now_s)  # type: ignore[arg-type]
        self.owner_reports = OwnerReports("callee", None, self.owners, self.now_s)  # type: ignore[arg-type]
        self.claims = PeerClaims("callee", self._living, self.now_s)
        self.door = PeerDoor(
            "callee", CLUSTER, lambda: self.owners.living, self.news, self.caps, self.owner_reports, self.claims,
            lambda: self.secret, os.urandom, self.now_s,
        )  # fmt: skip
        self.look()
        self.server = ThriftServer(
            self._call, address="127.0.0.1", port=0, namespaces=self.queue, metrics=Mock(),
            is_living_peer=self.door.is_living, bounds=TransportLimits(sweep_ms=sweep_ms),
        )  # fmt: skip
        self.peers = self.connections_of("caller")

    def _call(self, context: CallContext, verb: str, request: Any) -> Awaitable[Any]:
        if verb in self.door.table:
            return self.door.table[verb](context, request)
        return self.queue.call(context, verb, request)

    def _living(self) -> Set[str]:
        return self.owners.living.keys()

    def look(self, shards: dict[int, int] | None = None) -> None:
        """Read the meta database: who lives, and which shards there are."""
        hosts = {name: HostRow(name, f"{name}:1", 1, 1, proof=proof) for name, proof in self.proofs.items()}
        rows = {
            shard_id: ShardRow(shard_id, epoch, "other", 0, "", ShardUse.SERVING, "", "", "", 0)
            for shard_id, epoch in (SHARDS if shards is None else shards).items()
        }
        self.owner_reports.members({name: f"{name}:1" for name in hosts}, frozenset())
        self.news.members(sorted(hosts), sorted(hosts))
        self.owners.look(ClusterView("callee", hosts, rows, is_settled=True))

    def connections_of(self, me: str, secret: bytes = SECRET, callee_proof: int = PROOF) -> Peers:
        return Peers(me, CLUSTER, lambda: secret, lambda host_id: callee_proof, os.urandom, self.now_s)

    def remote(self, host_id: str = "callee") -> RemoteHost:
        return self.peers.get(host_id, f"127.0.0.1:{self.server.port}")

    def stranger(self) -> Any:
        """A connection of somebody who knows the protocol."""
        return RawClient.connect("127.0.0.1", self.server.port)


async def greet(client: RawClient, caller: str = "caller", callee: str = "callee") -> tuple[Reply, Greeting]:
    """Greet, and return what the proofs are to be made of."""
    nonce = os.urandom(NONCE_BYTES)
    reply = await client.call("greet", structs.GreetRequest(PROOF, caller, callee, nonce))
    return reply, Greeting(CLUSTER, caller, callee, nonce, reply.response.nonce if reply.response else b"")


async def join(client: RawClient, caller: str = "caller") -> Reply:
    """Become a peer, by the secret."""
    _, said = await greet(client, caller)
    return await client.call("join", structs.JoinRequest(said.caller_proof(SECRET)))


@asynccontextmanager
async def peer_world(sweep_ms: int = SWEEP_MS) -> AsyncIterator[PeerWorld]:
    made = PeerWorld(sweep_ms)
    await made.server.start()
    try:
        yield made
    finally:
        await made.peers.stop()
        await made.server.stop()

"""A real server with the door for peers, and the connections of a host that calls it. Nothing else of it is real."""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Set
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

from foqs.cluster.homes.cap_homes import CapHomes
from foqs.cluster.homes.other_depths import OtherDepths
from foqs.cluster.homes.topic_homes import TopicHomes
from foqs.cluster.members.view import ClusterView
from foqs.cluster.ownership.owner_map import OwnerMap
from foqs.cluster.ownership.owner_reports import OwnerReports
from foqs.cluster.peers.cluster_secrets import ClusterSecrets
from foqs.cluster.peers.peer_claims import PeerClaims
from foqs.cluster.routing.peer_door import PeerDoor
from foqs.model.calls import CallContext
from foqs.model.cluster import HostRow, ShardRow, ShardUse
from foqs.model.cluster_secret import ClusterSecret
from foqs.model.peer_proof import NONCE_BYTES, PROOF, Greeting, binding_of
from foqs.model.secret import Secret
from foqs.transport.bounds import TransportLimits
from foqs.transport.peers import Peers
from foqs.transport.remote_host import RemoteHost
from foqs.transport.server import ThriftServer
from foqs.transport.tls.contexts import PeerTls
from foqs.transport.tls.layer import PortTls
from foqs.wire.codec import Reply, structs
from tests.support.fake_queue import FakeQueue
from tests.support.raw_client import RawClient

CLUSTER = "c"
SECRET = Secret(b"s" * 32)
HOSTS = ("callee", "caller", "other")
SHARDS = {1: 5, 2: 7}
"""The epochs of shards that `other` has."""
SWEEP_MS = 20


class PeerWorld:
    """A host that is called, and the connections of one that calls."""

    def __init__(
        self,
        bounds: TransportLimits,
        tls: PortTls | None,
        *,
        needs_certificate: bool = False,
        peer_port: int | None = None,
        peer_tls: PortTls | None = None,
        metrics: Any = None,
    ) -> None:
        self.queue = FakeQueue()
        self.now_s = asyncio.get_running_loop().time
        self.clock_step_ms = 0
        self.callers_step_s = 0.0
        """How far the clock of the callers is ahead."""
        self.owners = OwnerMap(self.now_s)
        self.secrets = known_secrets(self._rows, SECRET)
        self.proofs = dict.fromkeys(HOSTS, PROOF)
        """The newest proof that each living host knows."""
        self.older: set[str] = set()
        """The hosts of builds that know no address for peers alone."""
        self.news: Any = TopicHomes("callee", None, None, lambda count: 0, self.now_s)  # type: ignore[arg-type]
        local: Any = SimpleNamespace(
            cap_rate=lambda key: 0.0, depth=lambda topic: len(topic[1]), follow_depths=lambda elsewhere: None
        )
        self.caps = CapHomes("callee", None, local, self.now_s)  # type: ignore[arg-type]
        self.depths = OtherDepths("callee", None, local, self.now_s)  # type: ignore[arg-type]
        self.owner_reports = OwnerReports("callee", None, self.owners, self.now_s)  # type: ignore[arg-type]
        self.claims = PeerClaims("callee", self._living, self.now_s)
        self.door = PeerDoor(
            "callee", CLUSTER, lambda: self.owners.living, self.news, self.caps, self.depths, self.owner_reports,
            self.claims, self.secrets, os.urandom, self.now_s, needs_certificate,
        )  # fmt: skip
        self.look()
        self.server = ThriftServer(
            self._call, address="127.0.0.1", port=0, namespaces=self.queue, metrics=metrics or Mock(),
            is_living_peer=self.door.is_living, tls=tls, bounds=bounds,
            wall_ms=lambda: time.time_ns() // 1_000_000 + self.clock_step_ms,
            peer_port=peer_port, peer_tls=peer_tls, has_older_hosts=lambda: self.owners.has_older_hosts,
        )  # fmt: skip
        self.peers = self.connections_of("caller")

    def _rows(self) -> Mapping[str, HostRow]:
        return self.owners.living

    @property
    def secret(self) -> Secret | None:
        """The secret that the host which is called knows."""
        return self.secrets.current

    @secret.setter
    def secret(self, secret: Secret | None) -> None:
        self.secrets = self.door._secrets = known_secrets(self._rows, secret)

    def _call(self, context: CallContext, verb: str, request: Any) -> Awaitable[Any]:
        if verb in self.door.table:
            return self.door.table[verb](context, request)
        return self.queue.call(context, verb, request)

    def _living(self) -> Set[str]:
        return self.owners.living.keys()

    def look(self, shards: dict[int, int] | None = None) -> None:
        """Read the meta database: who lives, and which shards there are."""
        hosts = {
            name: HostRow(name, f"{name}:1", 1, 1, proof=proof, peer_address=None if name in self.older else "")
            for name, proof in self.proofs.items()
        }
        rows = {
            shard_id: ShardRow(shard_id, epoch, "other", 0, "", ShardUse.SERVING, "", "", "", 0)
            for shard_id, epoch in (SHARDS if shards is None else shards).items()
        }
        self.owner_reports.members({name: f"{name}:1" for name in hosts}, frozenset())
        self.news.members(sorted(hosts), sorted(hosts))
        self.owners.refresh(ClusterView("callee", hosts, rows, is_settled=True))

    def connections_of(
        self,
        me: str,
        secret: Secret = SECRET,
        callee_proof: int = PROOF,
        tls: PeerTls | None = None,
    ) -> Peers:
        def now_s() -> float:
            return self.now_s() + self.callers_step_s

        secrets = known_secrets(dict, secret)
        return Peers(me, CLUSTER, secrets, lambda host_id: callee_proof, os.urandom, now_s, tls)

    def remote(self, host_id: str = "callee") -> RemoteHost:
        return self.peers.get(host_id, f"127.0.0.1:{self.server.port}")

    def stranger(
        self, tls: ssl.SSLContext | None = None, server_name: str | None = None, own_address: str | None = None
    ) -> Any:
        """A connection of somebody who knows the protocol."""
        return RawClient.connect("127.0.0.1", self.server.port, own_address, tls, server_name)

    def at_peer_port(
        self, tls: ssl.SSLContext | None = None, server_name: str | None = None, own_address: str | None = None
    ) -> Any:
        """The same at the port for hosts."""
        assert self.server.peer_port is not None
        return RawClient.connect("127.0.0.1", self.server.peer_port, own_address, tls, server_name)


def known_secrets(
    living: Callable[[], Mapping[str, HostRow]],
    secret: Secret | None,
    coming: Secret | None = None,
    now_s: Callable[[], float] | None = None,
) -> ClusterSecrets:
    """The secrets of a host that has read these, or none."""
    secrets = ClusterSecrets(living, now_s or asyncio.get_running_loop().time)
    read_secrets(secrets, secret, coming)
    return secrets


def read_secrets(secrets: ClusterSecrets, secret: Secret | None, coming: Secret | None = None) -> None:
    """Have a host read these in the meta database."""
    found = None if secret is None else ClusterSecret(secret, coming)
    secrets.read(SimpleNamespace(secrets=SimpleNamespace(read=lambda: found)))  # type: ignore[arg-type]


async def greet(client: RawClient, caller: str = "caller", callee: str = "callee") -> tuple[Reply, Greeting]:
    """Greet, and return what the proofs are to be made of."""
    nonce = os.urandom(NONCE_BYTES)
    reply = await client.call("greet", structs.GreetRequest(PROOF, caller, callee, nonce))
    theirs = reply.response.nonce if reply.response else b""
    shown = client.certificate_bytes()
    return reply, Greeting(CLUSTER, caller, callee, nonce, theirs, b"" if shown is None else binding_of(shown))


async def join(client: RawClient, caller: str = "caller") -> Reply:
    """Become a peer, by the secret."""
    _, said = await greet(client, caller)
    return await client.call("join", structs.JoinRequest(said.caller_proof(SECRET)))


@asynccontextmanager
async def peer_world(
    sweep_ms: int = SWEEP_MS, tls: PortTls | None = None, *, bounds: TransportLimits | None = None, **options: Any
) -> AsyncIterator[PeerWorld]:
    """`options` are those of PeerWorld."""
    made = PeerWorld(bounds or TransportLimits(sweep_ms=sweep_ms), tls, **options)
    await made.server.start()
    try:
        yield made
    finally:
        await made.peers.stop()
        await made.server.stop()

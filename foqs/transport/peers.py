"""The connections of this host to the other hosts of its cluster, opened on demand."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial

import structlog

from foqs.background.outage_log import OutageLog
from foqs.background.service import Service
from foqs.model.errors import FoqsError, HostUnreachableError, PermissionDeniedError, UnavailableError
from foqs.model.host_addresses import parse_address
from foqs.model.old_proof import CHALLENGE_BYTES, is_proof, proof_of
from foqs.model.outage import Outage
from foqs.model.peer_proof import NONCE_BYTES, OLD_PROOF, PROOF, Greeting, is_of_callee
from foqs.transport.peer_connection import PeerConnection
from foqs.transport.remote_host import RemoteHost
from foqs.wire.codec import Codec, structs

CONNECT_MS_MAX = 1_000
"""Time limit for connecting to a peer and proving each other's membership, in milliseconds."""
KNOWN_MS_MAX = 1_500
"""Time in which others learn of a newly started host after its first heartbeat, if all is well, in milliseconds."""
CONNECT_RETRY_MS = 200
"""Time after a failed try in which calls to a peer are refused at once, in milliseconds."""
GREET_AGAIN_MS = 100
"""Pause before this host greets a peer again that does not know yet that it lives, over another connection."""
HELLO_LANE = 0
REASON_SHOWN_MAX = 200
"""Characters of a peer's error that are logged."""
_STATES = ("connected", "connecting", "failed")

_log = structlog.get_logger(__name__)


class _Link:
    """One peer: its connection, or the running try to open one, or the reason of the last failure."""

    def __init__(self, host_id: str, address: str, now_s: Callable[[], float]) -> None:
        self.host_id = host_id
        self.address = address
        self.connection: PeerConnection | None = None
        self.opening: asyncio.Task[PeerConnection] | None = None
        self.failed_s = float("-inf")
        self.reason = ""
        self.outage = OutageLog(now_s, "peer_not_reached")
        self._nonsense = Outage(now_s)

    def note_bad_reply(self, reason: str) -> None:
        """Log a reply of the peer that this host does not understand."""
        if self._nonsense.is_to_be_told("nonsense"):
            _log.warning(
                "peer_not_understood", peer=self.host_id, address=self.address, error=reason[:REASON_SHOWN_MAX]
            )

    @property
    def state(self) -> str:
        """One of _STATES."""
        if self.connection is not None and not self.connection.is_lost:
            return "connected"
        return "connecting" if self.opening is not None and not self.reason else "failed"


class Peers(Service):
    """One connection to each peer in use. The host starts and stops it; `get` returns a peer.

    Each side proves to the other that it is a host of the cluster (foqs/model/peer_proof.py), before any call.
    """

    def __init__(
        self,
        me: str,
        cluster: str,
        secret: Callable[[], bytes | None],
        proof: Callable[[str], int],
        random_bytes: Callable[[int], bytes],
        now_s: Callable[[], float],
    ) -> None:
        """`me` is the id of this host, `cluster` the name of its cluster, `now_s` a monotonic clock.

        `proof` returns the newest proof that a host knows, by its id, from its row.
        """
        super().__init__("peers")
        self._me = me
        self._cluster = cluster
        self._secret = secret
        self._proof = proof
        self._random_bytes = random_bytes
        self._now_s = now_s
        self._codec = Codec()
        self._links: dict[str, _Link] = {}
        self.calls_total: Counter[tuple[str, ...]] = Counter()
        """Calls by verb and outcome."""

    def get(self, host_id: str, address: str) -> RemoteHost:
        """Return the peer that listens there. Its calls raise UnavailableError while it is unreachable."""
        return RemoteHost(host_id, partial(self._connected, host_id, address), self.calls_total, self._tasks)

    def keep(self, host_ids: set[str]) -> None:
        """Keep only these peers, and close the connections to others."""
        for host_id in self._links.keys() - host_ids:
            self._drop(self._links.pop(host_id))

    def states(self) -> Mapping[str, int]:
        """Return the number of peers in each state."""
        counts = Counter(dict.fromkeys(_STATES, 0))
        counts.update([link.state for link in self._links.values()])
        return counts

    async def _start(self) -> None:
        """Connections are opened by calls."""

    async def _stop(self) -> None:
        links, self._links = list(self._links.values()), {}
        for link in links:
            self._drop(link)

    def _drop(self, link: _Link) -> None:
        if link.opening is not None:
            link.opening.cancel()
        if link.connection is not None:
            link.connection.close()

    async def _connected(self, host_id: str, address: str) -> PeerConnection:
        link = self._links.get(host_id)
        if link is None or link.address != address:
            if link is not None:
                self._drop(link)
            link = self._links[host_id] = _Link(host_id, address, self._now_s)
        if link.connection is not None and not link.connection.is_lost:
            return link.connection
        if link.opening is None:
            if self._now_s() - link.failed_s < CONNECT_RETRY_MS / 1000:
                raise _unreachable(link)
            link.opening = self._tasks.lend(self._open(link), f"peer-{host_id}")
        opening = link.opening
        # A caller that gives up must not cancel the connection for the others.
        await asyncio.wait([opening])
        if opening.cancelled():
            link.reason = link.reason or "it lives no more, or elsewhere"
            raise _unreachable(link)
        return opening.result()

    async def _open(self, link: _Link) -> PeerConnection:
        try:
            link.connection = await self._until_known(link)
            link.reason = ""
            link.outage.worked()
            return link.connection
        except Exception as error:  # After any error: nothing was sent, and the next try can use another address.
            link.failed_s, link.reason = self._now_s(), _reason_of(error)
            link.outage.failed(link.reason, peer=link.host_id, address=link.address)
            raise _unreachable(link) from error
        finally:
            link.opening = None

    async def _until_known(self, link: _Link) -> PeerConnection:
        """Connect again until a living peer knows that this host lives, because it has possibly just started."""
        until_s = self._now_s() + KNOWN_MS_MAX / 1000
        while True:
            try:
                async with asyncio.timeout(CONNECT_MS_MAX / 1000):
                    return await self._greeted(link)
            except _NotKnownError as error:
                if self._now_s() >= until_s:
                    raise error.cause from error
            await asyncio.sleep(GREET_AGAIN_MS / 1000)

    async def _greeted(self, link: _Link) -> PeerConnection:
        secret = self._secret()
        if secret is None:
            raise UnavailableError("the secret of the cluster is not known yet", nothing_done=True)
        at = parse_address(link.address)
        _, connection = await asyncio.get_running_loop().create_connection(
            partial(PeerConnection, self._codec, link.host_id, link.note_bad_reply), at.host, at.port
        )
        try:
            if self._proof(link.host_id) > OLD_PROOF:
                await self._join(link, connection, secret)
            else:
                await self._prove(link, connection, secret)
        except BaseException:
            connection.close()
            raise
        return connection

    async def _join(self, link: _Link, connection: PeerConnection, secret: bytes) -> None:
        """Prove this host's identity, and check that the listener is the intended host."""
        nonce = self._random_bytes(NONCE_BYTES)
        greet = structs.GreetRequest(PROOF, self._me, link.host_id, nonce)
        try:
            greeted = await connection.call("greet", greet, HELLO_LANE, CONNECT_MS_MAX)
        except UnavailableError as error:
            if error.nothing_done and not isinstance(error, HostUnreachableError):
                raise _NotKnownError(error) from error
            raise
        said = Greeting(self._cluster, self._me, link.host_id, nonce, greeted.nonce)
        join = structs.JoinRequest(said.caller_proof(secret))
        joined = await connection.call("join", join, HELLO_LANE, CONNECT_MS_MAX)
        if not is_of_callee(said, joined.proof, secret):
            raise PermissionDeniedError(
                f"what listens on {link.address} is not host {link.host_id}: its proof is wrong"
            )

    async def _prove(self, link: _Link, connection: PeerConnection, secret: bytes) -> None:
        """Do the same with a host of an older build, as marked in its row."""
        challenge = self._random_bytes(CHALLENGE_BYTES)
        hello = await connection.call("hello", structs.HelloRequest(self._me, challenge), HELLO_LANE, CONNECT_MS_MAX)
        if hello.host_id != link.host_id:
            raise PermissionDeniedError(f"{link.address} is that of {hello.host_id} now, not of {link.host_id}")
        if not is_proof(hello.proof, secret, link.host_id, self._me, challenge):
            raise PermissionDeniedError(f"what listens on {link.address} does not know the secret of the cluster")
        proof = proof_of(secret, self._me, link.host_id, hello.challenge)
        prove = structs.ProveRequest(self._me, hello.challenge, proof)
        await connection.call("prove", prove, HELLO_LANE, CONNECT_MS_MAX)
        _log.warning("peer_of_older_build", peer=link.host_id, address=link.address)


class _NotKnownError(Exception):
    """The peer does not know yet that this host lives."""

    def __init__(self, cause: UnavailableError) -> None:
        super().__init__(str(cause))
        self.cause = cause


def _reason_of(error: Exception) -> str:
    """Return the reason of a failed connection. Other libraries' errors do not always name their kind, so add it."""
    if isinstance(error, OSError | FoqsError):
        return str(error) or "no connection in time"
    return f"{type(error).__name__}: {error}"[:REASON_SHOWN_MAX]


def _unreachable(link: _Link) -> UnavailableError:
    return HostUnreachableError(
        f"host {link.host_id} cannot be reached by {link.address}: {link.reason}", retry_after_ms=CONNECT_RETRY_MS
    )

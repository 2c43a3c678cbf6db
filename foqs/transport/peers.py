"""The connections of this host to the other hosts of its cluster, opened on demand."""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf
from typing import Protocol

import structlog

from foqs.background.outage_log import OutageLog
from foqs.background.service import Service
from foqs.model import limits
from foqs.model.cluster import host_name_of
from foqs.model.cluster_secret import KnownSecret
from foqs.model.errors import FoqsError, HostUnreachableError, PermissionDeniedError, UnavailableError
from foqs.model.host_addresses import parse_address
from foqs.model.host_certificates import HOST_SERVER_NAME, certificate_problem
from foqs.model.old_proof import CHALLENGE_BYTES, is_proof, proof_of
from foqs.model.outage import Outage
from foqs.model.peer_proof import NONCE_BYTES, OLD_PROOF, PROOF, Greeting, is_of_callee
from foqs.model.secret import Secret
from foqs.transport.peer_connection import PeerConnection
from foqs.transport.remote_host import RemoteHost
from foqs.transport.tls.contexts import PeerTls
from foqs.wire.codec import Codec, structs

CONNECT_MS_MAX = 1_000
"""Time limit for connecting to a peer and proving each other's membership by one secret, in milliseconds."""
KNOWN_MS_MAX = 1_500
"""Time in which others learn of a newly started host after its first heartbeat, if all is well, in milliseconds."""
CONNECT_RETRY_MS = 200
"""Time after a failed try in which calls to a peer are refused at once, in milliseconds."""
GREET_AGAIN_MS = 100
"""Pause before this host greets a peer again that does not know yet that it lives, over another connection."""
RENEWED_S = 60.0
"""Time before the end of the certificates of a connection at which another one takes its place, in seconds."""
RENEW_AGAIN_S = 5.0
"""Time between two tries of that."""
RETIRED_PAUSE_MS = 200
"""Time for callers who have just got a connection that is replaced to send their calls, in milliseconds."""
RETIRED_MS_MAX = limits.WAIT_MS_MAX + limits.CALL_MS_MAX + limits.SECOND_MS
"""A replaced connection is closed after this time even with calls whose responses never came, in milliseconds."""
HELLO_LANE = 0
REASON_SHOWN_MAX = 200
"""Characters of a peer's error that are logged."""
_STATES = ("connected", "connecting", "failed")

_log = structlog.get_logger(__name__)


class SecretSource(Protocol):
    """The secrets of the cluster; foqs.cluster.peers.cluster_secrets.ClusterSecrets is the real one."""

    def for_host(self, host_id: str) -> Sequence[KnownSecret]:
        """Return the secrets by which to prove oneself to this host, each next one if the host does not take the one
        before; none before one was read.
        """

    def is_outdated(self, known_id: str, host_id: str) -> bool:
        """True if a connection to this host that was made by this secret is to be replaced by one of a newer secret."""

    def is_present(self, known_id: str) -> bool:
        """True if a connection that was made by this secret can take more calls."""


class _Link:
    """One peer: its connection, or the running try to open one, or the reason of the last failure."""

    def __init__(self, host_id: str, address: str, now_s: Callable[[], float]) -> None:
        self.host_id = host_id
        self.address = address
        self.connection: PeerConnection | None = None
        self.secret_id = ""
        """The id of the secret by which the connection was made."""
        self.renewed_at_s = inf
        """The time at which the connection is replaced, because its certificates are about to expire."""
        self.retired: set[PeerConnection] = set()
        """The connections before, which still have calls in flight."""
        self.opening: asyncio.Task[PeerConnection] | None = None
        self.failed_s = float("-inf")
        self.reason = ""
        self.outage = OutageLog(now_s, "peer_not_reached")
        self._nonsense = Outage(now_s)

    def note_bad_reply(self, reason: str) -> None:
        """Log a reply of the peer that this host does not understand."""
        if self._nonsense.is_to_be_logged("nonsense"):
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
        secrets: SecretSource,
        proof: Callable[[str], int],
        random_bytes: Callable[[int], bytes],
        now_s: Callable[[], float],
        tls: PeerTls | None = None,
    ) -> None:
        """`me` is the id of this host, `cluster` the name of its cluster, `now_s` a monotonic clock.

        `proof` returns the newest proof that a host knows, by its id, from its row.
        Connections are plain without `tls`.
        """
        super().__init__("peers")
        self._me = me
        self._cluster = cluster
        self._secrets = secrets
        self._proof = proof
        self._random_bytes = random_bytes
        self._now_s = now_s
        self._tls = tls
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
        for connection in (link.connection, *link.retired):
            if connection is not None:
                connection.close()

    async def _connected(self, host_id: str, address: str) -> PeerConnection:
        link = self._links.get(host_id)
        if link is None or link.address != address:
            if link is not None:
                self._drop(link)
            link = self._links[host_id] = _Link(host_id, address, self._now_s)
        if link.connection is not None and not link.connection.is_lost and self._goes_on(link):
            return link.connection
        if link.opening is None:
            if self._now_s() - link.failed_s < CONNECT_RETRY_MS / 1000:
                raise _unreachable(link)
            self._begin_open(link)
        opening = link.opening
        assert opening is not None
        # A caller that gives up must not cancel the connection for the others.
        await asyncio.wait([opening])
        if opening.cancelled():
            link.reason = link.reason or "it lives no more, or elsewhere"
            raise _unreachable(link)
        return opening.result()

    def _begin_open(self, link: _Link) -> None:
        link.opening = self._tasks.lend(self._open(link), f"peer-{link.host_id}")

    def _goes_on(self, link: _Link) -> bool:
        """True if the link's connection can take another call.

        Begins to replace one of an older secret, or whose certificates are about to expire. Calls use the old
        connection until the new one is open, unless its secret has ended, because soon the peer closes it.
        """
        now_s = self._now_s()
        if now_s >= link.renewed_at_s and link.opening is None:
            link.renewed_at_s = now_s + RENEW_AGAIN_S
            self._begin_open(link)
        if not self._secrets.is_outdated(link.secret_id, link.host_id):
            return True
        if link.opening is None and self._now_s() - link.failed_s >= CONNECT_RETRY_MS / 1000:
            self._begin_open(link)
        return self._secrets.is_present(link.secret_id)

    async def _retire(self, link: _Link, connection: PeerConnection) -> None:
        """Close a connection that was replaced, once its calls have ended. Callers who have it can send one more."""
        try:
            async with asyncio.timeout(RETIRED_MS_MAX / 1000):
                await asyncio.sleep(RETIRED_PAUSE_MS / 1000)
                await connection.until_idle()
        except TimeoutError:
            pass  # Responses never came.
        finally:
            link.retired.discard(connection)
            connection.close()

    async def _open(self, link: _Link) -> PeerConnection:
        try:
            connection, secret_id = await self._until_known(link)
            before, link.connection = link.connection, connection
            link.secret_id, link.reason = secret_id, ""
            link.renewed_at_s = self._renewed_at_s(connection)
            if before is not None and not before.is_lost:
                link.retired.add(before)
                self._tasks.spawn(self._retire(link, before), f"retired-{link.host_id}")
            link.outage.worked()
            return connection
        except Exception as error:  # After any error: nothing was sent, and the next try can use another address.
            link.failed_s, link.reason = self._now_s(), _reason_of(error)
            link.outage.failed(link.reason, peer=link.host_id, address=link.address)
            raise _unreachable(link) from error
        finally:
            link.opening = None

    def _renewed_at_s(self, connection: PeerConnection) -> float:
        """Return the time at which a connection by certificates is to be replaced."""
        if self._tls is None or not self._tls.is_by_certificate:
            return inf
        left_s = self._tls.left_s(connection.certificate_ends_at_ms())
        return self._now_s() + max(left_s - RENEWED_S, RENEW_AGAIN_S)

    async def _until_known(self, link: _Link) -> tuple[PeerConnection, str]:
        """Connect again until a living peer knows that this host lives, because it has possibly just started."""
        until_s = self._now_s() + KNOWN_MS_MAX / 1000
        while True:
            try:
                return await self._recognized(link)
            except _NotKnownError as error:
                if self._now_s() >= until_s:
                    raise error.cause from error
            await asyncio.sleep(GREET_AGAIN_MS / 1000)

    async def _recognized(self, link: _Link) -> tuple[PeerConnection, str]:
        """Return a connection, and the id of the secret by which it was made."""
        refused: PermissionDeniedError | None = None
        for known in self._secrets.for_host(link.host_id):
            try:
                async with asyncio.timeout(CONNECT_MS_MAX / 1000):
                    return await self._greeted(link, known), known.id
            except _ProofRefusedError as error:
                refused = refused or error.cause
        raise refused or UnavailableError("the secret of the cluster is not known yet", nothing_done=True)

    async def _greeted(self, link: _Link, known: KnownSecret) -> PeerConnection:
        """Return a connection on which both sides have proven themselves by this secret."""
        at, tls = parse_address(link.address), self._tls
        _, connection = await asyncio.get_running_loop().create_connection(
            partial(PeerConnection, self._codec, link.host_id, link.note_bad_reply),
            at.host,
            at.port,
            ssl=None if tls is None else tls.context(),
            server_hostname=HOST_SERVER_NAME if tls is not None and tls.is_by_certificate else None,
        )
        try:
            if tls is not None and tls.is_by_certificate:
                self._check_certificate(link, connection)
            if self._proof(link.host_id) > OLD_PROOF:
                await self._join(link, connection, known.secret)
            else:
                await self._prove(link, connection, known.secret)
        except BaseException:
            connection.close()
            raise
        return connection

    def _check_certificate(self, link: _Link, connection: PeerConnection) -> None:
        """Raise PermissionDeniedError if the listener has shown the certificate of another host."""
        if problem := certificate_problem(connection.uris(), self._cluster, host_name_of(link.host_id)):
            raise PermissionDeniedError(
                f"the process on {link.address} has not shown the certificate of host {link.host_id}: {problem}"
            )

    async def _join(self, link: _Link, connection: PeerConnection, secret: Secret) -> None:
        """Prove this host's identity, and check that the listener is the intended host."""
        nonce = self._random_bytes(NONCE_BYTES)
        greet = structs.GreetRequest(PROOF, self._me, link.host_id, nonce)
        try:
            greeted = await connection.call("greet", greet, HELLO_LANE, CONNECT_MS_MAX)
        except UnavailableError as error:
            if error.nothing_done and not isinstance(error, HostUnreachableError):
                raise _NotKnownError(error) from error
            raise
        said = Greeting(self._cluster, self._me, link.host_id, nonce, greeted.nonce, connection.binding())
        join = structs.JoinRequest(said.caller_proof(secret))
        try:
            joined = await connection.call("join", join, HELLO_LANE, CONNECT_MS_MAX)
        except PermissionDeniedError as error:
            raise _ProofRefusedError(error) from error
        if not is_of_callee(said, joined.proof, secret):
            raise PermissionDeniedError(
                f"the process on {link.address} is not host {link.host_id}: its proof is wrong, because it was made "
                "with another secret or for another connection"
            )

    async def _prove(self, link: _Link, connection: PeerConnection, secret: Secret) -> None:
        """Do the same with a host of an older build, as marked in its row."""
        challenge = self._random_bytes(CHALLENGE_BYTES)
        hello = await connection.call("hello", structs.HelloRequest(self._me, challenge), HELLO_LANE, CONNECT_MS_MAX)
        if hello.host_id != link.host_id:
            raise PermissionDeniedError(f"{link.address} is that of {hello.host_id} now, not of {link.host_id}")
        if not is_proof(hello.proof, secret, link.host_id, self._me, challenge):
            raise PermissionDeniedError(f"the process on {link.address} does not know the secret of the cluster")
        proof = proof_of(secret, self._me, link.host_id, hello.challenge)
        prove = structs.ProveRequest(self._me, hello.challenge, proof)
        await connection.call("prove", prove, HELLO_LANE, CONNECT_MS_MAX)
        _log.warning("peer_of_older_build", peer=link.host_id, address=link.address)


class _NotKnownError(Exception):
    """The peer does not know yet that this host lives."""

    def __init__(self, cause: UnavailableError) -> None:
        super().__init__(str(cause))
        self.cause = cause


class _ProofRefusedError(Exception):
    """The peer does not take a proof by this secret."""

    def __init__(self, cause: PermissionDeniedError) -> None:
        super().__init__(str(cause))
        self.cause = cause


def _reason_of(error: Exception) -> str:
    """Return the reason of a failed connection. Other libraries' errors do not always name their kind, so add it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"certificate verify failed: {error.verify_message}: it must hold before peer_ca_file of this host, or "
            "before tls_ca_file where hosts are not known by certificates"
        )
    if isinstance(error, OSError | FoqsError):
        return str(error) or "no connection in time"
    return f"{type(error).__name__}: {error}"[:REASON_SHOWN_MAX]


def _unreachable(link: _Link) -> UnavailableError:
    return HostUnreachableError(
        f"host {link.host_id} cannot be reached by {link.address}: {link.reason}", retry_after_ms=CONNECT_RETRY_MS
    )

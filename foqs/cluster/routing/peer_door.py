"""The side of a host that its peers call first: it admits callers that prove to be living hosts of the cluster.

Later claims of peers pass through foqs/cluster/peers/peer_claims.py. docs/decisions/0042-proof-of-hosts.md.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import structlog

from foqs.cluster.homes.cap_homes import CapHomes
from foqs.cluster.homes.other_depths import OtherDepths
from foqs.cluster.homes.topic_homes import TopicHomes
from foqs.cluster.ownership.owner_reports import OwnerReports
from foqs.cluster.peers.cluster_secrets import ClusterSecrets
from foqs.cluster.peers.peer_claims import PeerClaims, wire_grant, wire_pointer
from foqs.contract import requests as of
from foqs.contract.verbs import Table
from foqs.model import limits, old_proof, peer_proof
from foqs.model.calls import CallContext
from foqs.model.cluster import HostRow
from foqs.model.errors import PermissionDeniedError, UnavailableError
from foqs.model.host_certificates import check_certificate
from foqs.model.outage import Outage
from foqs.model.peer_proof import NONCE_BYTES, OLD_PROOF, Greeting, PeerLink, PeerRefusedError
from foqs.model.secret import Secret

STRANGER_MS = 5 * limits.SECOND_MS
"""A host that calls although it has not been known to live for this long is logged."""
STRANGERS_MAX = 100
"""The most such hosts that are remembered; the one that came first is dropped."""

_log = structlog.get_logger(__name__)


class PeerDoor:
    """The verbs by which a host proves to be one of the cluster, and the messages of those that have.

    It does not remember callers: the proof of each is in the link of its connection (foqs/transport/call_table.py), so
    that no number of callers can push another one out.
    """

    def __init__(
        self,
        me: str,
        cluster: str,
        living: Callable[[], Mapping[str, HostRow]],
        homes: TopicHomes,
        caps: CapHomes,
        depths: OtherDepths,
        owners: OwnerReports,
        claims: PeerClaims,
        secrets: ClusterSecrets,
        random_bytes: Callable[[int], bytes],
        now_s: Callable[[], float],
        needs_certificate: bool = False,
    ) -> None:
        """`homes` gets reports and questions on topics from peers, `caps` questions on caps, `depths` those
        on the depths of topics, `owners` claims to shards.

        `me` is the id of this host, `cluster` the name of its cluster, `now_s` a monotonic clock. `living` returns the
        living hosts by id, as far as this one knows. With `needs_certificate` callers without a certificate of the
        authority of hosts are refused.
        """
        self._me = me
        self._cluster = cluster
        self._living = living
        self._homes = homes
        self._caps = caps
        self._depths = depths
        self._owners = owners
        self._claims = claims
        self._secrets = secrets
        self._random_bytes = random_bytes
        self._now_s = now_s
        self._needs_certificate = needs_certificate
        self._strangers: OrderedDict[str, float] = OrderedDict()
        """Hosts that have called and are not known to live, with the time of their first call."""
        self._outage = Outage(now_s)

    # ---- the proof ----

    def is_living(self, host_id: str, secret_id: str = "") -> bool:
        """True if a peer that has proven to be this host, by this secret, is still permitted to call as such."""
        return host_id in self._living() and not (secret_id and self._secrets.has_ended(secret_id))

    @property
    def table(self) -> Table:
        return {
            "greet": self.greet, "join": self.join, "hello": self.hello, "prove": self.prove,
            "report": self.report, "seek": self.seek, "hint": self.hint,
        }  # fmt: skip

    async def greet(self, context: CallContext, request: of.GreetRequest) -> of.GreetResponse:
        """Take a caller's id, and the id of the host that it means to call.

        Raises UnavailableError for a host that is not known to live, which applies for a moment to one that has just
        started.
        """
        with _refusals(context) as link:
            self._known_secret()
            mine = self._random_bytes(NONCE_BYTES)
            caller_id, callee_id = request.caller_id, request.callee_id
            said = Greeting(self._cluster, caller_id, callee_id, request.nonce, mine, link.binding)
            self._check_certificate(link, caller_id)
            peer_proof.greeted(link, said, request.version, self._me)
            self._require_living(caller_id, link)
            self._check_port(link, caller_id)
            return of.GreetResponse(mine)

    async def join(self, context: CallContext, request: of.JoinRequest) -> of.JoinResponse:
        """Check the caller's proof, and return this host's. Later calls over the connection are a peer's."""
        with _refusals(context) as link:
            answer = peer_proof.joined(link, request.proof, self._secrets.accepted(), self._now_s())
            _log.info("peer_admitted", peer=link.host_id, address=context.caller, secret=link.secret_id)
            if link.only_older:
                _log.warning("peer_at_port_for_clients", peer=link.host_id, address=context.caller)
            return of.JoinResponse(answer)

    async def hello(self, context: CallContext, request: of.HelloRequest) -> of.HelloResponse:
        """Take the first call of a host of an older build, which only a host whose row says so can make."""
        with _refusals(context) as link:
            secret, mine = self._known_secret(), self._random_bytes(old_proof.CHALLENGE_BYTES)
            self._require_old(request.host_id)
            self._check_port(link, request.host_id)
            self._check_certificate(link, request.host_id)
            old_proof.said_hello(link, request.host_id, request.challenge, mine)
            proof = old_proof.proof_of(secret, self._me, request.host_id, request.challenge)
            return of.HelloResponse(self._me, proof, mine)

    async def prove(self, context: CallContext, request: of.ProveRequest) -> None:
        """Take the second call of such a host."""
        with _refusals(context) as link:
            secret = self._known_secret()
            self._require_old(request.host_id)
            self._check_certificate(link, request.host_id)
            old_proof.proved(link, self._me, request.host_id, request.challenge, request.proof, secret, self._now_s())
            _log.warning("peer_admitted_by_old_proof", peer=request.host_id, address=context.caller)

    # ---- reports and questions of peers ----

    async def report(self, context: CallContext, request: of.ReportRequest) -> of.PointersResponse:
        """Take a peer's stocks of topics whose home this host is, or the shards that it has opened."""
        peer = self._peer(context)
        stocks, shards = (
            self._claims.stocks(peer, request.stocks or ()),
            self._claims.opened(peer, request.opened or ()),
        )
        if shards:
            self._owners.reported(peer, shards)
        return of.PointersResponse([wire_pointer(pointer) for pointer in self._homes.reported(peer, stocks)])

    async def seek(self, context: CallContext, request: of.SeekRequest) -> of.PointersResponse:
        """Take a peer's interests in topics whose home this host is, its questions for tokens of such caps, and those
        for the items that this host has of topics.
        """
        peer = self._peer(context)
        interests, asked, topics = (
            self._claims.interests(peer, request.wishes or ()),
            self._claims.asks(peer, request.asks or ()),
            self._claims.depths_asked(peer, request.depths or ()),
        )
        pointers = [wire_pointer(pointer) for pointer in self._homes.find(peer, interests)]
        grants = [wire_grant(grant) for grant in self._caps.asked(peer, asked)]
        depths = [of.TopicDepth(*topic, count) for topic, count in self._depths.answers(topics)]
        return of.PointersResponse(pointers, grants, depths)

    async def hint(self, context: CallContext, request: of.HintRequest) -> None:
        """Take notices from the home of topics about hosts that have items this host waits for."""
        peer = self._peer(context)
        self._homes.notified(self._claims.pointers(peer, request.pointers or ()))

    def _peer(self, context: CallContext) -> str:
        """Return the calling host's id. Raises PermissionDeniedError if the caller is no host, or no living one."""
        if not context.peer:
            raise PermissionDeniedError("only hosts of this cluster may call this, after greet and join")
        if context.peer not in self._living():
            raise PermissionDeniedError(f"host {context.peer} lives no more, as far as this one knows")
        return context.peer

    def _known_secret(self) -> Secret:
        secret = self._secrets.current
        if secret is None:
            raise UnavailableError("this host has not read the secret of its cluster yet: try again", nothing_done=True)
        return secret

    def _check_certificate(self, link: PeerLink, host_id: str) -> None:
        check_certificate(link, self._cluster, host_id, is_required=self._needs_certificate)

    def _check_port(self, link: PeerLink, host_id: str) -> None:
        """Raise PeerRefusedError if the caller knows the port for hosts and came to that for clients."""
        row = self._living().get(host_id)
        if link.only_older and row is not None and row.peer_address is not None:
            raise PeerRefusedError("port_of_clients", "hosts call this one at its peer_address, and not here")

    def _require_living(self, host_id: str, link: PeerLink) -> None:
        """Raise UnavailableError for a host that is not known to live, and forget its greeting."""
        if host_id in self._living():
            self._strangers.pop(host_id, None)
            return
        link.greeting = None
        now_s = self._now_s()
        since_s = self._strangers.setdefault(host_id, now_s)
        while len(self._strangers) > STRANGERS_MAX:
            self._strangers.popitem(last=False)
        if now_s - since_s >= STRANGER_MS / 1000 and self._outage.is_to_be_logged(reason := "not_known_to_live"):
            _log.warning("peer_refused", host_id=host_id[:80], reason=reason, since_ms=round((now_s - since_s) * 1000))
        raise peer_proof.not_known_yet(host_id)

    def _require_old(self, host_id: str) -> None:
        row = self._living().get(host_id)
        if host_id == self._me or row is None or row.proof > OLD_PROOF:
            raise PeerRefusedError(
                "old_proof", f"hello and prove are for hosts of older builds that live, and {host_id[:80]} is none"
            )


@contextmanager
def _refusals(context: CallContext) -> Iterator[PeerLink]:
    """Have the connection closed if its caller is refused."""
    link = context.link
    if link is None:
        raise PermissionDeniedError("only a host that connects to this one may call this")
    try:
        yield link
    except PeerRefusedError as refusal:
        link.refusal = refusal
        raise

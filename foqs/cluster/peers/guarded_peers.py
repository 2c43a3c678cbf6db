"""Peers whose calls fail only with FoqsError, even after a defect, and whose answers to this host make sense.

The errors of calls to other hosts are judged in many places, each of which knows the errors of the contract. An
exception of any other kind would pass them all, and fail a call that this host could have done without that peer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import structlog

from foqs.cluster.peers.peer_claims import PeerClaims, wire_ask, wire_pointer
from foqs.cluster.peers.peer_table import Peer, PeerTable
from foqs.contract import requests as of
from foqs.model.calls import CallContext
from foqs.model.cluster import HostRow, OpenedShard
from foqs.model.errors import FoqsError, UnavailableError
from foqs.model.outage import Outage
from foqs.model.principal import EVERYBODY
from foqs.model.shared_caps import CapAsk, CapGrant
from foqs.model.stocks import Pointer, Reported, Topic

_log = structlog.get_logger(__name__)
_REASON_SHOWN_MAX = 200
_BY_ITSELF = CallContext("", principal=EVERYBODY)
"""The context of calls that a host makes for itself, and for no caller."""


class GuardedPeers:
    """The other hosts, on a table of peers. It owns the addresses of the living hosts, the claims of peers, and the
    record of the defects that were logged.
    """

    def __init__(
        self,
        me: str,
        peers: PeerTable,
        now_s: Callable[[], float],
        rows: Callable[[], Mapping[str, HostRow]] = dict,
    ) -> None:
        """`me` is the id of this host, `now_s` a monotonic clock. `rows` returns the living hosts by id."""
        self._peers = peers
        self._rows = rows
        self._defects = Outage(now_s)
        self.addresses: Mapping[str, str] = {}
        """The addresses of the living hosts by id, this one included."""
        self.claims = PeerClaims(me, self._living, now_s)

    def _living(self) -> Set[str]:
        return self.addresses.keys()

    def get(self, host_id: str, address: str) -> GuardedPeer:
        """Return the peer with this id. It is called by `address`, unless it has another one for peers."""
        row = self._rows().get(host_id)
        peer_address = "" if row is None else row.peer_address
        return GuardedPeer(self._peers.get(host_id, peer_address or address), self.claims, self._failed)

    def find(self, host_id: str) -> GuardedPeer | None:
        """Return the peer with this id, or None if it does not live as far as this host knows."""
        address = self.addresses.get(host_id)
        return self.get(host_id, address) if address else None

    def living(self, host_id: str) -> GuardedPeer:
        """Return the peer with this id. Raises UnavailableError if it does not live."""
        if (peer := self.find(host_id)) is None:
            raise UnavailableError(f"host {host_id} is gone", nothing_done=True)
        return peer

    def live(self, addresses: Mapping[str, str]) -> None:
        """Set the living hosts."""
        self.addresses = addresses
        self._peers.keep(set(addresses))

    def _failed(self, host_id: str, verb: str, cause: Exception) -> UnavailableError:
        """Return the error of a call whose outcome is unknown."""
        reason = f"{type(cause).__name__}: {cause}"[:_REASON_SHOWN_MAX]
        if self._defects.is_to_be_logged(f"{host_id} {verb} {type(cause).__name__}"):
            _log.error("peer_call_failed", peer=host_id, verb=verb, error=reason, exc_info=cause)
        return UnavailableError(f"the call {verb} to host {host_id} has failed ({reason})")


class GuardedPeer:
    """Another host. It has the verbs of the contract and the messages between hosts.

    Answers of hosts are claims, as their reports are.
    """

    __slots__ = ("_claims", "_failed", "_peer", "host_id")

    def __init__(
        self, peer: Peer, claims: PeerClaims, failed: Callable[[str, str, Exception], UnavailableError]
    ) -> None:
        self._peer = peer
        self._claims = claims
        self._failed = failed
        self.host_id = peer.host_id

    async def call(self, context: CallContext, verb: str, request: Any) -> Any:
        try:
            return await self._peer.call(context, verb, request)
        except FoqsError:
            raise
        except Exception as cause:
            raise self._failed(self.host_id, verb, cause) from cause

    async def report(self, stocks: Mapping[Topic, Reported]) -> list[Pointer]:
        """Report this host's items of topics to their home. Returns other hosts with items."""
        reported = [
            of.TopicStock(number, name, *stock[:3], is_wanted, stock.urgency)
            for (number, name), (stock, is_wanted) in stocks.items()
        ]
        response = await self.call(_BY_ITSELF, "report", of.ReportRequest(reported))
        return self._claims.pointers(self.host_id, response.pointers, stocks)

    async def announce(self, opened: Sequence[OpenedShard]) -> None:
        """Report shards that this host has opened. A host of an older build ignores them."""
        await self.call(_BY_ITSELF, "report", of.ReportRequest([], [of.OpenedShard(*shard) for shard in opened]))

    async def seek(self, interests: Mapping[Topic, int]) -> list[Pointer]:
        """Ask the home of topics for hosts with items."""
        wishes = [of.TopicWish(number, name, count) for (number, name), count in interests.items()]
        response = await self.call(_BY_ITSELF, "seek", of.SeekRequest(wishes))
        return self._claims.pointers(self.host_id, response.pointers, interests)

    async def ask(self, asks: Sequence[CapAsk]) -> list[CapGrant] | None:
        """Ask the home of caps for tokens. Returns None if it is of an older build, which grants none."""
        wire_asks = [wire_ask(ask) for ask in asks]
        response = await self.call(_BY_ITSELF, "seek", of.SeekRequest([], wire_asks))
        return self._claims.grants(self.host_id, response.grants, asks)

    async def depths(self, topics: Sequence[Topic]) -> dict[Topic, int]:
        """Ask for the items that the host has of topics. A host of an older build names none."""
        asked = [of.TopicDepth(*topic) for topic in topics]
        response = await self.call(_BY_ITSELF, "seek", of.SeekRequest([], None, asked))
        return self._claims.depths(self.host_id, response.depths or (), topics)

    async def hint(self, pointers: Sequence[Pointer]) -> None:
        """Name hosts with items to a host that waits for them."""
        await self.call(_BY_ITSELF, "hint", of.HintRequest([wire_pointer(pointer) for pointer in pointers]))

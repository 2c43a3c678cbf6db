"""The side of a host that its peers call first: it lets in whoever knows the secret of the cluster."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

import structlog

from foqs.cluster.cap_news import CapNews
from foqs.cluster.homes import Reported
from foqs.cluster.owner_news import OwnerNews
from foqs.cluster.topic_news import TopicNews
from foqs.model.calls import CallContext
from foqs.model.cluster import OpenedShard
from foqs.model.errors import InvalidArgumentError, PermissionDeniedError, UnavailableError
from foqs.model.peers import (
    CHALLENGE_BYTES,
    CapAskFields,
    CapGrantFields,
    CapGrantTold,
    HelloResult,
    OpenedShardFields,
    SeekResult,
    TopicPointer,
    TopicPointerFields,
    TopicStockFields,
    TopicWishFields,
    is_proof,
    proof_of,
)
from foqs.model.shared_caps import CapAsk, CapGrant
from foqs.model.stocks import Pointer, Stock

CHALLENGE_MS = 10_000
"""How long a challenge may wait for its proof."""
CHALLENGES_MAX = 1_000
"""Challenges that wait; the oldest one gives way. Anybody can ask for one, and a host that loses its asks again."""
HOST_ID_BYTES_MAX = 255

_log = structlog.get_logger(__name__)


class PeerDoor:
    """Implements foqs.model.peers.PeerCalls. It owns the challenges that wait for their proofs.

    After `prove` the front door takes the connection for that of a peer (see foqs/transport/call_table.py).
    """

    def __init__(
        self,
        me: str,
        news: TopicNews,
        caps: CapNews,
        owners: OwnerNews,
        secret: Callable[[], bytes | None],
        random_bytes: Callable[[int], bytes],
        now_s: Callable[[], float],
    ) -> None:
        """`news` is told what peers report and ask of topics, `caps` what they ask of caps, `owners` what they have.

        `me` is the id of this host, `now_s` a monotonic clock.
        `secret` is None until it was read.
        """
        self._me = me
        self._news = news
        self._caps = caps
        self._owners = owners
        self._secret = secret
        self._random_bytes = random_bytes
        self._now_s = now_s
        self._challenges: OrderedDict[bytes, float] = OrderedDict()
        """When each was given."""

    async def hello(self, context: CallContext, host_id: str, challenge: bytes) -> HelloResult:
        """Show that this host knows the secret, and ask the caller for the same."""
        secret = self._known_secret()
        _check(host_id, challenge)
        mine = self._random_bytes(CHALLENGE_BYTES)
        while len(self._challenges) >= CHALLENGES_MAX:
            self._challenges.popitem(last=False)
        self._challenges[mine] = self._now_s()
        return HelloResult(self._me, proof_of(secret, self._me, host_id, challenge), mine)

    async def prove(self, context: CallContext, host_id: str, challenge: bytes, proof: bytes) -> None:
        """Raises PermissionDeniedError for whoever does not know the secret, or took too long to show it."""
        secret = self._known_secret()
        _check(host_id, challenge)
        given_s = self._challenges.pop(challenge, None)
        is_known = given_s is not None and self._now_s() - given_s <= CHALLENGE_MS / 1000
        if not is_known or not is_proof(proof, secret, host_id, self._me, challenge):
            _log.warning("peer_refused", address=context.caller, host_id=host_id[:80], is_known=is_known)
            raise PermissionDeniedError("this is not the proof of a host of this cluster")

    async def report(
        self, context: CallContext, stocks: Sequence[TopicStockFields], opened: Sequence[OpenedShardFields]
    ) -> Sequence[TopicPointer]:
        """A peer tells what it has of topics whose home this host is, or which shards it has opened."""
        _check_peer(context)
        if opened:
            self._owners.heard(context.peer, opened_shards_of(opened))
        told = {
            (at.namespace_number or 0, at.topic or ""): Reported(
                Stock(at.ready_count or 0, at.priority or 0, at.oldest_at_ms or 0), bool(at.is_wanted)
            )
            for at in stocks
        }
        return [told_pointer(pointer) for pointer in self._news.reported(context.peer, told)]

    async def seek(
        self, context: CallContext, wishes: Sequence[TopicWishFields], asks: Sequence[CapAskFields]
    ) -> SeekResult:
        """A peer has consumers that wait for topics whose home this host is, or needs tokens of such caps."""
        _check_peer(context)
        told = {(at.namespace_number or 0, at.topic or ""): _wanted_count(at) for at in wishes}
        pointers = [told_pointer(pointer) for pointer in self._news.sought(context.peer, told)]
        grants = self._caps.asked(context.peer, [ask_of(at) for at in asks])
        return SeekResult(pointers, [told_grant(grant) for grant in grants])

    async def hint(self, context: CallContext, pointers: Sequence[TopicPointerFields]) -> None:
        """The home of topics tells who has items that this host waits for."""
        _check_peer(context)
        self._news.hinted(pointers_of(pointers))

    def _known_secret(self) -> bytes:
        secret = self._secret()
        if secret is None:
            raise UnavailableError("this host has not read the secret of its cluster yet: try again", nothing_done=True)
        return secret


def told_pointer(pointer: Pointer) -> TopicPointer:
    """The pointer as it goes over the wire."""
    number, name = pointer.topic
    return TopicPointer(number, name, pointer.host_id, *pointer.stock)


def opened_shards_of(told: Sequence[OpenedShardFields]) -> list[OpenedShard]:
    """The shards of a peer that came over the wire."""
    return [OpenedShard(at.shard_id, at.epoch) for at in told if at.shard_id is not None and at.epoch is not None]


def ask_of(told: CapAskFields) -> CapAsk:
    """The question of a peer that came over the wire."""
    return CapAsk(
        (told.namespace_number or 0, told.topic or ""),
        told.per_second or 0.0,
        told.wanted_count or 0,
        told.held_count or 0,
        told.unused_count or 0,
        told.weight or 1,
        bool(told.is_short),
    )


def told_grant(grant: CapGrant) -> CapGrantTold:
    """The grant as it goes over the wire."""
    (number, name), granted_count, *rest = grant
    return CapGrantTold(number, name, granted_count, *rest)


def grants_of(told: Sequence[CapGrantFields]) -> list[CapGrant]:
    """The grants that came over the wire."""
    return [
        CapGrant(
            (at.namespace_number or 0, at.topic or ""),
            at.granted_count or 0,
            at.after_ms or 0.0,
            at.ends_ms or 0.0,
            at.share_per_second or 0.0,
        )
        for at in told
    ]


def pointers_of(told: Sequence[TopicPointerFields] | None) -> list[Pointer]:
    """The pointers that came over the wire."""
    return [
        Pointer(
            (at.namespace_number or 0, at.topic or ""),
            at.host_id or "",
            Stock(at.ready_count or 0, at.priority or 0, at.oldest_at_ms or 0),
        )
        for at in told or ()
    ]


def _wanted_count(wish: TopicWishFields) -> int:
    """How many items a host wants: none if it asks around and goes on with whoever has some."""
    return 1 if wish.count is None else max(0, wish.count)


def _check_peer(context: CallContext) -> None:
    if not context.peer:
        raise PermissionDeniedError("only hosts of this cluster may call this, after hello and prove")


def _check(host_id: str, challenge: bytes) -> None:
    if not 0 < len(host_id.encode()) <= HOST_ID_BYTES_MAX:
        raise InvalidArgumentError(f"host_id has {len(host_id.encode())} bytes, not 1..{HOST_ID_BYTES_MAX}")
    if len(challenge) != CHALLENGE_BYTES:
        raise InvalidArgumentError(f"challenge has {len(challenge)} bytes, not {CHALLENGE_BYTES}")

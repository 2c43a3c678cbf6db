"""The claims of other hosts on topics and caps, converted to values of this one; impossible claims end here.

Excessive values are reduced, and invalid ones (a negative count, a rate that is no number, a host that does not live)
are left out, counted and logged: docs/decisions/0042-proof-of-hosts.md. The receivers of the claims decide how long
they believe them, and how many they keep.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Sequence, Set
from math import isfinite

import structlog

from foqs.contract import requests as of
from foqs.model import limits
from foqs.model.cluster import OpenedShard
from foqs.model.errors import InvalidArgumentError
from foqs.model.outage import Outage
from foqs.model.shared_caps import AHEAD_MS, VALID_MS_MAX, CapAsk, CapGrant
from foqs.model.stocks import Pointer, Reported, Stock, Topic

CLAIMS_PER_MESSAGE_MAX = 1_000
"""The most topics, caps or shards in one message of a host."""
COUNT_MAX = 1_000_000_000
"""The most items, tokens or weight in one claim; higher values are reduced to this."""
_I32_MAX = (1 << 31) - 1
_I64_MAX = (1 << 63) - 1
FAR_MS = 2 * limits.SECOND_MS
"""A home can always postpone tokens by this long, regardless of the rate known here, which can be outdated."""

_log = structlog.get_logger(__name__)


class PeerClaims:
    """Converts the claims of other hosts. It owns the count of refused ones, by kind."""

    def __init__(self, me: str, living: Callable[[], Set[str]], now_s: Callable[[], float]) -> None:
        """`me` is the id of this host, `living` returns the ids of all living hosts as far as it knows."""
        self._me = me
        self._living = living
        self._outage = Outage(now_s)
        self.refused_total: Counter[str] = Counter(stock=0, wish=0, ask=0, pointer=0, grant=0, opened=0, depth=0)

    def stocks(self, peer: str, claimed: Sequence[of.TopicStock]) -> dict[Topic, Reported]:
        """Convert a host's items of topics."""
        _check_size(claimed)
        found: dict[Topic, Reported] = {}
        for at in claimed:
            topic = _topic_of(at.namespace_number, at.topic)
            stock = _stock_of(at)
            if topic is None or stock is None:
                self._refuse(peer, "stock", at)
            else:
                found[topic] = Reported(stock, bool(at.is_wanted))
        return found

    def opened(self, peer: str, claimed: Sequence[of.OpenedShard]) -> list[OpenedShard]:
        """Convert a host's opened shards."""
        _check_size(claimed)
        found = [
            OpenedShard(at.shard_id, at.epoch) for at in claimed if at.shard_id is not None and at.epoch is not None
        ]
        sane = [shard for shard in found if shard.shard_id >= 0 and shard.epoch > 0]
        if len(sane) < len(claimed):
            self._refuse(peer, "opened", claimed)
        return sane

    def interests(self, peer: str, claimed: Sequence[of.TopicWish]) -> dict[Topic, int]:
        """Convert the topics for which a host has consumers, with the items they wait for; 0 if it only asks around."""
        _check_size(claimed)
        found: dict[Topic, int] = {}
        for at in claimed:
            topic = _topic_of(at.namespace_number, at.topic)
            if topic is None or (at.count or 0) < 0:
                self._refuse(peer, "wish", at)
            else:
                found[topic] = 1 if at.count is None else min(COUNT_MAX, at.count)
        return found

    def asks(self, peer: str, claimed: Sequence[of.CapAsk]) -> list[CapAsk]:
        """Convert a host's asks for tokens of caps."""
        _check_size(claimed)
        found = []
        for at in claimed:
            topic, rate = _topic_of(at.namespace_number, at.topic), at.per_second or 0.0
            counts = (at.wanted_count or 0, at.held_count or 0, at.unused_count or 0, at.weight or 1)
            if topic is None or not isfinite(rate) or rate < 0 or min(counts) < 0:
                self._refuse(peer, "ask", at)
                continue
            wanted, held, unused, weight = [min(COUNT_MAX, count) for count in counts]
            rate = min(rate, limits.DELIVERIES_PER_SECOND_MAX)
            found.append(CapAsk(topic, rate, wanted, held, unused, max(1, weight), bool(at.is_short)))
        return found

    def depths_asked(self, peer: str, claimed: Sequence[of.TopicDepth]) -> list[Topic]:
        """Convert the topics whose depths a host asks for."""
        _check_size(claimed)
        found = [_topic_of(at.namespace_number, at.topic) for at in claimed]
        sane = [topic for topic in found if topic is not None]
        if len(sane) < len(claimed):
            self._refuse(peer, "depth", claimed)
        return sane

    def depths(self, peer: str, claimed: Sequence[of.TopicDepth], asked: Container[Topic]) -> dict[Topic, int]:
        """Convert a host's answer: its items of the topics that were asked for."""
        found: dict[Topic, int] = {}
        for at in claimed:
            topic, count = _topic_of(at.namespace_number, at.topic), at.items_count or 0
            if topic is None or topic not in asked or count < 0:
                self._refuse(peer, "depth", at)
            else:
                found[topic] = min(COUNT_MAX, count)
        return found

    def pointers(
        self, peer: str, claimed: Sequence[of.TopicPointer] | None, asked: Container[Topic] | None = None
    ) -> list[Pointer]:
        """Convert a home's pointers to hosts that have items; the result has only living hosts except this one.

        `asked` are the requested topics, if it is an answer.
        """
        if asked is None:
            _check_size(claimed or ())
        found, living = [], self._living()
        for at in claimed or ():
            topic = _topic_of(at.namespace_number, at.topic)
            stock = _stock_of(at)
            host_id = at.host_id or ""
            is_asked = asked is None or topic in asked
            if topic is None or stock is None or host_id not in living or not is_asked:
                self._refuse(peer, "pointer", at)
            elif host_id != self._me:
                found.append(Pointer(topic, host_id, stock))
        return found

    def grants(
        self, peer: str, claimed: Sequence[of.CapGrant] | None, asked: Sequence[CapAsk]
    ) -> list[CapGrant] | None:
        """Convert the tokens that a home has granted: of requested caps, up to the requested count, not far ahead."""
        if claimed is None:
            return None
        by_key, found = {ask.key: ask for ask in asked}, []
        for at in claimed:
            key, times = (at.namespace_number or 0, at.topic or ""), (at.after_ms or 0.0, at.ends_ms or 0.0)
            grant = CapGrant(key, at.granted_count or 0, *times, at.share_per_second or 0.0)
            ask = by_key.get(key)
            is_sane = all(map(_is_time, (grant.after_ms, grant.ends_ms, grant.share))) and grant.granted_count >= 0
            if ask is None or not is_sane:
                self._refuse(peer, "grant", grant)
                continue
            count = min(grant.granted_count, ask.wanted_count)
            rate = max(ask.rate, limits.DELIVERIES_PER_SECOND_MIN)
            # Each host can have been granted two tokens ahead of their time, besides those of a short time.
            after_ms_max = AHEAD_MS + 1000 * (count + 2 * len(self._living()) + 2) / rate
            after_ms = min(grant.after_ms, max(FAR_MS, after_ms_max))
            ends_ms = min(grant.ends_ms, after_ms + max(VALID_MS_MAX, 1000 / rate))
            found.append(CapGrant(grant.key, count, after_ms, ends_ms, min(grant.share, ask.rate)))
        return found

    def _refuse(self, peer: str, claim: str, what: object) -> None:
        self.refused_total[claim] += 1
        if self._outage.is_to_be_logged(f"{peer} {claim}"):
            _log.warning(
                "peer_claim_refused", peer=peer, claim=claim, reason="it makes no sense", claimed=str(what)[:200]
            )


def _check_size(claimed: Sequence[object]) -> None:
    if len(claimed) > CLAIMS_PER_MESSAGE_MAX:
        raise InvalidArgumentError(
            f"a message of a host is about {CLAIMS_PER_MESSAGE_MAX} things at most: {len(claimed)} came"
        )


def _topic_of(number: int | None, name: str | None) -> Topic | None:
    """Convert a topic, or return None if it is impossible."""
    number, name = number or 0, name or ""
    return (number, name) if 0 <= number <= _I32_MAX and len(name.encode()) <= limits.TOPIC_BYTES_MAX else None


def _stock_of(at: of.TopicStock | of.TopicPointer) -> Stock | None:
    ready_count = at.ready_count or 0
    if ready_count < 0:
        return None
    oldest_at_ms = max(0, min(_I64_MAX, at.oldest_at_ms or 0))
    urgency = None if at.urgency is None else _as_i32(at.urgency)
    return Stock(min(COUNT_MAX, ready_count), _as_i32(at.priority or 0), oldest_at_ms, urgency)


def _as_i32(value: int) -> int:
    return max(-_I32_MAX - 1, min(_I32_MAX, value))


def _is_time(value: float) -> bool:
    return isfinite(value) and value >= 0


def wire_pointer(pointer: Pointer) -> of.TopicPointer:
    """Convert a pointer to its form on the wire."""
    number, name = pointer.topic
    return of.TopicPointer(number, name, pointer.host_id, *pointer.stock)


def wire_ask(ask: CapAsk) -> of.CapAsk:
    """Convert an ask to its form on the wire."""
    return of.CapAsk(*ask.key, ask.rate, ask.wanted_count, ask.held_count, ask.unused_count, ask.weight, ask.is_short)


def wire_grant(grant: CapGrant) -> of.CapGrant:
    """Convert a grant to its form on the wire."""
    (number, name), granted_count, *rest = grant
    return of.CapGrant(number, name, granted_count, *rest)

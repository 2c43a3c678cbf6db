"""Which host has which shard, as a host told it, so that calls go there without a hop over another one.

Any host does any call. So nothing here decides what is right: what is old, or not known, costs a hop alone. A call goes
to the host that has most of its items, and that one hands on the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from foqs.client.addresses import Address, parse_addresses
from foqs.client.flows import Flow, Terms
from foqs.client.retry import RetryPolicy
from foqs.client.slots import ASK_MS_MAX, MAP_PAUSE_MS, shard_map
from foqs.model import limits
from foqs.model.calls import ShardMap
from foqs.model.errors import FoqsError, InvalidArgumentError

OWNERS_MS_MAX = 1 * limits.MINUTE_MS
"""Owners that were learned longer ago are asked for again: after a move, calls go on to the new owner meanwhile."""
_ONCE = RetryPolicy(deadline_ms=0)


@dataclass(slots=True)
class Owners:
    """The address of each shard's owner. The terms of a client own it; settlements and enqueues with ids ask it."""

    addresses: dict[int, Address] = field(default_factory=dict)
    ask_again_at_ms: int = 0

    def learn(self, told: ShardMap, now_ms: int) -> None:
        """Take what a host has told. An address that is none, or several, is left out."""
        self.addresses = {}
        for one in told.addresses:
            try:
                parsed = parse_addresses(one.address)
            except InvalidArgumentError:
                continue
            if len(parsed) == 1:
                self.addresses[one.shard_id] = parsed[0]
        self.ask_again_at_ms = now_ms + OWNERS_MS_MAX

    def of_ids(self, ids: Iterable[str]) -> Address | None:
        """Return the host that has most of these items; None if that is not known."""
        counts = Counter(item_id.partition("-")[0] for item_id in ids)
        hosts: Counter[Address] = Counter()
        for text, count in counts.items():
            try:
                address = self.addresses.get(int(text, 16))
            except ValueError:  # No id: the host says so.
                continue
            if address is not None:
                hosts[address] += count
        return hosts.most_common(1)[0][0] if hosts else None


def owner_of_ids(terms: Terms, ids: Iterable[str]) -> Flow[Address | None]:
    """Return where a call for these items or receipts is to go first; None: anywhere."""
    owners = terms.owners
    if owners is None:
        return None
    now_ms = terms.clock_ms()
    if now_ms >= owners.ask_again_at_ms:
        owners.ask_again_at_ms = now_ms + MAP_PAUSE_MS  # Others do not wait for this one.
        try:
            asked = replace(terms, retry=_ONCE, timeout_ms=min(terms.timeout_ms, ASK_MS_MAX))
            owners.learn((yield from shard_map(asked, None)), now_ms)
        except FoqsError:
            return owners.of_ids(ids)
    return owners.of_ids(ids)

"""The owner of each shard, by a host's shard map, so that calls reach it without a hop.

Any host serves any call, so an outdated or missing owner costs only a hop. A call goes to the host with most of its
items, and that host forwards the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from foqs.client.addresses import Address, parse_addresses
from foqs.client.flows import Flow, Terms
from foqs.client.retry import RetryPolicy
from foqs.client.slot_groups import ASK_MS_MAX, MAP_PAUSE_MS, shard_map
from foqs.model import limits
from foqs.model.calls import ShardMap
from foqs.model.errors import FoqsError, InvalidArgumentError

OWNERS_MS_MAX = 1 * limits.MINUTE_MS
"""Age at which owners are fetched again. Until then, hosts forward calls to the new owner of a moved shard."""
_ONCE = RetryPolicy(deadline_ms=0)


@dataclass(slots=True)
class Owners:
    """Addresses of the shard owners. The client's terms own them; settlements and enqueues with dedup ids read them."""

    addresses: dict[int, Address] = field(default_factory=dict)
    ask_again_at_ms: int = 0

    def update(self, found: ShardMap, now_ms: int) -> None:
        """Store the owners of a shard map. Skips entries that do not hold exactly one valid address."""
        self.addresses = {}
        for one in found.addresses:
            try:
                parsed = parse_addresses(one.address)
            except InvalidArgumentError:
                continue
            if len(parsed) == 1:
                self.addresses[one.shard_id] = parsed[0]
        self.ask_again_at_ms = now_ms + OWNERS_MS_MAX

    def of_ids(self, ids: Iterable[str]) -> Address | None:
        """Return the host with most of these items, or None if it is unknown."""
        counts = Counter(item_id.partition("-")[0] for item_id in ids)
        hosts: Counter[Address] = Counter()
        for text, count in counts.items():
            try:
                address = self.addresses.get(int(text, 16))
            except ValueError:  # Not an item id: the host reports the error.
                continue
            if address is not None:
                hosts[address] += count
        return hosts.most_common(1)[0][0] if hosts else None


def owner_of_ids(terms: Terms, ids: Iterable[str]) -> Flow[Address | None]:
    """Return the first address to try for a call with these items or receipts; None means any address."""
    owners = terms.owners
    if owners is None:
        return None
    now_ms = terms.clock_ms()
    if now_ms >= owners.ask_again_at_ms:
        owners.ask_again_at_ms = now_ms + MAP_PAUSE_MS  # Other calls do not wait for this fetch.
        try:
            asked = replace(terms, retry=_ONCE, timeout_ms=min(terms.timeout_ms, ASK_MS_MAX))
            owners.update((yield from shard_map(asked, None)), now_ms)
        except FoqsError:
            return owners.of_ids(ids)
    return owners.of_ids(ids)

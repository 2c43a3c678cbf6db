"""The claims of hosts to shards that they have opened, until the meta database confirms or refutes them.

An owner gets its epoch from the meta database before it claims the shard. So a true claim can be confirmed there at
once, and a claim that is not confirmed soon is false: docs/decisions/0042-proof-of-hosts.md. Pure except for its log:
times are arguments.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Set
from math import inf
from typing import NamedTuple

import structlog

from foqs.model import limits
from foqs.model.outage import Outage

CLAIM_MS = 3 * limits.SECOND_MS
"""Time for which a claim is believed while the meta database does not confirm it."""
READ_MS = 1 * limits.SECOND_MS
"""A reading of the meta database counts as begun after a claim if it is taken in at least this long after it."""
EPOCHS_AHEAD_MAX = 1_000
"""A claimed epoch that is further above the recorded one is refused."""

_log = structlog.get_logger(__name__)


class ShardOwner(NamedTuple):
    """The host that took the last epoch of a shard, as far as this host knows."""

    shard_id: int
    epoch: int
    host_id: str
    """The process; it can have ended since."""
    address: str
    """The address for clients and peers; empty if it is unknown or the process has ended."""
    is_moving: bool = False
    """True if the shard is about to move to another host; callers must then expect to retry soon."""


class Known(NamedTuple):
    """The record of a shard in the meta database."""

    epoch: int
    owner: ShardOwner | None
    """None before the first owner."""


class _Claim(NamedTuple):
    owner: ShardOwner
    since_s: float
    until_s: float


class OwnerClaims:
    """The claims of other hosts, and this host's certain knowledge of its own shards. `OwnerMap` owns it."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._claims: dict[int, _Claim] = {}
        """The claim of the highest epoch of each shard."""
        self._facts: dict[int, _Claim] = {}
        """The shards that this host has opened itself. Each holds until the meta database has said otherwise for
        CLAIM_MS.
        """
        self._first_s: dict[tuple[int, str], float] = {}
        """The time of each host's first claim to each shard since the shard's record last changed."""
        self._next_s = inf
        """The time at which the first claim ends."""
        self._read_s = -inf
        """The time at which the meta database was last read."""
        self._outage = Outage(now_s)
        self.counts: Counter[str] = Counter(refused=0, unconfirmed=0, disowned=0)
        """The claims that were of no use, by reason."""

    def __len__(self) -> int:
        return len(self._claims)

    @property
    def are_due(self) -> bool:
        """True if the time of a claim is over."""
        return self._next_s <= self._now_s()

    def note(self, owners: Iterable[ShardOwner], believed: Mapping[int, ShardOwner]) -> list[int]:
        """Take certain owners, each unless a later epoch is believed. Returns the shards."""
        now_s = self._now_s()
        taken = [new for new in owners if (old := believed.get(new.shard_id)) is None or new.epoch >= old.epoch]
        self._facts.update({new.shard_id: _Claim(new, now_s, inf) for new in taken})
        return [new.shard_id for new in taken]

    def claim(self, claimed: Iterable[ShardOwner], known: Mapping[int, Known]) -> list[int]:
        """Take a host's claims to have opened shards. Returns the shards whose claims are believed for now."""
        return [owner.shard_id for owner in claimed if self._take(owner, known.get(owner.shard_id))]

    def _take(self, owner: ShardOwner, known: Known | None) -> bool:
        now_s, who = self._now_s(), (owner.shard_id, owner.host_id)
        if known is None:
            # A shard that was added a moment ago appears in the next reading.
            return self._refuse(owner, "the meta database has no such shard")
        if owner.epoch <= known.epoch:
            return False  # The meta database is as far, and has the owner of that epoch.
        if owner.epoch > known.epoch + EPOCHS_AHEAD_MAX:
            return self._refuse(owner, f"its epoch is {known.epoch} in the meta database")
        first_s = self._first_s.setdefault(who, now_s)
        if self._read_s < first_s + READ_MS / 1000:
            until_s = now_s + CLAIM_MS / 1000  # No reading has begun since its first claim: it can be repeated.
        elif now_s < first_s + CLAIM_MS / 1000:
            until_s = first_s + CLAIM_MS / 1000
        else:
            return self._refuse(owner, f"it has said so before, and the epoch stays {known.epoch} in the meta database")
        before = self._claims.get(owner.shard_id)
        if before is not None and before.owner.epoch > owner.epoch:
            return False
        self._claims[owner.shard_id] = _Claim(owner, now_s, until_s)
        self._next_s = min(self._next_s, until_s)
        return True

    def _refuse(self, owner: ShardOwner, reason: str) -> bool:
        self.counts["refused"] += 1
        if self._outage.is_to_be_logged(f"{owner.host_id} {reason}"):
            _log.warning(
                "peer_claim_refused",
                peer=owner.host_id, claim="opened", shard=owner.shard_id, epoch=owner.epoch, reason=reason,
            )  # fmt: skip
        return False

    def best(self, shard_id: int, on_record: ShardOwner | None) -> ShardOwner | None:
        """Return the owner to believe in: the one of the highest epoch, and of equal ones the recorded one."""
        found = on_record
        for claims in (self._facts, self._claims):
            claim = claims.get(shard_id)
            if claim is not None and (found is None or claim.owner.epoch > found.epoch):
                found = claim.owner
        return found

    def disowned(self, shard_id: int, host_id: str) -> bool:
        """Drop the claim of a host that denies having the shard. True if it had claimed it."""
        claim = self._claims.get(shard_id)
        if claim is None or claim.owner.host_id != host_id:
            return False
        del self._claims[shard_id]
        self.counts["disowned"] += 1
        _log.warning("owner_claim_ended", peer=host_id, shard=shard_id, epoch=claim.owner.epoch, reason="disowned")
        return True

    def lapse(self, known: Mapping[int, Known]) -> list[int]:
        """End the claims whose time is over. Returns their shards."""
        now_s = self._now_s()
        ended = [shard_id for shard_id, claim in self._claims.items() if claim.until_s <= now_s]
        for shard_id in ended:
            claim = self._claims.pop(shard_id)
            self.counts["unconfirmed"] += 1
            _log.warning(
                "owner_claim_ended",
                peer=claim.owner.host_id, shard=shard_id, epoch=claim.owner.epoch, reason="unconfirmed",
                known_epoch=known[shard_id].epoch if shard_id in known else None,
            )  # fmt: skip
        self._next_s = min([claim.until_s for claim in self._claims.values()], default=inf)
        return ended

    def refresh(self, known: Mapping[int, Known], before: Mapping[int, Known], living: Set[str]) -> None:
        """Drop the claims that a new reading of the meta database confirms or supersedes; `before` is the last one."""
        now_s = self._read_s = self._now_s()
        for shard_id, claim in list(self._claims.items()):
            if shard_id not in known or known[shard_id].epoch >= claim.owner.epoch:
                del self._claims[shard_id]
        for shard_id, fact in list(self._facts.items()):
            is_said = shard_id in known and known[shard_id].epoch >= fact.owner.epoch
            if is_said or (shard_id in before and shard_id not in known) or now_s - fact.since_s >= CLAIM_MS / 1000:
                del self._facts[shard_id]
        # A host whose claim to a shard was wrong can be right after the shard's record has changed.
        self._first_s = {
            (shard_id, host_id): since_s
            for (shard_id, host_id), since_s in self._first_s.items()
            if host_id in living and shard_id in known and known[shard_id].epoch == before[shard_id].epoch
        }

"""The actions of one host on the shards of the cluster after a round: pure, and the same on equal views."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from foqs.cluster.members.view import ClusterView
from foqs.model.assignment import ShardRequirement, heirs_of, plan
from foqs.model.cluster import ShardRow


class Intent(NamedTuple):
    """The hosts that should serve the shards, according to one round."""

    planned: dict[int, str]
    """The id of the process that each shard is planned for."""
    inherited: frozenset[int]
    """Shards of others that come to this host if the process that they are planned for ends."""


NOTHING_PLANNED = Intent({}, frozenset())


class Planner:
    """Plans after each round, but only once for all equal rounds, because planning a large cluster takes a while."""

    def __init__(self) -> None:
        self._of: object = None
        self._intent = NOTHING_PLANNED

    def plan(self, view: ClusterView) -> Intent:
        """Return the plan for this view. One thread at a time can call it."""
        shards = shards_in_use(view)
        members = view.members
        requirements = [ShardRequirement(row.shard_id, row.tier, row.pinned_to) for row in shards.values()]
        owners = owners_of(view)
        if (view.me, members, requirements, owners) != self._of:
            planned = plan(members, requirements, owners)
            inherited: set[int] = set()
            if any(member.id == view.me for member in members):
                for member in members:
                    heirs = heirs_of(member.id, members, requirements, planned)
                    inherited.update([shard_id for shard_id, heir in heirs.items() if heir == view.me])
            self._of, self._intent = (view.me, members, requirements, owners), Intent(planned, frozenset(inherited))
        return self._intent


def shards_in_use(view: ClusterView) -> dict[int, ShardRow]:
    """Return the shards that can be served: neither removed nor parked, and with a known place."""
    return {row.shard_id: row for row in view.shards.values() if row.use.is_served and row.place}


def owners_of(view: ClusterView) -> dict[int, str]:
    """Return the living owners, by shard."""
    return {row.shard_id: row.owner for row in view.shards.values() if row.owner in view.hosts}


@dataclass(frozen=True, slots=True)
class Decision:
    """The actions that follow for this host from one round."""

    wanted: set[int] = field(default_factory=set)
    """Shards that it has, is planned to have, or stands by for in case their owners end."""
    asked: dict[int, str] = field(default_factory=dict)
    """Shards that it asks for, with their living owners."""
    released: list[int] = field(default_factory=list)
    """Shards of its own that it hands to the host that asks for them."""
    declined: dict[int, str] = field(default_factory=dict)
    """Shards of its own that are requested by another host than the planned one, with the requesting host."""

    def without_gains(self, run: Collection[int]) -> Decision:
        """Return the part of the decision for a host that ends, and has or stands by for the shards of `run`."""
        return Decision(self.wanted.intersection(run), {}, self.released, self.declined)


def decide(view: ClusterView, intent: Intent, owned: Collection[int], neglected: Collection[int]) -> Decision:
    """Decide; the owner of a shard keeps it until the plan, and the host that it plans for, both want otherwise.

    `owned` are the shards that this host serves now, `neglected` those without an owner although the plan names a host.
    """
    me, decision, owners = view.me, Decision(), owners_of(view)
    for shard_id, row in shards_in_use(view).items():
        target, owner = intent.planned.get(shard_id), owners.get(shard_id)
        if shard_id in owned:
            decision.wanted.add(shard_id)
            if target not in (None, me) and row.moving_to == target:
                decision.released.append(shard_id)
            elif row.owner == me and row.moving_to not in ("", target):
                decision.declined[shard_id] = row.moving_to
        elif target == me:
            decision.wanted.add(shard_id)
            if owner is not None and owner != me and (view.is_settled or view.is_leaving(owner)):
                decision.asked[shard_id] = owner
        elif owner == me or (shard_id in intent.inherited and (owner == target or shard_id in neglected)):
            # A shard of its own that it has lost for a moment, or of another host for which it stands by.
            decision.wanted.add(shard_id)
    return decision

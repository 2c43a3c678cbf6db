"""Defects of hosts that share shards: of what they decide, and of how a shard goes from one to another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from foqs.bootstrap import Host
from foqs.cluster.members.membership import Membership
from foqs.cluster.members.view import ClusterView
from foqs.cluster.ownership import decision as decisions
from foqs.cluster.ownership import sharing
from foqs.cluster.ownership.decision import Decision
from foqs.host.shards.shards import Shards
from foqs.model.cluster import ShardRow, ShardUse
from foqs.model.errors import FoqsError, StaleLeaseError
from foqs.model.shard_place import EpochGiven
from foqs.testing.fake_cluster import FakeShards
from tests.sim.planting import in_place_of

_decide = decisions.decide
_beat = Membership._beat
_take_epoch = FakeShards.take_epoch


@in_place_of(Membership, "ask_for_shards")
async def asks_for_no_shard(self: Membership, by_owner: Mapping[int, str]) -> None:
    return None


@in_place_of(sharing, "decide")
def leaves_shards_without_an_owner_alone(view: ClusterView, *arguments: Any) -> Decision:
    decision = _decide(view, *arguments)
    orphans = {row.shard_id for row in view.shards.values() if row.owner not in view.hosts}
    return Decision(decision.wanted - orphans, decision.asked, decision.released)


@in_place_of(sharing, "decide")
def keeps_what_it_is_asked_for(view: ClusterView, *arguments: Any) -> Decision:
    decision = _decide(view, *arguments)
    return Decision(decision.wanted, decision.asked, [])


@in_place_of(Membership, "_beat")
async def gives_its_shards_up_when_the_meta_database_is_away(self: Membership) -> None:
    try:
        await _beat(self)
    except FoqsError:
        shards = {
            at: ShardRow(at, 1, "", 0, place, ShardUse.REMOVED, "", "", "", 0) for at, place in self._places.items()
        }
        await self._follower.on_view(ClusterView(self.me.id, {self.me.id: self.me}, shards, True))
        raise


@in_place_of(Shards, "not_served")
def calls_leases_of_others_stale(self: Shards, shard_id: int) -> FoqsError:
    return StaleLeaseError("the lease of this receipt has ended")


@in_place_of(FakeShards, "take_epoch")
def gives_an_epoch_twice(
    self: Any, shard_id: int, owner: str, now_ms: int, at_least: int, *found: Any, **others: Any
) -> EpochGiven:
    given = _take_epoch(self, shard_id, owner, now_ms, at_least, *found, **others)
    row = self._cluster.shards[shard_id]
    self._cluster.shards[shard_id] = row._replace(epoch=max(1, given.epoch - 1))
    return given._replace(epoch=max(1, at_least))


@in_place_of(Shards, "take_tenure")
def forgets_the_epoch_of_a_shard_that_it_hands_on(self: Shards, shard_id: int) -> None:
    return None


@in_place_of(Host, "lose_shard")
async def keeps_the_lock_of_a_shard_that_it_hands_on(self: Host, shard_id: int) -> None:
    return None

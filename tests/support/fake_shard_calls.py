"""The verbs on shards for a fake queue, on a dictionary."""

from __future__ import annotations

from dataclasses import replace

from foqs.contract import requests as of
from foqs.model.calls import CallContext, ClusterShard, ClusterShards
from foqs.model.cluster import ShardHealth, ShardUse
from foqs.model.cluster_calls import ClusterHost, ClusterHosts, HostState
from foqs.model.errors import AlreadyExistsError, InvalidArgumentError, NotFoundError


class FakeShardCalls:
    """A part of tests.support.fake_queue.FakeQueue."""

    def __init__(self) -> None:
        self.shards: dict[int, ClusterShard] = {}
        self.gated_slots = {7: 3}
        """The shard that each of these slots waits for."""
        self.hosts = [ClusterHost("fake", "fake#1", "fake:1", "", "0", 1, 7, False, HostState.SERVING)]

    async def list_hosts(self, context: CallContext, request: of.ListHostsRequest) -> ClusterHosts:
        return ClusterHosts(self.hosts)

    async def list_shards(self, context: CallContext, request: of.ListShardsRequest) -> ClusterShards:
        return ClusterShards([one for _, one in sorted(self.shards.items())])

    async def add_shard(self, context: CallContext, request: of.AddShardRequest) -> ClusterShard:
        shard_id, place, tier = request.shard_id, request.place, request.tier
        if shard_id in self.shards:
            raise AlreadyExistsError(f"shard {shard_id} exists already")
        self.shards[shard_id] = ClusterShard(
            shard_id, place, ShardUse.SERVING, tier, "", "", "", 0, "", 1, health=ShardHealth.SERVED
        )
        return self.shards[shard_id]

    async def update_shard(self, context: CallContext, request: of.UpdateShardRequest) -> ClusterShard:
        shard_id, state, pinned_to, tier = request.shard_id, request.state, request.pinned_to, request.tier
        before = self._shard(shard_id)
        others = [at for at in self.shards.values() if at.state is ShardUse.SERVING and at.shard_id != shard_id]
        if state is not None and state == ShardUse.REMOVED:
            raise InvalidArgumentError(f"state = {state} is not possible")
        if request.place is not None and before.state is not ShardUse.PARKED:
            raise InvalidArgumentError(f"shard {shard_id} is not parked")
        if state in (ShardUse.DRAINING, ShardUse.PARKED) and not others and not request.last:
            raise InvalidArgumentError(f"shard {shard_id} is the last")
        after = self.shards[shard_id] = replace(
            before,
            state=before.state if state is None else ShardUse(state),
            pinned_to=before.pinned_to if pinned_to is None else pinned_to,
            tier=before.tier if tier is None else tier,
            place=request.place or before.place,
        )
        return after

    async def remove_shard(self, context: CallContext, request: of.RemoveShardRequest) -> None:
        self.shards[request.shard_id] = replace(self._shard(request.shard_id), state=ShardUse.REMOVED)

    async def ungate_slot(self, context: CallContext, request: of.UngateSlotRequest) -> None:
        slot = request.slot
        if slot not in self.gated_slots:
            raise NotFoundError(f"slot {slot} has no gate")
        if not request.force:
            raise InvalidArgumentError(f"slot {slot} waits for shard {self.gated_slots[slot]}: give force")
        del self.gated_slots[slot]

    def _shard(self, shard_id: int) -> ClusterShard:
        if shard_id not in self.shards:
            raise NotFoundError(f"there is no shard {shard_id}")
        return self.shards[shard_id]

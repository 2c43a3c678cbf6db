"""The shards of the cluster for operators: listed, added, drained, moved and removed."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Iterator

import structlog

from foqs.contract import requests as of
from foqs.host import arguments
from foqs.host.registry.known_slots import Slots
from foqs.host.registry.namespaces import Namespaces
from foqs.host.shards.shards import MOVING_RETRY_MS, Shards
from foqs.host.shards.waiting import Answer, Waiting
from foqs.host.verbs.place_check import PlaceCheck
from foqs.model import limits
from foqs.model.calls import ClusterShard, ClusterShards
from foqs.model.cluster import ShardRow, ShardUse, host_name_of, tier_problem
from foqs.model.errors import FoqsError, InvalidArgumentError, NotFoundError, UnavailableError, shown
from foqs.model.slots import SLOTS_COUNT
from foqs.storage.meta.meta_shards import is_kept, not_known
from foqs.storage.sessions.places import check_place

_log = structlog.get_logger(__name__)
_STATES = [ShardUse.SERVING, ShardUse.DRAINING, ShardUse.PARKED]
_HOST_NAME = re.compile(r"[A-Za-z0-9._:-]{0,112}")


class ShardCalls:
    """The verbs on shards.

    All hosts see its writes to the meta database within a second. Only the owner of a shard can remove it.
    """

    def __init__(
        self,
        namespaces: Namespaces,
        shards: Shards,
        slots: Slots,
        waiting: Waiting,
        tiers_of: Callable[[str], Collection[str]],
        places: PlaceCheck,
    ) -> None:
        """`tiers_of` returns the tiers of the living processes of a host."""
        self._calls = namespaces.calls
        self._shards = shards
        self._slots = slots
        self._waiting = waiting
        self._tiers_of = tiers_of
        self._places = places

    async def list_shards(self, request: of.ListShardsRequest) -> ClusterShards:
        """All present and former shards, by id, without their servers: that is for all hosts to say."""
        return ClusterShards(
            [self._cluster_shard(row) for row in await self._calls.run(lambda meta: meta.shards.read_all())]
        )

    async def add_shard(self, request: of.AddShardRequest) -> ClusterShard:
        """Let the hosts of the tier serve one more shard. Its database has the tables of this version already."""
        shard_id = arguments.check_range("shard_id", request.shard_id, 0, limits.SHARD_ID_MAX)
        tier = request.tier
        _check_tier(tier)
        checked = check_place(request.place)
        # Before anybody tries to serve it, and fails.
        await self._places.check(shard_id, checked)
        return self._cluster_shard(await self._calls.run(lambda meta: meta.shards.add(shard_id, checked, tier)))

    async def update_shard(self, request: of.UpdateShardRequest) -> ClusterShard:
        """Drain or park the shard, let it serve again, pin it to a host or to none, relocate it, or give it to other
        hosts.

        Raises InvalidArgumentError for draining or parking the last one of its tier that takes items, unless `last`.
        """
        shard_id = arguments.check_range("shard_id", request.shard_id, 0, limits.SHARD_ID_MAX)
        state, pinned_to, tier = request.state, request.pinned_to, request.tier
        if state is not None and state not in _STATES:
            raise InvalidArgumentError(f"state = {state} is not possible: {_STATES} are; see removeShard")
        if request.place is not None:
            return await self._relocate(shard_id, request)
        if _HOST_NAME.fullmatch(pinned_to or "") is None:
            raise InvalidArgumentError(
                f"pinned_to {shown(pinned_to)} is not valid: it does not match {_HOST_NAME.pattern}"
            )
        _check_tier(tier or "")
        if pinned_to or tier is not None:
            await self._check_pin(shard_id, pinned_to, tier)
        wanted = None if state is None else ShardUse(state)
        if wanted in (ShardUse.DRAINING, ShardUse.PARKED) and not request.last:
            await self._check_last(shard_id)
        try:
            row = await self._calls.run(lambda meta: meta.shards.update(shard_id, wanted, pinned_to, tier))
        except NotFoundError:
            raise await self._not_here(shard_id) from None
        return self._cluster_shard(row)

    async def _relocate(self, shard_id: int, request: of.UpdateShardRequest) -> ClusterShard:
        if request.state is not None or request.pinned_to is not None or request.tier is not None:
            raise InvalidArgumentError(
                "a call relocates a shard and does nothing else: change its state, host and tier before"
            )
        place = check_place(request.place or "")
        row = await self._places.relocate(shard_id, place, allow_older=bool(request.allow_older))
        _log.warning("shard_relocated", shard=shard_id, place=place, allow_older=bool(request.allow_older))
        return self._cluster_shard(row)

    async def _not_here(self, shard_id: int) -> FoqsError:
        """The reason why this host can do nothing with the shard."""
        rows = {row.shard_id: row for row in await self._calls.run(lambda meta: meta.shards.read_all())}
        if (row := rows.get(shard_id)) is None:
            return not_known(shard_id)
        if row.use is ShardUse.REMOVED:
            again = f"foqs shard add {shard_id} {row.place}" if row.place else "foqs shard add"
            return NotFoundError(f"shard {shard_id} was removed: {again} adds it again, with what its database holds")
        owner = f"host {row.owner} took it last" if row.owner else "no host has taken it yet"
        return UnavailableError(
            f"shard {shard_id} is not served by this host, and {owner}: nothing was done; only the host that serves it "
            "can do it, see foqs shard list",
            retry_after_ms=MOVING_RETRY_MS,
            nothing_done=True,
        )

    async def _check_pin(self, shard_id: int, pinned_to: str | None, tier: str | None) -> None:
        """Raises InvalidArgumentError when the host that the shard would be pinned to lives and serves another tier."""
        rows = {row.shard_id: row for row in await self._calls.run(lambda meta: meta.shards.read_all())}
        if (row := rows.get(shard_id)) is None:
            return  # The change says so.
        host_name = row.pinned_to if pinned_to is None else pinned_to
        wanted = row.tier if tier is None else tier
        tiers = self._tiers_of(host_name)
        if host_name and tiers and wanted not in tiers:
            raise InvalidArgumentError(
                f"shard {shard_id} would be of tier {wanted!r} and pinned to host {host_name!r}, which serves tier "
                f"{min(tiers)!r} and would never get it: pin it to a host of its tier, or change both in one call"
            )

    async def _check_last(self, shard_id: int) -> None:
        """Raises InvalidArgumentError when this shard takes items and no other one of its tier does.

        Two hosts that are asked to drain the last two at the same moment can each see the other one serve.
        """
        rows = {row.shard_id: row for row in await self._calls.run(lambda meta: meta.shards.read_all())}
        row = rows.pop(shard_id, None)
        if row is None or row.use is not ShardUse.SERVING:
            return
        if not any(other.use is ShardUse.SERVING and other.tier == row.tier for other in rows.values()):
            raise InvalidArgumentError(
                f"shard {shard_id} is the last one of tier {row.tier!r} that takes items: without it all enqueues for "
                "this tier without dedup ids are refused. First add another one (foqs shard add), or let one that "
                "drains serve (foqs shard serve), or do it all the same (last; --last of foqs shard drain and park)"
            )

    async def remove_shard(self, request: of.RemoveShardRequest) -> None:
        """Let nobody serve the shard any more, which has to be here, drained and empty.

        Raises InvalidArgumentError when it is not, NotFoundError for an unknown shard, and UnavailableError when it is
        not served here.
        """
        shard_id = arguments.check_range("shard_id", request.shard_id, 0, limits.SHARD_ID_MAX)
        if not self._shards.serves(shard_id):
            raise await self._not_here(shard_id)
        writer, shard = self._shards.serving(shard_id)
        if self._shards.uses.get(shard_id) is not ShardUse.DRAINING:
            raise InvalidArgumentError(f"shard {shard_id} takes items: drain it first, and wait for a second")
        slots_count = self._slots.table.shards.count(shard_id)
        if slots_count or shard_id in self._slots.arrivals:
            raise InvalidArgumentError(
                f"{slots_count} slots of dedup ids lead to shard {shard_id}, and more may be on their way: wait until "
                "they have moved to others, which foqs shard list shows"
            )
        try:
            async with asyncio.timeout(limits.CENSUS_MS_MAX / 1000):
                await writer.counted.wait()
                # Nobody else owns it, and items that came before the drain are written and counted.
                fence = Answer(self._waiting)
                shard.ask_fence(0, fence)
                writer.wake()
                await fence.done
        except TimeoutError as error:
            raise UnavailableError(
                f"shard {shard_id} was not counted in time: nothing was done, try again",
                retry_after_ms=MOVING_RETRY_MS,
                nothing_done=True,
            ) from error
        held_count = shard.items_count + shard.buffered_count
        if held_count:
            raise InvalidArgumentError(
                f"shard {shard_id} still holds {held_count} items, dead letters included: consume or delete them first"
            )
        epoch = shard.epoch
        await self._calls.run(lambda meta: meta.shards.remove(shard_id, epoch))

    async def ungate_slot(self, request: of.UngateSlotRequest) -> None:
        """Remove the gates of a slot, also if its earlier shards still have items.

        Raises NotFoundError if it has none, and InvalidArgumentError without `force`.
        """
        slot = arguments.check_range("slot", request.slot, 0, SLOTS_COUNT - 1)
        if not request.force:
            gates = [gate for gate in await self._calls.run(lambda meta: meta.gates.read()) if gate.slot == slot]
            if not gates:
                raise _no_gate(slot)
            waits = ", ".join([f"shard {gate.to_shard} waits for shard {gate.from_shard}" for gate in gates])
            raise InvalidArgumentError(
                f"slot {slot} has gates: {waits}. Without them, items that an earlier shard still has are delivered "
                "after later ones: give force if that shard is gone for good"
            )
        removed = await self._calls.run(lambda meta: meta.gates.remove(slot))
        if not removed:
            raise _no_gate(slot)
        _log.warning("slot_ungated", slot=slot, from_shards=[gate.from_shard for gate in removed])

    def _cluster_shard(self, row: ShardRow) -> ClusterShard:
        return ClusterShard(
            shard_id=row.shard_id,
            place=row.place,
            state=row.use,
            tier=row.tier,
            pinned_to=row.pinned_to,
            owner="",
            owner_address="",
            epoch=row.epoch,
            moving_to=host_name_of(row.moving_to),
            changed_at_ms=row.changed_at_ms,
            slots_count=self._slots.table.shards.count(row.shard_id),
            kept_by=", ".join(self._what_keeps(row)),
            last_owner=row.owner,
        )

    def _what_keeps(self, row: ShardRow) -> Iterator[str]:
        """The reasons in words why a draining or parked shard is not yet free, as far as this host knows."""
        if row.use is ShardUse.PARKED and is_kept(row):
            yield f"its last owner {row.owner}, which has not reported that it left"
        if row.use is not ShardUse.DRAINING:
            return
        if slots_count := self._slots.table.shards.count(row.shard_id):
            yield f"{slots_count} slots"
        if row.shard_id in self._slots.arrivals:
            yield "slots on their way to it"
        if gates_count := sum(row.shard_id in (gate.from_shard, gate.to_shard) for gate in self._slots.gates):
            yield f"{gates_count} gates of slots"
        writer = self._shards.writers.get(row.shard_id)
        shard = writer.shard if writer is not None else None
        if shard is None or not shard.index.counted:
            yield "items that its owner counts"
        elif items_count := shard.items_count + shard.buffered_count:
            yield f"{items_count} items"


def _no_gate(slot: int) -> NotFoundError:
    return NotFoundError(f"slot {slot} has no gate: foqs_slot_gated_seconds shows the slots that have one")


def _check_tier(tier: str) -> None:
    if problem := tier_problem(tier):
        raise InvalidArgumentError(problem)

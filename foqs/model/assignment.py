"""The plan of which host serves which shard. Every host computes it for itself, from the same rows of the meta
database.

A shard stays where it is while that is fair. A shard without an owner, or beyond its owner's share, moves to the host
with room that has the highest score for it (rendezvous hashing). So a host that leaves moves only its own shards, and a
host that joins takes no more than its share (docs/decisions/0031-sharing-shards.md).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

from foqs.model import limits


class ClusterMember(NamedTuple):
    """A living host of the cluster that can serve shards."""

    id: str
    """The name of its process, which no other process ever has."""
    name: str
    """The name of the host, which its next process has again."""
    tier: str = ""


class ShardRequirement(NamedTuple):
    """A shard, and the hosts that are eligible to serve it."""

    shard_id: int
    tier: str = ""
    pinned_to: str = ""
    """The name of the host that must serve it while that host is a member; empty for any host."""


def plan(
    members: Collection[ClusterMember],
    shards: Collection[ShardRequirement],
    owners: Mapping[int, str],
    shards_max: int = 0,
) -> dict[int, str]:
    """Return the id of the member that must serve each shard, without the shards that no member can serve.

    `owners` are the ids of the present owners of the shards, members or not. Within a tier the loads of members differ
    by one shard at most, apart from pinned shards, and no member gets more than `shards_max`, which by default is
    limits.SHARDS_PER_HOST_MAX. The same arguments in any order give the same plan, and a plan that was carried out
    gives itself again.
    """
    assigned: dict[int, str] = {}
    for tier in {shard.tier for shard in shards}:
        of_tier = sorted(member for member in members if member.tier == tier)
        if of_tier:
            some = sorted(shard for shard in shards if shard.tier == tier)
            assigned |= _plan_tier(of_tier, some, owners, shards_max or limits.SHARDS_PER_HOST_MAX)
    return assigned


def heirs_of(
    member_id: str, members: Collection[ClusterMember], shards: Collection[ShardRequirement], owners: Mapping[int, str]
) -> dict[int, str]:
    """Return the members that would serve the shards of this one (by `owners`) if it ended now."""
    mine = {shard_id for shard_id, owner in owners.items() if owner == member_id}
    others = [member for member in members if member.id != member_id]
    return {shard_id: heir for shard_id, heir in plan(others, shards, owners).items() if shard_id in mine}


def _plan_tier(
    members: list[ClusterMember], shards: list[ShardRequirement], owners: Mapping[int, str], shards_max: int
) -> dict[int, str]:
    by_name = {member.name: member.id for member in reversed(members)}
    pinned = {shard.shard_id: by_name[shard.pinned_to] for shard in shards if shard.pinned_to in by_name}
    free = [shard.shard_id for shard in shards if shard.shard_id not in pinned]
    loads = dict.fromkeys([member.id for member in members], 0)
    for member_id in pinned.values():
        loads[member_id] += 1
    kept: dict[str, list[int]] = {member.id: [] for member in members}
    homeless: list[int] = []
    for shard_id in free:
        kept.get(owners.get(shard_id, ""), homeless).append(shard_id)
    level, extra_count = _level(list(loads.values()), len(free), shards_max)
    names = {member.id: member.name for member in members}
    # Members above the lower level keep one more shard each, while `extra_count` lasts.
    rooms = {member_id: max(0, level - 1 - load) for member_id, load in loads.items()}
    can_have_more = [member_id for member_id, load in loads.items() if load < level]
    for member_id in sorted(can_have_more, key=lambda at: (-len(kept[at]) + rooms[at], at)):
        if extra_count and len(kept[member_id]) > rooms[member_id]:
            rooms[member_id] += 1
            extra_count -= 1
            can_have_more = [at for at in can_have_more if at != member_id]
    assigned = dict(pinned)
    for member_id, some in kept.items():
        by_score = sorted(some, key=lambda shard_id: _score(names[member_id], shard_id), reverse=True)
        room = rooms[member_id]
        assigned.update(dict.fromkeys(by_score[:room], member_id))
        homeless += by_score[room:]
        rooms[member_id] = max(0, room - len(some))
    _place(sorted(homeless), rooms, set(can_have_more), extra_count, names, assigned)
    return assigned


def _level(loads: Collection[int], count: int, shards_max: int) -> tuple[int, int]:
    """Return the level to which `count` shards fill members with these loads, and how many members reach it in full.

    The other members are filled to one less. Members at or above the level get no shard.
    """
    low = max(min(loads), (count + sum(loads)) // len(loads) - 1, 0)
    while sum([max(0, low + 1 - load) for load in loads]) < count and low < shards_max:
        low += 1
    if low >= shards_max:
        return shards_max + 1, 0
    while low > 0 and sum([max(0, low - load) for load in loads]) >= count:
        low -= 1
    return low + 1, count - sum([max(0, low - load) for load in loads])


def _place(
    homeless: Iterable[int],
    rooms: dict[str, int],
    can_have_more: set[str],
    extra_count: int,
    names: Mapping[str, str],
    assigned: dict[int, str],
) -> None:
    for shard_id in homeless:
        with_room = [at for at, room in rooms.items() if room > 0 or (extra_count and at in can_have_more)]
        if not with_room:
            return  # All members are at `shards_max`.
        member_id = max(with_room, key=lambda at: (_score(names[at], shard_id), at))
        assigned[shard_id] = member_id
        if rooms[member_id] > 0:
            rooms[member_id] -= 1
        else:
            extra_count -= 1
            can_have_more.discard(member_id)


@lru_cache(1 << 18)
def _score(name: str, shard_id: int) -> int:
    """Return how well a host suits a shard. It uses the host's name, so a host that returns suits the same shards."""
    return int.from_bytes(blake2b(f"{shard_id} {name}".encode(), digest_size=8).digest())

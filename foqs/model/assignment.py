"""Which host serves which shard: computed by every host for itself, from what all of them read in the meta database.

A shard stays where it is as long as that is fair. What has no owner, and what is too much for its owner, goes to the
host with the highest score for it (rendezvous hashing) that has room. So a host that leaves moves its own shards and no
others, and a host that comes takes no more than its part (docs/decisions/0031-sharing-shards.md).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

from foqs.model import limits


class ClusterMember(NamedTuple):
    """A host of the cluster that lives and wants to serve shards."""

    id: str
    """The name of its process, which no other process ever has."""
    name: str
    """The name of the host, which its next process has again."""
    tier: str = ""


class ShardWish(NamedTuple):
    """A shard, and who may serve it."""

    shard_id: int
    tier: str = ""
    pinned_to: str = ""
    """The name of the host that is to serve it while it is there; empty for any."""


def plan(
    members: Collection[ClusterMember], shards: Collection[ShardWish], owners: Mapping[int, str], shards_max: int = 0
) -> dict[int, str]:
    """The id of the member that is to serve each shard; those that nobody can serve are left out.

    `owners` are the ids of those that have the shards now, members or not. Within a tier the loads of members differ by
    one shard at most, apart from what is pinned, and no member gets more than `shards_max`, which by default is
    limits.SHARDS_PER_HOST_MAX. The same arguments give the same plan, in whatever order, and a plan that has been
    carried out is planned again.
    """
    assigned: dict[int, str] = {}
    for tier in {shard.tier for shard in shards}:
        of_tier = sorted(member for member in members if member.tier == tier)
        if of_tier:
            some = sorted(shard for shard in shards if shard.tier == tier)
            assigned |= _plan_tier(of_tier, some, owners, shards_max or limits.SHARDS_PER_HOST_MAX)
    return assigned


def heirs_of(
    member_id: str, members: Collection[ClusterMember], shards: Collection[ShardWish], owners: Mapping[int, str]
) -> dict[int, str]:
    """The members that are to serve the shards which this one has by `owners`, should it end now."""
    mine = {shard_id for shard_id, owner in owners.items() if owner == member_id}
    others = [member for member in members if member.id != member_id]
    return {shard_id: heir for shard_id, heir in plan(others, shards, owners).items() if shard_id in mine}


def _plan_tier(
    members: list[ClusterMember], shards: list[ShardWish], owners: Mapping[int, str], shards_max: int
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
    # Those that have more than the lower level keep one more, as far as that goes.
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
    """How high members with these loads are filled with `count` shards, and how many of them to the full height.

    The others are filled to one less. Members that have as much already get none.
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
            return  # They all have as many as a host may have.
        member_id = max(with_room, key=lambda at: (_score(names[at], shard_id), at))
        assigned[shard_id] = member_id
        if rooms[member_id] > 0:
            rooms[member_id] -= 1
        else:
            extra_count -= 1
            can_have_more.discard(member_id)


@lru_cache(1 << 18)
def _score(name: str, shard_id: int) -> int:
    """How well a host suits a shard: by its name, so that a host that comes back suits the same ones."""
    return int.from_bytes(blake2b(f"{shard_id} {name}".encode(), digest_size=8).digest())

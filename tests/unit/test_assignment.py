"""The plan of who serves which shard, held against what it promises, on whatever cluster."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.model.assignment import ClusterMember, ShardRequirement, heirs_of, plan

TIERS = ("", "gold")


@st.composite
def clusters(draw, *, pins: bool = False, tiers: bool = False):
    """Members, shards, and owners of some of these, who may be gone."""
    names = draw(st.sets(st.integers(0, 30), max_size=9))
    members = [ClusterMember(f"h{n}#1", f"h{n}", draw(st.sampled_from(TIERS)) if tiers else "") for n in sorted(names)]
    ids = draw(st.sets(st.integers(0, 200), max_size=30))
    some = [f"h{n}" for n in range(31)]
    shards = [
        ShardRequirement(
            shard_id,
            draw(st.sampled_from(TIERS)) if tiers else "",
            draw(st.sampled_from(["", "", *some])) if pins else "",
        )
        for shard_id in sorted(ids)
    ]
    possible = [*[member.id for member in members], "gone#1", "gone#2"]
    owners = {shard_id: draw(st.sampled_from(possible)) for shard_id in ids if draw(st.booleans())}
    return members, shards, owners


def loads_of(members, found) -> Counter[str]:
    loads = Counter({member.id: 0 for member in members})
    loads.update(found.values())
    return loads


def moves_of(owners, members, found) -> set[int]:
    """Shards of members that are to go to others."""
    living = {member.id for member in members}
    return {at for at, owner in owners.items() if owner in living and found.get(at) != owner}


@given(clusters())
def test_loads_differ_by_one_at_most_and_every_shard_is_served(cluster) -> None:
    members, shards, owners = cluster
    found = plan(members, shards, owners)
    assert set(found) == ({shard.shard_id for shard in shards} if members else set())
    if members:
        loads = loads_of(members, found).values()
        assert max(loads) - min(loads) <= 1


@given(clusters())
def test_no_plan_with_such_loads_moves_fewer_shards(cluster) -> None:
    """The oracle: of n shards on m hosts, n mod m hosts may have one more than the others, whichever these are."""
    members, shards, owners = cluster
    if not members:
        return
    low, more = divmod(len(shards), len(members))
    has = Counter(owner for owner in owners.values())
    kept = sorted([has[member.id] for member in members], reverse=True)
    least = sum(max(0, count - low - (place < more)) for place, count in enumerate(kept))
    assert len(moves_of(owners, members, plan(members, shards, owners))) == least


@given(clusters(pins=True, tiers=True), st.randoms(use_true_random=False))
def test_a_plan_depends_on_no_order_and_is_made_again_once_it_is_carried_out(cluster, chance: random.Random) -> None:
    members, shards, owners = cluster
    found = plan(members, shards, owners)
    chance.shuffle(members)
    chance.shuffle(shards)
    assert plan(members, shards, dict(reversed(owners.items()))) == found
    assert plan(members, shards, found) == found
    assert plan(members, shards, owners | found) == found


@given(clusters(), st.data())
def test_a_host_that_leaves_moves_its_own_shards_and_no_others(cluster, data) -> None:
    members, shards, owners = cluster
    if len(members) < 2:
        return
    before = plan(members, shards, owners)
    leaving = data.draw(st.sampled_from(members))
    after = plan([member for member in members if member is not leaving], shards, before)
    assert {at for at in before if before[at] != after[at]} == {at for at in before if before[at] == leaving.id}
    heirs = heirs_of(leaving.id, members, shards, before)
    assert heirs == {at: after[at] for at in before if before[at] == leaving.id}


@given(clusters(), st.integers(0, 40))
def test_a_host_that_comes_takes_its_part_and_moves_nothing_else(cluster, number: int) -> None:
    members, shards, owners = cluster
    before = plan(members, shards, owners)
    new = ClusterMember(f"new{number}#1", f"new{number}")
    after = plan([*members, new], shards, before)
    assert {after[at] for at in before if before[at] != after[at]} <= {new.id}


@given(clusters(pins=True, tiers=True))
def test_tiers_are_kept_apart_and_pins_are_kept(cluster) -> None:
    members, shards, owners = cluster
    found, by_id = plan(members, shards, owners), {member.id: member for member in members}
    for shard in shards:
        possible = [member for member in members if member.tier == shard.tier]
        assert (shard.shard_id in found) == bool(possible)
        if possible:
            assert by_id[found[shard.shard_id]].tier == shard.tier
            if shard.pinned_to in {member.name for member in possible}:
                assert by_id[found[shard.shard_id]].name == shard.pinned_to


@given(clusters(pins=True))
def test_what_is_not_pinned_evens_the_loads_out(cluster) -> None:
    """Nobody who has got a shard that could be elsewhere has two more than another one."""
    members, shards, owners = cluster
    if not members:
        return
    found = plan(members, shards, owners)
    loads, names = loads_of(members, found), {member.name for member in members}
    for shard in shards:
        if shard.pinned_to not in names:
            assert loads[found[shard.shard_id]] - min(loads.values()) <= 1


@given(clusters(pins=True), st.integers(1, 6))
def test_no_host_gets_more_shards_than_a_host_may_have(cluster, most: int) -> None:
    members, shards, owners = cluster
    shards = [shard._replace(pinned_to="") for shard in shards]
    found = plan(members, shards, owners, shards_max=most)
    loads = loads_of(members, found)
    assert all(load <= most for load in loads.values())
    assert len(found) == min(len(shards), most * len(members))


def test_the_next_process_of_a_host_gets_the_shards_of_its_last_one_back() -> None:
    shards = [ShardRequirement(number) for number in range(40)]
    first = [ClusterMember(f"h{number}#1", f"h{number}") for number in range(4)]
    before = plan(first, shards, {})
    again = [*first[:3], ClusterMember("h3#2", "h3")]
    after = plan(again, shards, before)
    assert {at for at in after if after[at] == "h3#2"} == {at for at in before if before[at] == "h3#1"}


@pytest.mark.parametrize(("member_count", "shard_count"), [(200, 1_000), (10, 100), (4, 64)])
def test_in_large_clusters_one_that_leaves_moves_its_own_shards_alone(member_count: int, shard_count: int) -> None:
    members = [ClusterMember(f"h{number}#1", f"h{number}") for number in range(member_count)]
    shards = [ShardRequirement(number) for number in range(shard_count)]
    before = plan(members, shards, {})
    after = plan(members[1:], shards, before)
    moved = {at for at in before if before[at] != after[at]}
    assert moved == {at for at in before if before[at] == "h0#1"}
    assert max(loads_of(members[1:], after).values()) - min(loads_of(members[1:], after).values()) <= 1

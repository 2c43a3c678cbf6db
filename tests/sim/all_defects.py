"""All defects that are planted, those of one host and those of clusters."""

from __future__ import annotations

from tests.sim import (
    aging_defects,
    batch_defects,
    bulk_defects,
    bundle_defects,
    cap_defects,
    cluster_defects,
    copy_defects,
    dedup_defects,
    defects,
    depth_defects,
    event_defects,
    fair_defects,
    gate_defects,
    group_defects,
    key_defects,
    load_defects,
    owner_defects,
    park_defects,
    peer_defects,
    permit_defects,
    policy_defects,
    quota_defects,
    reach_defects,
    reason_defects,
    routing_defects,
    secret_defects,
    serial_defects,
    shared_cap_defects,
    short_read_defects,
    slot_defects,
    slot_move_defects,
    store_defects,
    tier_defects,
    unique_defects,
)
from tests.sim.planting import Planted, planted

_OF_ONE_HOST = (
    bundle_defects,
    cap_defects,
    dedup_defects,
    defects,
    event_defects,
    batch_defects,
    key_defects,
    load_defects,
    owner_defects,
    permit_defects,
    policy_defects,
    quota_defects,
    reason_defects,
    serial_defects,
    short_read_defects,
    slot_defects,
    slot_move_defects,
    store_defects,
    unique_defects,
)
_OF_CLUSTERS = (
    aging_defects, bulk_defects, cluster_defects, copy_defects, depth_defects, fair_defects, gate_defects,
    group_defects, park_defects, peer_defects, reach_defects, routing_defects, secret_defects, shared_cap_defects,
    tier_defects,
)  # fmt: skip


def all_defects() -> dict[Planted, bool]:
    """Whether the simulation of clusters is to find it, by defect."""
    of_one_host = {one: False for module in _OF_ONE_HOST for one in planted(module)}
    return of_one_host | {one: True for module in _OF_CLUSTERS for one in planted(module)}

"""The kinds of load over several hosts: what is enqueued, which faults it meets, and what must hold besides."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from foqs import AdminClient
from loadtest.chaos.cluster_faults import (
    KINDS,
    ClusterFault,
    GuestComes,
    HostKilled,
    HostRestarted,
    HostStopped,
    MetaKilled,
    ServerKilled,
    ServerStopped,
    ShardMoved,
)
from loadtest.chaos.drained_shards import ShardDrained
from tests.histories.history import Put
from tests.histories.lane_checks import UNBOUND, Bounds
from tests.support.faults.load import NAMESPACE, TOPICS, Pressure, Shape

GROUPS = ("", "audit", "statistics")
"""The first one has the items of the topic itself."""
KEYED_TOPIC = "accounts"
_SERIAL_PREFIX = "ledger-"
_PRODUCERS = 4
_LANES = 24
"""Of each kind, for each producer."""
_IN_FLIGHT_MAX = 4
_PRESSURE = Pressure(producers=_PRODUCERS, consumers=6, items_per_s=400, pause_after_failure_s=0.2, dedup_share=0.2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """`prepare` makes what the items need, once for a cluster."""

    kinds: Mapping[type[ClusterFault], int] = field(default_factory=lambda: KINDS)
    shape: Shape = field(default_factory=Shape)
    pressure: Pressure = _PRESSURE
    bounds: Bounds = UNBOUND
    prepare: Callable[[AdminClient], None] = lambda admin: None


def _new_ordered(producer: str, rng: random.Random) -> Put:
    """An item of one of the lanes of this producer: so the order of a lane is that of its calls."""
    lane = f"{producer.rpartition('-')[2]}-{rng.randrange(_LANES)}"
    is_keyed = rng.random() < 0.5
    return Put(
        f"{producer}/{rng.getrandbits(60):x}",
        KEYED_TOPIC if is_keyed else f"{_SERIAL_PREFIX}{lane}",
        ttl_ms=rng.randrange(5_000, 20_000) if rng.random() < 0.05 else None,
        metadata=rng.randbytes(rng.randrange(8)).hex(),
        at_most_once=rng.random() < 0.05,
        ordering_key=f"account-{lane}" if is_keyed else "",
    )


def lane_of(put: Put) -> str:
    """The serial topic or the key of an item of the ordered work."""
    return put.ordering_key or put.topic


def _make_serial(admin: AdminClient) -> None:
    admin.set_topic_policy(NAMESPACE, _SERIAL_PREFIX, is_prefix=True, serial=True)


def _make_groups(admin: AdminClient) -> None:
    for topic in TOPICS:
        for group in GROUPS[1:]:
            admin.create_group(NAMESPACE, topic, group)


def _limit_in_flight(admin: AdminClient) -> None:
    for topic in TOPICS:
        admin.set_topic_policy(NAMESPACE, topic, in_flight_max=_IN_FLIGHT_MAX)


def _serial_topics() -> Sequence[str]:
    return [f"{_SERIAL_PREFIX}{producer}-{lane}" for producer in range(_PRODUCERS) for lane in range(_LANES)]


_ORDER_KINDS: Mapping[type[ClusterFault], int] = {
    HostKilled: 3,
    HostRestarted: 2,
    HostStopped: 3,
    GuestComes: 1,
    ShardMoved: 2,
    ShardDrained: 6,
    MetaKilled: 1,
    ServerKilled: 3,
    ServerStopped: 1,
}

WORKS: Mapping[str, Work] = {
    "mixed": Work(),
    "order": Work(
        kinds=_ORDER_KINDS,
        shape=Shape(topics=(KEYED_TOPIC, *_serial_topics()), new=_new_ordered),
        # A dedup id is known in its lane alone, and an item with one can come after those that follow it.
        pressure=replace(_PRESSURE, dedup_share=0.0),
        bounds=Bounds(lane_of),
        prepare=_make_serial,
    ),
    "groups": Work(
        kinds={HostKilled: 1},
        shape=Shape(groups=GROUPS),
        # The id of a repeat names the copy of the first group, which the views of the others do not have.
        pressure=replace(_PRESSURE, items_per_s=200, dedup_share=0.0),
        prepare=_make_groups,
    ),
    "in-flight": Work(
        kinds=_ORDER_KINDS,
        bounds=Bounds(in_flight_max=dict.fromkeys(TOPICS, _IN_FLIGHT_MAX)),
        pressure=replace(_PRESSURE, items_per_s=100),
        prepare=_limit_in_flight,
    ),
}

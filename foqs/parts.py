"""The parts that connect a host to the world outside of its process. Tests replace them."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic, time_ns

from foqs.cluster.peers.peer_table import PeerTable
from foqs.cluster.routing.routing import Chance
from foqs.host.event_log.log_service import EventLog, EventLogOptions, EventLogSource
from foqs.host.metrics.scrape import Metrics
from foqs.host.registry.slot_moves import Source
from foqs.model.cluster import ShardIdentity
from foqs.model.shard_place import EpochAsk, EpochGiven, FoundShard
from foqs.storage.meta.meta_store import MetaStore
from foqs.storage.schema.migrations import SchemaKind, check_current
from foqs.storage.shard.identity import found_at, identity_at
from foqs.storage.shard.packs.pack_index import PackIndex
from foqs.storage.shard.shard_reader import ShardReader
from foqs.storage.shard.shard_store import ShardAccess, ShardStore
from foqs.storage.shard.slot_source import SlotSource
from foqs.transport.peers import Peers as ThriftPeers
from foqs.transport.server import ThriftServer


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The connections of a host to the world outside of its process: databases, sockets, clocks and metrics."""

    meta: Callable[..., MetaStore]
    store: Callable[[ShardAccess, Callable[[EpochAsk], EpochGiven], Callable[[str, int], bool], PackIndex], ShardStore]
    reader: Callable[[int, str, PackIndex, Callable[[], str]], ShardReader]
    slot_source: Callable[[int, str, str], Source]
    identity: Callable[[int, str], ShardIdentity | None]
    found: Callable[[int, str], FoundShard]
    check_schema: Callable[[str, SchemaKind], None]
    server: Callable[..., ThriftServer]
    metrics: Callable[[Callable[[int], str | None]], Metrics]
    wall_ms: Callable[[], int]
    monotonic_s: Callable[[], float]
    """Monotonic time, which advances even while the event loop is blocked."""
    chance: Chance
    peers: Callable[..., PeerTable]
    event_log: Callable[[EventLogOptions, EventLogSource], EventLog] = EventLog


def real_parts() -> Parts:
    """MySQL, TCP and the clocks of this machine."""
    return Parts(
        meta=MetaStore,
        store=ShardStore,
        reader=ShardReader,
        slot_source=SlotSource,
        identity=identity_at,
        found=found_at,
        check_schema=check_current,
        server=ThriftServer,
        metrics=Metrics,
        wall_ms=_wall_ms,
        monotonic_s=monotonic,
        chance=_chance(),
        peers=ThriftPeers,
        event_log=EventLog,
    )


def _chance() -> Chance:
    return Chance(random.randrange, os.urandom)


def _wall_ms() -> int:
    return time_ns() // 1_000_000

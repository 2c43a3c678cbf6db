"""The calls of operators that take asking all hosts of a cluster: their results."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum


class HostState(IntEnum):
    """The state of a living host, by its own word."""

    SILENT = 0
    """It has not said so in time, or cannot be asked."""
    SERVING = 1
    """It serves shards."""
    STANDBY = 2
    """It serves none, and takes those that it is given."""
    LEAVING = 3
    """It is about to end, and hands its shards on."""
    STARTING = 4
    """It has not opened its port yet."""


@dataclass(slots=True)
class ClusterHost:
    """A living host, as far as the asked host knows.

    `host_id` is its process: the name, #, and its start. `address` is where it listens, empty if it reports none, and
    `peer_address` where it listens for other hosts, empty if that is the same.
    `beat_age_ms` is how long ago the asked host saw a heartbeat of it. `shards` are those that it serves, the sick ones
    included, which `sick_shards` names. `version` and the shards are empty while it is silent; `detail` has the reason.
    """

    name: str
    host_id: str
    address: str
    tier: str
    version: str
    started_at_ms: int
    beat_age_ms: int
    is_leaving: bool
    state: HostState
    shards: list[int] = field(default_factory=list)
    sick_shards: list[int] = field(default_factory=list)
    detail: str = ""
    peer_address: str = ""


@dataclass(slots=True)
class ClusterHosts:
    """All hosts that live, by name and process."""

    hosts: list[ClusterHost]

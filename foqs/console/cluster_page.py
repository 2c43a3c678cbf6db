"""The page of the hosts and shards of the cluster."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from foqs.console.asked import Asked, ConsolePage
from foqs.console.command_lines import command
from foqs.model.calls import ClusterShard
from foqs.model.cluster import ShardHealth, ShardUse
from foqs.model.cluster_calls import HostState
from foqs.model.errors import PermissionDeniedError

_WELL: Final = (HostState.SERVING, HostState.STANDBY)


async def cluster_page(asked: Asked) -> ConsolePage:
    """Make the page. Raises PermissionDeniedError for a viewer who cannot watch the cluster."""
    if not asked.rights.watches:
        raise PermissionDeniedError("to see hosts and shards you need the role monitor, operator or admin")
    hosts = asked.poller.hosts
    shards = [one for one in asked.poller.shards if one.state is not ShardUse.REMOVED]
    values: dict[str, Any] = {
        "hosts": hosts,
        "shards": shards,
        "bad_count": len(ill_shards(shards)),
        "matrix": [{"host": host, "cells": [_cell(host.name, one) for one in shards]} for host in hosts],
        "host_looks": {state: "ok" if state in _WELL else "warn" for state in HostState},
        "health_looks": {
            ShardHealth.SERVED: "ok", ShardHealth.SICK: "bad", ShardHealth.UNSERVED: "bad", ShardHealth.UNKNOWN: "warn"
        },
        "as_of_ms": asked.poller.cluster_as_of_ms,
        "error": asked.poller.error,
        "acts": asked.allows_actions and asked.rights.operates,
        "cli": command("foqs", "hosts"),
        "cli_shards": command("foqs", "shard", "list"),
    }  # fmt: skip
    return ConsolePage("cluster.html", "Cluster", "cluster", values, {"hosts": hosts, "shards": shards})


def ill_shards(shards: Iterable[ClusterShard]) -> list[ClusterShard]:
    """Return the shards that hosts should serve well, and do not."""
    healths = (ShardHealth.SICK, ShardHealth.UNSERVED)
    return [one for one in shards if one.state.is_served and one.health in healths]


def _cell(host: str, shard: Any) -> tuple[str, str]:
    """Return a sign and its meaning in words."""
    if shard.owner != host:
        return ("→", "moves here") if shard.moving_to.partition("#")[0] == host else ("", "")
    return ("✕", "owner, sick") if shard.health is ShardHealth.SICK else ("●", "owner")

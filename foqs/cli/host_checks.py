"""The checks of `foqs hosts --check`. Each problem of the cluster's hosts is one sentence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from foqs.client.sync import AdminClient
from foqs.model.calls import ClusterShard
from foqs.model.cluster import ShardUse
from foqs.model.cluster_calls import ClusterHost, HostState
from foqs.model.errors import FoqsError

_READY = (HostState.SERVING, HostState.STANDBY)
_SHARDS_NAMED_MAX = 20


def host_problems(hosts: Sequence[ClusterHost], hosts_min: int) -> list[str]:
    """Name the hosts that do not answer, and report if too few serve or stand by."""
    problems = [f"host {one.host_id} does not answer: {one.detail}" for one in hosts if one.state is HostState.SILENT]
    ready_count = sum(one.state in _READY for one in hosts)
    if ready_count < hosts_min:
        problems.append(f"hosts that serve or stand by: {ready_count}, and --hosts-min wants {hosts_min}")
    return problems


def standby_problems(hosts: Sequence[ClusterHost], shards: Iterable[ClusterShard]) -> list[str]:
    """Name the shards that no other host could take over if their owner died. A standby must be healthy and of the
    shard's tier.
    """
    without: dict[str, list[int]] = {}
    for shard in shards:
        ready = {one.name for one in hosts if one.state in _READY and one.tier == shard.tier}
        if shard.state is not ShardUse.REMOVED and shard.owner and not ready - {shard.owner}:
            without.setdefault(shard.owner, []).append(shard.shard_id)
    return [
        f"no standby for {_named(shard_ids)}: no host but {owner} serves or stands by in that tier"
        for owner, shard_ids in without.items()
    ]


def route_problems(admin: AdminClient) -> list[str]:
    """Name the shards that the asked host cannot reach for its callers, by a call that it forwards to each owner.

    The call reads no items. It needs a namespace, so nothing is checked in a cluster without one.
    """
    try:
        namespace = next(islice(admin.list_namespaces(), 1), None)
        missing = [] if namespace is None else admin.plan_export(namespace.name, partial=True).missing
    except FoqsError as error:
        return [f"a call through the host that was asked fails: {error.message}"]
    return [f"a call through the host that was asked fails: {what}" for what in missing]


def _named(shard_ids: Sequence[int]) -> str:
    some = ", ".join(map(str, sorted(shard_ids)[:_SHARDS_NAMED_MAX]))
    more = f" ... ({len(shard_ids)} in all)" if len(shard_ids) > _SHARDS_NAMED_MAX else ""
    return f"shard{'s' if len(shard_ids) > 1 else ''} {some}{more}"

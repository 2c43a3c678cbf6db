"""Several real hosts in this process that share the shards of one cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import zip_longest
from typing import Any
from unittest.mock import patch

from foqs.cluster.members import membership
from foqs.model import limits
from tests.support.running_host import RunningHost, running_host
from tests.support.waiting import until


def shards_of(host: RunningHost) -> set[int]:
    """Those that it serves now."""
    return {shard.shard_id for _, shard in host.host._shards.owned()}


def knows_all(hosts: list[RunningHost]) -> bool:
    """Whether all shards are served, about as many by each, and every host knows by whom and where."""
    owned = [shards_of(host) for host in hosts]
    wanted = {shard_id: host for host in hosts for shard_id in shards_of(host)}
    counts = [len(some) for some in owned]
    if max(counts) - min(counts) > 1 or sum(counts) != len(hosts[0].shard_urls) or len(wanted) != sum(counts):
        return False
    for host in hosts:
        for shard_id, owner in wanted.items():
            known = host.host.owners.get(shard_id)
            if known is None or known.address != owner.address or known.is_moving:
                return False
    return True


@asynccontextmanager
async def cluster(
    meta_url: str, shard_urls: Mapping[int, str], count: int, settings: Sequence[Mapping[str, Any]] = ()
) -> AsyncIterator[list[RunningHost]]:
    """So many hosts, each with its part of the shards, and the namespace `jobs`. Shards move without delay.

    `settings` are those of the first hosts.
    """
    with (
        patch.object(membership, "SETTLED_MS", 0),
        patch.object(membership, "BUSY_BEAT_MS", 20),
        patch.object(limits, "HEARTBEAT_MS", 100),
    ):
        async with AsyncExitStack() as stack:
            hosts = [
                await stack.enter_async_context(
                    running_host(meta_url, shard_urls, name=f"host-{number}", **(some or {}))
                )
                for number, some in zip_longest(range(count), settings)
            ]
            await until(lambda: knows_all(hosts))
            yield hosts

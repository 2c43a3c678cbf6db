"""The status of a host and of its shards."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.metadata import version

from foqs.contract.requests import HostStatusRequest
from foqs.host.shards.shards import Shards
from foqs.model.calls import HostStatus, ShardStatus
from foqs.shard.writer import ownership


class StatusOfHost:
    """The verb getHostStatus."""

    def __init__(
        self,
        host_name: str,
        shards: Shards,
        draining: Callable[[], bool],
        peer_address: Callable[[], str] = str,
    ) -> None:
        """`peer_address` returns the address for other hosts; empty if they use that for clients."""
        self._host_name = host_name
        self._peer_address = peer_address
        self._shards = shards
        self._draining = draining
        self._started_at_ms = time.time_ns() // 1_000_000
        # Read from files, which no call shall wait for.
        self._version = version("foqs")

    async def get_host_status(self, request: HostStatusRequest) -> HostStatus:
        shards = [
            ShardStatus(shard_id, "lost", 0, 0, 0, reason)
            for shard_id, reason in self._shards.refused.items()
            if shard_id not in self._shards.writers
        ]
        for shard_id, writer in self._shards.writers.items():
            shard = writer.held
            if shard is None:
                shards.append(ShardStatus(shard_id, "lost", 0, 0, 0, writer.detail))
            else:
                state, detail = "owned", writer.detail
                if not writer.health.healthy:
                    state, detail = "sick", writer.health.reason
                    if writer.detail != ownership.OWNED:
                        detail += f"; {writer.detail}"
                leases = len(shard.index.leases)
                shards.append(ShardStatus(shard_id, state, shard.epoch, shard.items_count, leases, detail))
        shards.sort(key=lambda one: one.shard_id)
        is_draining, peer_address = self._draining(), self._peer_address()
        return HostStatus(self._host_name, self._version, self._started_at_ms, shards, is_draining, peer_address)

"""The shard map, by which clients find the shard of a dedup id, so that they can send each call to one shard."""

from __future__ import annotations

from collections.abc import Callable

from foqs.contract.requests import ShardMapRequest
from foqs.host.registry.namespace_calls import NamespaceCalls
from foqs.host.registry.namespaces import Namespaces
from foqs.host.shards.shards import Shards
from foqs.model.calls import ShardAddress, ShardMap


class ShardMaps:
    """The verb getShardMap."""

    def __init__(
        self,
        namespaces: Namespaces,
        namespace_calls: NamespaceCalls,
        shards: Shards,
        advertised: Callable[[], str],
    ) -> None:
        """`advertised` returns the address and port by which clients reach this host; empty if not known."""
        self._namespaces = namespaces
        self._namespace_calls = namespace_calls
        self._shards = shards
        self._advertised = advertised

    async def get_shard_map(self, request: ShardMapRequest) -> ShardMap:
        """Return the map, with the dedup settings of the namespace if one is named.

        Raises UnknownNamespaceError, and UnavailableError without a slot table while none can be made.
        """
        name = request.namespace_name
        namespace = self._namespaces.serving(name) if name is not None else None
        table = await self._namespace_calls.slots()
        address = self._advertised()
        owned = sorted(shard.shard_id for _, shard in self._shards.owned()) if address else []
        found = ShardMap(table.version, table.shards, [ShardAddress(shard_id, address) for shard_id in owned])
        if namespace is not None:
            found.key_spread = namespace.settings.key_spread
            windows = [shard.dedup_window_ms(namespace.number) for _, shard in self._shards.owned()]
            found.dedup_window_ms = min([window for window in windows if window is not None], default=None)
        return found

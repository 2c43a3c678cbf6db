"""Nacks on all shards of the cluster: each is done by the host that has the shard now."""

from __future__ import annotations

from collections.abc import Sequence

from foqs.cluster.routing.routes import Routes
from foqs.model.calls import CallContext, NackFields, PositionErrors, QueueCalls


class RoutedNack:
    """Finds the owner of each delivery that is given back, be it by a client or by this host itself."""

    def __init__(self, local: QueueCalls, routes: Routes) -> None:
        self._local = local
        self._routes = routes

    async def nack(self, context: CallContext, namespace_name: str, nacks: Sequence[NackFields]) -> PositionErrors:
        """The errors by position. Raises what all positions have in common."""

        def some_of(positions: Sequence[int] | None) -> Sequence[NackFields]:
            return nacks if positions is None else [nacks[position] for position in positions]

        return await self._routes.by_shard(
            [nack.receipt or "" for nack in nacks],
            lambda some: self._local.nack(context, namespace_name, some_of(some)),
            lambda remote, some: remote.nack(context, namespace_name, some_of(some)),
        )

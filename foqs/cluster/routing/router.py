"""Every verb on all shards of the cluster, whichever host is asked: each by the route of its row in the contract."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from functools import partial
from typing import Any

from foqs.cluster.ownership.owner_map import OwnerMap
from foqs.cluster.routing.by_all import MergedCalls
from foqs.cluster.routing.by_shard import DividedCalls
from foqs.cluster.routing.routes import Routes
from foqs.cluster.routing.why_empty import WhyEmpty
from foqs.contract.requests import DequeueRequest
from foqs.contract.verbs import VERBS, ByShard, Method, OfShard, Table, Whole
from foqs.model.calls import CallContext, Delivery
from foqs.model.errors import FoqsError
from foqs.model.reasons import WhyNone


def ways(divided: DividedCalls, merged: MergedCalls, enqueue: Method, dequeue: Method) -> Mapping[str, Method]:
    """The methods of the verbs in which other hosts can have a part."""
    found: dict[str, Method] = {}
    for name, verb in VERBS.items():
        match verb.route:
            case ByShard():
                found[name] = partial(divided.by_shard, name)
            case OfShard():
                found[name] = partial(divided.of_shard, name)
            case Whole.CHOSEN:
                found[name] = partial(divided.chosen, name)
            case Whole.BY_ALL:
                found[name] = partial(merged.call, name)
            case Whole.PLACED:
                found[name] = enqueue
            case Whole.PULLED:
                found[name] = dequeue
    return found


class Router:
    """Has each call done by this host where that can do it, and by the owners of other shards.

    The front door calls it. While this host is alone it adds nothing but a look. What another host has handed on is
    done here or refused, so that no call goes round.
    """

    def __init__(
        self, table: Table, served: Table, ways: Mapping[str, Method], routes: Routes, owners: OwnerMap, why: WhyEmpty
    ) -> None:
        """`table` has the methods of this host, and `served` those for what other hosts have handed on."""
        self._table = table
        self._served = served
        self._ways = ways
        self._routes = routes
        self._owners = owners
        self._why = why

    def call(self, context: CallContext, verb: str, request: Any) -> Awaitable[Any]:
        """Do the verb of this name, and return its result."""
        if verb == "dequeue" and request.want_why:
            return self._dequeue_or_why(context, request)
        return self._call(context, verb, request)

    # Not a coroutine: one call goes through this file in none of its own, mostly.
    def _call(self, context: CallContext, verb: str, request: Any) -> Awaitable[Any]:
        way, routes = self._ways.get(verb), self._routes
        if way is None or (self._owners.is_alone and not context.peer):
            return self._table[verb](context, request)
        if routes.is_unknown(getattr(request, "namespace_name", None)):
            return self._call_once_known(context, verb, request)
        if context.peer or context.shards is not None:
            return self._served[verb](context, request)
        return way(context, request)

    async def _call_once_known(self, context: CallContext, verb: str, request: Any) -> Any:
        """Look for the namespace first, which another host may have made just now."""
        await self._routes.know(request.namespace_name)
        if context.peer or context.shards is not None:
            return await self._served[verb](context, request)
        return await self._ways[verb](context, request)

    async def _dequeue_or_why(self, context: CallContext, request: DequeueRequest) -> list[Delivery] | WhyNone:
        """The items, or the reasons why there are none. What cannot be told of an empty dequeue is no error of it."""
        deliveries: list[Delivery] = await self._call(context, "dequeue", request)
        if deliveries:
            return deliveries
        try:
            return WhyNone(await self._why.why_empty(context, request))
        except FoqsError:
            return deliveries

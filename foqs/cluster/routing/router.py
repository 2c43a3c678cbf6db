"""Every verb on all shards of the cluster, on any host: each by the route of its row in the contract."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from foqs.cluster.ownership.owner_map import OwnerMap
from foqs.cluster.routing.by_all import ALSO_OF_STANDBYS, MergedCalls
from foqs.cluster.routing.by_shard import DividedCalls
from foqs.cluster.routing.explaining import Explaining
from foqs.cluster.routing.permission_check import check_permission
from foqs.cluster.routing.routes import Routes
from foqs.contract.audited import PERHAPS_AUDITED, PERHAPS_AUDITED_IN_OPEN, audit_kind
from foqs.contract.requests import DequeueRequest
from foqs.contract.verbs import VERBS, ByShard, Call, Method, OfShard, Table, Whole
from foqs.model.calls import CallContext, Delivery
from foqs.model.errors import FoqsError, PermissionDeniedError
from foqs.model.principal import EVERYBODY
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
            case Whole.BY_SLOT:
                found[name] = partial(divided.by_slot, name)
            case Whole.BY_ALL:
                found[name] = partial(merged.call, name)
            case Whole.PLACED:
                found[name] = enqueue
            case Whole.PULLED:
                found[name] = dequeue
    return found


class AuditedCalls(Protocol):
    """The audit, as the router sees it; foqs.host.audit.trail.Audit is the real one."""

    def audited(self, context: CallContext, verb: str, request: Any, call: Call) -> Awaitable[Any]:
        """Do the call, and record it with its outcome."""

    def refused(self, context: CallContext, verb: str, request: Any, error: PermissionDeniedError) -> None:
        """Record a call without permission, done or refused."""


class Router:
    """Has each call done by this host where that can do it, and by the owners of other shards.

    The front door calls it. While this host is alone it adds only a check. A call that another host has forwarded is
    done here or refused, so that no call circles.
    """

    def __init__(
        self,
        table: Table,
        served: Table,
        ways: Mapping[str, Method],
        routes: Routes,
        owners: OwnerMap,
        explaining: Explaining,
        audit: AuditedCalls,
    ) -> None:
        """`table` has the methods of this host, and `served` those for calls that other hosts have forwarded.

        `audit` records the calls of clients that are audited.
        """
        self._table = table
        self._served = served
        self._ways = ways
        self._routes = routes
        self._owners = owners
        self._explaining = explaining
        self._audit = audit

    def call(self, context: CallContext, verb: str, request: Any) -> Awaitable[Any]:
        """Do the verb of this name, and return its result. Raises PermissionDeniedError before any other check."""
        # Everybody passes the check, so it is not asked: one attribute and one comparison while access is open.
        audited = PERHAPS_AUDITED_IN_OPEN
        if context.principal is not EVERYBODY:
            self.check(context, verb, request)
            audited = PERHAPS_AUDITED
        if verb in audited and not context.peer and audit_kind(verb, request) is not None:
            return self._audit.audited(context, verb, request, self._call)
        if verb == "dequeue" and request.want_why:
            return self._dequeue_or_why(context, request)
        return self._call(context, verb, request)

    def check(self, context: CallContext, verb: str, request: Any) -> None:
        """Raise PermissionDeniedError if the caller lacks permissions. In the permissive mode that is noted instead."""
        try:
            check_permission(context, verb, request, self._routes.number_of)
        except PermissionDeniedError as error:
            self._audit.refused(context, verb, request, error)
            if not context.is_permissive:
                raise

    # Not a coroutine, because most calls need none of this file.
    def _call(self, context: CallContext, verb: str, request: Any) -> Awaitable[Any]:
        way, routes = self._ways.get(verb), self._routes
        if way is None or (self._owners.is_alone and not context.peer and verb not in ALSO_OF_STANDBYS):
            return self._table[verb](context, request)
        if routes.is_unknown(getattr(request, "namespace_name", None)):
            return self._call_once_known(context, verb, request)
        if context.peer or context.shards is not None:
            return self._served[verb](context, request)
        return way(context, request)

    async def _call_once_known(self, context: CallContext, verb: str, request: Any) -> Any:
        """Read the namespace first, which another host has possibly made just now."""
        await self._routes.know(request.namespace_name)
        if context.peer or context.shards is not None:
            return await self._served[verb](context, request)
        return await self._ways[verb](context, request)

    async def _dequeue_or_why(self, context: CallContext, request: DequeueRequest) -> Sequence[Delivery] | WhyNone:
        """The items, or the reasons for an empty result. A reason that cannot be found is no error of the dequeue."""
        deliveries: Sequence[Delivery] = await self._call(context, "dequeue", request)
        if deliveries:
            return deliveries
        try:
            return WhyNone(await self._explaining.why_empty(context, request))
        except FoqsError:
            return deliveries

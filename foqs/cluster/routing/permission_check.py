"""The check of permissions: a call is refused unless its caller holds the bits that its verb needs.

The router asks it once for each call, and nobody else asks; docs/decisions/0041-permissions-are-bits.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from foqs.contract.names import Checked, field_of
from foqs.contract.permissions import OF_CLUSTER, OF_NAMESPACE, Permission
from foqs.contract.verbs import VERBS
from foqs.model.calls import CallContext
from foqs.model.errors import PermissionDeniedError, shown
from foqs.model.principal import Principal

NumberOf = Callable[[str], int | None]
"""Returns the number of a namespace; None for an unknown name."""

_BARE = " for bare item ids, which reach items of others: give the receipts of deliveries"
_ADVICE = {"ack": f"{_BARE}, or use deleteItems with that permission", "nack": _BARE, "extendLease": _BARE}
"""The advice for callers that hold the bits of the verb, and lack one for the content of their request."""
_OF_CLUSTER, _OF_NAMESPACE = int(OF_CLUSTER), int(OF_NAMESPACE)


class _Demand(NamedTuple):
    """The needs of a verb, with plain integers for bits: operations of flags take ten times as long."""

    bits: int
    also: Callable[[Any], int] | None
    namespace_field: str
    """The field with the name of the namespace; empty if the verb is of no single one."""
    prefix_field: str
    """The field with the prefix of names if the verb is of many namespaces."""


_DEMANDS = {
    name: _Demand(
        int(row.needs),
        row.needs_also,
        field_of(row.request.__name__, Checked.NAMESPACE),
        field_of(row.request.__name__, Checked.NAMESPACES),
    )
    for name, row in VERBS.items()
}


def check_permission(context: CallContext, verb: str, request: Any, number_of: NumberOf) -> None:
    """Raise PermissionDeniedError unless the caller holds all bits that the verb needs for this request.

    Only the grants of the caller decide and show in the error, which is the same for a namespace that does not exist. A
    call that another host has forwarded is not checked, because that host has checked it.
    """
    if context.peer:
        return
    demand = _DEMANDS[verb]
    needs = demand.bits if demand.also is None else demand.bits | int(demand.also(request))
    if not needs:
        return
    who = context.principal
    if demand.prefix_field:
        # The method shows what the caller may observe, and nothing else: it must be able to show something.
        missing = needs & ~who.anywhere
        if missing:
            raise _denied(who, verb, demand, request, missing)
        return
    missing = needs & ~(who.cluster & _OF_CLUSTER)
    if missing & _OF_NAMESPACE:  # The bits of the cluster do not come from grants in namespaces.
        missing &= ~(_held(who, demand, request, number_of) & _OF_NAMESPACE)
    if missing:
        raise _denied(who, verb, demand, request, missing)


def _denied(who: Principal, verb: str, demand: _Demand, request: Any, missing: int) -> PermissionDeniedError:
    lacks = ", ".join(one.name or "" for one in Permission(missing))
    advice = _ADVICE.get(verb, "") if not missing & demand.bits else ""
    return PermissionDeniedError(f"{who.name} may not call {verb} {_where(demand, request)}: it lacks {lacks}{advice}")


def _held(who: Principal, demand: _Demand, request: Any, number_of: NumberOf) -> int:
    """The bits that the caller holds in the namespace of the request, or in all or any namespaces if it names none."""
    name = getattr(request, demand.namespace_field)
    if name is None:
        return who.anywhere
    # A value that is no text names no namespace, so nobody holds a permission in it.
    return who.held_in(name, number_of(name)) if isinstance(name, str) else 0


def _where(demand: _Demand, request: Any) -> str:
    if demand.prefix_field:
        return "in any namespace"
    if not demand.namespace_field:
        return "in this cluster"
    name = getattr(request, demand.namespace_field)
    return "in any namespace" if name is None else f"in namespace {shown(name)}"

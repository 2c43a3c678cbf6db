"""The permissions that a caller can hold, each a bit, and the roles, which are sets of permissions.

A verb says in its row (`foqs.contract.verbs`) which bits it needs; docs/decisions/0041-permissions-are-bits.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntFlag
from typing import Any, Final

from foqs.contract.names import FIELDS, Checked
from foqs.model import ids
from foqs.model.bulk_work import is_bulk_job
from foqs.model.calls import CallContext
from foqs.model.jobs import is_copy_job


class Permission(IntFlag):
    """A permission in one namespace or in the cluster. Its value is never used for another one."""

    ENQUEUE = 1
    CONSUME = 2
    OBSERVE = 4
    """See topics, counts, policies, jobs and settings, but no payload."""
    READ = 8
    """See payloads without a lease."""
    ALTER = 16
    """Change stored items and policies."""
    MANAGE = 32
    """Make, change and delete a namespace."""
    WATCH = 64
    """See hosts and shards."""
    OPERATE = 128
    """Change shards, recover namespaces, and change settings that cost the hosts resources."""
    ACCESS = 256
    """Say who holds which permissions."""


NOTHING: Final = Permission(0)
"""The needs of a verb that everybody can call, or that somebody else than the router checks."""
OF_NAMESPACE: Final = (
    Permission.ENQUEUE
    | Permission.CONSUME
    | Permission.OBSERVE
    | Permission.READ
    | Permission.ALTER
    | Permission.MANAGE
)
"""The bits that are held in a namespace. A grant in a namespace gives no others."""
OF_CLUSTER: Final = Permission.WATCH | Permission.OPERATE | Permission.ACCESS
"""The bits that are held in the cluster as a whole."""

ROLES: Final[Mapping[str, Permission]] = {
    "producer": Permission.ENQUEUE | Permission.OBSERVE,
    "consumer": Permission.CONSUME | Permission.OBSERVE,
    "worker": Permission.ENQUEUE | Permission.CONSUME | Permission.OBSERVE,
    "viewer": Permission.OBSERVE,
    "reader": Permission.OBSERVE | Permission.READ,
    "owner": OF_NAMESPACE,
    "monitor": Permission.WATCH,
    # It sees every namespace, and no payload of any.
    "operator": Permission.WATCH | Permission.OPERATE | Permission.OBSERVE,
    # It can grant itself more.
    "admin": OF_CLUSTER,
}
"""The roles that can be granted. They are fixed: a name means the same in every cluster."""

COSTLY_SETTINGS: Final = tuple(name for name, check in FIELDS["NamespaceSettings"].items() if check is Checked.COSTS)
"""Settings of a namespace that cost the hosts, so that MANAGE alone does not permit them."""


_WATCH: Final = int(Permission.WATCH)
_READ: Final = int(Permission.READ)


def sees_hosts(context: CallContext) -> bool:
    """Return True if a caller can see the names of hosts: with WATCH, or while permissions are not enforced."""
    return context.is_permissive or bool(context.principal.cluster & _WATCH)


def reads_items(context: CallContext, namespace_name: str, number: int | None) -> bool:
    """Return True if a caller can see texts that clients have written into items of a namespace."""
    return context.is_permissive or bool(context.principal.held_in(namespace_name, number) & _READ)


def needed_by_receipts(request: Any) -> Permission:
    """Return ALTER for bare ids, which reach items of others. Receipts need nothing: consumers have them."""
    return _needed_by([*(request.receipts or ()), *(getattr(request, "begun", None) or ())])


def needed_by_nacks(request: Any) -> Permission:
    """Return ALTER for bare ids, as `needed_by_receipts` does."""
    return _needed_by([nack.receipt for nack in request.nacks or ()])


def _needed_by(receipts: list[str]) -> Permission:
    # Most calls have none that could be bare, so the others cost no function call for each receipt.
    unsure = [text for text in receipts if ":" not in text]
    return Permission.ALTER if any(map(ids.is_bare, unsure)) else NOTHING


def needed_by_job(request: Any) -> Permission:
    """Return MANAGE for a job that copies items for a new consumer group, because createGroup has begun it, and ALTER
    for a bulk job, as createBulkJob needs it.
    """
    if is_bulk_job(request.id):
        return Permission.ALTER
    return Permission.MANAGE if is_copy_job(request.id) else NOTHING


def needed_by_bulk(request: Any) -> Permission:
    """Return READ for a filter that looks into errors, payloads or metadata, whose counts are of their texts."""
    chosen = getattr(request.bulk, "filter", None)
    given = [getattr(chosen, name, None) for name in ("error_contains", "payload_contains", "metadata_contains")]
    return Permission.READ if any(one is not None for one in given) else NOTHING


def needed_by_recovery(request: Any) -> Permission:
    """Return ACCESS if a lost namespace is to have another name than it had, because its name decides who reads it."""
    return NOTHING if request.name is None else Permission.ACCESS


def needed_by_settings(request: Any) -> Permission:
    """Return OPERATE if the request sets, to any value, a setting that costs the hosts resources, and else nothing."""
    settings = request.settings
    if settings is None or all(getattr(settings, name) is None for name in COSTLY_SETTINGS):
        return NOTHING
    return Permission.OPERATE

"""The bounds of the rings of prefixes and groups."""

from __future__ import annotations

from foqs.host.dispatch.tenant import Tenant
from foqs.model import limits
from foqs.model.errors import OverloadedError


def check_room_for_ring(tenant: Tenant, of_host: int, prefix: str, group: str) -> None:
    """Raise OverloadedError if a namespace has no room for one more ring; `of_host` counts those of all."""
    of_namespace = len(tenant.rings)
    if of_namespace >= limits.TOPIC_PREFIXES_MAX or of_host >= limits.TOPIC_PREFIXES_OF_HOST_MAX:
        raise OverloadedError(
            f"dequeues of this host have named {of_namespace} prefixes of topics, or groups, of the namespace in "
            f"{limits.TOPIC_PREFIX_IDLE_MS} ms, and {of_host} of all: {limits.TOPIC_PREFIXES_MAX} and "
            f"{limits.TOPIC_PREFIXES_OF_HOST_MAX} may be: use fewer, or try again",
            retry_after_ms=limits.TOPIC_PREFIX_IDLE_MS,
        )
    of_group = [one for name, one in tenant.rings if name == group]
    nested = [one for one in of_group if one.startswith(prefix) or prefix.startswith(one)]
    if len(nested) >= limits.TOPIC_PREFIXES_NESTED_MAX:
        chain = max(sum(one.startswith(other) for other in nested) for one in [*nested, prefix])
        if chain >= limits.TOPIC_PREFIXES_NESTED_MAX:
            raise OverloadedError(
                f"topic_prefix {prefix!r:.80} and others named within {limits.TOPIC_PREFIX_IDLE_MS} ms begin with "
                f"one another, {chain} of them, and {limits.TOPIC_PREFIXES_NESTED_MAX} may: use fewer prefixes",
                retry_after_ms=limits.TOPIC_PREFIX_IDLE_MS,
            )

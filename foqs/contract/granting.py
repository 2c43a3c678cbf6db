"""The rules of grants: their form, the bits that they give, and who can make them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from foqs.contract.permissions import OF_CLUSTER, OF_NAMESPACE, ROLES, Permission
from foqs.model.access import (
    GRANTS_MAX,
    AccessGrant,
    AccessRows,
    check_grant_namespaces,
    token_holders,
)
from foqs.model.errors import InvalidArgumentError, shown
from foqs.model.principal import Principal

CLUSTER_ROLES: Final = tuple(role for role, bits in ROLES.items() if bits & OF_CLUSTER)
"""The roles that hold in the cluster as a whole, so that they are granted for all namespaces only."""
ADMIN_ROLE: Final = "admin"


def check_grants(grants: Iterable[AccessGrant]) -> tuple[AccessGrant, ...]:
    """Return the grants in the order in which they are stored, those of the same namespaces joined.

    Raises InvalidArgumentError for an unknown role, a role of the cluster that is granted in some namespaces only, a
    grant without a role, or more than GRANTS_MAX grants.
    """
    roles_of: dict[str, set[str]] = {}
    for one in grants:
        roles_of.setdefault(check_grant_namespaces(one.namespaces), set()).update(_check_roles(one))
    if len(roles_of) > GRANTS_MAX:
        raise InvalidArgumentError(
            f"there are {len(roles_of)} grants, and a principal has at most {GRANTS_MAX}: join some by a prefix"
        )
    return tuple(AccessGrant(namespaces, tuple(sorted(roles_of[namespaces]))) for namespaces in sorted(roles_of))


def _check_roles(grant: AccessGrant) -> Sequence[str]:
    namespaces, roles = grant.namespaces, grant.roles
    if not roles:
        raise InvalidArgumentError(f"the grant for {shown(namespaces)} has no role: name one of {', '.join(ROLES)}")
    for role in roles:
        if role not in ROLES:
            raise InvalidArgumentError(f"role is {shown(role)}, but it is one of {', '.join(ROLES)}")
        if role in CLUSTER_ROLES and namespaces != "*":
            raise InvalidArgumentError(
                f"role {role} holds in the whole cluster, but is granted for {shown(namespaces)}: grant it for '*'"
            )
    return roles


def principal_of(name: str, grants: Iterable[AccessGrant]) -> Principal:
    """Return the principal with the bits that its grants give. A role of a later version gives none."""
    cluster, names, prefixes = 0, dict[str, int](), dict[str, int]()
    for one in grants:
        namespaces, bits = one.namespaces, 0
        for role in one.roles:
            bits |= int(ROLES.get(role, Permission(0)))
        if namespaces == "*":
            cluster |= bits & int(OF_CLUSTER)
        bits &= int(OF_NAMESPACE)
        table, key = (prefixes, namespaces[:-1]) if namespaces.endswith("*") else (names, namespaces)
        table[key] = table.get(key, 0) | bits
    return Principal(name, cluster, names, prefixes)


def administrators(rows: AccessRows, now_ms: int) -> frozenset[str]:
    """Return the names of the enabled principals with a valid token that can say who holds which permissions.

    A certificate makes nobody an administrator, because hosts without TLS or with another CA do not accept it.
    """
    able = token_holders(rows, now_ms)
    return frozenset(
        one.name
        for one in rows.principals
        if one.name in able and principal_of(one.name, one.grants).cluster & Permission.ACCESS
    )

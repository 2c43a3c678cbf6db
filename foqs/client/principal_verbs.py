"""Verbs of service FoqsAccess: arguments to requests, and responses to results."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any, TypeVar, cast

from foqs.client.checks import check_many
from foqs.client.flows import Call, Flow, Terms, call_flow
from foqs.client.retry import Repeat
from foqs.model import limits
from foqs.model.access import AccessGrant, AccessMode, RefusalRow
from foqs.model.access_calls import (
    PAGE_PRINCIPALS_MAX,
    AccessCertificate,
    AccessPrincipal,
    AccessState,
    AccessToken,
    NewToken,
    PrincipalPage,
    TokenPage,
)
from foqs.model.errors import InvalidArgumentError
from foqs.wire import codec as wire

T = TypeVar("T")


def create_principal(terms: Terms, name: str, grants: Iterable[AccessGrant], enabled: bool) -> Flow[AccessPrincipal]:
    request = wire.structs.CreatePrincipalRequest(name=name, grants=_grants("grants", grants), enabled=enabled)
    return _principal((yield from call_flow(terms, Call("createPrincipal", request, Repeat.UNLESS_UNKNOWN))))


def update_principal(
    terms: Terms,
    name: str,
    enabled: bool | None,
    grants: Iterable[AccessGrant] | None,
    added: Iterable[AccessGrant],
    removed: Iterable[str],
) -> Flow[AccessPrincipal]:
    check_many("removed", removed, "namespaces")
    request = wire.structs.UpdatePrincipalRequest(
        name=name,
        enabled=enabled,
        grants=None if grants is None else _grants("grants", grants),
        added=_grants("added", added),
        removed=list(removed),
    )
    # To end a grant for the second time fails.
    repeat = Repeat.UNLESS_UNKNOWN if request.removed else Repeat.ALWAYS
    return _principal((yield from call_flow(terms, Call("updatePrincipal", request, repeat))))


def delete_principal(terms: Terms, name: str) -> Flow[None]:
    request = wire.structs.DeletePrincipalRequest(name=name)
    yield from call_flow(terms, Call("deletePrincipal", request, Repeat.UNLESS_UNKNOWN))


def principal_page(terms: Terms, prefix: str, page_token: str) -> Flow[PrincipalPage]:
    request = wire.structs.ListPrincipalsRequest(prefix=prefix, limit=PAGE_PRINCIPALS_MAX, page_token=page_token)
    response = yield from call_flow(terms, Call("listPrincipals", request, Repeat.READ))
    return PrincipalPage([_principal(decoded) for decoded in response.principals or ()], response.next_page_token or "")


def create_token(terms: Terms, principal: str, label: str, expires_in_ms: int | None) -> Flow[NewToken]:
    request = wire.structs.CreateTokenRequest(principal=principal, label=label, expires_in_ms=expires_in_ms)
    response = yield from call_flow(terms, Call("createToken", request, Repeat.UNLESS_UNKNOWN))
    return NewToken(response.token, _of(AccessToken, response.info))


def revoke_token(terms: Terms, token_id: str) -> Flow[None]:
    request = wire.structs.RevokeTokenRequest(id=token_id)
    yield from call_flow(terms, Call("revokeToken", request, Repeat.UNLESS_UNKNOWN))


def token_page(terms: Terms, principal: str, page_token: str) -> Flow[TokenPage]:
    request = wire.structs.ListTokensRequest(principal=principal, limit=limits.PAGE_ITEMS_MAX, page_token=page_token)
    response = yield from call_flow(terms, Call("listTokens", request, Repeat.READ))
    return TokenPage([_of(AccessToken, decoded) for decoded in response.tokens or ()], response.next_page_token or "")


def add_certificate(terms: Terms, principal: str, name: str, label: str) -> Flow[AccessCertificate]:
    request = wire.structs.AddCertificateRequest(principal=principal, name=name, label=label)
    response = yield from call_flow(terms, Call("addCertificate", request, Repeat.UNLESS_UNKNOWN))
    return _of(AccessCertificate, response)


def remove_certificate(terms: Terms, name: str) -> Flow[None]:
    request = wire.structs.RemoveCertificateRequest(name=name)
    yield from call_flow(terms, Call("removeCertificate", request, Repeat.UNLESS_UNKNOWN))


def set_access_mode(terms: Terms, mode: AccessMode) -> Flow[AccessState]:
    request = wire.structs.SetAccessModeRequest(mode=mode)
    return _state((yield from call_flow(terms, Call("setAccessMode", request, Repeat.ALWAYS))))


def get_access(terms: Terms) -> Flow[AccessState]:
    return _state((yield from call_flow(terms, Call("getAccess", wire.structs.GetAccessRequest(), Repeat.READ))))


def list_refusals(terms: Terms) -> Flow[list[RefusalRow]]:
    response = yield from call_flow(terms, Call("listRefusals", wire.structs.ListRefusalsRequest(), Repeat.READ))
    return [_of(RefusalRow, decoded) for decoded in response.refusals or ()]


def _grants(name: str, grants: Iterable[AccessGrant]) -> list[Any]:
    """Return grants as wire structs. Raises InvalidArgumentError for anything else."""
    check_many(name, grants, "AccessGrants")
    found = list(grants)
    for one in found:
        if not isinstance(one, AccessGrant):
            raise InvalidArgumentError(f"{name} has {type(one).__name__}: give AccessGrants")
        check_many("roles", one.roles, "names of roles")
    return [wire.structs.AccessGrant(namespaces=one.namespaces, roles=list(one.roles)) for one in found]


def _of(cls: type[T], decoded: Any) -> T:
    """Return the result of the same fields as the wire struct."""
    names = [field.name for field in fields(cast(Any, cls))]
    return cls(**{name: getattr(decoded, name) for name in names})


def _principal(decoded: Any) -> AccessPrincipal:
    grants = [AccessGrant(one.namespaces, tuple(one.roles)) for one in decoded.grants or ()]
    certificates = [_of(AccessCertificate, one) for one in decoded.certificates or ()]
    count = decoded.tokens_count or 0
    return AccessPrincipal(decoded.name, bool(decoded.enabled), grants, decoded.created_at_ms, count, certificates)


def _state(decoded: Any) -> AccessState:
    values = {field.name: getattr(decoded, field.name) for field in fields(AccessState)}
    return AccessState(**values | {"mode": AccessMode(decoded.mode)})

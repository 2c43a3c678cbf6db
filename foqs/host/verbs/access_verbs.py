"""The verbs of administrators: principals, their grants and credentials, and the mode of access."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from foqs.contract import requests as of
from foqs.contract.granting import check_grants
from foqs.host import arguments
from foqs.host.access.follower import AccessFollower
from foqs.host.access.refused_calls import Refusals
from foqs.host.registry.namespaces import Namespaces
from foqs.model import access_tokens, limits
from foqs.model.access import (
    GRANTS_MAX,
    AccessGrant,
    CertificateRow,
    TokenRow,
    check_certificate_name,
    check_label,
    check_life_ms,
    check_mode,
    check_new_principal_name,
    check_principal_name,
)
from foqs.model.access_calls import (
    PAGE_PRINCIPALS_MAX,
    AccessCertificate,
    AccessPrincipal,
    AccessState,
    AccessToken,
    NewToken,
    PrincipalPage,
    RefusalList,
    TokenPage,
)
from foqs.model.calls import CallContext
from foqs.model.errors import InvalidArgumentError, UnavailableError
from foqs.storage.meta.meta_store import MetaStore

T = TypeVar("T")


class AccessVerbs:
    """Checks changes of access, has the meta database make them, and lets this host follow at once."""

    def __init__(
        self,
        namespaces: Namespaces,
        follower: AccessFollower,
        refusals: Refusals,
        random_bytes: Callable[[int], bytes],
        wall_ms: Callable[[], int],
    ) -> None:
        """`random_bytes` makes the secrets of tokens, so nobody can guess its bytes."""
        self._namespaces = namespaces
        self._follower = follower
        self._refusals = refusals
        self._random_bytes = random_bytes
        self._wall_ms = wall_ms

    async def create_principal(self, context: CallContext, request: of.CreatePrincipalRequest) -> AccessPrincipal:
        name, grants, now_ms = check_new_principal_name(request.name), _grants(request.grants), self._wall_ms()
        return await self._change(
            lambda meta: meta.access.create_principal(name, grants, now_ms, enabled=request.enabled)
        )

    async def update_principal(self, context: CallContext, request: of.UpdatePrincipalRequest) -> AccessPrincipal:
        name, now_ms = check_principal_name(request.name), self._wall_ms()
        if request.grants is not None and (request.added or request.removed):
            raise InvalidArgumentError("grants replaces all grants, so it is not given with added or removed: drop one")
        arguments.check_batch("removed", len(request.removed), GRANTS_MAX)
        grants = None if request.grants is None else _grants(request.grants)
        added, removed = _grants(request.added), tuple(request.removed)
        return await self._change(
            lambda meta: meta.access.update_principal(
                name, now_ms, enabled=request.enabled, grants=grants, added=added, removed=removed
            )
        )

    async def delete_principal(self, context: CallContext, request: of.DeletePrincipalRequest) -> None:
        name, now_ms = check_principal_name(request.name), self._wall_ms()
        await self._change(lambda meta: meta.access.delete_principal(name, now_ms))

    async def list_principals(self, context: CallContext, request: of.ListPrincipalsRequest) -> PrincipalPage:
        limit = arguments.check_range("limit", request.limit, 1, PAGE_PRINCIPALS_MAX)
        prefix, after = request.prefix, request.page_token
        found = await self._namespaces.access_calls.run(lambda meta: meta.access.principals(prefix, after, limit + 1))
        return PrincipalPage(found[:limit], found[limit - 1].name if len(found) > limit else "")

    async def create_token(self, context: CallContext, request: of.CreateTokenRequest) -> NewToken:
        """The token is in its result alone: its secret is not stored and not logged."""
        principal, label = check_principal_name(request.principal), check_label(request.label)
        life_ms, now_ms = check_life_ms(request.expires_in_ms), self._wall_ms()
        text = access_tokens.new_token(self._random_bytes(access_tokens.RANDOM_BYTES))
        token = access_tokens.parse(text)
        expires_at_ms = now_ms + life_ms if life_ms else 0
        row = TokenRow(
            token.id, principal, access_tokens.hash_of(token), label, now_ms, context.principal.name, expires_at_ms, 0
        )
        await self._change(lambda meta: meta.access.create_token(row, now_ms))
        return NewToken(text, AccessToken.of(row))

    async def revoke_token(self, context: CallContext, request: of.RevokeTokenRequest) -> None:
        token_id, now_ms = access_tokens.id_in(request.id), self._wall_ms()
        await self._change(lambda meta: meta.access.revoke_token(token_id, now_ms))

    async def list_tokens(self, context: CallContext, request: of.ListTokensRequest) -> TokenPage:
        limit = arguments.check_range("limit", request.limit, 1, limits.PAGE_ITEMS_MAX)
        principal, after = request.principal, request.page_token
        rows = await self._namespaces.access_calls.run(lambda meta: meta.access.tokens(principal, after, limit + 1))
        found = [AccessToken.of(row) for row in rows]
        return TokenPage(found[:limit], found[limit - 1].id if len(found) > limit else "")

    async def add_certificate(self, context: CallContext, request: of.AddCertificateRequest) -> AccessCertificate:
        now_ms = self._wall_ms()
        row = CertificateRow(
            check_certificate_name(request.name),
            check_principal_name(request.principal),
            check_label(request.label),
            now_ms,
            context.principal.name,
        )
        await self._change(lambda meta: meta.access.add_certificate(row, now_ms))
        return AccessCertificate.of(row)

    async def remove_certificate(self, context: CallContext, request: of.RemoveCertificateRequest) -> None:
        name, now_ms = request.name, self._wall_ms()
        await self._change(lambda meta: meta.access.remove_certificate(name, now_ms))

    async def set_access_mode(self, context: CallContext, request: of.SetAccessModeRequest) -> AccessState:
        mode, now_ms = check_mode(request.mode), self._wall_ms()

        def change(meta: MetaStore) -> AccessState:
            meta.access.set_mode(mode, now_ms)
            return meta.access.state(now_ms)

        return await self._change(change)

    async def get_access(self, context: CallContext, request: of.GetAccessRequest) -> AccessState:
        now_ms = self._wall_ms()
        return await self._namespaces.access_calls.run(lambda meta: meta.access.state(now_ms))

    async def list_refusals(self, context: CallContext, request: of.ListRefusalsRequest) -> RefusalList:
        return RefusalList(self._refusals.rows())

    async def _change(self, work: Callable[[MetaStore], T]) -> T:
        """Make a change, and know it here before the caller gets the response."""
        self._namespaces.require_durable()
        done = await self._namespaces.access_calls.run(work)
        # The change is made, and a token that is not returned is lost. The follower reads it as soon as it can.
        with suppress(UnavailableError):
            await self._follower.refresh()
        return done


def _grants(given: Sequence[of.AccessGrant]) -> tuple[AccessGrant, ...]:
    """Check grants as they come from the wire. Raises TooLargeError and InvalidArgumentError."""
    arguments.check_batch("grants", len(given), GRANTS_MAX)
    return check_grants([AccessGrant(one.namespaces or "", tuple(one.roles or ())) for one in given])

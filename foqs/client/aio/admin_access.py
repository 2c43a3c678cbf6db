"""Verbs of service FoqsAccess, as methods of the client of operators."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from datetime import timedelta

from foqs.client import principal_verbs
from foqs.client.aio.base import AsyncBaseClient
from foqs.client.durations import duration_ms
from foqs.model.access import AccessGrant, AccessMode, RefusalRow
from foqs.model.access_calls import AccessCertificate, AccessPrincipal, AccessState, AccessToken, NewToken


class AsyncAccessVerbs(AsyncBaseClient):
    """Verbs for principals, their grants, tokens and certificates. It is a part of `AsyncAdminClient`."""

    async def create_principal(
        self,
        name: str,
        grants: Iterable[AccessGrant] = (),
        *,
        enabled: bool = True,
        deadline_ms: int | None = None,
        deadline: timedelta | None = None,
    ) -> AccessPrincipal:
        """Create a principal: a program, a team or a person. It needs a token or a certificate to be known.

        name: 1 to 64 of a-z 0-9 . _ -.  grants: up to 100.
        Raises AlreadyExistsError if the name is taken, and InvalidArgumentError for a bad name or grant.
        """
        terms = self._within(deadline_ms, deadline)
        return await self._run(principal_verbs.create_principal(terms, name, grants, enabled))

    async def update_principal(
        self,
        name: str,
        *,
        enabled: bool | None = None,
        grants: Iterable[AccessGrant] | None = None,
        added: Iterable[AccessGrant] = (),
        removed: Iterable[str] = (),
        deadline_ms: int | None = None,
        deadline: timedelta | None = None,
    ) -> AccessPrincipal:
        """Change the given fields of a principal. All hosts act on it within 2 s. Raises NotFoundError.

        grants: replaces all grants.  added: makes grants, in the place of those for the same namespaces.
        removed: the namespaces of grants to end.
        Raises InvalidArgumentError if nobody could administer an enforced cluster any more.
        """
        terms = self._within(deadline_ms, deadline)
        return await self._run(principal_verbs.update_principal(terms, name, enabled, grants, added, removed))

    async def delete_principal(
        self, name: str, *, deadline_ms: int | None = None, deadline: timedelta | None = None
    ) -> None:
        """Delete a principal with its grants and credentials. Raises NotFoundError."""
        return await self._run(principal_verbs.delete_principal(self._within(deadline_ms, deadline), name))

    async def list_principals(
        self, prefix: str = "", *, deadline_ms: int | None = None, deadline: timedelta | None = None
    ) -> AsyncIterator[AccessPrincipal]:
        """Iterate over the principals whose names start with `prefix`, by name; a deadline is each page's."""
        token = ""
        while True:
            page = await self._run(principal_verbs.principal_page(self._within(deadline_ms, deadline), prefix, token))
            for principal in page.principals:
                yield principal
            token = page.next_page_token
            if not token:
                return

    async def create_token(
        self,
        principal: str,
        *,
        label: str = "",
        expires_in_ms: int | None = None,
        expires_in: timedelta | None = None,
        deadline_ms: int | None = None,
        deadline: timedelta | None = None,
    ) -> NewToken:
        """Make a token for a principal, which has up to 8 tokens and certificates. Its text is returned this once.

        label: a text for people, up to 128 bytes.  expires_in_ms (90 days): 0 for a token that does not expire.
        Raises NotFoundError for an unknown principal.
        """
        terms, life_ms = self._within(deadline_ms, deadline), duration_ms("expires_in_ms", expires_in_ms, expires_in)
        return await self._run(principal_verbs.create_token(terms, principal, label, life_ms))

    async def revoke_token(
        self, token_id: str, *, deadline_ms: int | None = None, deadline: timedelta | None = None
    ) -> None:
        """End a token. All hosts refuse it within 2 s. Raises NotFoundError."""
        return await self._run(principal_verbs.revoke_token(self._within(deadline_ms, deadline), token_id))

    async def list_tokens(
        self, principal: str = "", *, deadline_ms: int | None = None, deadline: timedelta | None = None
    ) -> AsyncIterator[AccessToken]:
        """Iterate over the tokens of a principal, or of all, by id; a deadline is each page's. Raises NotFoundError."""
        token = ""
        while True:
            page = await self._run(principal_verbs.token_page(self._within(deadline_ms, deadline), principal, token))
            for found in page.tokens:
                yield found
            token = page.next_page_token
            if not token:
                return

    async def add_certificate(
        self,
        principal: str,
        name: str,
        *,
        label: str = "",
        deadline_ms: int | None = None,
        deadline: timedelta | None = None,
    ) -> AccessCertificate:
        """Let client certificates with this name prove a principal.

        name: exactly one of the URIs or DNS names among the subject alternative names of the certificate.
        Raises NotFoundError for an unknown principal, and AlreadyExistsError if the name proves one already.
        """
        terms = self._within(deadline_ms, deadline)
        return await self._run(principal_verbs.add_certificate(terms, principal, name, label))

    async def remove_certificate(
        self, name: str, *, deadline_ms: int | None = None, deadline: timedelta | None = None
    ) -> None:
        """Let certificates with this name prove nothing. All hosts act on it within 2 s. Raises NotFoundError."""
        return await self._run(principal_verbs.remove_certificate(self._within(deadline_ms, deadline), name))

    async def set_access_mode(
        self, mode: AccessMode, *, deadline_ms: int | None = None, deadline: timedelta | None = None
    ) -> AccessState:
        """Say how hosts take calls that are not permitted.

        Raises InvalidArgumentError for ENFORCED while no enabled principal with a valid credential has role admin.
        """
        return await self._run(principal_verbs.set_access_mode(self._within(deadline_ms, deadline), mode))

    async def get_access(self, *, deadline_ms: int | None = None, deadline: timedelta | None = None) -> AccessState:
        """Return the mode of access, and counts."""
        return await self._run(principal_verbs.get_access(self._within(deadline_ms, deadline)))

    async def list_refusals(
        self, *, deadline_ms: int | None = None, deadline: timedelta | None = None
    ) -> list[RefusalRow]:
        """Return up to 1,000 refusals that the answering host made or would have made, the last first."""
        return await self._run(principal_verbs.list_refusals(self._within(deadline_ms, deadline)))

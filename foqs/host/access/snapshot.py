"""Callers and their permissions, as the meta database had them at one moment. They never change, on any thread."""

from __future__ import annotations

from collections.abc import Sequence
from hmac import compare_digest
from typing import ClassVar, Final

from foqs.contract.granting import principal_of
from foqs.model import access_tokens
from foqs.model.access import (
    NO_ACCESS_ROWS,
    AccessGrant,
    AccessMode,
    AccessRows,
    Credential,
    CredentialKind,
    PrincipalRow,
    TokenRefusedError,
    expired,
    first_names,
)
from foqs.model.errors import InvalidArgumentError
from foqs.model.principal import Principal

_NO_HASH: Final = bytes(access_tokens.HASH_BYTES)


class AccessSnapshot:
    """Finds the principal of a token or of a certificate, by the rows of one version.

    The principal of a credential is looked for anew in each snapshot, which lacks all that was removed or disabled. The
    mode does not change the bits that a principal holds; who checks the call knows both.
    """

    EMPTY: ClassVar[AccessSnapshot]
    """Nobody is known, and the mode is OPEN."""

    __slots__ = ("_certificates", "_made", "_principals", "_tokens", "mode", "version")

    def __init__(self, rows: AccessRows) -> None:
        self.mode: AccessMode = rows.mode
        self.version: int = rows.version
        self._principals = {one.name: one for one in rows.principals}
        self._tokens = {one.id: one for one in rows.tokens}
        self._certificates = {one.name: one for one in rows.certificates}
        self._made: dict[str, Principal] = {}
        """The principals that were asked for, made of their rows then: most of 10,000 never call this host."""

    def by_token(self, token: str, now_ms: int) -> Credential:
        """Return the credential of a token. Raises TokenRefusedError, with the next step, if it proves nothing.

        Only the holder of a token is told that it has ended; an id without its secret learns nothing.
        """
        try:
            shown = access_tokens.parse(token)
        except InvalidArgumentError as error:
            raise TokenRefusedError(error.message, "no token") from None
        row = self._tokens.get(shown.id)
        if not compare_digest(access_tokens.hash_of(shown), row.hash if row else _NO_HASH) or row is None:
            raise TokenRefusedError(
                f"token {shown.id} is not known here: it was revoked, or is of another cluster; have another one made "
                "by foqs access token create",
                "unknown token",
                token_id=shown.id,
            )
        whose = f"token {row.id} of {row.principal}"
        if expired(row.expires_at_ms, now_ms):
            ago_s = (now_ms - row.expires_at_ms) // 1000
            raise TokenRefusedError(
                f"{whose} expired {ago_s} s ago: have another one made by foqs access token create {row.principal}",
                "expired token",
                row.principal,
                row.id,
            )
        credential = Credential(row.principal, CredentialKind.TOKEN, row.id, row.expires_at_ms)
        if self.principal(credential, now_ms) is None:
            raise TokenRefusedError(
                f"{whose} is of no use while its principal is disabled: ask an administrator about {row.principal}",
                "disabled principal",
                row.principal,
                row.id,
            )
        return credential

    def by_names(self, names: Sequence[str], now_ms: int) -> Credential | None:
        """Return the credential of a verified client certificate with these names, or None if it proves nothing.

        Names are compared as they are. A certificate with names of two principals proves nothing, because which one it
        is for would depend on the order that its maker chose.
        """
        found = [self._certificates[name] for name in first_names(names) if name in self._certificates]
        if len({one.principal for one in found}) != 1:
            return None
        credential = Credential(found[0].principal, CredentialKind.CERTIFICATE, found[0].name, 0)
        return credential if self.principal(credential, now_ms) is not None else None

    def principal(self, credential: Credential, now_ms: int) -> Principal | None:
        """Return the principal of the credential, or None once that is revoked or has expired, or is disabled."""
        if credential.kind is CredentialKind.TOKEN:
            token = self._tokens.get(credential.id)
            if token is None or expired(token.expires_at_ms, now_ms):
                return None
            owner = token.principal
        else:
            certificate = self._certificates.get(credential.id)
            if certificate is None or expired(credential.expires_at_ms, now_ms):
                return None
            owner = certificate.principal
        row = self._principals.get(owner)
        if owner != credential.principal or row is None or not row.enabled:
            return None
        return self._made.get(owner) or self._make(row)

    def grants_of(self, name: str) -> tuple[AccessGrant, ...]:
        """Return the grants of a principal; an unknown one has none."""
        row = self._principals.get(name)
        return () if row is None else row.grants

    def has_token(self, token_id: str) -> bool:
        """Return True if a token has this id."""
        return token_id in self._tokens

    def used_at_ms(self, token_id: str) -> int:
        """Return when the token was used last, as far as this snapshot knows; 0 if never."""
        row = self._tokens.get(token_id)
        return 0 if row is None else row.used_at_ms

    def _make(self, row: PrincipalRow) -> Principal:
        made = self._made[row.name] = principal_of(row.name, row.grants)
        return made


AccessSnapshot.EMPTY = AccessSnapshot(NO_ACCESS_ROWS)

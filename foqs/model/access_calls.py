"""The results of the verbs of service FoqsAccess."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from foqs.model.access import AccessGrant, AccessMode, CertificateRow, PrincipalRow, RefusalRow, TokenRow

PAGE_PRINCIPALS_MAX = 100
"""The greatest number of principals of a page. Each has up to 100 grants, so that a page has up to 2 MiB."""


@dataclass(frozen=True, slots=True)
class AccessToken:
    """A token without its secret, which only its holder has."""

    id: str
    principal: str
    label: str
    created_at_ms: int
    created_by: str
    """The principal that had it made."""
    expires_at_ms: int
    """0 if it does not expire."""
    used_at_ms: int
    """When it was used last, to the hour; 0 if never."""

    @classmethod
    def of(cls, row: TokenRow) -> AccessToken:
        return cls(
            row.id, row.principal, row.label, row.created_at_ms, row.created_by, row.expires_at_ms, row.used_at_ms
        )


@dataclass(frozen=True, slots=True)
class AccessCertificate:
    """A name by which a client certificate proves its principal."""

    name: str
    principal: str
    label: str
    created_at_ms: int
    created_by: str
    """The principal that added it."""

    @classmethod
    def of(cls, row: CertificateRow) -> AccessCertificate:
        return cls(*row)


@dataclass(frozen=True, slots=True)
class AccessPrincipal:
    name: str
    enabled: bool
    grants: Sequence[AccessGrant]
    created_at_ms: int
    tokens_count: int = 0
    certificates: Sequence[AccessCertificate] = ()

    @classmethod
    def of(cls, row: PrincipalRow, tokens_count: int, certificates: Sequence[AccessCertificate]) -> AccessPrincipal:
        return cls(row.name, row.enabled, list(row.grants), row.created_at_ms, tokens_count, list(certificates))


@dataclass(frozen=True, slots=True)
class NewToken:
    """A token that was made just now. Its text is returned only this once."""

    token: str = field(repr=False)
    info: AccessToken


@dataclass(frozen=True, slots=True)
class AccessState:
    """The mode of access, and the counts of its rows."""

    mode: AccessMode
    version: int
    changed_at_ms: int
    principals_count: int
    grants_count: int
    tokens_count: int
    certificates_count: int
    administrators_count: int
    """The number of enabled principals with a valid credential that can say who holds which permissions."""


@dataclass(frozen=True, slots=True)
class PrincipalPage:
    principals: Sequence[AccessPrincipal]
    next_page_token: str
    """Empty on the last page."""


@dataclass(frozen=True, slots=True)
class TokenPage:
    tokens: Sequence[AccessToken]
    next_page_token: str
    """Empty on the last page."""


@dataclass(frozen=True, slots=True)
class RefusalList:
    """The calls that one host has refused, or would have."""

    refusals: Sequence[RefusalRow]

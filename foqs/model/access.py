"""The callers of a cluster: principals, their grants, and the credentials by which they are known.

docs/decisions/0050-tokens.md says why tokens look as they do, and 0041 why grants are as they are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from foqs.model.errors import InvalidArgumentError, PermissionDeniedError, shown
from foqs.model.namespace import check_namespace_name
from foqs.model.principal import EVERYBODY, NOBODY

PRINCIPALS_MAX: Final = 10_000
GRANTS_MAX: Final = 100
"""The greatest number of grants of one principal."""
CREDENTIALS_MAX: Final = 8
"""The greatest number of tokens and certificates of one principal, together."""
LABEL_BYTES_MAX: Final = 128
CERTIFICATE_NAME_BYTES_MAX: Final = 255
CERTIFICATE_NAMES_MAX: Final = 64
"""The number of names of a certificate that are checked, because its maker can put thousands there."""
TOKEN_LIFE_MS_DEFAULT: Final = 90 * 86_400_000
TOKEN_LIFE_MS_MAX: Final = 3_650 * 86_400_000

_NAME = re.compile(r"[a-z0-9._-]{1,64}")
_CERTIFICATE_NAME = re.compile(r"[!-~]+")


class AccessMode(IntEnum):
    """How a host takes a call that the grants of its caller do not permit. Values are stored."""

    OPEN = 0
    """It does not check: everybody can do everything."""
    PERMISSIVE = 1
    """It counts and logs the refusal, and does the call."""
    ENFORCED = 2
    """It refuses the call."""


class CredentialKind(IntEnum):
    TOKEN = 0
    CERTIFICATE = 1


class Credential(NamedTuple):
    """A token or certificate that a caller has shown. It names its principal for as long as a snapshot says so."""

    principal: str
    kind: CredentialKind
    id: str
    """The id of the token, or the name in the certificate."""
    expires_at_ms: int
    """0 if it does not expire."""


class TokenRefusedError(PermissionDeniedError):
    """A token proves nothing. Its reason is for the audit; the caller is not given it."""

    def __init__(self, message: str, reason: str, principal: str = "", token_id: str = "") -> None:
        """`principal` is known if the caller has the secret of a token that exists."""
        super().__init__(message)
        self.reason = reason
        self.principal = principal
        self.token_id = token_id


@dataclass(frozen=True, slots=True)
class AccessGrant:
    """Roles in one namespace by its exact name, in all whose names begin with a prefix (`PREFIX*`), or in all (`*`)."""

    namespaces: str
    roles: Sequence[str]


class PrincipalRow(NamedTuple):
    name: str
    enabled: bool
    grants: tuple[AccessGrant, ...]
    created_at_ms: int


class TokenRow(NamedTuple):
    """A token as it is stored, which is without its secret."""

    id: str
    principal: str
    hash: bytes
    label: str
    created_at_ms: int
    created_by: str
    expires_at_ms: int
    """0 if it does not expire."""
    used_at_ms: int
    """When it was used last, to the hour; 0 if never."""


class CertificateRow(NamedTuple):
    name: str
    """The URI or the DNS name that the certificate has among its subject alternative names."""
    principal: str
    label: str
    created_at_ms: int
    created_by: str


class AccessRows(NamedTuple):
    """All that is stored, as it was at one moment."""

    mode: AccessMode
    version: int
    """It is greater after each change."""
    principals: tuple[PrincipalRow, ...]
    tokens: tuple[TokenRow, ...]
    certificates: tuple[CertificateRow, ...]
    changed_at_ms: int = 0
    """When it was changed last. A database that was restored can come to have the same version with other rows."""


@dataclass(frozen=True, slots=True)
class RefusalRow:
    """Refusals of one verb to one caller in one namespace."""

    who: str
    verb: str
    namespace_name: str
    """Empty for a verb of the cluster."""
    times_count: int
    last_at_ms: int


NO_ACCESS_ROWS: Final = AccessRows(AccessMode.OPEN, 0, (), (), ())


def check_principal_name(name: object) -> str:
    """Return the name. Raises InvalidArgumentError for one that no principal can have."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidArgumentError(
            f"principal is {shown(name)}, but a name has 1 to 64 characters of a-z, 0-9, '.', '_' and '-': choose one"
        )
    return name


def check_new_principal_name(name: object) -> str:
    """Return the name. Raises InvalidArgumentError for one that no principal can have, or that stands for strangers."""
    checked = check_principal_name(name)
    if checked in (NOBODY.name, EVERYBODY.name):
        raise InvalidArgumentError(
            f"principal is {shown(checked)}, which stands for callers without a credential in the audit and elsewhere: "
            "choose another name"
        )
    return checked


def check_label(label: object) -> str:
    """Return the label. Raises InvalidArgumentError if it is too long, or has characters that cannot be printed."""
    text = "" if label is None else label
    if not isinstance(text, str) or not text.isprintable() or len(text.encode()) > LABEL_BYTES_MAX:
        raise InvalidArgumentError(
            f"label is {shown(label)}, but it has at most {LABEL_BYTES_MAX} bytes, all of them printable: shorten it"
        )
    return text


def check_certificate_name(name: object) -> str:
    """Return the name that a certificate shows. Raises InvalidArgumentError for one that can be in none."""
    if (
        not isinstance(name, str)
        or not _CERTIFICATE_NAME.fullmatch(name)
        or len(name.encode()) > CERTIFICATE_NAME_BYTES_MAX
        or "*" in name
    ):
        raise InvalidArgumentError(
            f"certificate is {shown(name)}, but it is the exact URI or DNS name of a certificate, which has 1 to "
            f"{CERTIFICATE_NAME_BYTES_MAX} printable ASCII characters and no '*': copy it from the certificate"
        )
    return name


def check_grant_namespaces(namespaces: object) -> str:
    """Return the namespaces of a grant. Raises InvalidArgumentError unless it is NAME, PREFIX* or *."""
    text = namespaces if isinstance(namespaces, str) else ""
    if text == "*":
        return text
    try:
        check_namespace_name(text.removesuffix("*"))
    except InvalidArgumentError as error:
        raise InvalidArgumentError(
            f"namespaces is {shown(namespaces)}, but it is the name of a namespace, the beginning of names followed by "
            "'*', or '*' for all: correct it"
        ) from error
    return text


def check_mode(mode: object) -> AccessMode:
    """Return the mode. Raises InvalidArgumentError for an unknown one."""
    try:
        return AccessMode(mode)  # type: ignore[arg-type]
    except ValueError:
        known = ", ".join(f"{one.value} ({one.name})" for one in AccessMode)
        raise InvalidArgumentError(f"mode is {shown(mode)}, but it is one of {known}") from None


def check_life_ms(life_ms: int | None) -> int:
    """Return how long a token lives, 0 for one that does not expire. Raises InvalidArgumentError if it is too long."""
    if life_ms is None:
        return TOKEN_LIFE_MS_DEFAULT
    if not 0 <= life_ms <= TOKEN_LIFE_MS_MAX:
        raise InvalidArgumentError(
            f"expires_in_ms is {life_ms}, but it is 1 to {TOKEN_LIFE_MS_MAX}, or 0 for a token that does not expire"
        )
    return life_ms


def expired(expires_at_ms: int, now_ms: int) -> bool:
    """True from the moment of the expiry on; 0 is for a credential that never expires."""
    return 0 < expires_at_ms <= now_ms


def token_holders(rows: AccessRows, now_ms: int) -> frozenset[str]:
    """Return the names of the enabled principals that have a token that has not expired."""
    able = {token.principal for token in rows.tokens if not expired(token.expires_at_ms, now_ms)}
    return frozenset(one.name for one in rows.principals if one.enabled and one.name in able)


def first_names(names: Sequence[str]) -> Sequence[str]:
    """Return the names of a certificate that are checked."""
    return names[:CERTIFICATE_NAMES_MAX]

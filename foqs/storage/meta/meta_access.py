"""The tables of access: principals, their grants and credentials, and the mode. Every change raises the version."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, Row, Select, delete, func, select, update
from sqlalchemy.exc import IntegrityError

from foqs.contract.granting import administrators, check_grants
from foqs.model.access import (
    CREDENTIALS_MAX,
    PRINCIPALS_MAX,
    AccessGrant,
    AccessMode,
    AccessRows,
    CertificateRow,
    PrincipalRow,
    TokenRow,
)
from foqs.model.access_calls import AccessCertificate, AccessPrincipal, AccessState
from foqs.model.errors import AlreadyExistsError, InvalidArgumentError, NotFoundError, UnavailableError
from foqs.storage.meta.meta_sessions import MetaSessions, in_transaction
from foqs.storage.meta.meta_tables import (
    ACCESS,
    ACCESS_CERTIFICATE,
    ACCESS_GRANT,
    ACCESS_PRINCIPAL,
    ACCESS_TOKEN,
    NAMESPACE,
    SERVER_NOW_MS,
)

_PRINCIPAL, _GRANT, _TOKEN, _CERTIFICATE = ACCESS_PRINCIPAL.c, ACCESS_GRANT.c, ACCESS_TOKEN.c, ACCESS_CERTIFICATE.c
_READ_TRIES = 2

READ_STATE = select(ACCESS.c.version, ACCESS.c.mode, ACCESS.c.changed_at)
LOCK_STATE = READ_STATE.with_for_update()
READ_PRINCIPALS = select(_PRINCIPAL.name, _PRINCIPAL.enabled, _PRINCIPAL.created_at).order_by(_PRINCIPAL.name)
READ_GRANTS = select(_GRANT.principal, _GRANT.namespaces, _GRANT.roles).order_by(_GRANT.principal, _GRANT.namespaces)
READ_TOKENS = select(ACCESS_TOKEN).order_by(_TOKEN.id)
READ_CERTIFICATES = select(ACCESS_CERTIFICATE).order_by(_CERTIFICATE.name)
GRANTED_EVERYWHERE = select(_GRANT.principal).where(_GRANT.namespaces == b"*")
"""The principals that can have roles of the cluster, administrators among them."""


class MetaAccess:
    """The tables of principals and their credentials. A change waits for one of another host, so that neither is lost.

    A change that would leave an enforced cluster without an administrator is refused with InvalidArgumentError.
    """

    def __init__(self, sessions: MetaSessions) -> None:
        self._sessions = sessions

    @in_transaction
    def read(self, connection: Connection, version: int = -1, changed_at_ms: int = 0) -> AccessRows | None:
        """Return all rows, or None if they are still those of `version` and `changed_at_ms`."""
        for attempt in range(_READ_TRIES):
            # The last time it keeps out changes: else a cluster that is changed all the time is never read.
            before = connection.execute(LOCK_STATE if attempt else READ_STATE).one_or_none()
            if before is None:
                raise _no_state()
            if (before.version, before.changed_at) == (version, changed_at_ms):
                return None
            rows = _read_rows(connection, before)
            # A statement sees what was committed before it, so rows of two versions can be found here.
            if connection.execute(READ_STATE).one_or_none() == before:
                return rows
        raise AssertionError("unreachable: nobody changes it while it is locked")

    @in_transaction
    def note_used(self, connection: Connection, token_ids: Collection[str], used_at_ms: int) -> None:
        """Note that the tokens were used, which is no change of access."""
        mine = _TOKEN.id.in_([one.encode() for one in sorted(token_ids)])
        later = func.greatest(_TOKEN.used_at, used_at_ms)
        connection.execute(update(ACCESS_TOKEN).where(mine).values(used_at=later))

    @in_transaction
    def state(self, connection: Connection, now_ms: int) -> AccessState:
        """Return the mode, and the counts of all rows."""
        found = connection.execute(READ_STATE).one_or_none()
        if found is None:
            raise _no_state()
        principals, grants, tokens, certificates = (
            int(connection.execute(select(func.count()).select_from(table)).scalar_one())
            for table in (ACCESS_PRINCIPAL, ACCESS_GRANT, ACCESS_TOKEN, ACCESS_CERTIFICATE)
        )
        return AccessState(
            AccessMode(found.mode), found.version, found.changed_at, principals, grants, tokens, certificates,
            len(_administrators(connection, now_ms)),
        )  # fmt: skip

    # ---- principals ----

    @in_transaction
    def create_principal(
        self, connection: Connection, name: str, grants: Sequence[AccessGrant], now_ms: int, *, enabled: bool = True
    ) -> AccessPrincipal:
        """Raises AlreadyExistsError, and InvalidArgumentError for bad grants or too many principals."""
        checked = check_grants(grants)
        _lock(connection)
        count: int = connection.execute(select(func.count()).select_from(ACCESS_PRINCIPAL)).scalar_one()
        if count >= PRINCIPALS_MAX:
            raise InvalidArgumentError(f"there are {count} principals, and the limit is {PRINCIPALS_MAX}: delete some")
        values = {"name": name.encode(), "enabled": int(enabled), "created_at": now_ms}
        try:
            connection.execute(ACCESS_PRINCIPAL.insert().values(values))
        except IntegrityError as error:
            raise AlreadyExistsError(f"principal {name} exists already") from error
        _replace_grants(connection, name, checked)
        _changed(connection, now_ms)
        return _principal(connection, name)

    @in_transaction
    def update_principal(
        self,
        connection: Connection,
        name: str,
        now_ms: int,
        *,
        enabled: bool | None = None,
        grants: Sequence[AccessGrant] | None = None,
        added: Sequence[AccessGrant] = (),
        removed: Collection[str] = (),
    ) -> AccessPrincipal:
        """Change the given fields. The grants are those of `granted`.

        Raises NotFoundError, and InvalidArgumentError for bad grants, or an unknown grant to remove.
        """
        _lock(connection)
        mine = _principal(connection, name)
        if enabled is not None:
            changed = update(ACCESS_PRINCIPAL).where(_PRINCIPAL.name == name.encode())
            connection.execute(changed.values(enabled=int(enabled)))
        if grants is not None or added or removed:
            kept = granted(mine, grants, added, removed)
            _replace_grants(connection, name, kept)
        _changed(connection, now_ms)
        return _principal(connection, name)

    @in_transaction
    def delete_principal(self, connection: Connection, name: str, now_ms: int) -> None:
        """Delete it with its grants and credentials. Raises NotFoundError."""
        _lock(connection)
        _principal(connection, name)
        mine = name.encode()
        connection.execute(delete(ACCESS_GRANT).where(_GRANT.principal == mine))
        connection.execute(delete(ACCESS_TOKEN).where(_TOKEN.principal == mine))
        connection.execute(delete(ACCESS_CERTIFICATE).where(_CERTIFICATE.principal == mine))
        connection.execute(delete(ACCESS_PRINCIPAL).where(_PRINCIPAL.name == mine))
        _changed(connection, now_ms)

    @in_transaction
    def principals(self, connection: Connection, prefix: str, after: str, limit: int) -> list[AccessPrincipal]:
        """Return the first `limit` principals, by name, whose names begin with `prefix` and come after `after`."""
        first = prefix.encode()
        chosen = READ_PRINCIPALS.where(
            _PRINCIPAL.name > after.encode(), _PRINCIPAL.name >= first, _PRINCIPAL.name < first + b"\xff"
        )
        return _principals(connection, chosen.limit(limit))

    # ---- credentials ----

    @in_transaction
    def create_token(self, connection: Connection, token: TokenRow, now_ms: int) -> None:
        """Raises NotFoundError for the principal, and InvalidArgumentError if it has too many credentials."""
        _lock(connection)
        _check_room(connection, token.principal)
        _insert_token(connection, token)
        _changed(connection, now_ms)

    @in_transaction
    def revoke_token(self, connection: Connection, token_id: str, now_ms: int) -> None:
        """Raises NotFoundError."""
        _lock(connection)
        if not connection.execute(delete(ACCESS_TOKEN).where(_TOKEN.id == token_id.encode())).rowcount:
            raise NotFoundError(f"there is no token {token_id!r:.80}: see foqs access token list")
        _changed(connection, now_ms)

    @in_transaction
    def tokens(self, connection: Connection, principal: str, after: str, limit: int) -> list[TokenRow]:
        """Return the first `limit` tokens after the id `after`, by id; those of all principals if `principal` is empty.

        Raises NotFoundError for an unknown principal.
        """
        chosen = READ_TOKENS.where(_TOKEN.id > after.encode())
        if principal:
            _principal(connection, principal)
            chosen = chosen.where(_TOKEN.principal == principal.encode())
        return [_token_of(row) for row in connection.execute(chosen.limit(limit))]

    @in_transaction
    def add_certificate(self, connection: Connection, certificate: CertificateRow, now_ms: int) -> None:
        """Raises NotFoundError, AlreadyExistsError, and InvalidArgumentError for too many credentials."""
        _lock(connection)
        _check_room(connection, certificate.principal)
        values = {
            "name": certificate.name.encode(), "principal": certificate.principal.encode(),
            "label": certificate.label.encode(), "created_at": certificate.created_at_ms,
            "created_by": certificate.created_by.encode(),
        }  # fmt: skip
        try:
            connection.execute(ACCESS_CERTIFICATE.insert().values(values))
        except IntegrityError as error:
            raise AlreadyExistsError(
                f"certificate {certificate.name!r:.80} is that of a principal already: remove it there first"
            ) from error
        _changed(connection, now_ms)

    @in_transaction
    def remove_certificate(self, connection: Connection, name: str, now_ms: int) -> None:
        """Raises NotFoundError."""
        _lock(connection)
        if not connection.execute(delete(ACCESS_CERTIFICATE).where(_CERTIFICATE.name == name.encode())).rowcount:
            raise NotFoundError(f"there is no certificate {name!r:.80}: see foqs access principal list")
        _changed(connection, now_ms)

    @in_transaction
    def set_mode(self, connection: Connection, mode: AccessMode, now_ms: int) -> None:
        """Raises InvalidArgumentError if it is to be enforced without an administrator."""
        _lock(connection)
        connection.execute(update(ACCESS).values(mode=int(mode)))
        _changed(connection, now_ms)

    @in_transaction
    def make_administrator(self, connection: Connection, token: TokenRow, now_ms: int, *, anew: bool) -> None:
        """Make the principal of the token an enabled administrator with this token.

        If it exists it is left as it is and AlreadyExistsError raised, unless `anew`: then its other credentials end.
        """
        _lock(connection)
        name, role = token.principal, (AccessGrant("*", ("admin",)),)
        mine = name.encode()
        if connection.execute(READ_PRINCIPALS.where(_PRINCIPAL.name == mine)).first() is not None and not anew:
            raise AlreadyExistsError(
                f"principal {name} exists already: foqs access reset-admin ends its credentials and makes a new token"
            )
        connection.execute(delete(ACCESS_PRINCIPAL).where(_PRINCIPAL.name == mine))
        connection.execute(delete(ACCESS_TOKEN).where(_TOKEN.principal == mine))
        connection.execute(delete(ACCESS_CERTIFICATE).where(_CERTIFICATE.principal == mine))
        connection.execute(ACCESS_PRINCIPAL.insert().values(name=mine, enabled=1, created_at=now_ms))
        _replace_grants(connection, name, role)
        _insert_token(connection, token)
        _changed(connection, now_ms)


def granted(
    principal: AccessPrincipal,
    grants: Sequence[AccessGrant] | None,
    added: Sequence[AccessGrant],
    removed: Collection[str],
) -> tuple[AccessGrant, ...]:
    """Return the grants after a change: `grants` replaces all, `removed` ends some, `added` makes or replaces some.

    Raises InvalidArgumentError for bad grants, too many, or an unknown one to remove.
    """
    kept = {one.namespaces: one for one in (principal.grants if grants is None else check_grants(grants))}
    for namespaces in removed:
        if kept.pop(namespaces, None) is None:
            raise InvalidArgumentError(
                f"{principal.name} has no grant for {namespaces!r:.80}: see foqs access principal list"
            )
    kept.update({one.namespaces: one for one in check_grants(added)})
    return check_grants(kept.values())


def delete_grants_of(connection: Connection, namespace_number: int) -> None:
    """Delete the grants for exactly the namespace that is being deleted: one of the same name is another one."""
    connection.execute(LOCK_STATE)
    name: bytes | None = connection.execute(
        select(NAMESPACE.c.name).where(NAMESPACE.c.number == namespace_number)
    ).scalar()
    if connection.execute(delete(ACCESS_GRANT).where(_GRANT.namespaces == name)).rowcount:
        connection.execute(update(ACCESS).values(version=ACCESS.c.version + 1, changed_at=SERVER_NOW_MS))


def _no_state() -> UnavailableError:
    return UnavailableError(
        "the meta database lacks the row of table access: see foqs schema status", nothing_done=True
    )


def _lock(connection: Connection) -> None:
    """Keep out all other changes until this one ends."""
    if connection.execute(LOCK_STATE).one_or_none() is None:
        raise _no_state()


def _changed(connection: Connection, now_ms: int) -> None:
    """End a change: hosts read it by its version. Raises InvalidArgumentError if it locks all administrators out."""
    connection.execute(update(ACCESS).values(version=ACCESS.c.version + 1, changed_at=SERVER_NOW_MS))
    mode: int = connection.execute(select(ACCESS.c.mode)).scalar_one()
    if mode == AccessMode.ENFORCED and not _administrators(connection, now_ms):
        raise no_administrator()


def no_administrator() -> InvalidArgumentError:
    """Return the error of a change after which nobody could change access any more."""
    return InvalidArgumentError(
        "access would be enforced without an enabled principal that has role admin and a valid token: "
        "make one first, by foqs access init or foqs access principal create"
    )


def _administrators(connection: Connection, now_ms: int) -> frozenset[str]:
    """The administrators, found among those that hold any role everywhere."""
    names = connection.execute(GRANTED_EVERYWHERE).scalars().all()
    if not names:
        return frozenset()
    rows = AccessRows(
        AccessMode.OPEN, 0,
        tuple(_principal_rows(connection, READ_PRINCIPALS.where(_PRINCIPAL.name.in_(names)))),
        tuple(_token_of(row) for row in connection.execute(READ_TOKENS.where(_TOKEN.principal.in_(names)))),
        tuple(
            _certificate_of(row)
            for row in connection.execute(READ_CERTIFICATES.where(_CERTIFICATE.principal.in_(names)))
        ),
    )  # fmt: skip
    return administrators(rows, now_ms)


def _check_room(connection: Connection, principal: str) -> None:
    mine = _principal(connection, principal)
    count = mine.tokens_count + len(mine.certificates)
    if count >= CREDENTIALS_MAX:
        raise InvalidArgumentError(
            f"{principal} has {count} tokens and certificates, and the limit is {CREDENTIALS_MAX}: revoke some first"
        )


def _insert_token(connection: Connection, token: TokenRow) -> None:
    values = {
        "id": token.id.encode(), "principal": token.principal.encode(), "hash": token.hash,
        "label": token.label.encode(), "created_at": token.created_at_ms, "created_by": token.created_by.encode(),
        "expires_at": token.expires_at_ms, "used_at": token.used_at_ms,
    }  # fmt: skip
    try:
        connection.execute(ACCESS_TOKEN.insert().values(values))
    except IntegrityError as error:
        raise same_id(token.id) from error


def same_id(token_id: str) -> AlreadyExistsError:
    """Return the error of a new token whose random id is taken."""
    return AlreadyExistsError(f"there is a token {token_id} already, by chance: try again")


def _replace_grants(connection: Connection, principal: str, grants: Iterable[AccessGrant]) -> None:
    name = principal.encode()
    connection.execute(delete(ACCESS_GRANT).where(_GRANT.principal == name))
    values = [
        {"principal": name, "namespaces": one.namespaces.encode(), "roles": ",".join(one.roles).encode()}
        for one in grants
    ]
    if values:
        connection.execute(ACCESS_GRANT.insert(), values)


def _read_rows(connection: Connection, state: Row[Any, Any, Any]) -> AccessRows:
    return AccessRows(
        AccessMode(state.mode),
        state.version,
        tuple(_principal_rows(connection, READ_PRINCIPALS)),
        tuple(_token_of(row) for row in connection.execute(READ_TOKENS)),
        tuple(_certificate_of(row) for row in connection.execute(READ_CERTIFICATES)),
        state.changed_at,
    )


def _principal_rows(connection: Connection, chosen: Select[Any]) -> list[PrincipalRow]:
    found = connection.execute(chosen).all()
    grants: dict[bytes, list[AccessGrant]] = {}
    wanted = (
        READ_GRANTS if chosen is READ_PRINCIPALS else READ_GRANTS.where(_GRANT.principal.in_([r.name for r in found]))
    )
    for row in connection.execute(wanted) if found else ():
        roles = tuple(row.roles.decode().split(","))
        grants.setdefault(row.principal, []).append(AccessGrant(row.namespaces.decode(), roles))
    return [
        PrincipalRow(row.name.decode(), bool(row.enabled), tuple(grants.get(row.name, ())), row.created_at)
        for row in found
    ]


def _principals(connection: Connection, chosen: Select[Any]) -> list[AccessPrincipal]:
    rows = _principal_rows(connection, chosen)
    names = [row.name.encode() for row in rows]
    if not names:
        return []
    counted = select(_TOKEN.principal, func.count()).where(_TOKEN.principal.in_(names)).group_by(_TOKEN.principal)
    tokens: dict[bytes, int] = {found.principal: found[1] for found in connection.execute(counted)}
    shown: dict[str, list[AccessCertificate]] = {}
    for row in connection.execute(READ_CERTIFICATES.where(_CERTIFICATE.principal.in_(names))):
        certificate = AccessCertificate.of(_certificate_of(row))
        shown.setdefault(certificate.principal, []).append(certificate)
    return [AccessPrincipal.of(row, tokens.get(row.name.encode(), 0), shown.get(row.name, ())) for row in rows]


def _principal(connection: Connection, name: str) -> AccessPrincipal:
    found = _principals(connection, READ_PRINCIPALS.where(_PRINCIPAL.name == name.encode()))
    if not found:
        raise no_principal(name)
    return found[0]


def no_principal(name: str) -> NotFoundError:
    """Return the error of a call that names an unknown principal."""
    return NotFoundError(f"there is no principal {name!r:.80}: see foqs access principal list")


def _token_of(row: Row[Any]) -> TokenRow:
    return TokenRow(
        row.id.decode(), row.principal.decode(), row.hash, row.label.decode(), row.created_at, row.created_by.decode(),
        row.expires_at, row.used_at,
    )  # fmt: skip


def _certificate_of(row: Row[Any]) -> CertificateRow:
    return CertificateRow(
        row.name.decode(), row.principal.decode(), row.label.decode(), row.created_at, row.created_by.decode()
    )

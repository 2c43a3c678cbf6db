"""Principals and credentials of a meta database in memory: foqs.storage.meta.meta_access on one immutable value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

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
from foqs.model.errors import AlreadyExistsError, InvalidArgumentError, NotFoundError
from foqs.storage.meta.meta_access import granted, no_administrator, no_principal, same_id
from foqs.testing.fake_meta_tables import Reach


class FakeAccess:
    """The tables of access."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach

    @property
    def _rows(self) -> AccessRows:
        return self._reach().tables.access

    def read(self, version: int = -1, changed_at_ms: int = 0) -> AccessRows | None:
        rows = self._rows
        return None if (rows.version, rows.changed_at_ms) == (version, changed_at_ms) else rows

    def note_used(self, token_ids: Collection[str], used_at_ms: int) -> None:
        tokens = [
            one._replace(used_at_ms=max(one.used_at_ms, used_at_ms)) if one.id in token_ids else one
            for one in self._rows.tokens
        ]
        self._reach().tables.access = self._rows._replace(tokens=tuple(tokens))

    def state(self, now_ms: int) -> AccessState:
        rows = self._rows
        return AccessState(
            rows.mode, rows.version, rows.changed_at_ms, len(rows.principals),
            sum(len(one.grants) for one in rows.principals), len(rows.tokens), len(rows.certificates),
            len(administrators(rows, now_ms)),
        )  # fmt: skip

    # ---- principals ----

    def create_principal(
        self, name: str, grants: Sequence[AccessGrant], now_ms: int, *, enabled: bool = True
    ) -> AccessPrincipal:
        checked = check_grants(grants)
        if len(self._rows.principals) >= PRINCIPALS_MAX:
            raise InvalidArgumentError(f"there are {PRINCIPALS_MAX} principals, which is the limit")
        if any(one.name == name for one in self._rows.principals):
            raise AlreadyExistsError(f"principal {name} exists already")
        self._put(PrincipalRow(name, enabled, checked, now_ms), now_ms)
        return self._principal(name)

    def update_principal(
        self,
        name: str,
        now_ms: int,
        *,
        enabled: bool | None = None,
        grants: Sequence[AccessGrant] | None = None,
        added: Sequence[AccessGrant] = (),
        removed: Collection[str] = (),
    ) -> AccessPrincipal:
        mine = self._principal(name)
        kept = granted(mine, grants, added, removed)
        is_enabled = mine.enabled if enabled is None else enabled
        self._put(PrincipalRow(name, is_enabled, kept, mine.created_at_ms), now_ms)
        return self._principal(name)

    def delete_principal(self, name: str, now_ms: int) -> None:
        self._principal(name)
        self._change(self._without(name), now_ms)

    def principals(self, prefix: str, after: str, limit: int) -> list[AccessPrincipal]:
        rows = self._rows
        names = [one.name for one in rows.principals if one.name.startswith(prefix) and one.name > after]
        return [self._principal(name) for name in names[:limit]]

    # ---- credentials ----

    def create_token(self, token: TokenRow, now_ms: int) -> None:
        self._check_room(token.principal)
        rows = self._rows
        if any(one.id == token.id for one in rows.tokens):
            raise same_id(token.id)
        self._change(rows._replace(tokens=tuple(sorted([*rows.tokens, token]))), now_ms)

    def revoke_token(self, token_id: str, now_ms: int) -> None:
        rows = self._rows
        kept = tuple(one for one in rows.tokens if one.id != token_id)
        if len(kept) == len(rows.tokens):
            raise NotFoundError(f"there is no token {token_id!r:.80}: see foqs access token list")
        self._change(rows._replace(tokens=kept), now_ms)

    def tokens(self, principal: str, after: str, limit: int) -> list[TokenRow]:
        if principal:
            self._principal(principal)
        found = [one for one in self._rows.tokens if one.id > after and principal in ("", one.principal)]
        return found[:limit]

    def add_certificate(self, certificate: CertificateRow, now_ms: int) -> None:
        self._check_room(certificate.principal)
        rows = self._rows
        if any(one.name == certificate.name for one in rows.certificates):
            raise AlreadyExistsError(f"certificate {certificate.name!r:.80} is that of a principal already")
        self._change(rows._replace(certificates=tuple(sorted([*rows.certificates, certificate]))), now_ms)

    def remove_certificate(self, name: str, now_ms: int) -> None:
        rows = self._rows
        kept = tuple(one for one in rows.certificates if one.name != name)
        if len(kept) == len(rows.certificates):
            raise NotFoundError(f"there is no certificate {name!r:.80}: see foqs access principal list")
        self._change(rows._replace(certificates=kept), now_ms)

    def set_mode(self, mode: AccessMode, now_ms: int) -> None:
        self._change(self._rows._replace(mode=mode), now_ms)

    def make_administrator(self, token: TokenRow, now_ms: int, *, anew: bool) -> None:
        if not anew and any(one.name == token.principal for one in self._rows.principals):
            raise AlreadyExistsError(f"principal {token.principal} exists already")
        if any(one.id == token.id and one.principal != token.principal for one in self._rows.tokens):
            raise same_id(token.id)
        rows, row = self._without(token.principal), PrincipalRow(token.principal, True, _ADMIN, now_ms)
        self._change(
            rows._replace(
                principals=tuple(sorted([*rows.principals, row], key=lambda one: one.name)),
                tokens=tuple(sorted([*rows.tokens, token])),
            ),
            now_ms,
        )

    def forget_all_of(self, namespace_name: str) -> None:
        """Delete the grants for exactly this namespace."""
        rows = self._rows
        kept = tuple(
            one._replace(grants=tuple(grant for grant in one.grants if grant.namespaces != namespace_name))
            for one in rows.principals
        )
        if kept != rows.principals:
            self._change(rows._replace(principals=kept), self._reach().now_ms())

    def _put(self, row: PrincipalRow, now_ms: int) -> None:
        others = [one for one in self._rows.principals if one.name != row.name]
        principals = tuple(sorted([*others, row], key=lambda one: one.name))
        self._change(self._rows._replace(principals=principals), now_ms)

    def _without(self, name: str) -> AccessRows:
        rows = self._rows
        return rows._replace(
            principals=tuple(one for one in rows.principals if one.name != name),
            tokens=tuple(one for one in rows.tokens if one.principal != name),
            certificates=tuple(one for one in rows.certificates if one.principal != name),
        )

    def _change(self, rows: AccessRows, now_ms: int) -> None:
        if rows.mode is AccessMode.ENFORCED and not administrators(rows, now_ms):
            raise no_administrator()
        database = self._reach()
        database.tables.access = rows._replace(version=rows.version + 1, changed_at_ms=database.now_ms())

    def _check_room(self, name: str) -> None:
        mine = self._principal(name)
        count = mine.tokens_count + len(mine.certificates)
        if count >= CREDENTIALS_MAX:
            raise InvalidArgumentError(f"{name} has {count} tokens and certificates, which is the limit: revoke some")

    def _principal(self, name: str) -> AccessPrincipal:
        rows = self._rows
        row = next((one for one in rows.principals if one.name == name), None)
        if row is None:
            raise no_principal(name)
        shown = [AccessCertificate.of(one) for one in rows.certificates if one.principal == name]
        return AccessPrincipal.of(row, Counter(one.principal for one in rows.tokens)[name], shown)


_ADMIN = (AccessGrant("*", ("admin",)),)

"""Who a credential proves, by an oracle that looks through all rows and knows no bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.contract.granting import CLUSTER_ROLES, administrators, check_grants, principal_of
from foqs.contract.permissions import OF_CLUSTER, OF_NAMESPACE, ROLES, Permission
from foqs.host.access.refused_calls import REFUSALS_MAX, Refusals
from foqs.host.access.snapshot import AccessSnapshot
from foqs.model import access_tokens as tokens
from foqs.model.access import (
    CERTIFICATE_NAMES_MAX,
    GRANTS_MAX,
    AccessGrant,
    AccessMode,
    AccessRows,
    CertificateRow,
    Credential,
    CredentialKind,
    PrincipalRow,
    RefusalRow,
    TokenRow,
)
from foqs.model.errors import InvalidArgumentError, PermissionDeniedError

NAMES = ["a", "b", "c"]
SANS = ["foqs://x/a", "db-1.example", "DB-1.example"]
TEXTS = [tokens.new_token(bytes([at]) * tokens.RANDOM_BYTES) for at in range(4)]
NAMESPACES = ["ns", "ns-1", "other", "ns*", "n*", "*"]
PLAIN_ROLES = [role for role in ROLES if role not in CLUSTER_ROLES]


def token_row(at: int, principal: str, expires_at_ms: int = 0) -> TokenRow:
    token = tokens.parse(TEXTS[at])
    return TokenRow(token.id, principal, tokens.hash_of(token), "", 1, "admin", expires_at_ms, 0)


@st.composite
def grants(draw: st.DrawFn) -> AccessGrant:
    namespaces = draw(st.sampled_from(NAMESPACES))
    roles = st.sampled_from(list(ROLES) if namespaces == "*" else PLAIN_ROLES)
    return AccessGrant(namespaces, tuple(draw(st.sets(roles, min_size=1, max_size=3))))


@st.composite
def all_rows(draw: st.DrawFn) -> AccessRows:
    principals = tuple(
        PrincipalRow(name, draw(st.booleans()), tuple(draw(st.lists(grants(), max_size=3))), 1)
        for name in draw(st.sets(st.sampled_from(NAMES)))
    )
    # A row whose principal is not there is what a half restored database can have.
    held = tuple(
        token_row(at, draw(st.sampled_from(NAMES)), draw(st.integers(0, 6))) for at in draw(st.sets(st.integers(0, 2)))
    )
    shown = tuple(
        CertificateRow(san, draw(st.sampled_from(NAMES)), "", 1, "admin")
        for san in draw(st.sets(st.sampled_from(SANS)))
    )
    return AccessRows(draw(st.sampled_from(AccessMode)), draw(st.integers(0, 9)), principals, held, shown)


class Told(NamedTuple):
    principal: str
    id: str


def enabled(rows: AccessRows, name: str) -> bool:
    return any(one.name == name and one.enabled for one in rows.principals)


def told_by_token(rows: AccessRows, text: str, now_ms: int) -> Told | None:
    for row in rows.tokens:
        live = row.expires_at_ms == 0 or row.expires_at_ms > now_ms
        if f"_{row.id}_" in text and live and enabled(rows, row.principal):
            return Told(row.principal, row.id)
    return None


def told_by_names(rows: AccessRows, names: Sequence[str]) -> Told | None:
    rowed = [row for name in names for row in rows.certificates if row.name == name]
    if rowed and all(row.principal == rowed[0].principal for row in rowed) and enabled(rows, rowed[0].principal):
        return Told(rowed[0].principal, rowed[0].name)
    return None


def may(rows: AccessRows, name: str, bit: Permission, namespace: str) -> bool:
    """True if a grant gives it: looked for role by role and letter by letter."""
    for one in rows.principals:
        for grant in one.grants if one.name == name else ():
            covers = grant.namespaces == namespace
            if grant.namespaces[-1] == "*":
                covers = namespace[: len(grant.namespaces) - 1] == grant.namespaces[:-1]
            if covers and any(bit in ROLES[role] for role in grant.roles):
                return True
    return False


@given(all_rows(), st.integers(1, 7), st.lists(st.sampled_from([*SANS, "nobody", ""]), max_size=3))
def test_a_credential_proves_what_the_rows_say(rows: AccessRows, now_ms: int, names: list[str]) -> None:
    snapshot = AccessSnapshot(rows)
    assert (snapshot.mode, snapshot.version) == (rows.mode, rows.version)
    proven = [snapshot.by_names(names, now_ms)]
    assert (proven[0] and Told(proven[0].principal, proven[0].id)) == told_by_names(rows, names)
    for text in TEXTS:
        wanted = told_by_token(rows, text, now_ms)
        try:
            credential = snapshot.by_token(text, now_ms)
        except PermissionDeniedError:
            assert wanted is None
        else:
            assert Told(credential.principal, credential.id) == wanted
            proven.append(credential)
    for one in proven:
        if one is not None:
            principal = snapshot.principal(one, now_ms)
            assert principal is not None
            assert principal.name == one.principal
            assert snapshot.principal(one, now_ms) is principal, "its matches are kept"


@given(all_rows(), all_rows(), st.integers(1, 7), st.integers(0, 7))
def test_a_credential_of_an_older_snapshot_holds_what_the_newer_one_says(
    before: AccessRows, after: AccessRows, now_ms: int, later_ms: int
) -> None:
    old, new, now_2 = AccessSnapshot(before), AccessSnapshot(after), now_ms + later_ms
    for text in TEXTS:
        try:
            credential = old.by_token(text, now_ms)
        except PermissionDeniedError:
            continue
        held = new.principal(credential, now_2)
        wanted = told_by_token(after, text, now_2)
        assert (held and held.name) == (
            wanted.principal if wanted and wanted.principal == credential.principal else None
        )
    for san in SANS:
        shown = old.by_names([san], now_ms)
        if shown is not None:
            held = new.principal(shown, now_2)
            wanted = told_by_names(after, [san])
            assert (held and held.name) == (
                wanted.principal if wanted and wanted.principal == shown.principal else None
            )


@given(all_rows(), st.sampled_from(["ns", "ns-1", "n", "other", "nsx", "x"]))
def test_a_principal_holds_what_its_grants_give_and_nothing_else(rows: AccessRows, namespace: str) -> None:
    for row in rows.principals:
        principal = principal_of(row.name, row.grants)
        for bit in OF_NAMESPACE:
            assert bool(principal.match(namespace) & bit) == may(rows, row.name, bit, namespace)
        for bit in OF_CLUSTER:
            assert bool(principal.cluster & bit) == may(rows, row.name, bit, "anything at all")
            assert not principal.match(namespace) & bit
        assert not principal.cluster & OF_NAMESPACE


@given(all_rows(), st.integers(1, 7))
def test_an_administrator_has_a_token_and_may_grant(rows: AccessRows, now_ms: int) -> None:
    """Its certificate is not enough: not all hosts need accept it."""
    able = {told.principal for text in TEXTS if (told := told_by_token(rows, text, now_ms))}
    assert administrators(rows, now_ms) == {one for one in able if may(rows, one, Permission.ACCESS, "z")}


def rows_with(*held: TokenRow, enabled: bool = True, certificates: tuple[CertificateRow, ...] = ()) -> AccessRows:
    principal = PrincipalRow("mailer", enabled, (AccessGrant("mail", ("worker",)),), 1)
    return AccessRows(AccessMode.ENFORCED, 7, (principal,), held, certificates)


def test_nobody_is_known_to_the_empty_snapshot() -> None:
    assert (AccessSnapshot.EMPTY.mode, AccessSnapshot.EMPTY.version) == (AccessMode.OPEN, 0)
    assert AccessSnapshot.EMPTY.by_names(SANS, 1) is None
    assert AccessSnapshot.EMPTY.grants_of("mailer") == ()
    with pytest.raises(PermissionDeniedError, match="foqs access token create"):
        AccessSnapshot.EMPTY.by_token(TEXTS[0], 1)


def test_a_token_ends_at_its_time_and_says_since_when() -> None:
    snapshot = AccessSnapshot(rows_with(token_row(0, "mailer", 10_000)))
    credential = snapshot.by_token(TEXTS[0], 9_999)
    assert credential == Credential("mailer", CredentialKind.TOKEN, tokens.parse(TEXTS[0]).id, 10_000)
    assert snapshot.principal(credential, 9_999) is not None
    assert snapshot.principal(credential, 10_000) is None
    with pytest.raises(PermissionDeniedError, match=r"of mailer expired 5 s ago: .* token create mailer"):
        snapshot.by_token(TEXTS[0], 15_000)


def test_whoever_knows_an_id_without_its_secret_learns_nothing() -> None:
    right = tokens.parse(TEXTS[0])
    forged = tokens.text_of(tokens.Token(right.id, b"\xff" * 32))
    told = set()
    for held in (
        rows_with(),
        rows_with(token_row(0, "mailer")),
        rows_with(token_row(0, "mailer", 2)),
        rows_with(token_row(0, "mailer"), enabled=False),
    ):
        with pytest.raises(PermissionDeniedError) as caught:
            AccessSnapshot(held).by_token(forged, 3)
        told.add(str(caught.value))
    assert len(told) == 1
    # The hash that stands in for one that is not there is nobody's.
    with pytest.raises(PermissionDeniedError):
        AccessSnapshot(rows_with()).by_token(TEXTS[1], 3)


def test_a_typing_error_is_refused_as_a_wrong_token_is() -> None:
    with pytest.raises(PermissionDeniedError, match="characters"):
        AccessSnapshot(rows_with(token_row(0, "mailer"))).by_token(TEXTS[0][:-1], 1)


def test_a_disabled_principal_is_told_so_if_it_shows_its_token() -> None:
    snapshot = AccessSnapshot(rows_with(token_row(0, "mailer"), enabled=False))
    with pytest.raises(PermissionDeniedError, match="disabled"):
        snapshot.by_token(TEXTS[0], 1)


def test_a_certificate_with_names_of_two_principals_proves_nothing() -> None:
    shown = (CertificateRow("one", "mailer", "", 1, ""), CertificateRow("two", "other", "", 1, ""))
    rows = rows_with(certificates=shown)
    rows = rows._replace(principals=(*rows.principals, PrincipalRow("other", True, (), 1)))
    snapshot = AccessSnapshot(rows)
    assert snapshot.by_names(["x", "one", "one"], 1) == Credential("mailer", CredentialKind.CERTIFICATE, "one", 0)
    assert snapshot.by_names(["one", "two"], 1) is None
    assert snapshot.by_names(["two", "one"], 1) is None
    assert snapshot.by_names([*map(str, range(CERTIFICATE_NAMES_MAX)), "one"], 1) is None, "its names have a bound"


@pytest.mark.parametrize(
    ("grant", "told"),
    [
        (AccessGrant("ns", ("boss",)), "role is 'boss'"),
        (AccessGrant("ns", ()), "has no role"),
        (AccessGrant("ns", ("admin",)), "grant it for '\\*'"),
        (AccessGrant("n*", ("operator",)), "grant it for '\\*'"),
        (AccessGrant("", ("owner",)), "namespaces is ''"),
        (AccessGrant("**", ("owner",)), "namespaces is"),
        (AccessGrant("a*b", ("owner",)), "namespaces is"),
        (AccessGrant("a b", ("owner",)), "namespaces is"),
        (AccessGrant("x" * 65, ("owner",)), "namespaces is"),
    ],
)
def test_a_grant_that_means_nothing_is_refused(grant: AccessGrant, told: str) -> None:
    with pytest.raises(InvalidArgumentError, match=told):
        check_grants([grant])


def test_grants_of_the_same_namespaces_are_one_and_their_number_is_bounded() -> None:
    joined = check_grants(
        [AccessGrant("ns", ("viewer",)), AccessGrant("a*", ("owner",)), AccessGrant("ns", ("worker",))]
    )
    assert joined == (AccessGrant("a*", ("owner",)), AccessGrant("ns", ("viewer", "worker")))
    many = [AccessGrant(f"n{at}", ("owner",)) for at in range(GRANTS_MAX)]
    assert len(check_grants(many)) == GRANTS_MAX
    with pytest.raises(InvalidArgumentError, match="at most 100"):
        check_grants([*many, AccessGrant("one-more", ("owner",))])


def test_a_role_of_a_later_version_gives_nothing() -> None:
    principal = principal_of("x", [AccessGrant("*", ("emperor", "viewer"))])
    assert (principal.cluster, principal.match("ns")) == (0, Permission.OBSERVE)


def test_refusals_are_counted_by_caller_verb_and_namespace_and_the_caller_with_most_loses_its_oldest() -> None:
    refusals = Refusals()
    refusals.note("nobody", "ack", "ns", 1)
    for at in range(REFUSALS_MAX - 1):
        refusals.note(f"p{at}", "ack", "ns", 2 + at)
    refusals.note("nobody", "ack", "ns", 5_000)
    assert len(refusals.rows()) == REFUSALS_MAX
    assert refusals.rows()[0] == RefusalRow("nobody", "ack", "ns", 2, 5_000)
    refusals.note("new", "ack", "ns", 5_001)
    kept = {(one.who, one.verb) for one in refusals.rows()}
    assert len(kept) == REFUSALS_MAX
    assert kept >= {("p1", "ack"), ("nobody", "ack"), ("new", "ack")}
    assert ("p0", "ack") not in kept, "each has one row, and it was refused longest ago"
    refusals.note("p1", "listHosts", "", 5_002)
    kept = {(one.who, one.verb) for one in refusals.rows()}
    assert ("p1", "ack") not in kept
    assert kept >= {("p1", "listHosts"), ("p2", "ack")}


def test_a_caller_that_makes_up_names_does_not_push_out_the_refusals_of_others() -> None:
    """Operators read the table before they enforce access: a row that is gone is a program that will fail."""
    refusals = Refusals()
    for at in range(10):
        refusals.note(f"p{at}", "ack", "ns", at)
    for at in range(5 * REFUSALS_MAX):
        refusals.note("hostile", "ack", f"made-up-{at}", 100 + at)
    rows = refusals.rows()
    assert len(rows) == REFUSALS_MAX
    assert {one.who for one in rows} == {"hostile", *[f"p{at}" for at in range(10)]}
    assert rows[0].namespace_name == f"made-up-{5 * REFUSALS_MAX - 1}"
    assert [one.last_at_ms for one in rows] == sorted([one.last_at_ms for one in rows], reverse=True)

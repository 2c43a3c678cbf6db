"""Who can call, as the meta database keeps it: the real one, and the one in memory, which does the same."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from foqs.host.access.book import AccessBook
from foqs.model import access_tokens, namespace
from foqs.model.access import (
    CREDENTIALS_MAX,
    AccessGrant,
    AccessMode,
    AccessRows,
    CertificateRow,
    CredentialKind,
    TokenRow,
)
from foqs.model.errors import AlreadyExistsError, FoqsError, InvalidArgumentError, NotFoundError
from foqs.model.namespace import NamespaceSettings
from foqs.storage.meta.meta_store import MetaStore
from foqs.testing.fake_meta import memory_meta
from tests.support.deep import deep_but

NOW = 1_700_000_000_000
ADMIN = [AccessGrant("*", ("admin",))]
WORKER = [AccessGrant("mail", ("worker",))]


@pytest.fixture(params=[pytest.param("mysql", marks=pytest.mark.database), "memory"])
def meta(request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param == "memory":
        yield memory_meta(lambda: NOW)
    else:
        with closing(MetaStore(request.getfixturevalue("meta_url"))) as store:
            yield store


def text(at: int) -> str:
    return access_tokens.new_token(bytes([at]) * access_tokens.RANDOM_BYTES)


def row(at: int, principal: str, expires_at_ms: int = 0) -> TokenRow:
    token = access_tokens.parse(text(at))
    return TokenRow(
        token.id, principal, access_tokens.hash_of(token), f"token \N{SNOWMAN} {at}", NOW, "admin", expires_at_ms, 0
    )


def certificate(name: str, principal: str) -> CertificateRow:
    return CertificateRow(name, principal, "of the mailer", NOW, "admin")


def read(meta: Any) -> AccessRows:
    rows: AccessRows = meta.access.read()
    return rows


def test_a_new_cluster_is_open_and_knows_nobody(meta: Any) -> None:
    assert read(meta)[:5] == (AccessMode.OPEN, 0, (), (), ())
    state = meta.access.state(NOW)
    assert (state.mode, state.principals_count, state.administrators_count) == (AccessMode.OPEN, 0, 0)


def test_the_first_administrator_is_known_by_its_token_as_soon_as_a_host_reads(meta: Any) -> None:
    book = AccessBook(meta.access, lambda: 0.0)
    book.read()
    meta.access.make_administrator(row(1, "admin"), NOW, anew=False)
    book.read()
    credential = book.snapshot.by_token(text(1), NOW)
    assert (credential.principal, credential.kind) == ("admin", CredentialKind.TOKEN)
    principal = book.snapshot.principal(credential, NOW)
    assert principal is not None
    assert principal.cluster
    assert book.snapshot.version == 1
    with pytest.raises(AlreadyExistsError, match="admin"):
        meta.access.make_administrator(row(2, "admin"), NOW, anew=False)
    meta.access.make_administrator(row(2, "admin"), NOW, anew=True)
    book.read()
    assert book.snapshot.principal(credential, NOW) is None, "the lost token ends"
    assert book.snapshot.by_token(text(2), NOW).principal == "admin"


def test_what_is_stored_comes_back_as_it_was_made(meta: Any) -> None:
    made = meta.access.create_principal("mailer", [*WORKER, AccessGrant("mail-*", ("owner", "reader"))], NOW)
    assert (made.name, made.enabled, made.created_at_ms, made.tokens_count) == ("mailer", True, NOW, 0)
    meta.access.create_principal("a.b_c-1", [], NOW + 1, enabled=False)
    meta.access.create_token(row(1, "mailer", NOW + 5), NOW)
    meta.access.create_token(row(2, "mailer"), NOW)
    meta.access.add_certificate(certificate("foqs://c/mailer", "mailer"), NOW)
    rows = read(meta)
    assert [one.name for one in rows.principals] == ["a.b_c-1", "mailer"]
    assert rows.principals[1].grants == (AccessGrant("mail", ("worker",)), AccessGrant("mail-*", ("owner", "reader")))
    assert not rows.principals[0].enabled
    assert sorted(rows.tokens) == sorted([row(1, "mailer", NOW + 5), row(2, "mailer")])
    assert rows.certificates == (certificate("foqs://c/mailer", "mailer"),)
    assert rows.version == 5
    assert meta.access.read(rows.version, rows.changed_at_ms) is None
    assert meta.access.read(rows.version, rows.changed_at_ms + 1) == rows, "a restored database came to this version"
    (shown,) = meta.access.principals("mail", "", 10)
    assert (shown.tokens_count, [one.name for one in shown.certificates]) == (2, ["foqs://c/mailer"])


def test_principals_and_tokens_are_listed_in_pages(meta: Any) -> None:
    for name in ("b", "a", "c", "ab"):
        meta.access.create_principal(name, [], NOW)
    assert [one.name for one in meta.access.principals("", "", 2)] == ["a", "ab"]
    assert [one.name for one in meta.access.principals("", "ab", 9)] == ["b", "c"]
    assert [one.name for one in meta.access.principals("a", "", 9)] == ["a", "ab"]
    for at, owner in enumerate(["a", "b", "a"]):
        meta.access.create_token(row(at, owner), NOW)
    everyone = meta.access.tokens("", "", 9)
    assert len(everyone) == 3
    assert meta.access.tokens("", everyone[0].id, 1) == everyone[1:2]
    assert {one.principal for one in meta.access.tokens("a", "", 9)} == {"a"}
    with pytest.raises(NotFoundError):
        meta.access.tokens("nobody", "", 9)


def test_grants_are_added_removed_and_replaced(meta: Any) -> None:
    meta.access.create_principal("mailer", WORKER, NOW)

    def grants() -> dict[str, tuple[str, ...]]:
        (one,) = read(meta).principals
        return {grant.namespaces: tuple(grant.roles) for grant in one.grants}

    meta.access.update_principal("mailer", NOW, added=[AccessGrant("x*", ("viewer",))])
    assert grants() == {"mail": ("worker",), "x*": ("viewer",)}
    meta.access.update_principal("mailer", NOW, added=[AccessGrant("mail", ("owner",))], removed=["x*"])
    assert grants() == {"mail": ("owner",)}
    meta.access.update_principal("mailer", NOW, grants=[AccessGrant("y", ("reader",)), AccessGrant("y", ("viewer",))])
    assert grants() == {"y": ("reader", "viewer")}
    version = read(meta).version
    with pytest.raises(InvalidArgumentError, match="no grant for 'gone'"):
        meta.access.update_principal("mailer", NOW, added=[AccessGrant("z", ("owner",))], removed=["gone"])
    many = [AccessGrant(f"n{at}", ("owner",)) for at in range(100)]
    with pytest.raises(InvalidArgumentError, match="at most 100"):
        meta.access.update_principal("mailer", NOW, added=many)
    assert (grants(), read(meta).version) == ({"y": ("reader", "viewer")}, version), "nothing of it was done"
    meta.access.update_principal("mailer", NOW, grants=[])
    assert grants() == {}


def test_names_are_compared_byte_by_byte_and_exist_once(meta: Any) -> None:
    meta.access.create_principal("mailer", [], NOW)
    with pytest.raises(AlreadyExistsError, match="mailer"):
        meta.access.create_principal("mailer", [], NOW)
    meta.access.add_certificate(certificate("DB.example", "mailer"), NOW)
    meta.access.add_certificate(certificate("db.example", "mailer"), NOW)
    with pytest.raises(AlreadyExistsError, match=r"db\.example"):
        meta.access.add_certificate(certificate("db.example", "mailer"), NOW)
    calls: list[Callable[[], object]] = [
        lambda: meta.access.update_principal("Mailer", NOW, enabled=False),
        lambda: meta.access.delete_principal("mailer ", NOW),
        lambda: meta.access.create_token(row(1, "nobody"), NOW),
        lambda: meta.access.add_certificate(certificate("x", "nobody"), NOW),
        lambda: meta.access.revoke_token("a" * 12, NOW),
        lambda: meta.access.remove_certificate("Db.example", NOW),
    ]
    for call in calls:
        with pytest.raises(NotFoundError):
            call()
    assert read(meta).version == 3


def test_a_principal_has_a_bounded_number_of_credentials(meta: Any) -> None:
    meta.access.create_principal("mailer", [], NOW)
    for at in range(CREDENTIALS_MAX - 1):
        meta.access.create_token(row(at, "mailer"), NOW)
    meta.access.add_certificate(certificate("x", "mailer"), NOW)
    with pytest.raises(InvalidArgumentError, match="8 tokens and certificates"):
        meta.access.create_token(row(100, "mailer"), NOW)
    with pytest.raises(InvalidArgumentError, match="8 tokens and certificates"):
        meta.access.add_certificate(certificate("y", "mailer"), NOW)
    meta.access.remove_certificate("x", NOW)
    meta.access.create_token(row(100, "mailer"), NOW)


def test_a_deleted_principal_leaves_nothing_to_one_of_the_same_name(meta: Any) -> None:
    meta.access.create_principal("mailer", WORKER, NOW)
    meta.access.create_token(row(1, "mailer"), NOW)
    meta.access.add_certificate(certificate("x", "mailer"), NOW)
    meta.access.delete_principal("mailer", NOW)
    meta.access.create_principal("mailer", [], NOW)
    rows = read(meta)
    assert (rows.principals[0].grants, rows.tokens, rows.certificates) == ((), (), ())


def test_a_deleted_namespace_leaves_no_grant_to_one_of_the_same_name(meta: Any) -> None:
    held = [*WORKER, AccessGrant("mail*", ("viewer",)), AccessGrant("mails", ("owner",)), AccessGrant("*", ("reader",))]
    meta.access.create_principal("mailer", held, NOW)
    meta.access.create_principal("other", WORKER, NOW)
    for _ in range(2):
        census = meta.namespaces.begin_creation("mail")
        meta.namespaces.finish_creation(census, "mail", NamespaceSettings(), NOW)
        census = meta.namespaces.begin_deletion("mail")
        assert meta.namespaces.finish_deletion(census, "mail") == []
        rows = read(meta)
        found = {one.name: [grant.namespaces for grant in one.grants] for one in rows.principals}
        assert found == {"mailer": ["*", "mail*", "mails"], "other": []}
        assert rows.version == 3, "hosts see it, and see nothing where there was no grant"


def test_a_prefix_has_room_for_a_bounded_number_of_namespaces(meta: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespace, "NAMESPACES_PER_PREFIX_MAX", 2)

    def make(name: str, *prefixes: str) -> None:
        census = meta.namespaces.begin_creation(name, prefixes)
        meta.namespaces.finish_creation(census, name, NamespaceSettings(), NOW)

    for name in ("mail", "mail-1", "mails"):
        make(name, "mail-")
    make("mail-2", "mail-")
    for prefixes in (("mail-",), ("mail-", "mail"), ("mail",)):
        with pytest.raises(InvalidArgumentError, match=f"2 namespaces whose names begin with '{prefixes[0]}'"):
            meta.namespaces.begin_creation("mail-3", prefixes)
    make("mail-3", "mail-", "mail-3")
    make("mail-4")
    make("other", "o")


def test_enforced_access_always_has_an_administrator_that_can_show_it(meta: Any) -> None:
    def refused(call: Any) -> None:
        before = read(meta)
        with pytest.raises(InvalidArgumentError, match="role admin"):
            call()
        assert read(meta) == before, "nothing of it was done"

    def enforce() -> None:
        meta.access.set_mode(AccessMode.ENFORCED, NOW)

    refused(enforce)
    meta.access.create_principal("root", ADMIN, NOW, enabled=False)
    refused(enforce)
    meta.access.update_principal("root", NOW, enabled=True)
    refused(enforce)
    meta.access.create_token(row(1, "root", NOW), NOW)
    refused(enforce)
    meta.access.create_token(row(2, "root", NOW + 1), NOW)
    enforce()
    assert read(meta).mode is AccessMode.ENFORCED
    assert meta.access.state(NOW).administrators_count == 1
    refused(lambda: meta.access.revoke_token(row(2, "root").id, NOW))
    refused(lambda: meta.access.update_principal("root", NOW, enabled=False))
    refused(lambda: meta.access.update_principal("root", NOW, grants=WORKER))
    refused(lambda: meta.access.update_principal("root", NOW, removed=["*"]))
    refused(lambda: meta.access.delete_principal("root", NOW))
    meta.access.add_certificate(certificate("foqs://root", "root"), NOW)
    refused(lambda: meta.access.revoke_token(row(2, "root").id, NOW))  # Nobody can show a certificate without TLS.
    meta.access.set_mode(AccessMode.PERMISSIVE, NOW)
    meta.access.revoke_token(row(2, "root").id, NOW)
    refused(enforce)


def test_the_use_of_a_token_is_kept_and_is_no_change_of_access(meta: Any) -> None:
    meta.access.create_principal("mailer", [], NOW)
    for at in range(3):
        meta.access.create_token(row(at, "mailer"), NOW)
    version = read(meta).version
    meta.access.note_used([row(0, "").id, row(1, "").id, "unknown"], 7)
    meta.access.note_used([row(1, "").id], 5)
    rows = read(meta)
    assert rows.version == version
    assert {one.id: one.used_at_ms for one in rows.tokens} == {row(0, "").id: 7, row(1, "").id: 7, row(2, "").id: 0}


@pytest.mark.database
def test_changes_of_two_hosts_at_once_are_both_made(meta_url: str) -> None:
    with closing(MetaStore(meta_url)) as one, closing(MetaStore(meta_url)) as other:
        one.access.create_principal("mailer", [], NOW)
        both, failed = threading.Barrier(2, timeout=60), list[BaseException]()

        def change(meta: MetaStore, prefix: str) -> None:
            try:
                for at in range(10):
                    both.wait()
                    meta.access.update_principal("mailer", NOW, added=[AccessGrant(f"{prefix}{at}", ("viewer",))])
            except BaseException as error:
                failed.append(error)
                both.abort()

        threads = [threading.Thread(target=change, args=of) for of in ((one, "a"), (other, "b"))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failed == []
        rows = one.access.read()
        assert rows is not None
        assert len(rows.principals[0].grants) == 20
        assert rows.version == 21


@pytest.mark.database
def test_two_hosts_at_once_cannot_end_both_administrators(meta_url: str) -> None:
    with closing(MetaStore(meta_url)) as one, closing(MetaStore(meta_url)) as other:
        for at, name in enumerate(("root", "boot")):
            one.access.create_principal(name, ADMIN, NOW)
            one.access.create_token(row(at, name), NOW)
        one.access.set_mode(AccessMode.ENFORCED, NOW)
        both, told = threading.Barrier(2, timeout=60), list[BaseException]()

        def end(meta: MetaStore, name: str) -> None:
            both.wait()
            try:
                meta.access.delete_principal(name, NOW)
            except InvalidArgumentError as error:
                told.append(error)

        threads = [threading.Thread(target=end, args=of) for of in ((one, "root"), (other, "boot"))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(told) == 1
        assert one.access.state(NOW).administrators_count == 1


@pytest.mark.database
@pytest.mark.parametrize("seed", deep_but(range(2), range(12)))
def test_both_databases_say_the_same_whatever_is_done_to_them(meta_url: str, seed: int) -> None:
    """The mode, the rows and the refusals, after each of many changes by chance."""
    chance, fake = random.Random(seed), memory_meta(lambda: NOW)
    names, sans = ["a", "b", "c"], ["x", "y", "z"]
    with closing(MetaStore(meta_url)) as real:

        def grants() -> list[AccessGrant]:
            some = [*WORKER, *ADMIN, AccessGrant("m*", ("viewer",)), AccessGrant("m", ("boss",))]
            return chance.sample(some, chance.choice([0, 1, 1, 2]))

        def step() -> tuple[str, tuple[Any, ...], dict[str, Any]]:
            name, at = chance.choice(names), chance.randrange(12)
            added, removed = grants(), chance.sample(["mail", "*", "m*"], chance.choice([0, 0, 1]))
            return chance.choice(
                [
                    ("create_principal", (name, grants(), NOW), {"enabled": chance.random() < 0.8}),
                    ("update_principal", (name, NOW), {"enabled": chance.choice([None, True, False])}),
                    ("update_principal", (name, NOW), {"added": added, "removed": removed}),
                    ("update_principal", (name, NOW), {"grants": grants()}),
                    ("delete_principal", (name, NOW), {}),
                    ("create_token", (row(at, name, chance.choice([0, 0, NOW, NOW + 1])), NOW), {}),
                    ("create_token", (row(at, name), NOW), {}),
                    ("revoke_token", (row(at, name).id, NOW), {}),
                    ("add_certificate", (certificate(chance.choice(sans), name), NOW), {}),
                    ("remove_certificate", (chance.choice(sans), NOW), {}),
                    ("set_mode", (chance.choice(list(AccessMode)), NOW), {}),
                    ("make_administrator", (row(20 + at, name), NOW), {"anew": chance.random() < 0.5}),
                    ("note_used", ([row(at, name).id], chance.randrange(9)), {}),
                    ("principals", (chance.choice(["", "a"]), chance.choice(["", "a"]), 2), {}),
                    ("tokens", (chance.choice(["", *names]), "", 3), {}),
                    ("state", (NOW,), {}),
                ]
            )

        def done(meta: Any, name: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
            try:
                told = getattr(meta.access, name)(*arguments, **named)
            except FoqsError as error:
                return type(error)
            return replace(told, changed_at_ms=0) if name == "state" else told

        refused = 0
        for _ in range(150):
            name, arguments, named = step()
            one, other = (done(meta, name, arguments, named) for meta in (real, fake))
            assert one == other, (name, arguments, named)
            refused += isinstance(one, type)
            rows, known = read(real), read(fake)
            assert rows._replace(changed_at_ms=0) == known._replace(changed_at_ms=0), (name, arguments, named)
        assert 20 < refused < 130

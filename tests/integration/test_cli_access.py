"""`foqs access ...` over a socket, and the first administrator on a real meta database."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from click.testing import CliRunner, Result

from foqs.cli.access_commands import problems_of
from foqs.cli.main import cli
from foqs.host.access.book import AccessBook
from foqs.model import access_tokens
from foqs.model.access import AccessGrant, AccessMode
from foqs.model.access_calls import AccessPrincipal, AccessState, AccessToken
from foqs.model.errors import PermissionDeniedError
from foqs.model.limits import DAY_MS
from foqs.storage.meta.meta_store import MetaStore
from tests.support.background_host import background_host
from tests.support.fake_queue import FakeQueue

Run = Callable[..., Result]
NOW = 1_700_000_000_000


@pytest.fixture
def shell() -> Iterator[tuple[Run, FakeQueue]]:
    with background_host() as (address, queue):

        def run(*arguments: str, code: int = 0) -> Result:
            done = CliRunner().invoke(cli, ["access", *arguments, "--address", address], prog_name="foqs")
            assert done.exit_code == code, done.output
            return done

        yield run, queue


def test_the_life_of_a_principal_and_its_token(shell: tuple[Run, FakeQueue]) -> None:
    run, _ = shell
    assert "mail-*: worker" in run("principal", "create", "mailer", "mail-*", "worker").stdout
    run("grant", "add", "mailer", "x", "viewer", "producer")
    run("grant", "remove", "mailer", "mail-*")
    made = run("token", "create", "mailer", "--label", "of the old host", "--days", "7")
    token = access_tokens.parse(made.stdout.strip())
    assert token.id in made.stderr
    run("certificate", "add", "mailer", "foqs://c/mailer")
    (shown,) = json.loads(run("principal", "list", "--output", "json").stdout)
    assert shown["grants"] == [{"namespaces": "x", "roles": ["producer", "viewer"]}]
    assert (shown["tokens_count"], shown["certificates"][0]["name"]) == (1, "foqs://c/mailer")
    (listed,) = json.loads(run("token", "list", "mailer", "--output", "json").stdout)
    assert (listed["id"], listed["label"], listed["created_by"]) == (token.id, "of the old host", "everybody")
    assert listed["expires_at_ms"] - listed["created_at_ms"] == 7 * DAY_MS
    assert "hash" not in listed
    assert made.stdout.strip() not in run("token", "list").output
    run("principal", "disable", "mailer")
    assert "mailer\tno\t" in run("principal", "list").stdout
    run("principal", "enable", "mailer")
    run("token", "revoke", token.id)
    run("token", "revoke", token.id, code=3)
    run("certificate", "remove", "foqs://c/mailer")
    run("principal", "delete", "mailer", "--yes")
    run("principal", "disable", "mailer", code=3)


def test_a_token_goes_to_a_new_file_of_its_owner_alone(shell: tuple[Run, FakeQueue], tmp_path: Path) -> None:
    run, _ = shell
    path = tmp_path / "token"
    run("principal", "create", "mailer")
    run("token", "create", "nobody", "--save-to", str(path), code=3)
    assert not path.exists(), "no token was made"
    done = run("token", "create", "mailer", "--no-expiry", "--save-to", str(path))
    token = path.read_text().strip()
    access_tokens.parse(token)
    assert token not in done.output
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "exists already" in run("token", "create", "mailer", "--save-to", str(path), code=4).stderr
    assert path.read_text().strip() == token
    (listed,) = json.loads(run("token", "list", "--output", "json").stdout)
    assert listed["expires_at_ms"] == 0
    run("token", "create", "mailer", "--no-expiry", "--days", "3", code=2)


def test_access_is_enforced_only_with_an_administrator(shell: tuple[Run, FakeQueue]) -> None:
    run, _ = shell
    assert "open" in run("mode").stdout
    assert "role admin" in run("mode", "enforced", code=2).stderr
    run("mode", "permissive")
    run("principal", "create", "root", "*", "admin")
    token = json.loads(run("token", "create", "root", "--output", "json").stdout)["info"]["id"]
    assert json.loads(run("mode", "enforced", "--output", "json").stdout)["mode"] == "enforced"
    assert "role admin" in run("token", "revoke", token, code=2).stderr
    assert "role admin" in run("principal", "delete", "root", "--yes", code=2).stderr
    run("mode", "anarchy", code=2)


def test_what_cannot_be_meant_is_refused_with_the_rule(shell: tuple[Run, FakeQueue]) -> None:
    run, _ = shell
    assert "1 to 64" in run("principal", "create", "Mailer", code=2).stderr
    assert "grant it for '*'" in run("principal", "create", "mailer", "ns", "operator", code=2).stderr
    assert "has no role" in run("principal", "create", "mailer", "ns", code=2).stderr
    run("principal", "create", "mailer")
    assert "no '*'" in run("certificate", "add", "mailer", "*.example", code=2).stderr
    assert "no grant" in run("grant", "remove", "mailer", "ns", code=2).stderr
    assert "128 bytes" in run("token", "create", "mailer", "--label", "x" * 129, code=2).stderr
    assert "exists" in run("principal", "create", "mailer", code=4).stderr


def test_refusals_are_listed_the_last_first(shell: tuple[Run, FakeQueue]) -> None:
    run, queue = shell
    queue.refused.note("nobody", "ack", "mail", NOW)
    queue.refused.note("mailer", "listHosts", "", NOW + 1)
    queue.refused.note("nobody", "ack", "mail", NOW + 2)
    found = json.loads(run("refusals", "--output", "json").stdout)
    assert [(one["who"], one["verb"], one["namespace_name"], one["times_count"]) for one in found] == [
        ("nobody", "ack", "mail", 2), ("mailer", "listHosts", "", 1),
    ]  # fmt: skip
    assert "listHosts" in run("refusals").stdout


def test_check_leaves_with_1_while_something_should_be_looked_at(
    shell: tuple[Run, FakeQueue], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foqs.cli.access_commands.time", Mock(time_ns=lambda: NOW * 1_000_000))
    run, _ = shell
    assert "calls that are not permitted are done" in run("check", code=1).stdout
    for name in ("root", "boot"):
        run("principal", "create", name, "*", "admin")
        run("certificate", "add", name, f"foqs://{name}")
    assert "and a valid token" in run("mode", "enforced", code=2).output
    for name in ("root", "boot"):
        run("token", "create", name)
    run("mode", "enforced")
    assert run("check").stdout.count("\n") <= 1


def token(**given: int) -> AccessToken:
    return replace(
        AccessToken("abc", "mailer", "", NOW - 40 * DAY_MS, "root", NOW + 40 * DAY_MS, NOW - DAY_MS), **given
    )


FINE = AccessState(AccessMode.ENFORCED, 7, NOW, 2, 2, 2, 0, 2)


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (token(), ""),
        (token(expires_at_ms=0), "does not expire"),
        (token(expires_at_ms=NOW), "expired on"),
        (token(expires_at_ms=NOW + 13 * DAY_MS), "expires on"),
        (token(used_at_ms=0), "never used"),
        (token(used_at_ms=0, created_at_ms=NOW), ""),
        (token(used_at_ms=NOW - 31 * DAY_MS), "not used since"),
    ],
)
def test_check_names_tokens_that_last_too_long_end_soon_or_are_not_used(found: AccessToken, told: str) -> None:
    problems = list(problems_of(FINE, [found], [], NOW))
    assert (told in problems[0][1]) if told else (problems == [])
    assert len(problems) <= 1


def test_check_names_lone_administrators_and_principals_that_nobody_can_be() -> None:
    grants = [AccessGrant("*", ("admin",))]
    people = [
        AccessPrincipal("a", True, grants, NOW, 1),
        AccessPrincipal("b", True, (), NOW),
        AccessPrincipal("c", False, (), NOW),
    ]
    found = [what for what, _ in problems_of(replace(FINE, administrators_count=1), [], people, NOW)]
    assert found == ["administrators", "principal b"]


@pytest.mark.database
def test_init_makes_an_administrator_whom_hosts_know_and_reset_admin_ends_its_lost_token(
    meta_url: str, tmp_path: Path
) -> None:
    config = tmp_path / "host.toml"
    config.write_text(f'meta_url = "{meta_url}"\nhost_name = "a"\n')

    def run(command: str, path: Path, code: int = 0) -> Result:
        arguments = ["access", command, "--config", str(config), "--token-file", str(path)]
        done = CliRunner().invoke(cli, arguments, prog_name="foqs")
        assert done.exit_code == code, done.output
        return done

    first, second = tmp_path / "first", tmp_path / "second"
    done = run("init", first)
    text = first.read_text().strip()
    assert text not in done.output
    assert stat.S_IMODE(first.stat().st_mode) == 0o600
    with closing(MetaStore(meta_url)) as meta:
        book = AccessBook(meta.access, lambda: 0.0)
        book.read()
        credential = book.snapshot.by_token(text, NOW)
        principal = book.snapshot.principal(credential, NOW)
        assert principal is not None
        assert (principal.name, book.snapshot.mode) == ("admin", AccessMode.OPEN)
        assert "reset-admin" in run("init", second, code=4).stderr
        assert not second.exists()
        meta.access.update_principal("admin", NOW, grants=[], enabled=False)
        run("reset-admin", second)
        book.read()
        assert book.snapshot.by_token(second.read_text().strip(), NOW).principal == "admin"
        with pytest.raises(PermissionDeniedError):
            book.snapshot.by_token(text, NOW)
        meta.access.set_mode(AccessMode.ENFORCED, NOW)


@pytest.mark.database
def test_init_can_enforce_access_before_any_host_has_served_anybody(meta_url: str, tmp_path: Path) -> None:
    config = tmp_path / "host.toml"
    config.write_text(f'meta_url = "{meta_url}"\nhost_name = "a"\n')
    arguments = ["access", "init", "--enforce", "--config", str(config), "--token-file", str(tmp_path / "token")]
    assert CliRunner().invoke(cli, arguments, prog_name="foqs").exit_code == 0
    with closing(MetaStore(meta_url)) as meta:
        book = AccessBook(meta.access, lambda: 0.0)
        book.read()
    assert book.snapshot.mode is AccessMode.ENFORCED

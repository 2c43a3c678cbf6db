"""`foqs config check --protected`: exit code 3 while a door is open, 5 if that cannot be known, 0 if all are closed."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from sqlalchemy import make_url

from foqs.cli.first_administrator import make_administrator
from foqs.cli.main import cli
from foqs.config import HostConfig
from foqs.model.access import AccessMode
from foqs.model.limits import DAY_MS
from foqs.storage.meta.meta_store import MetaStore

pytestmark = pytest.mark.database


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("CONFIG", *(name.upper() for name in HostConfig.model_fields)):
        monkeypatch.delenv(f"FOQS_{key}", raising=False)


@pytest.fixture
def closed(tmp_path: Path) -> list[str]:
    """The flags of a configuration without an open door, but for its meta database."""
    flags = []
    for name in ("tls-cert-file", "tls-key-file", "database-ca-file"):
        path = tmp_path / name
        path.write_text("x")
        path.chmod(0o600)
        flags += [f"--{name}", str(path)]
    return [*flags, "--tls", "required", "--shard-places", "db-*:3306"]


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(cli, ["config", "check", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def protected_login(meta_url: str, tmp_path: Path) -> str:
    """The URL of the meta database with its password, if it has one, in a file."""
    url = make_url(meta_url)
    if url.password:
        path = tmp_path / "password"
        path.write_text(str(url.password))
        path.chmod(0o600)
        url = url._replace(password=None).update_query_dict({"password_file": str(path)})
    return url.render_as_string(hide_password=False)


def test_the_mode_of_access_is_read_and_only_an_enforced_one_closes_the_last_door(
    meta_url: str, closed: list[str], tmp_path: Path
) -> None:
    login = protected_login(meta_url, tmp_path)
    with closing(MetaStore(meta_url)) as meta:
        make_administrator(meta, tmp_path / "admin.token", DAY_MS, anew=False)
        for mode in AccessMode:
            meta.access.set_mode(mode, 1)
            result = run("--meta-url", login, *closed, "--protected")
            if mode is AccessMode.ENFORCED:
                assert (result.exit_code, result.stdout) == (0, ""), result.output
                assert "no door is open" in result.stderr
            else:
                assert result.exit_code == 3
                assert result.stdout.splitlines() == [
                    f"access: {mode.name.lower()} in the meta database, so calls that are not permitted are done; make "
                    "an administrator by foqs access init, and run foqs access mode enforced"
                ]
        meta.shards.adopt({7: "mysql://db-7:3306/s7"}, "")
        far = run("--meta-url", login, *closed[:4], *closed[6:], "--database-tls", "any", "--protected")
        assert far.exit_code == 3
        assert "whoever answers for db-7:3306, which has shards" in far.stdout
        assert run("--meta-url", login, *closed, "--protected").exit_code == 0


def test_each_door_is_a_line_of_the_output_and_the_check_without_the_option_is_as_before(closed: list[str]) -> None:
    flags = ["--meta-url", "mysql://foqs@127.0.0.1:1/meta", "--allow-open", "--tokens-without-tls", "--metrics-open"]
    result = run(*flags, "--protected")
    assert result.exit_code == 3
    assert [line.partition(":")[0] for line in result.stdout.splitlines()] == [
        "tls", "allow_open", "tokens_without_tls", "metrics_open", "meta_url", "shard_places",
    ]  # fmt: skip
    assert "not known: access: the meta database does not answer" in result.stderr
    plain = run(*flags)
    assert (plain.exit_code, plain.stdout) == (0, "")


def test_a_meta_database_that_cannot_be_reached_leaves_the_answer_open(closed: list[str], tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("x")
    password.chmod(0o600)
    url = f"mysql://foqs@127.0.0.1:1/meta?password_file={password}"
    result = run("--meta-url", url, *closed, "--protected")
    assert (result.exit_code, result.stdout) == (5, "")
    assert "not known: access: the meta database does not answer" in result.stderr
    assert "no door is open" not in result.stderr


@pytest.mark.parametrize("options", ["password_file=/none/at/all", "password_file=/none&ssl_ca=/none/at/all"])
def test_a_file_that_is_not_there_is_no_traceback(closed: list[str], options: str) -> None:
    result = run("--meta-url", f"mysql://foqs@127.0.0.1:1/meta?{options}", *closed, "--protected")
    assert result.exit_code == 5
    assert "not known: password_file of meta_url: the mode of /none" in result.stderr
    assert "not known: access: " in result.stderr

"""Contexts: the file with the named ways to reach a cluster, who can change it, and what counts before it."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import click
import pytest
from click.testing import CliRunner, Result

from foqs import AdminClient, AsyncAdminClient, AsyncClient, Client
from foqs.cli import remote
from foqs.cli.main import cli
from foqs.client import context_file
from foqs.client.context_file import BYTES_MAX, FILE_VARIABLE, ContextFile
from foqs.client.named_contexts import parsed_contexts, with_default
from foqs.model import access_tokens
from foqs.model.errors import InvalidArgumentError
from tests.support.waiting import PROGRAM_S_MAX

TOKEN = access_tokens.new_token(bytes(range(access_tokens.RANDOM_BYTES)))
TWO = """\
# who is who
default = "prod"   # until Friday

[prod]
addresses = ["queue-a.example:7600", "[2001:db8::7]:7601"]
ca_file = "ca.pem"
token_file = "/etc/foqs/prod.token"
namespace = "mail"

[test-1]
addresses = "127.0.0.1:7601"
cert_file = "~/me.pem"
key_file = "~/me.key"
server_name = "queue"
"""
CLIENTS = (Client, AdminClient, AsyncClient, AsyncAdminClient)


class FakeAdmin:
    """Stands in for the client of a command, and keeps its arguments."""

    made: dict[str, Any]

    def __init__(self, **arguments: Any) -> None:
        FakeAdmin.made = arguments

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        def verb(*arguments: Any, **more: Any) -> None:
            FakeAdmin.called = (name, *arguments, *more.values())
            raise InvalidArgumentError("enough")

        return verb

    called: tuple[Any, ...] = ()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory of the test's own, and no variable of the commands."""
    for name in [name for name in os.environ if name.startswith("FOQS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeAdmin]:
    monkeypatch.setattr(remote, "AdminClient", FakeAdmin)
    monkeypatch.setattr(remote, "Client", FakeAdmin)
    FakeAdmin.made, FakeAdmin.called = {}, ()
    return FakeAdmin


def written(home: Path, text: str, mode: int = 0o600) -> Path:
    path = home / ".config/foqs/contexts.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def run(*arguments: str, **variables: str) -> Result:
    result = CliRunner().invoke(cli, arguments, env=variables, prog_name="foqs")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def arguments_of(*command: str, **variables: str) -> dict[str, Any]:
    """The arguments of the client that a command makes, without those that are not of contexts."""
    result = run("whoami", *command, **variables)
    assert "enough" in result.stderr, result.stderr
    return {name: value for name, value in FakeAdmin.made.items() if name not in ("connections_max", "retry")}


# ---- the file ----


def test_a_file_has_contexts_with_the_arguments_of_clients(home: Path) -> None:
    found = parsed_contexts(home / "of" / "contexts.toml", TWO.encode())
    prod, test = found.named(), found.named("test-1")
    assert prod.arguments({}) == {
        "addresses": "queue-a.example:7600,[2001:db8::7]:7601", "tls": True, "ca_file": str(home / "of/ca.pem"),
        "token_file": "/etc/foqs/prod.token",
    }  # fmt: skip
    assert test.arguments({}) == {
        "addresses": "127.0.0.1:7601", "tls": True, "cert_file": str(home / "me.pem"),
        "key_file": str(home / "me.key"), "server_name": "queue",
    }  # fmt: skip
    assert prod.namespace == "mail"


def test_the_example_of_the_documents_is_valid(home: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/configuration.md").read_text()
    (example,) = re.findall(r"```toml\n(default = .*?)```", page, re.DOTALL)
    found = parsed_contexts(home / "contexts.toml", example.encode())
    assert (found.named().namespace, found.named("test").cert_file) == ("mail", f"{home}/.config/foqs/me.cert.pem")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[prod", "is not TOML"),
        ("[prod]\naddresses = 'a'\n[prod]", "is not TOML"),
        ("[prod]\naddresses = '\udcff'", "is not TOML"),
        ("a = " + "[" * 50_000, "too many brackets"),
        ("a = " + "9" * 5_000, "is not TOML"),
        ("defualt = 'prod'", "'defualt' is no key outside of a table; allowed: default, and tables [NAME]"),
        ("namespace = 'prod'", "tables [NAME], in which this key belongs"),
        ("default = 7", "default is a number; allowed: the name of a context"),
        ("[default]\naddresses = 'a'", "['default'] is no name of a context"),
        ("['a.b']\naddresses = 'a'", "['a.b'] is no name of a context; allowed: 1 to 64 of A-Z a-z 0-9 _ -"),
        ("[prod]", "[prod] addresses is missing; allowed: a text"),
        ("[prod]\naddresses = 7", "[prod] addresses is a number"),
        ("[prod]\naddresses = []", "[prod] addresses is a list of another form"),
        ("[prod]\naddresses = ['a', 7]", "[prod] addresses is a list of another form"),
        ("[prod]\naddresses = 'a:0'", "[prod] 'a:0' is not an address"),
        ("[prod]\naddresses = 'a'\ncafile = 'x'", "'cafile' is no key, did you mean ca_file?; allowed: addresses, "),
        ("[prod]\naddresses = 'a'\ntls = 'yes'", "[prod] tls is a text of another form; allowed: true, false"),
        ("[prod]\naddresses = 'a'\ntls = false\nca_file = 'x'", "[prod] tls = false is given with ca_file"),
        ("[prod]\naddresses = 'a'\nca_file = ''", "[prod] ca_file is an empty text; allowed: the path of a PEM file"),
        ("[prod]\naddresses = 'a'\ntoken_file = '''a\nb'''", "[prod] token_file is a text of another form"),
        ("[prod]\naddresses = 'a'\ntoken_file = \"a\\u0000\"", "[prod] token_file is a text of another form"),
        ("[prod]\naddresses = 'a'\ntoken_file = 2020-01-01", "[prod] token_file is a date or a time"),
        ("[prod]\naddresses = 'a'\nkey_file = 'x'", "[prod] key_file is given without cert_file"),
        ("[prod]\naddresses = 'a'\nserver_name = ' '", "[prod] server_name ' ' is neither a host name nor an address"),
        ("[prod]\naddresses = 'a'\nnamespace = '@'", "[prod] namespace is a text of another form; allowed: the name"),
        ("[prod]\naddresses = 'a'\n[prod.more]", "[prod] 'more' is no key"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_the_file_is_told_with_its_name_the_key_and_what_is_allowed(text: str, said: str) -> None:
    path = Path("/of/contexts.toml")
    with pytest.raises(InvalidArgumentError) as caught:
        parsed_contexts(path, text.encode(errors="surrogateescape"))
    assert said in caught.value.message
    assert caught.value.message.startswith("/of/contexts.toml")


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        parsed_contexts(Path("/f"), b"x = 1\n[a]\n[b]\naddresses = 'h'\ntls = 1\ny = 2\n")
    assert caught.value.message.count("/f: ") == 4


@pytest.mark.parametrize("key", ["token_file", "ca_file", "token", "password"])
def test_a_token_in_the_file_is_refused_and_not_repeated(key: str, home: Path) -> None:
    written(home, f"[prod]\naddresses = 'a'\n{key} = '{TOKEN}'\n")
    result = run("context", "list")
    assert result.exit_code == 2
    assert f"{key}" in result.stderr
    assert TOKEN[5:] not in result.output
    assert TOKEN[5:17] not in result.output, "not its id either"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666, 0o601])
def test_a_file_that_others_can_read_or_change_is_refused(mode: int, home: Path) -> None:
    path = written(home, TWO, mode)
    for command in (["context", "list"], ["context", "use", "test-1"], ["whoami", "--context", "prod"], ["whoami"]):
        result = run(*command)
        assert result.exit_code == 2
        assert f"{path} has mode {mode:04o}" in result.stderr
        assert f"chmod 600 {path}" in result.stderr
    assert path.read_text() == TWO


def test_a_file_of_another_user_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(home, TWO)
    monkeypatch.setattr(context_file.os, "geteuid", lambda: path.stat().st_uid + 1)
    with pytest.raises(InvalidArgumentError, match=r"belongs to the user .* change its owner"):
        ContextFile.of_user().read()


def test_a_file_may_be_for_reading_alone(home: Path) -> None:
    written(home, TWO, 0o400)
    assert ContextFile.of_user().read().default == "prod"


def test_what_is_no_file_or_too_long_is_refused_at_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(home / "pipe", 0o600)
    (home / "directory").mkdir(0o700)
    written(home, "#" * (BYTES_MAX + 1)).rename(home / "long")
    for name, said in (("pipe", "no regular file"), ("directory", "no regular file"), ("long", f"{BYTES_MAX} bytes"),
                       ("none", "FOQS_CONTEXTS_FILE names, does not exist")):  # fmt: skip
        monkeypatch.setenv(FILE_VARIABLE, str(home / name))
        with pytest.raises(InvalidArgumentError, match=said):
            ContextFile.of_user().read_if_there()


def test_a_variable_names_another_file_also_by_a_relative_path(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(home, TWO).rename(home / "mine.toml")
    monkeypatch.chdir(home)
    monkeypatch.setenv(FILE_VARIABLE, "mine.toml")
    found = ContextFile.of_user().read()
    assert found.named().ca_file == str(home / "ca.pem")


def test_a_user_without_a_home_has_no_contexts_and_can_still_call(
    fake: type[FakeAdmin], monkeypatch: pytest.MonkeyPatch
) -> None:
    def homeless(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", homeless)
    assert arguments_of() == {"addresses": "127.0.0.1:7600"}
    with pytest.raises(InvalidArgumentError, match="there are no contexts"):
        ContextFile.of_user().read()


# ---- use ----


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ('default = "a" # x "y"\n[a]\n', 'default = "b" # x "y"\n[a]\n'),
        ("# c\n  'default'='a'\n", '# c\ndefault = "b"\n'),
        ("default = 'a'", 'default = "b"'),
        ("[a]\n", 'default = "b"\n\n[a]\n'),
        ("\n[a]\n", 'default = "b"\n\n[a]\n'),
        ("# [x]\r\ndefault = 'a'\r\n[a]\r\n", '# [x]\r\ndefault = "b"\r\n[a]\r\n'),
        ("[a]\r\n", 'default = "b"\r\n\r\n[a]\r\n'),
        ("# default = 'a'\n[a]\ndefault = 'z'\n", "default = \"b\"\n\n# default = 'a'\n[a]\ndefault = 'z'\n"),
        ("# a\u2028[b]\ndefault = 'a'\n", '# a\u2028[b]\ndefault = "b"\n'),
        ("", 'default = "b"\n'),
    ],
)
def test_another_default_changes_one_line(text: str, after: str) -> None:
    assert with_default(text, "b") == after


def test_use_changes_the_default_and_keeps_the_mode_the_comments_and_a_link(home: Path) -> None:
    path = written(home, TWO, 0o400)
    real = home / "dotfiles.toml"
    path.rename(real)
    path.symlink_to(real)
    result = run("context", "use", "test-1", "--output", "json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["name"] == "test-1"
    assert real.read_text() == TWO.replace('"prod"   #', '"test-1"   #', 1)
    assert stat.S_IMODE(real.stat().st_mode) == 0o400
    assert path.is_symlink()
    assert sorted(one.name for one in home.iterdir()) == [".config", "dotfiles.toml"], "nothing is left over"


def test_use_of_an_unknown_context_changes_nothing_and_names_the_known_ones(home: Path) -> None:
    path = written(home, TWO)
    for command in (["context", "use", "prd"], ["context", "show", "prd"], ["whoami", "--context", "prd"]):
        result = run(*command)
        assert result.exit_code == 2
        assert f"'prd' is no context of {path}; known: prod, test-1" in result.stderr
    assert path.read_text() == TWO


def test_use_works_though_the_default_is_gone(home: Path) -> None:
    path = written(home, TWO.replace('"prod"   #', '"gone" #'))
    assert "default = 'gone' is no context" in run("whoami").stderr
    assert "test-1" in run("context", "list").stdout
    assert run("context", "use", "test-1").exit_code == 0
    assert ContextFile.of_user().read().default == "test-1"
    assert path.read_text().count("default") == 1


def test_a_default_in_an_unusual_form_is_left_as_it_is(home: Path) -> None:
    text = TWO.replace('default = "prod"', '"""', 1).replace('"""', 'default = """\\\n  prod"""', 1)
    path = written(home, text)
    assert ContextFile.of_user().read().default == "prod"
    result = run("context", "use", "test-1")
    assert result.exit_code == 2
    assert "unusual form" in result.stderr
    assert path.read_text() == text


def test_a_disk_that_is_full_leaves_the_old_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(home, TWO)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(context_file.os, "fsync", full)
    result = run("context", "use", "test-1")
    assert result.exit_code == 1
    assert "No space left on device" in result.stderr
    assert path.read_text() == TWO
    assert [one.name for one in path.parent.iterdir()] == [path.name]


# ---- the commands ----


def test_list_and_show_tell_contexts_in_both_forms(home: Path) -> None:
    written(home, TWO)
    found = json.loads(run("context", "list", "--output", "json").stdout)
    assert [(one["name"], one["default"], one["tls"]) for one in found] == [
        ("prod", True, True),
        ("test-1", False, True),
    ]
    shown = json.loads(run("context", "show", "--output", "json").stdout)
    assert (shown["name"], shown["token_file"], shown["namespace"]) == ("prod", "/etc/foqs/prod.token", "mail")
    table = run("context", "list").stdout
    assert "queue-a.example:7600,[2001:db8::7]:7601" in table
    assert "me.pem" in run("context", "show", "test-1").stdout


def test_without_a_file_there_are_no_contexts_and_commands_call_this_machine(fake: type[FakeAdmin], home: Path) -> None:
    result = run("context", "list")
    assert result.exit_code == 2
    assert f"{home}/.config/foqs/contexts.toml does not exist" in result.stderr
    assert arguments_of() == {"addresses": "127.0.0.1:7600"}
    assert "does not exist" in run("whoami", "--context", "prod").stderr


def test_a_flag_counts_before_a_variable_before_a_context_before_the_default(fake: type[FakeAdmin], home: Path) -> None:
    written(home, TWO)
    prod = {"addresses": "queue-a.example:7600,[2001:db8::7]:7601", "tls": True,
            "ca_file": f"{home}/.config/foqs/ca.pem", "token_file": "/etc/foqs/prod.token"}  # fmt: skip
    test = {"addresses": "127.0.0.1:7601", "tls": True, "server_name": "queue",
            "cert_file": f"{home}/me.pem", "key_file": f"{home}/me.key"}  # fmt: skip
    assert arguments_of() == prod
    assert arguments_of("--context", "test-1") == test
    assert arguments_of(FOQS_CONTEXT="test-1") == test
    assert arguments_of("--context", "prod", FOQS_CONTEXT="test-1") == prod
    assert arguments_of("--context", "test-1", FOQS_SERVER_NAME="other") == {**test, "server_name": "other"}
    assert arguments_of("--context", "test-1", "--server-name", "flag", FOQS_SERVER_NAME="other") == {
        **test, "server_name": "flag",
    }  # fmt: skip
    assert arguments_of("--context", "prod", "--address", "one", FOQS_ADDRESS="two") == {**prod, "addresses": "one"}
    assert arguments_of("--context", "prod", FOQS_ADDRESS="two") == {**prod, "addresses": "two"}


def test_the_default_context_is_not_mixed_with_an_address_of_other_hosts(fake: type[FakeAdmin], home: Path) -> None:
    """Else its token could go to hosts that it is not for."""
    written(home, TWO)
    assert arguments_of("--address", "other:1") == {"addresses": "other:1"}
    assert arguments_of(FOQS_ADDRESS="other:1", FOQS_CA_FILE="/x") == {
        "addresses": "other:1",
        "ca_file": "/x",
        "tls": True,
    }
    written(home, "no TOML")
    assert arguments_of("--address", "other:1") == {"addresses": "other:1"}, "nor is its file looked at"
    assert "is not TOML" in run("whoami").stderr


def test_a_credential_replaces_that_of_the_context_as_a_whole(fake: type[FakeAdmin], home: Path) -> None:
    written(home, TWO)
    assert arguments_of("--token-file", "/t")["token_file"] == "/t"
    by_variable = arguments_of(FOQS_TOKEN=TOKEN)
    assert by_variable["token"] == TOKEN
    assert "token_file" not in by_variable
    assert "token" not in arguments_of("--token-file", "/t", FOQS_TOKEN=TOKEN)
    assert not {"token", "token_file"} & arguments_of("--token-file", "").keys()
    other = arguments_of("--context", "test-1", "--cert-file", "/c")
    assert other["cert_file"] == "/c"
    assert "key_file" not in other, "it is the key of another certificate"


def test_an_at_sign_is_the_namespace_of_the_context(fake: type[FakeAdmin], home: Path) -> None:
    written(home, TWO)
    run("topics", "@")
    assert "mail" in fake.called
    run("audit", "list", "--namespace", "@")
    assert fake.called[0] == "list_audit"
    assert "mail" in fake.called
    for command, said in ((["--context", "test-1"], "the context test-1 has none"), (["--address", "a"], "no context")):
        result = run("topics", "@", *command)
        assert result.exit_code == 2
        assert said in result.stderr


# ---- libraries ----


@pytest.mark.parametrize("make", CLIENTS)
def test_each_client_can_be_made_by_a_context(make: Any, home: Path) -> None:
    written(home, TWO)
    prod, test = make.from_context(), make.from_context("test-1", timeout_ms=7, server_name="other")
    assert prod.options.addresses == "queue-a.example:7600,[2001:db8::7]:7601"
    assert prod.options.tls
    assert "prod.token" in repr(prod.options.token)
    assert test.options.timeout_ms == 7
    assert "server_name=other" in repr(test.options.tls)
    assert not test.options.token
    assert repr(make.from_context("prod", token=TOKEN).options.token) == "OwnToken(***)"
    with pytest.raises(InvalidArgumentError, match="known: prod, test-1"):
        make.from_context("prd")


@pytest.mark.parametrize("make", CLIENTS)
def test_no_variable_changes_a_client_of_a_library(make: Any, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(home, TWO)
    for name in ("ADDRESS", "CONTEXT", "CA_FILE", "SERVER_NAME", "TOKEN_FILE", "TOKEN", "USE_TLS"):
        monkeypatch.setenv(f"FOQS_{name}", "other")
    assert make().options.addresses == "127.0.0.1:7600"
    assert not make().options.tls
    assert make.from_context().options.addresses.startswith("queue-a")


def test_a_plain_client_does_not_read_the_file_of_contexts() -> None:
    code = "import sys, foqs; foqs.Client().close(); sys.exit('tomllib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=PROGRAM_S_MAX, check=False).returncode == 0


# ---- the help of all commands ----


def _commands(command: click.Command, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None, (*path, name)
            yield from _commands(found, *path, name)


ALL = dict(_commands(cli))


@pytest.mark.parametrize("path", ALL, ids=lambda path: " ".join(path) or "foqs")
def test_each_command_has_help_and_those_that_call_hosts_take_a_context(path: tuple[str, ...]) -> None:
    result = run(*path, "--help")
    assert result.exit_code == 0
    assert result.stdout.startswith("Usage: foqs")
    options = {name for parameter in ALL[path].params for name in parameter.opts}
    assert ("--context" in options) is bool(options & {"--address", "--addresses"})


def test_the_commands_were_found() -> None:
    assert len(ALL) > 60
    assert sum("--context" in {name for one in command.params for name in one.opts} for command in ALL.values()) > 45

"""A secret that is planted wherever a host can have one shows in nothing that others can see."""

from __future__ import annotations

import gc
import io
import json
import os
import pickle
import signal
import subprocess
import sys
import traceback
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pymysql
import pytest
from pydantic import BaseModel

from foqs.bootstrap import Host
from foqs.client.sync import AdminClient
from foqs.config import ConfigError, load_config
from foqs.dev.local_server import LocalServer
from foqs.model.errors import FoqsError
from foqs.model.secret import Secret
from foqs.storage.meta.meta_store import MetaStore
from foqs.storage.schema import migrations
from foqs.storage.schema.migrations import SchemaKind, apply
from foqs.storage.sessions.session import connect
from tests.support.certificates import write_certificate
from tests.support.databases import prepared_server
from tests.support.false_server import FULL_LOGIN, FalseServer, Talk
from tests.support.faults.programs import FOQS, Program, free_port
from tests.support.waiting import PATIENCE_MS, until

pytestmark = [pytest.mark.database, pytest.mark.deep]
PLANTED = "planted-Xq7-and-more"
WRONG = "planted-Wr0ng"
MARK = "planted-"
PLACES = ["config", "file", "environment"]
FAILURES = {
    "wrong password": "Access denied",
    "server away": "refused",
    "false server": "full login",
    "server that goes after it has the password": "was lost during the login",
}
"""The reasons that a login fails, each with a part of the message."""


@contextmanager
def failing(failure: str, directory: Path) -> Iterator[tuple[str, str]]:
    """Yields a password, and the address of a server to which it leads; empty for the real one."""

    def ask(talk: Talk) -> None:
        talk.greet("caching_sha2_password", directory if "goes" in failure else None)
        talk.say(FULL_LOGIN)
        talk.hear()

    write_certificate(directory)
    with FalseServer(ask) as server:
        if failure == "wrong password":
            yield WRONG, ""
        elif failure == "server away":
            yield PLANTED, f"127.0.0.1:{free_port()}"
        else:
            yield PLANTED, f"127.0.0.1:{server.port}"
    assert (PLANTED.encode() in server.heard) is ("goes" in failure)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    with prepared_server(tmp_path_factory.mktemp("planted")) as server:
        apply(server.url("foqs_meta"), SchemaKind.META)
        apply(server.url("foqs_0"), SchemaKind.SHARD)
        with closing(server.connect()) as session, session.cursor() as cursor:
            cursor.execute(f"CREATE USER app@localhost IDENTIFIED BY '{PLANTED}'")
            cursor.execute("GRANT ALL PRIVILEGES ON `foqs\\_%`.* TO app@localhost")
        yield server


class Planted:
    """The configuration of a host with a password in one place."""

    def __init__(self, server: LocalServer, directory: Path, place: str, word: str = PLANTED, at: str = "") -> None:
        self.port = free_port()
        self.file = directory / "foqs.toml"
        password_file = directory / "password"
        password_file.write_text(word)
        password_file.chmod(0o600)

        def url(database: str) -> str:
            bare = f"mysql://root@{at}/{database}?connect_timeout=1" if at else server.url(database)
            user = "app" if place == "file" else f"app:{word}"
            return bare.replace("//root@", f"//{user}@") + (
                f"&password_file={password_file}" if place == "file" else ""
            )

        self.urls = {"meta_url": url("foqs_meta"), "shard_login": url("x"), "shard": url("foqs_0")}
        token_file = directory / "metrics-token"
        token_file.write_text(f"{MARK}of-metrics")
        token_file.chmod(0o600)
        self.metrics_port = free_port()
        settings = (
            f'port = {self.port}\nhost_name = "h"\nlog_level = "debug"\nmetrics_port = {self.metrics_port}\n'
            f'metrics_token_file = "{token_file}"\n'
        )
        in_file = (
            f'meta_url = "{self.urls["meta_url"]}"\nshard_login = "{self.urls["shard_login"]}"\n[shards]\n'
            f'0 = "{self.urls["shard"]}"\n'
        )
        self.file.write_text(settings + ("" if place == "environment" else in_file))
        of_place = {
            "FOQS_META_URL": self.urls["meta_url"],
            "FOQS_SHARD_LOGIN": self.urls["shard_login"],
            "FOQS_SHARDS": f"0={self.urls['shard']}",
        }
        self.variables = of_place if place == "environment" else {}

    def foqs(self, *arguments: str) -> str:
        """Returns all that a command prints."""
        done = subprocess.run(
            [str(FOQS), *arguments, "--config", str(self.file)],
            env=os.environ | self.variables,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        return done.stdout + done.stderr


def metrics(port: int) -> str:
    """Returns the metrics, which are shown with the token, and the refusal without it."""
    url = f"http://127.0.0.1:{port}/metrics"
    asked = urllib.request.Request(url, headers={"Authorization": f"Bearer {MARK}of-metrics"})
    with urllib.request.urlopen(asked, timeout=60) as answer:
        text: str = answer.read().decode()
    assert "foqs_" in text
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(url, timeout=60)
    with refused.value as answer:
        return text + answer.read().decode() + str(answer.headers)


def command_lines(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


@pytest.mark.parametrize("place", PLACES)
def test_a_host_that_starts_works_reloads_and_ends_shows_it_nowhere(
    server: LocalServer, tmp_path: Path, place: str
) -> None:
    planted = Planted(server, tmp_path, place)
    host = Program(str(FOQS), "host", "--config", str(planted.file), name="host", variables=planted.variables)
    try:
        host.wait_for_line("shard_opened")
        host.wait_for_line(" serves ")
        with closing(AdminClient(f"127.0.0.1:{planted.port}", timeout_ms=PATIENCE_MS)) as admin:
            admin.create_namespace(f"jobs-{place}")
        shown = command_lines(host.pid) + metrics(planted.metrics_port)
        assert "foqs" in shown
        host.signal(signal.SIGHUP)
        host.wait_for_line("configuration_reloaded")
        host.signal(signal.SIGTERM)
        assert host.wait() == 0, host.output
        assert "host_stopped" in host.output
        assert MARK not in host.output + shown
    finally:
        host.close()


@pytest.mark.parametrize("place", PLACES)
def test_commands_show_it_nowhere(server: LocalServer, tmp_path: Path, place: str) -> None:
    planted = Planted(server, tmp_path, place)
    shown = [planted.foqs(*words) for words in (("config", "show"), ("config", "check"), ("schema", "status"))]
    assert "***" in shown[0] or place == "file"
    assert "the configuration is valid" in shown[1]
    assert "shard 0" in shown[2]
    assert MARK not in "".join(shown)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("failure", list(FAILURES))
def test_a_host_that_cannot_start_shows_it_nowhere(
    server: LocalServer, tmp_path: Path, place: str, failure: str
) -> None:
    with failing(failure, tmp_path) as (word, at):
        planted = Planted(server, tmp_path, place, word, at)
        shown = planted.foqs("host") + planted.foqs("schema", "status") + planted.foqs("schema", "apply")
    assert FAILURES[failure] in shown
    assert MARK not in shown


def told_with_locals(error: BaseException) -> str:
    """Returns the traceback of an error with the local values of all its frames, and of all its causes."""
    text = "".join(traceback.TracebackException.from_exception(error, capture_locals=True).format())
    original = getattr(error, "original_exception", None)
    return text + repr(error) + (told_with_locals(original) if original is not None else "")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("failure", list(FAILURES))
def test_tracebacks_with_local_values_do_not_show_it(
    server: LocalServer, tmp_path: Path, place: str, failure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with failing(failure, tmp_path) as (word, at):
        planted = Planted(server, tmp_path, place, word, at)
        for name, value in planted.variables.items():
            monkeypatch.setenv(name, value)
        config = load_config({}, planted.file).config
        for attempt in (
            lambda: connect(config.meta_url),
            MetaStore(config.meta_url).shards.read_all,
            lambda: migrations.apply(config.shards[0], SchemaKind.SHARD),
        ):
            with pytest.raises((pymysql.err.Error, FoqsError)) as refused:
                attempt()
            text = told_with_locals(refused.value)
            assert FAILURES[failure] in text
            assert MARK not in without_frames_of(text, __file__)


def without_frames_of(text: str, file: str) -> str:
    """Leaves out the frames of this test, which have the planted values themselves."""
    kept, skips = [], False
    for line in text.splitlines():
        if line.startswith('  File "'):
            skips = f'"{file}"' in line
        elif not line.startswith(" "):
            skips = False
        if not skips:
            kept.append(line)
    return "\n".join(kept)


def test_a_configuration_with_a_problem_shows_it_in_no_traceback(tmp_path: Path) -> None:
    file = tmp_path / "foqs.toml"
    for spoiled in ("port = 99999", 'log_level = "x"', "[shards]\n0 = 7"):
        file.write_text(f'meta_url = "mysql://app:{PLANTED}@db/meta"\n{spoiled}\n')
        with pytest.raises(ConfigError) as refused:
            load_config({}, file)
        assert MARK not in without_frames_of(told_with_locals(refused.value), __file__)


@pytest.mark.parametrize("place", PLACES)
async def test_nothing_that_a_running_host_reaches_shows_it(
    server: LocalServer, tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = Planted(server, tmp_path, place)
    for name, value in planted.variables.items():
        monkeypatch.setenv(name, value)
    loaded = load_config({}, planted.file)
    host = Host(loaded.config.model_copy(update={"port": 0}))
    await host.start()
    try:
        await until(lambda: host.owned_count == 1)
        secret = host._secrets.current
        assert isinstance(secret, Secret)
        hidden = [MARK, repr(secret.reveal())[2:-1], secret.reveal().hex()]
        seen_count = 0
        for one in reachable(loaded, host):
            seen_count += 1
            for text in forms_of(one):
                assert not any(word in text for word in hidden), (type(one), text[:200])
        assert seen_count > 5_000, "the search has looked at less than it says"
    finally:
        await host.drain()
        await host.stop()


def reachable(*roots: object) -> Iterator[object]:
    """Yields every object of the product, of the driver and of plain containers that these lead to, but no Secret."""
    seen: set[int] = set()
    waiting: list[object] = list(roots)
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, Secret | type):
            continue
        seen.add(id(one))
        module = type(one).__module__
        if module.startswith(("foqs", "pymysql", "sqlalchemy", "pydantic", "functools", "ssl", "collections")) or type(
            one
        ) in (dict, list, tuple, set, frozenset, str, bytes):
            yield one
        if isinstance(one, str | bytes | int | float) or type(one).__name__ == "module":
            continue
        waiting += gc.get_referents(one) if not callable(one) else gc_of(one)


def test_the_search_finds_one_that_is_held_in_the_open(server: LocalServer, tmp_path: Path) -> None:
    """In a URL as text, behind a closure, a partial and the session of a driver."""
    url = Planted(server, tmp_path, "config").urls["meta_url"]
    with closing(MetaStore(url)) as meta, closing(connect(url)) as session:
        for holder in (meta, partial(connect, url), lambda: url, {"a": [url]}):
            assert any(MARK in text for one in reachable(holder) for text in forms_of(one))
        assert not any(MARK in text for one in reachable(session) for text in forms_of(one))


def gc_of(one: object) -> list[object]:
    """Returns the values that a function, a method or a partial holds, without the globals of its module."""
    closure = [cell.cell_contents for cell in getattr(one, "__closure__", None) or () if cell_is_full(cell)]
    bound = [getattr(one, name) for name in ("__self__", "func", "args", "keywords") if hasattr(one, name)]
    return [*closure, *bound, *vars(one).values()] if hasattr(one, "__dict__") else [*closure, *bound]


def cell_is_full(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def forms_of(one: object) -> Iterator[str]:
    if isinstance(one, str):
        yield one
        return
    try:
        yield repr(one)
        yield f"{one}"
    except Exception:  # Some objects of SQLAlchemy are not whole by themselves.
        assert not type(one).__module__.startswith("foqs")
        return
    if isinstance(one, BaseModel):
        yield str(one.model_dump())
        yield json.dumps(one.model_dump(), default=str)
    if is_dataclass(one) and not isinstance(one, type):
        try:
            yield str(asdict(one))
            yield repr(pickle.dumps(one))
        except (TypeError, AttributeError, pickle.PicklingError):  # It has a lock or a Secret, which is not copied.
            return


def test_what_a_debugger_of_threads_prints_does_not_show_it(server: LocalServer, tmp_path: Path) -> None:
    planted = Planted(server, tmp_path, "config")
    config = load_config({}, planted.file).config
    with closing(connect(config.meta_url)) as session:
        out = io.StringIO()
        print(vars(session), file=out)
        assert MARK not in out.getvalue()
        assert session.password == PLANTED.encode()
    assert sys.exc_info() == (None, None, None)

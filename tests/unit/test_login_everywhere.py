"""Every MySQL session of this repository is opened by the login that shows no password to strangers."""

from __future__ import annotations

import ast
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pymysql.err import MySQLError

from foqs.model.errors import FoqsError
from foqs.storage.meta.meta_store import MetaStore
from foqs.storage.schema.migrations import SchemaKind, apply, status
from foqs.storage.sessions import login
from foqs.storage.sessions.login import GuardedConnection, NamedBy
from foqs.storage.sessions.places import url_at
from foqs.storage.sessions.session import Session, connect, session_arguments
from foqs.storage.shard.identity import identity_at
from foqs.storage.shard.packs.budget import PackBudget
from foqs.storage.shard.packs.pack_index import PackIndex
from foqs.storage.shard.shard_reader import ShardReader
from foqs.storage.shard.slot_source import SlotSource
from tests.support.false_server import FalseServer, Talk
from tests.support.sources import parsed

ROOT = Path(__file__).parents[2]


def dotted(node: ast.expr) -> str:
    """A name, or names with dots between them."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def ways_to_a_session(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (name := dotted(node.func)) in OPENERS:
            yield name
        elif isinstance(node, ast.ClassDef):
            yield from (name for base in node.bases if (name := dotted(base)) in OPENERS)
        elif isinstance(node, ast.ImportFrom) and node.module in ("pymysql", "pymysql.connections"):
            yield from (f"from {node.module}" for one in node.names if one.name in NAMES)
        elif isinstance(node, ast.Import):
            yield from (one.name for one in node.names if one.name.split(".")[0] in OTHER_DRIVERS)


NAMES = ("connect", "Connect", "Connection", "connections")
OPENERS = {*(f"pymysql.{name}" for name in NAMES), "pymysql.connections.Connection", "create_engine"}
OTHER_DRIVERS = ("aiomysql", "asyncmy", "MySQLdb", "mysql", "mariadb")


def test_no_other_way_leads_to_a_session() -> None:
    """Neither pymysql nor SQLAlchemy opens one by itself, nor does anybody make an unguarded connection."""
    found = [
        (str(path.relative_to(ROOT)), way)
        for folder in ("foqs", "loadtest", "scripts", "tests")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for way in ways_to_a_session(parsed(path))
    ]
    assert found == [
        ("foqs/storage/meta/meta_sessions.py", "create_engine"),
        ("foqs/storage/sessions/login.py", "pymysql.connections.Connection"),
    ]
    assert "creator=self._connect" in (ROOT / "foqs/storage/meta/meta_sessions.py").read_text()


@pytest.mark.parametrize(
    "text",
    [
        "import pymysql\npymysql.connect(host='h')", "class C(pymysql.connections.Connection): pass",
        "from pymysql import connect", "from pymysql.connections import Connection", "import MySQLdb",
        "create_engine(u)",
    ],
)  # fmt: skip
def test_another_way_would_be_found(text: str) -> None:
    assert list(ways_to_a_session(ast.parse(text)))


SESSIONS: dict[str, Callable[[str], object]] = {
    "shard": connect,
    "meta": lambda url: MetaStore(url).shards.read_all(),
    "reader": lambda url: ShardReader(0, url, PackIndex(PackBudget(0))).expired_page(0, 0)(),
    "slot source": lambda url: SlotSource(0, url).slots(),
    "identity": lambda url: identity_at(0, url),
    "schema status": lambda url: status(url, SchemaKind.SHARD),
    "schema apply": lambda url: apply(url, SchemaKind.SHARD),
}


@pytest.mark.parametrize("name", SESSIONS)
def test_each_kind_of_session_keeps_the_password(name: str) -> None:
    def ask(talk: Talk) -> None:
        talk.greet("mysql_native_password")
        talk.switch("mysql_clear_password", b"")

    with FalseServer(ask) as server:
        with pytest.raises((FoqsError, MySQLError), match="asks by 'mysql_clear_password'"):
            SESSIONS[name](server.url())
        # Whoever may not log in there at all does not even call.
        count = len(server.talks)
        nobody = url_at(f"mysql://127.0.0.1:{server.port}/d", server.url(), NamedBy.NOBODY)
        if name != "meta":
            with pytest.raises((FoqsError, MySQLError), match="was not called"):
                SESSIONS[name](nobody)
        assert len(server.talks) == count
    assert b"geheimnis" not in server.heard


def test_every_session_has_the_guards() -> None:
    assert issubclass(Session, GuardedConnection)
    made = Session(**session_arguments("mysql+pymysql://app:x@h/d"), defer_connect=True)
    assert made._auth_plugin_map == {"caching_sha2_password": login._CachingSha2Password}
    assert not made._local_infile
    assert made.ctx.verify_mode is ssl.CERT_NONE, "without options nothing is verified, and the guards are all there is"

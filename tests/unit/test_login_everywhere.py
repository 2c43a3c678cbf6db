"""Every MySQL session of this repository is opened by the login that shows no password to strangers."""

from __future__ import annotations

import ast
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from foqs.storage import login
from foqs.storage.login import GuardedConnection
from foqs.storage.session import Session, session_arguments

ROOT = Path(__file__).parents[2]


def dotted(node: ast.expr) -> str:
    return ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute) else ""


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
        for way in ways_to_a_session(ast.parse(path.read_text()))
    ]
    assert found == [
        ("foqs/storage/login.py", "pymysql.connections.Connection"),
        ("foqs/storage/meta.py", "create_engine"),
    ]
    assert "creator=self._connect" in (ROOT / "foqs/storage/meta.py").read_text()


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


def test_every_session_has_the_guards() -> None:
    assert issubclass(Session, GuardedConnection)
    made = Session(**session_arguments("mysql+pymysql://app:x@h/d"), defer_connect=True)
    assert made._auth_plugin_map == {"caching_sha2_password": login._CachingSha2Password}
    assert not made._local_infile
    assert made.ctx.verify_mode is ssl.CERT_NONE, "without options nothing is verified, and the guards are all there is"

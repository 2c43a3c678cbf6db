"""The logins of a true server of MySQL 8 or newer: the short exchange and the full login of caching_sha2_password."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pymysql
import pytest
from pymysql.constants import ER

from foqs.dev.local_access import TcpListener
from foqs.dev.local_server import LocalServer
from foqs.storage.sessions.login import GuardedConnection, NamedBy
from tests.support.certificates import write_certificate
from tests.support.databases import prepared_server, server_binary
from tests.support.faults.programs import free_port

pytestmark = [
    pytest.mark.database,
    pytest.mark.skipif(server_binary().is_mariadb, reason="MariaDB has no caching_sha2_password of MySQL's kind"),
]
PASSWORD = secrets.token_urlsafe()
STRANGE = {"named_by": NamedBy.META}


@dataclass(frozen=True)
class World:
    server: LocalServer
    port: int
    authority: Path

    def open(self, user: str, **arguments: Any) -> GuardedConnection:
        """A session by TCP, encrypted if the server can do it and nothing verified, unless the arguments say else."""
        wanted = {"host": "127.0.0.1", "port": self.port, "user": user, "password": PASSWORD, "connect_timeout": 60}
        return GuardedConnection(**wanted | arguments)

    def run(self, statement: str) -> Any:
        with closing(self.server.connect()) as session, session.cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetchall()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("logins")
    write_certificate(directory)
    certificate, key = directory / "cert.pem", directory / "key.pem"
    options = [f"--ssl-ca={certificate}", f"--ssl-cert={certificate}", f"--ssl-key={key}"]
    listener = TcpListener(free_port(), secrets.token_urlsafe())
    with prepared_server(directory / "server", *options, listener=listener) as server:
        yield World(server, listener.port, certificate)


@pytest.fixture
def user(world: World) -> str:
    """A user whom the server does not remember yet, so that it wants a full login."""
    name = f"u{secrets.token_hex(8)}"
    world.run(f"CREATE USER {name} IDENTIFIED WITH caching_sha2_password BY '{PASSWORD}'")
    return name


def plugin_works(session: GuardedConnection) -> bool:
    with session, session.cursor() as cursor:
        cursor.execute("SELECT 1")
        return cursor.fetchall() == ((1,),)


@pytest.mark.parametrize("link", [{}, {"ssl_disabled": True}], ids=["unverified TLS", "plain"])
def test_a_full_login_is_refused_where_nothing_proves_the_server_and_the_short_one_works(
    world: World, user: str, link: dict[str, Any]
) -> None:
    with pytest.raises(pymysql.err.OperationalError, match=r"full login of caching_sha2_password.*unix socket"):
        world.open(user, **STRANGE, **link)
    world.open(user, ssl={"ca": str(world.authority)}).close()
    assert plugin_works(world.open(user, **STRANGE, **link)), "the server remembers the user now"
    world.run("FLUSH PRIVILEGES")
    with pytest.raises(pymysql.err.OperationalError, match="full login of caching_sha2_password"):
        world.open(user, **STRANGE, **link)


def test_a_full_login_works_over_verified_tls(world: World, user: str) -> None:
    session = world.open(user, **STRANGE, ssl={"ca": str(world.authority)})
    assert session.may_carry_password
    assert plugin_works(session)


def test_a_full_login_works_over_a_socket(world: World, user: str) -> None:
    assert plugin_works(world.open(user, host=None, unix_socket=str(world.server.socket_path), ssl_disabled=True))


def test_a_full_login_works_at_a_loopback_address_that_the_configuration_names(world: World, user: str) -> None:
    assert plugin_works(world.open(user))


def test_a_full_login_without_tls_is_refused_even_there(world: World, user: str) -> None:
    with pytest.raises(pymysql.err.OperationalError, match="of a server with TLS"):
        world.open(user, ssl_disabled=True)


def test_a_wrong_password_and_none_are_what_the_server_says_they_are(world: World, user: str) -> None:
    for password in ("wrong", ""):
        with pytest.raises(pymysql.err.OperationalError) as refused:
            world.open(user, password=password)
        assert refused.value.args[0] == ER.ACCESS_DENIED_ERROR


def test_a_user_without_a_password_gets_in_without_one(world: World) -> None:
    name = f"u{secrets.token_hex(8)}"
    world.run(f"CREATE USER {name} IDENTIFIED WITH caching_sha2_password BY ''")
    assert plugin_works(world.open(name, password="", **STRANGE))


def test_a_user_of_sha256_password_is_refused_by_name(world: World) -> None:
    name = f"u{secrets.token_hex(8)}"
    world.run(f"CREATE USER {name} IDENTIFIED WITH sha256_password BY '{PASSWORD}'")
    with pytest.raises(pymysql.err.OperationalError, match="asks by 'sha256_password'"):
        world.open(name, ssl={"ca": str(world.authority)})

"""Where a shard is, as all may read it, and the URL that a host opens it by."""

from __future__ import annotations

import pytest
from pymysql.err import OperationalError
from sqlalchemy import make_url

from foqs.model.errors import InvalidArgumentError
from foqs.storage.sessions.login import NamedBy
from foqs.storage.sessions.places import check_place, place_of, server_at, url_at
from foqs.storage.sessions.session import connect, session_arguments


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("mysql+pymysql://u:geheim@DB-1/s0", "mysql://db-1:3306/s0"),
        ("mysql+pymysql://u:geheim@db-1:3307/s0?ssl_ca=/ca.pem&charset=utf8", "mysql://db-1:3307/s0"),
        ("mariadb+pymysql://u@[::1]:1/s0", "mysql://[::1]:1/s0"),
        (
            "mysql+pymysql://u:geheim@localhost/s0?unix_socket=/run/m.sock&password=geheim",
            "mysql://localhost/s0?unix_socket=%2Frun%2Fm.sock",
        ),
    ],
)
def test_a_place_has_nothing_of_who_opens_it_and_is_its_own_place(url: str, place: str) -> None:
    assert place_of(url) == place
    assert check_place(place) == place_of(place) == place


def test_a_place_is_opened_by_the_user_and_with_the_options_of_the_login() -> None:
    login = "mysql+pymysql://foqs:p%40ss@elsewhere:1/meta?ssl_ca=%2Fca.pem&unix_socket=%2Fother.sock"
    url = make_url(url_at("mysql://db:3307/s0", login))
    assert (url.drivername, url.username, url.password) == ("mysql+pymysql", "foqs", "p@ss")
    assert (url.host, url.port, url.database, dict(url.query)) == ("db", 3307, "s0", {"ssl_ca": "/ca.pem"})
    url = make_url(url_at("mysql://localhost/s0?unix_socket=%2Fm.sock", login))
    assert dict(url.query) == {"ssl_ca": "/ca.pem", "unix_socket": "/m.sock"}


def test_of_a_place_that_strangers_wrote_only_server_and_database_are_taken() -> None:
    login = "mysql+pymysql://foqs:secret@elsewhere:1/meta?ssl_ca=%2Fca.pem"
    forged = "mysql://u:p@db/s0?ssl_ca=%2Fevil&ssl_check_hostname=false&local_infile=1&named_by=&read_default_file=%2Ff"
    url = make_url(url_at(forged, login, NamedBy.META))
    assert (url.username, url.password, url.host, url.database) == ("foqs", "secret", "db", "s0")
    assert dict(url.query) == {"ssl_ca": "/ca.pem", "named_by": "meta"}
    assert session_arguments(url)["named_by"] == NamedBy.META


@pytest.mark.parametrize("place", ["nonsense", "mysql://h:port/d", "mysql://[::1/d", ""])
def test_a_place_that_is_no_url_leads_nowhere(place: str) -> None:
    with pytest.raises(OperationalError, match="was not called"):
        connect(url_at(place, "mysql+pymysql://foqs:secret@127.0.0.1/meta"))


@pytest.mark.parametrize(
    ("place", "server"),
    [
        ("mysql://DB/s0", "db:3306"),
        ("mysql+pymysql://u:p@db:3307/s0?ssl_ca=/ca", "db:3307"),
        ("mysql:///s0", "localhost:3306"),
        ("mysql://[::0:1]:1/s0", "[::1]:1"),
        ("mysql://localhost/s0?unix_socket=//run//m.sock", "/run/m.sock"),
    ],
)
def test_a_server_has_one_name(place: str, server: str) -> None:
    assert server_at(place) == server


@pytest.mark.parametrize(
    "place", ["", "nonsense", "mysql://h", "redis://h/d", "mysql://u:geheim@h/d", "mysql://geheim@/", "x" * 400]
)
def test_what_is_no_place_is_refused_without_repeating_a_password(place: str) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        check_place(place)
    assert "geheim" not in str(raised.value)


def test_a_place_that_no_column_holds_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="at most 255"):
        check_place(f"mysql://{'h' * 250}/d")


def test_options_that_would_be_lost_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="ssl_ca, ssl_key"):
        check_place("mysql://h/d?ssl_key=/k&ssl_ca=/c&unix_socket=/s")

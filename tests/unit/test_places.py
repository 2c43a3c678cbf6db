"""Where a shard is, as all may read it, and the URL that a host opens it by."""

from __future__ import annotations

import pytest
from sqlalchemy import make_url

from foqs.model.errors import InvalidArgumentError
from foqs.storage.places import check_place, place_of, url_at


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

"""Where a shard is: the URL of its database without user and password, as all hosts of a cluster may read it."""

from __future__ import annotations

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from foqs.model.errors import InvalidArgumentError, shown

PLACE_CHARS_MAX = 255
PORT_DEFAULT = 3306
_SOCKET = "unix_socket"


def place_of(url: str) -> str:
    """The place that a URL leads to."""
    parsed = make_url(url)
    socket = {key: value for key, value in parsed.query.items() if key == _SOCKET}
    port = None if socket else parsed.port or PORT_DEFAULT
    host = (parsed.host or "localhost").lower()
    bare = URL.create("mysql", host=host, port=port, database=parsed.database, query=socket)
    return bare.render_as_string(hide_password=False)


def check_place(place: str) -> str:
    """Return a place that an operator names in the one form that it has, or raise InvalidArgumentError."""
    try:
        parsed = make_url(place)
    except (ArgumentError, ValueError) as error:
        raise InvalidArgumentError("the place is not a URL: use mysql://HOST:PORT/DATABASE") from error
    if parsed.drivername.partition("+")[0] not in ("mysql", "mariadb") or not parsed.database:
        raise InvalidArgumentError("the place is not that of a MySQL database: use mysql://HOST:PORT/DATABASE")
    if parsed.username or parsed.password or "@" in place:
        # Every host and operator can read it.
        raise InvalidArgumentError("a place has no user and no password: they are in the configuration of the hosts")
    if options := sorted(parsed.query.keys() - {_SOCKET}):
        raise InvalidArgumentError(
            f"a place has no option but {_SOCKET}, and this one has {shown(', '.join(options))}: hosts take the others "
            f"from shard_login"
        )
    checked = place_of(place)
    if len(checked) > PLACE_CHARS_MAX:
        raise InvalidArgumentError(f"place {shown(place)} has {len(checked)} characters: at most {PLACE_CHARS_MAX}")
    return checked


def url_at(place: str, login_url: str) -> str:
    """The URL of a place for the user of another one, with that one's password and TLS options."""
    login, at = make_url(login_url), make_url(place)
    query = {key: value for key, value in login.query.items() if key != _SOCKET}
    return URL.create(
        login.drivername, login.username, login.password, at.host, at.port, at.database, {**query, **at.query}
    ).render_as_string(hide_password=False)

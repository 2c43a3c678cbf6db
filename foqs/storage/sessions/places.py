"""The place of a shard: its database's URL without user and password, which all hosts of a cluster can read."""

from __future__ import annotations

import ipaddress
import re

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from foqs.model.errors import InvalidArgumentError, shown
from foqs.storage.sessions.login import NamedBy

PLACE_CHARS_MAX = 255
PORT_DEFAULT = 3306
NAMED_BY = "named_by"
"""The option in the URL of a session for the source of its server (NamedBy). Configurations cannot set it."""
_SOCKET = "unix_socket"


def place_of(url: str) -> str:
    """Return the place of a URL."""
    parsed = make_url(url)
    socket = {key: value for key, value in parsed.query.items() if key == _SOCKET}
    port = None if socket else parsed.port or PORT_DEFAULT
    host = (parsed.host or "localhost").lower()
    bare = URL.create("mysql", host=host, port=port, database=parsed.database, query=socket)
    return bare.render_as_string(hide_password=False)


def check_place(place: str) -> str:
    """Return a place given by an operator in its canonical form, or raise InvalidArgumentError."""
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


def server_at(url: str) -> str:
    """Return the server of a place or a URL: HOST:PORT, or the path of its socket. Raises ValueError for no URL."""
    parsed = _parsed(url)
    if socket := _socket_of(parsed):
        return re.sub("/+", "/", socket)
    host = (parsed.host or "localhost").lower()
    if ":" in host:
        host = f"[{ipaddress.IPv6Address(host)}]"
    return f"{host}:{parsed.port or PORT_DEFAULT}"


def url_at(place: str, login_url: str, named_by: NamedBy = NamedBy.CONFIGURATION) -> str:
    """Return the URL of a place, with the user, password and TLS options of another URL.

    Sessions opened with it obey the source of the server's address. A place can come from a stranger, so only its
    server and its database are used; an invalid place leads nowhere.
    """
    login = make_url(login_url)
    try:
        at = _parsed(place)
    except ValueError:
        at, named_by = URL.create(login.drivername, host="a place that is no URL"), NamedBy.NOBODY
    query = {key: value for key, value in login.query.items() if key != _SOCKET}
    if socket := _socket_of(at):
        query[_SOCKET] = socket
    if named_by is not NamedBy.CONFIGURATION:
        query[NAMED_BY] = named_by.value
    return URL.create(
        login.drivername, login.username, login.password, at.host, at.port, at.database, query
    ).render_as_string(hide_password=False)


def _parsed(url: str) -> URL:
    try:
        return make_url(url)
    except (ArgumentError, ValueError) as error:
        raise ValueError("it is no URL") from error


def _socket_of(url: URL) -> str:
    socket = url.query.get(_SOCKET, "")
    return socket if isinstance(socket, str) else socket[0]

"""Where a shard is: the URL of its database without user and password, as all hosts of a cluster may read it."""

from __future__ import annotations

import ipaddress
import re

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from foqs.model.errors import InvalidArgumentError, shown
from foqs.storage.login import NamedBy

PLACE_CHARS_MAX = 255
PORT_DEFAULT = 3306
NAMED_BY = "named_by"
"""The option in the URL of a session that says who names its server (NamedBy). No configuration can have it."""
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


def server_at(url: str) -> str:
    """The server of a place or a URL: HOST:PORT, or the path of its socket. Raises ValueError for no URL."""
    parsed = _parsed(url)
    if socket := _socket_of(parsed):
        return re.sub("/+", "/", socket)
    host = (parsed.host or "localhost").lower()
    if ":" in host:
        host = f"[{ipaddress.IPv6Address(host)}]"
    return f"{host}:{parsed.port or PORT_DEFAULT}"


def url_at(place: str, login_url: str, named_by: NamedBy = NamedBy.CONFIGURATION) -> str:
    """The URL of a place for the user of another one, with that one's password and TLS options.

    Sessions that are opened by it go by who names the server. Of a place, which strangers may have written, nothing is
    taken but its server and its database; one that is no URL leads nowhere.
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

"""The URL of the ZooKeeper ensemble by which hosts find each other, and how they show who they are."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from foqs.model.errors import InvalidArgumentError
from foqs.model.secret import Secret

SCHEME = "zookeeper"
TLS_SCHEME = "zookeeper+tls"
_PORTS_DEFAULT = {SCHEME: 2181, TLS_SCHEME: 2281}
_PATH_DEFAULT = "/foqs"
_SERVERS_MAX = 32
_SERVER = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]{1,255})(:(?P<port>\d{1,5}))?", re.ASCII)
_PATH = re.compile(r"(/[A-Za-z0-9._-]{1,64}){1,8}", re.ASCII)
_ALLOWED = "allowed: zookeeper://HOST:PORT,HOST:PORT/PATH, or zookeeper+tls:// with the same"


class ZookeeperAccess(NamedTuple):
    """The files and the login for an ensemble that is reached by TLS."""

    ca_file: str = ""
    """The authorities by which servers are verified; empty for those of the system."""
    cert_file: str = ""
    key_file: str = ""
    login: Callable[[], Secret] | None = None
    """Reads NAME:PASSWORD. Raises InvalidArgumentError if its file cannot be used."""


NO_ACCESS = ZookeeperAccess()
"""The access without files of one's own and without a login."""


def login_of(secret: Secret) -> str:
    """Return NAME:PASSWORD. Raises InvalidArgumentError if the secret has another form."""
    try:
        text = secret.reveal().decode()
    except UnicodeDecodeError:
        text = ""
    if not text.partition(":")[0] or not text.partition(":")[2]:
        raise InvalidArgumentError("the file has no login; allowed: NAME:PASSWORD in UTF-8")
    return text


class ZookeeperUrl(NamedTuple):
    """An ensemble, and the path in it under which the hosts of a cluster find each other."""

    servers: tuple[str, ...]
    """HOST:PORT each."""
    path: str
    is_tls: bool = False

    def __str__(self) -> str:
        return f"{TLS_SCHEME if self.is_tls else SCHEME}://{','.join(self.servers)}{self.path}"


def parse(url: str) -> ZookeeperUrl:
    """Parse a URL. Raises ValueError with the problem and the allowed form."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in _PORTS_DEFAULT:
        raise ValueError(f"is no URL of ZooKeeper; {_ALLOWED}, or nothing for the meta database")
    if "@" in rest:
        raise ValueError(f"has a user in it, and hosts log in by membership_login_file; {_ALLOWED}")
    named, slash, path = rest.partition("/")
    servers = named.split(",")
    if len(servers) > _SERVERS_MAX:
        raise ValueError(f"names {len(servers)} servers; allowed: up to {_SERVERS_MAX}")
    default = _PORTS_DEFAULT[scheme]
    return ZookeeperUrl(tuple(_server(one, default) for one in servers), _path(slash + path), scheme == TLS_SCHEME)


def _server(named: str, port_default: int) -> str:
    found = _SERVER.fullmatch(named)
    port = int(found["port"] or port_default) if found is not None else 0
    if found is None or not 0 < port <= 65_535:
        raise ValueError(
            f"names a server {named!r:.80}; {_ALLOWED}, with a port of 1..65535 or none for {port_default}"
        )
    return f"{found['host']}:{port}"


def _path(path: str) -> str:
    path = path.rstrip("/") or _PATH_DEFAULT
    parts = path.split("/")
    if not _PATH.fullmatch(path) or {".", ".."} & {*parts} or parts[1] == "zookeeper":
        raise ValueError(
            f"names the path {path!r:.80}; allowed: up to 8 names of letters, digits, '.', '_' and '-', "
            "the first of them not zookeeper, which ZooKeeper keeps for itself"
        )
    return path

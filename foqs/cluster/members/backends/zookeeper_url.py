"""The URL of the ZooKeeper ensemble by which hosts find each other."""

from __future__ import annotations

import re
from typing import NamedTuple

SCHEME = "zookeeper"
_PORT_DEFAULT = 2181
_PATH_DEFAULT = "/foqs"
_SERVERS_MAX = 32
_SERVER = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]{1,255})(:(?P<port>\d{1,5}))?", re.ASCII)
_PATH = re.compile(r"(/[A-Za-z0-9._-]{1,64}){1,8}", re.ASCII)
_ALLOWED = "allowed: zookeeper://HOST:PORT,HOST:PORT/PATH"


class ZookeeperUrl(NamedTuple):
    """An ensemble, and the path in it under which the hosts of a cluster find each other."""

    servers: tuple[str, ...]
    """HOST:PORT each."""
    path: str

    def __str__(self) -> str:
        return f"{SCHEME}://{','.join(self.servers)}{self.path}"


def parse(url: str) -> ZookeeperUrl:
    """Parse a URL. Raises ValueError with the problem and the allowed form."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme != SCHEME:
        raise ValueError(f"is no URL of ZooKeeper; {_ALLOWED}, or nothing for the meta database")
    if "@" in rest:
        raise ValueError(f"has a user in it, and hosts talk to ZooKeeper without one; {_ALLOWED}")
    named, slash, path = rest.partition("/")
    servers = named.split(",")
    if len(servers) > _SERVERS_MAX:
        raise ValueError(f"names {len(servers)} servers; allowed: up to {_SERVERS_MAX}")
    return ZookeeperUrl(tuple(_server(one) for one in servers), _path(slash + path))


def _server(named: str) -> str:
    found = _SERVER.fullmatch(named)
    port = int(found["port"] or _PORT_DEFAULT) if found is not None else 0
    if found is None or not 0 < port <= 65_535:
        raise ValueError(f"names a server {named!r:.80}; {_ALLOWED}, with a port of 1..65535 or none for 2181")
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

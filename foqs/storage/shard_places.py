"""The servers at which a host logs in for shards: those that its configuration names, lists, or leaves to others.

A place comes from whoever calls `addShard`, or writes into the meta database. A host that logged in wherever such a
text leads would show itself to strangers, and one of them could pass what it says on to the true server.
docs/decisions/0043-database-logins.md.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Final

from foqs.storage.login import NamedBy
from foqs.storage.places import server_at

_PATTERN: Final = re.compile(r"(?P<host>[a-z0-9._*?-]+|\[[0-9a-f:.]+\]):(?P<port>\d{1,5})")
_WILD: Final = re.compile(r"[*?]")
_FORM: Final = "allowed: HOST:PORT, with * and ? in HOST beside letters or digits, [IPV6]:PORT, /PATH of a socket"


def check_pattern(entry: str) -> str:
    """Return an entry of `shard_places` in the one form that it has. Raises ValueError."""
    if entry.startswith("/"):
        return re.sub("/+", "/", entry)
    found = _PATTERN.fullmatch(entry.lower())
    if found is None or not 1 <= int(found["port"]) <= 65_535 or not re.search(r"[a-z0-9]", found["host"]):
        raise ValueError(f"{entry!r:.80} is no server; {_FORM}")
    host = found["host"]
    if host.startswith("["):
        try:
            host = f"[{ipaddress.IPv6Address(host[1:-1])}]"
        except ValueError as error:
            raise ValueError(f"{entry!r:.80} is no server; {_FORM}") from error
    return f"{host}:{int(found['port'])}"


def entries_of(value: object) -> tuple[str, ...]:
    """The entries of `shard_places`: a list, or a text with white space between them. Raises ValueError."""
    words = value.split() if isinstance(value, str) else value
    if not isinstance(words, list | tuple) or not all(isinstance(word, str) for word in words):
        raise ValueError("is no list; allowed: a list of HOST:PORT, or a text with spaces between them")
    return tuple(check_pattern(word) for word in words)


class ShardPlaces:
    """What one configuration says of servers. It knows no rows of the meta database: those are told."""

    def __init__(self, own_urls: Iterable[str], entries: Collection[str]) -> None:
        """`own_urls` are those that the configuration has for databases, `entries` is its `shard_places`."""
        exact = {entry for entry in entries if not _WILD.search(entry) or entry.startswith("/")}
        self._named = set(_servers(own_urls)) | exact
        self._patterns = [entry for entry in entries if entry not in exact]
        self._leaves_it_to_others = not entries

    def named_by(self, place: str) -> NamedBy:
        """Who names the server of a place that a row of the meta database has.

        Sockets are those of this machine: no row can name one that the configuration does not. Without
        `shard_places` any other server is allowed that a row names.
        """
        try:
            server = server_at(place)
        except ValueError:
            return NamedBy.NOBODY
        if server in self._named:
            return NamedBy.CONFIGURATION
        if server.startswith("/"):
            return NamedBy.NOBODY
        is_allowed = self._leaves_it_to_others or any(_matches(server, pattern) for pattern in self._patterns)
        return NamedBy.META if is_allowed else NamedBy.NOBODY

    def may_add(self, place: str, places_before: Iterable[str]) -> bool:
        """Whether a row for the place may be written, beside those that are there already.

        Without `shard_places` its server has to be one that a row named before, so that no caller names a new one.
        """
        named_by = self.named_by(place)
        if named_by is NamedBy.META and self._leaves_it_to_others:
            return server_at(place) in set(_servers(places_before))
        return named_by is not NamedBy.NOBODY


@lru_cache(maxsize=8)
def shard_places(own_urls: tuple[str, ...], entries: tuple[str, ...]) -> ShardPlaces:
    """The same for the same configuration: a host asks for each shard, and to read 256 URLs takes milliseconds."""
    return ShardPlaces(own_urls, entries)


def _servers(places: Iterable[str]) -> Iterator[str]:
    for place in places:
        with suppress(ValueError):  # A row that is no place names nothing.
            yield server_at(place)


def _matches(server: str, pattern: str) -> bool:
    """Whether they match as for fnmatch, and no pattern lets strangers choose a name that it fits.

    What begins like an address has to be one: 10.0.*:3306 is not for 10.0.example.com. And a wildcard in the last label
    stands for no dot: db-*:3306 is not for db-1.example.com.
    """
    host, _, port = server.rpartition(":")
    pattern_host, _, pattern_port = pattern.rpartition(":")
    if port != pattern_port or not fnmatchcase(host, pattern_host):
        return False
    if re.fullmatch(r"[0-9.*?]+", pattern_host):
        return _is_ipv4(host)
    if _WILD.search(pattern_host.rpartition(".")[2]):
        return host.count(".") == pattern_host.count(".")
    return True


def _is_ipv4(host: str) -> bool:
    try:
        ipaddress.IPv4Address(host)
    except ValueError:
        return False
    return True

"""The servers at which a host logs in for shards: its configuration names them, lists them, or leaves them to others.

A place comes from a caller of `addShard`, or from a writer of the meta database. A host that logged in at any such
place would reveal itself to strangers, who could relay its login to the true server.
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

from foqs.storage.sessions.login import NamedBy
from foqs.storage.sessions.places import server_at

_PATTERN: Final = re.compile(r"(?P<host>[a-z0-9._*?-]+|\[[0-9a-f:.]+\]):(?P<port>\d{1,5})")
_WILD: Final = re.compile(r"[*?]")
_FORM: Final = "allowed: HOST:PORT, with * and ? in HOST beside letters or digits, [IPV6]:PORT, /PATH of a socket"


def check_pattern(entry: str) -> str:
    """Return an entry of `shard_places` in its canonical form. Raises ValueError."""
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
    """Parse the entries of `shard_places`: a list, or a text separated by white space. Raises ValueError."""
    words = value.split() if isinstance(value, str) else value
    if not isinstance(words, list | tuple) or not all(isinstance(word, str) for word in words):
        raise ValueError("is no list; allowed: a list of HOST:PORT, or a text with spaces between them")
    return tuple(check_pattern(word) for word in words)


class ShardPlaces:
    """The rules of one configuration for servers. The caller passes in the rows of the meta database."""

    def __init__(self, own_urls: Iterable[str], entries: Collection[str]) -> None:
        """`own_urls` are the configuration's database URLs, `entries` its `shard_places`."""
        exact = {entry for entry in entries if not _WILD.search(entry) or entry.startswith("/")}
        self._named = set(_servers(own_urls)) | exact
        self._patterns = [entry for entry in entries if entry not in exact]
        self._leaves_it_to_others = not entries

    def named_by(self, place: str) -> NamedBy:
        """Return the source of the server's address, for a place in a row of the meta database.

        A socket belongs to this machine, so a row can only name one that the configuration names too. Without
        `shard_places` every other server that a row names is allowed.
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
        """True if a row for the place is allowed, given the places of the existing rows.

        Without `shard_places` an existing row must already name its server, so that no caller introduces a new one.
        """
        named_by = self.named_by(place)
        if named_by is NamedBy.META and self._leaves_it_to_others:
            return server_at(place) in set(_servers(places_before))
        return named_by is not NamedBy.NOBODY


@lru_cache(maxsize=8)
def shard_places(own_urls: tuple[str, ...], entries: tuple[str, ...]) -> ShardPlaces:
    """Cache by configuration: a host asks for each shard, and parsing 256 URLs takes milliseconds."""
    return ShardPlaces(own_urls, entries)


def _servers(places: Iterable[str]) -> Iterator[str]:
    for place in places:
        with suppress(ValueError):  # An invalid place names no server.
            yield server_at(place)


def _matches(server: str, pattern: str) -> bool:
    """True if they match as in fnmatch, and the pattern leaves strangers no name to register that it fits.

    A pattern that looks like an address only matches addresses: 10.0.*:3306 does not match 10.0.example.com. A wildcard
    in the last label does not match a dot: db-*:3306 does not match db-1.example.com.
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

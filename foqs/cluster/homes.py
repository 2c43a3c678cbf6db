"""Which host is the home of a topic: all hosts find the same one by a hash over those that live and can be reached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol
from zlib import crc32

from foqs.model import limits
from foqs.model.stocks import Pointer, Stock, Topic

SUSPECT_MS = 2 * limits.SECOND_MS
"""A home that cannot be reached is none for so long: all hosts notice that soon, and find the same one in its place."""
HOMES_KEPT_MAX = 20_000
"""Topics whose homes are remembered, because the hash costs more than a look."""


class Reported(NamedTuple):
    """What a host tells the home of a topic."""

    stock: Stock
    is_wanted: bool
    """Whether consumers ask for it there."""


class HomeCalls(Protocol):
    """The hosts as homes of topics, this one included. Calls raise FoqsError when the home is away."""

    async def report(self, host_id: str, stocks: Mapping[Topic, Reported]) -> Sequence[Pointer]: ...

    async def seek(self, host_id: str, wishes: Mapping[Topic, int]) -> Sequence[Pointer]: ...

    async def hint(self, host_id: str, pointers: Sequence[Pointer]) -> None: ...


def home_of(topic: Topic, host_ids: Sequence[str]) -> str:
    """The host that is the home of a topic: the one with the greatest hash, so that few topics move with a host."""
    name = b"%d/%b" % (topic[0], topic[1].encode())
    seed = crc32(name)
    return max(host_ids, key=lambda host_id: (_mixed(crc32(host_id.encode(), seed)), host_id))


def _mixed(value: int) -> int:
    """Spread a checksum: those of texts that are alike differ in a pattern (after MurmurHash3's finalizer)."""
    value ^= value >> 16
    value = value * 0x85EBCA6B & 0xFFFFFFFF
    value ^= value >> 13
    value = value * 0xC2B2AE35 & 0xFFFFFFFF
    return value ^ value >> 16


class HomeTable:
    """The homes of all topics as this host finds them. It owns whom it suspects to be away."""

    def __init__(self) -> None:
        self.members: tuple[str, ...] = ()
        """The hosts that live and do not leave."""
        self.hosts: tuple[str, ...] = ()
        """Those of them that can be homes."""
        self._suspects: dict[str, float] = {}
        """Hosts that could not be reached, each with when it may be a home again."""
        self._home_of: dict[Topic, str] = {}

    def get(self, topic: Topic) -> str:
        """The home of a topic. There must be hosts."""
        home = self._home_of.get(topic)
        if home is None:
            home = self._home_of[topic] = home_of(topic, self.hosts)
            if len(self._home_of) > HOMES_KEPT_MAX:
                self._home_of.clear()
        return home

    def live(self, host_ids: Sequence[str]) -> bool:
        """These hosts live and do not leave. Returns whether topics may have other homes than before."""
        self.members = tuple(host_ids)
        return self._choose()

    def suspect(self, host_id: str, now_s: float) -> bool:
        """It was not reached. Returns whether topics may have other homes than before."""
        self._suspects[host_id] = now_s + SUSPECT_MS / 1000
        return self._choose()

    def trust_again(self, now_s: float) -> bool:
        """Let those be homes again that were suspected long ago. Returns whether topics may have other homes."""
        self._suspects = {host_id: until_s for host_id, until_s in self._suspects.items() if until_s > now_s}
        return self._choose()

    def _choose(self) -> bool:
        hosts = tuple(host_id for host_id in self.members if host_id not in self._suspects) or self.members
        if hosts == self.hosts:
            return False
        self.hosts = hosts
        self._home_of.clear()
        return True

"""The home of each topic: all hosts find the same one by a hash over the living hosts that can be reached."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set
from zlib import crc32

from foqs.model import limits
from foqs.model.stocks import Topic

SUSPECT_MS = 2 * limits.SECOND_MS
"""A home that cannot be reached is replaced for this long; all hosts notice it soon, and find the same replacement."""
CHECK_MS = 500
"""The pause between checks of an unanswered call to a home."""
SILENT_CHECKS = 2
"""A home that answers nothing from one check to the next, this often in a row, is suspected.

One long timeout would not do, because it would also end after this host itself has stood still, with unread answers.
"""
HOMES_KEPT_MAX = 20_000
"""Topics whose homes are cached, because the hash costs more than a lookup."""


def home_of(topic: Topic, host_ids: Sequence[str]) -> str:
    """Return the home of a topic, the host with the greatest hash; so few topics move if a host joins or leaves."""
    name = b"%d/%b" % (topic[0], topic[1].encode())
    seed = crc32(name)
    return max(host_ids, key=lambda host_id: (_mixed(crc32(host_id.encode(), seed)), host_id))


def _mixed(value: int) -> int:
    """Mix the bits of a checksum: checksums of similar texts differ in a pattern (after MurmurHash3's finalizer)."""
    value ^= value >> 16
    value = value * 0x85EBCA6B & 0xFFFFFFFF
    value ^= value >> 13
    value = value * 0xC2B2AE35 & 0xFFFFFFFF
    return value ^ value >> 16


class HomeCall:
    """A call to a home that has not answered it yet."""

    __slots__ = ("answers_count", "home", "silent_checks_count")

    def __init__(self, home: str, answers_count: int) -> None:
        self.home = home
        self.answers_count = answers_count
        """The number of answers of that home at the last check."""
        self.silent_checks_count = 0


class HomeTable:
    """The homes of all topics as this host finds them. It owns the record of suspected hosts.

    A home that could not be reached is suspected for SUSPECT_MS. One that is only silent is suspected until it answers
    or its calls fail: it can be frozen for long, or have been slow once, and after the latter this host agrees at once
    with the hosts that never suspected it.
    """

    def __init__(self) -> None:
        self.members: tuple[str, ...] = ()
        """The living hosts that do not leave."""
        self.hosts: tuple[str, ...] = ()
        """The ids of the hosts that can be homes."""
        self._suspects: dict[str, float] = {}
        """Hosts that could not be reached, each with the time at which it can be a home again."""
        self._silent: dict[str, set[HomeCall]] = {}
        """Silent hosts, each with its unanswered calls."""
        self._answers: Counter[str] = Counter()
        """The number of answers of each host."""
        self._home_of: dict[Topic, str] = {}

    def get(self, topic: Topic) -> str:
        """Return the home of a topic. At least one host must live."""
        home = self._home_of.get(topic)
        if home is None:
            home = self._home_of[topic] = home_of(topic, self.hosts)
            if len(self._home_of) > HOMES_KEPT_MAX:
                self._home_of.clear()
        return home

    def live(self, host_ids: Sequence[str]) -> bool:
        """Set the living hosts that do not leave. True if topics can have other homes than before."""
        self.members = tuple(host_ids)
        for host_id in self._answers.keys() - set(host_ids):
            del self._answers[host_id]
        return self._choose()

    def suspect(self, host_id: str, now_s: float) -> bool:
        """Note that a home was not reached. True if topics can have other homes than before."""
        self._suspects[host_id] = now_s + SUSPECT_MS / 1000
        return self._choose()

    def call(self, host_id: str) -> HomeCall:
        """Begin a call to this home: until `answered` or `failed` it must be checked every CHECK_MS."""
        return HomeCall(host_id, self._answers[host_id])

    def check(self, call: HomeCall) -> bool:
        """Suspect the home of a call if it has fallen silent. True if topics can have other homes than before."""
        answers_count = self._answers[call.home]
        call.silent_checks_count = call.silent_checks_count + 1 if answers_count == call.answers_count else 0
        call.answers_count = answers_count
        if call.silent_checks_count < SILENT_CHECKS:
            return False
        self._silent.setdefault(call.home, set()).add(call)
        return self._choose()

    def answered(self, call: HomeCall) -> bool:
        """Note that a home has answered. True if topics can have other homes than before."""
        self._answers[call.home] += 1
        return self._silent.pop(call.home, None) is not None and self._choose()

    def failed(self, call: HomeCall) -> bool:
        """Note that a home will not answer. True if topics can have other homes than before."""
        silent = self._silent.get(call.home)
        if silent is None:
            return False
        silent.discard(call)
        if silent:
            return False
        del self._silent[call.home]
        return self._choose()

    def trust_again(self, now_s: float) -> bool:
        """End the suspicions whose time is over. True if topics can have other homes than before."""
        self._suspects = {host_id: until_s for host_id, until_s in self._suspects.items() if until_s > now_s}
        return self._choose()

    @property
    def away(self) -> Set[str]:
        """The hosts that are suspected now."""
        return self._suspects.keys() | self._silent.keys()

    def _choose(self) -> bool:
        away = self.away
        hosts = tuple(host_id for host_id in self.members if host_id not in away) or self.members
        if hosts == self.hosts:
            return False
        self.hosts = hosts
        self._home_of.clear()
        return True

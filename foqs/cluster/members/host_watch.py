"""The detection of dead hosts: this process has watched them for long enough without seeing their heartbeats.

Pure: readings and their times are arguments, in seconds of this process's monotonic clock. No clock of another machine
decides: a host is dead if its row did not change over the watcher's own time, while the watcher itself could read and
write. So after an outage of the meta database, in which no host could beat, no host looks dead.

The required time grows with the round trip to the rows, either the watcher's own or that of the watched host, the
longer one (docs/decisions/0045-slow-meta-database.md).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from foqs.model import limits
from foqs.model.meta_bounds import ROUND_TRIP_MS_MAX, ROUND_TRIPS_OF_SILENCE
from foqs.model.pace import Pace

HOST_WATCH_GAP_MS_MAX = limits.SECOND_MS
"""The longest gap between two rounds of the watch, besides two round trips. After a longer one, it starts anew."""
RETURN_MS_MAX = 3 * limits.SECOND_MS
"""After a gap others get as much extra time as the gap was too long, up to this: they can be back later than this one.
"""
RHYTHM_BEATS = 8
"""The heartbeats of a host over which the duration of each is averaged, without the longest one."""
RHYTHM_SLACK_MS = 100
"""A heartbeat that takes no longer than this counts as one that takes no time, because machines are busy at times."""

assert limits.HEARTBEAT_MS * 2 <= HOST_WATCH_GAP_MS_MAX <= limits.HOST_DEAD_MS // 2, "a gap must not hide a life"


class HostSign(NamedTuple):
    """The fields of a host's row that change with every heartbeat."""

    started_at_ms: int
    beat_number: int


class _Sight(NamedTuple):
    sign: HostSign | None
    """None if the host had no row."""
    since_s: float
    """The time at which the sign was first seen; somewhat later after an outage."""


class _View(NamedTuple):
    """One complete picture, replaced at once, because other threads read it while it is renewed."""

    began_s: float
    """The time since which the picture has had no gap. Hosts not in `sights` have had no row since then."""
    asked_s: float
    answered_s: float
    """The time at which the last round was answered."""
    sights: dict[str, _Sight]
    bounds_s: dict[str, float]
    """The longest permitted silence of each host in `sights`."""
    bound_s: float
    """The longest permitted silence of other hosts."""
    gap_s_max: float

    def is_dead(self, name: str) -> bool:
        sight = self.sights.get(name)
        since_s = self.began_s if sight is None else sight.since_s
        return self.asked_s - since_s >= self.bounds_s.get(name, self.bound_s)


class HostWatch:
    """Watches the rows of hosts. Any thread can call `is_dead`; all other methods belong to one thread."""

    def __init__(self) -> None:
        self._view: _View | None = None
        self._answered_s = math.inf
        """The time at which the last round was answered, even if later ones failed."""
        self._rounds = Pace()
        """The duration of rounds."""
        self._rhythms: dict[str, _Rhythm] = {}
        self._blind_since_s: float | None = None
        """The time since which no host could be found dead, because the rounds are too far apart."""
        self.new_dead: frozenset[str] = frozenset()
        """The hosts that the last round newly found dead, among those that have had rows."""

    @property
    def round_trip_s(self) -> float:
        """The usual duration of a round."""
        return self._rounds.usual

    @property
    def silence_s(self) -> float:
        """The permitted silence of hosts that are no farther from the meta database than this one."""
        return _silence_s(self._rounds.usual)

    def saw(self, asked_s: float, answered_s: float, signs: Mapping[str, HostSign]) -> bool:
        """Take the rows of all hosts, read between the two times in a round that also wrote this host's own heartbeat.

        Returns True if a host is newly dead. A sign counts from the answer that first brought it to the question of the
        answer that last brought it, so that a slow server makes no host look older.
        """
        last = self._view
        before_s, self._answered_s = self._answered_s, answered_s
        self.new_dead = frozenset()
        self._rounds.note(answered_s - asked_s)
        # A round that takes much longer than usual is a gap as well, because it also holds up the heartbeats of others.
        gap_s_max = self._gap_s_max()
        is_anew = last is None or answered_s - last.answered_s > gap_s_max
        self._note_rhythms(answered_s, signs, is_anew=is_anew)
        if last is None or is_anew:
            since_s = answered_s + _grace_s(answered_s - before_s, gap_s_max)
            sights = {name: _Sight(sign, since_s) for name, sign in signs.items()}
            self._view = self._viewed(since_s, asked_s, answered_s, sights)
            if self._blind_since_s is None:
                self._blind_since_s = answered_s
            return False
        sights = {}
        for name, sign in signs.items():
            before = last.sights.get(name)
            is_same = before is not None and before.sign == sign
            sights[name] = before if before is not None and is_same else _Sight(sign, answered_s)
        for name, before in last.sights.items():
            if name not in signs:
                gone = before if before.sign is None or last.is_dead(name) else _Sight(None, answered_s)
                # A host that has been missing for long needs no entry, as if it had never existed.
                if not _is_long(gone.since_s, asked_s, last.bounds_s.get(name, last.bound_s)):
                    sights[name] = gone
        view = self._view = self._viewed(last.began_s, asked_s, answered_s, sights)
        if _is_long(view.began_s, asked_s, view.bound_s):
            self._blind_since_s = None
        self.new_dead = frozenset([name for name in sights if view.is_dead(name) and not last.is_dead(name)])
        gone_now = any(name not in sights and view.is_dead(name) and not last.is_dead(name) for name in last.sights)
        is_known_of_all = _is_long(view.began_s, asked_s, view.bound_s)
        was_known_of_all = _is_long(last.began_s, last.asked_s, last.bound_s)
        return bool(self.new_dead) or gone_now or (is_known_of_all and not was_known_of_all)

    def next_death_s(self) -> float | None:
        """Return when the next host that has missed a heartbeat or two is dead if it stays silent."""
        view = self._view
        if view is None:
            return None
        silent_s = [
            sight.since_s + view.bounds_s[name]
            for name, sight in view.sights.items()
            if 2 * limits.HEARTBEAT_MS / 1000 < view.asked_s - sight.since_s < view.bounds_s[name]
        ]
        return min(silent_s, default=None)

    def missed(self, began_s: float, ended_s: float) -> None:
        """Restart the watch after a failed round of this duration, because the events during it are unknown."""
        self._view = None
        self._rounds.note(ended_s - began_s)
        if self._blind_since_s is None:
            self._blind_since_s = ended_s

    def blind_s(self, now_s: float) -> float:
        """Return for how long no death could have been noticed, in seconds; 0 if the watch is complete."""
        return 0.0 if self._blind_since_s is None else now_s - self._blind_since_s

    def is_dead(self, name: str, owner_since_s: float, now_s: float) -> bool:
        """True if the host's row, or the lack of one, has not changed for long enough in an unbroken watch.

        `owner_since_s` is the time at which this process first saw the host own the shard in question. The last round
        must have begun later, because a host that came or came back since an earlier one is not dead, and it beats
        before it owns.
        """
        view = self._view
        if view is None or now_s - view.answered_s > view.gap_s_max or view.asked_s <= owner_since_s:
            return False
        return view.is_dead(name)

    def others_count(self, name: str) -> int:
        """Return the number of hosts besides this one that were seen alive."""
        view = self._view
        if view is None:
            return 0
        return sum(
            sight.sign is not None and other != name and not view.is_dead(other) for other, sight in view.sights.items()
        )

    def _viewed(self, began_s: float, asked_s: float, answered_s: float, sights: dict[str, _Sight]) -> _View:
        own_s = self._rounds.usual
        bounds_s = {
            name: _silence_s(max(own_s, self._rhythms[name].round_trip_s if name in self._rhythms else 0.0))
            for name in sights
        }
        return _View(began_s, asked_s, answered_s, sights, bounds_s, _silence_s(own_s), self._gap_s_max())

    def _gap_s_max(self) -> float:
        return HOST_WATCH_GAP_MS_MAX / 1000 + 2 * min(self._rounds.usual, ROUND_TRIP_MS_MAX / 1000)

    def _note_rhythms(self, now_s: float, signs: Mapping[str, HostSign], *, is_anew: bool) -> None:
        for name, sign in signs.items():
            rhythm = self._rhythms.setdefault(name, _Rhythm())
            if is_anew:
                rhythm.interrupt()
            rhythm.note(sign, now_s)
        if len(self._rhythms) > len(signs):
            self._rhythms = {name: rhythm for name, rhythm in self._rhythms.items() if name in signs}


class _Rhythm:
    """The interval between heartbeats of a host, by their numbers; one far from the meta database beats less often."""

    __slots__ = ("_is_change", "_last", "_steps")

    def __init__(self) -> None:
        self._last: tuple[HostSign, float] | None = None
        """The last sign, and the time at which it was first seen."""
        self._is_change = False
        """True if the watch saw the sign come, so that its time is that of a heartbeat."""
        self._steps: deque[tuple[float, int]] = deque(maxlen=RHYTHM_BEATS)
        """The last times between two changes of the sign, each with the number of its heartbeats."""

    def interrupt(self) -> None:
        """Measure from the next change on, because a gap in the watch hides the time of the one before."""
        self._is_change = False
        self._last = None

    def note(self, sign: HostSign, now_s: float) -> None:
        """Note that the sign was seen then, for the first time or again."""
        last = self._last
        if last is None:
            self._last = sign, now_s
            return
        before, before_s = last
        if before == sign:
            return
        if sign.started_at_ms != before.started_at_ms or sign.beat_number <= before.beat_number:
            self._steps.clear()
        elif self._is_change:
            self._steps.append((now_s - before_s, sign.beat_number - before.beat_number))
        self._last, self._is_change = (sign, now_s), True

    @property
    def round_trip_s(self) -> float:
        """The time that a heartbeat takes besides the pause, averaged over the last few; 0 while it is unknown.

        The longest one does not count: a host that hung for seconds once is not far from the meta database.
        """
        if len(self._steps) < 2:
            return 0.0
        longest = max(self._steps, key=lambda step: step[0] / step[1])
        took_s = sum(step_s for step_s, _ in self._steps) - longest[0]
        beats = sum(beats for _, beats in self._steps) - longest[1]
        return max(0.0, took_s / beats - (limits.HEARTBEAT_MS + RHYTHM_SLACK_MS) / 1000)


def _silence_s(round_trip_s: float) -> float:
    """Return the permitted silence of a host at this distance from the meta database, in seconds."""
    return limits.HOST_DEAD_MS / 1000 + ROUND_TRIPS_OF_SILENCE * min(round_trip_s, ROUND_TRIP_MS_MAX / 1000)


def _grace_s(gap_s: float, gap_s_max: float) -> float:
    """Return the delay after the end of a gap at which signs of others begin to count; none before the first round."""
    return min(max(0.0, gap_s - gap_s_max), RETURN_MS_MAX / 1000)


def _is_long(since_s: float, until_s: float, bound_s: float) -> bool:
    return until_s - since_s >= bound_s

"""Which other hosts are dead: those whose heartbeats this process has watched and not seen for long enough.

Pure: what was read and when comes in as arguments, times are seconds of this process's monotonic clock. No clock of
another machine decides: a host is dead when its row was seen not to change over the watcher's own time, while the
watcher itself could read and write. So after an outage of the meta database, which let nobody beat, nobody looks dead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from foqs.model import limits

HOST_WATCH_GAP_MS_MAX = limits.SECOND_MS
"""The longest gap between two rounds of the watch. After a longer one, the watch starts anew."""
RETURN_MS_MAX = 3 * limits.SECOND_MS
"""After a gap others get as much more time as it was too long, up to this: they may be back later than this one."""

assert limits.HEARTBEAT_MS * 2 <= HOST_WATCH_GAP_MS_MAX <= limits.HOST_DEAD_MS // 2, "a gap must not hide a life"


class HostSign(NamedTuple):
    """The fields of a host's row that change with every heartbeat."""

    started_at_ms: int
    beat_number: int


class _Sight(NamedTuple):
    sign: HostSign | None
    """None: the host had no row."""
    since_s: float
    """When the sign was there for the first time; somewhat later after an outage."""


class _View(NamedTuple):
    """One whole picture, replaced at once: other threads ask while it is renewed."""

    began_s: float
    """The time since which there was no gap in the picture. Hosts not in `sights` have had no row all the time."""
    asked_s: float
    answered_s: float
    """The last round was answered then."""
    sights: dict[str, _Sight]


class HostWatch:
    """`is_dead` may be called by any thread, all else by one."""

    def __init__(self) -> None:
        self._view: _View | None = None
        self._answered_s = math.inf
        """When the last round was answered, whatever failed since then."""

    def saw(self, asked_s: float, answered_s: float, signs: Mapping[str, HostSign]) -> bool:
        """The rows of all hosts, read somewhen between the two times, in a round that wrote an own heartbeat as well.

        Returns whether a host is dead that was not before. A sign counts from the answer that brought it first to the
        question of the answer that brought it last, so that a slow server makes nobody look older.
        """
        last = self._view
        before_s, self._answered_s = self._answered_s, answered_s
        # A round that takes long is a gap as well: what holds this one up holds up the heartbeats of others.
        if last is None or answered_s - last.answered_s > HOST_WATCH_GAP_MS_MAX / 1000:
            since_s = answered_s + _grace_s(answered_s - before_s)
            sights = {name: _Sight(sign, since_s) for name, sign in signs.items()}
            self._view = _View(since_s, asked_s, answered_s, sights)
            return False
        sights = {}
        for name, sign in signs.items():
            before = last.sights.get(name)
            is_same = before is not None and before.sign == sign
            sights[name] = before if before is not None and is_same else _Sight(sign, answered_s)
        silent_since_s = [last.began_s, *[sight.since_s for sight in sights.values()]]
        for name, before in last.sights.items():
            if name not in signs:
                is_known = before.sign is None or _is_long(before.since_s, asked_s)
                gone = before if is_known else _Sight(None, answered_s)
                silent_since_s.append(gone.since_s)
                # One that has been away for long is as good as one that never was there.
                if not _is_long(gone.since_s, asked_s):
                    sights[name] = gone
        self._view = _View(last.began_s, asked_s, answered_s, sights)
        return any(_is_long(since_s, asked_s) and not _is_long(since_s, last.asked_s) for since_s in silent_since_s)

    def next_death_s(self) -> float | None:
        """When the next of those hosts is dead that have missed a heartbeat or two, if it goes on to be silent."""
        view = self._view
        if view is None:
            return None
        silent = [
            sight.since_s
            for sight in view.sights.values()
            if 2 * limits.HEARTBEAT_MS / 1000 < view.asked_s - sight.since_s < limits.HOST_DEAD_MS / 1000
        ]
        return min(silent) + limits.HOST_DEAD_MS / 1000 if silent else None

    def missed(self) -> None:
        """A round failed: what went on meanwhile is not known, and the watch starts anew."""
        self._view = None

    def is_dead(self, name: str, owner_since_s: float, now_s: float) -> bool:
        """Whether the host's row, or that there is none, has not changed for limits.HOST_DEAD_MS of unbroken watch.

        `owner_since_s` is when this process first saw the host own what is wanted of it. The last round must have been
        asked later: a host that came, or came back, since an earlier one is no dead one, and beats before it owns.
        """
        view = self._view
        if view is None or now_s - view.answered_s > HOST_WATCH_GAP_MS_MAX / 1000 or view.asked_s <= owner_since_s:
            return False
        sight = view.sights.get(name)
        return _is_long(view.began_s if sight is None else sight.since_s, view.asked_s)

    def others_count(self, name: str) -> int:
        """How many hosts beside this one were seen alive."""
        view = self._view
        if view is None:
            return 0
        return sum(
            sight.sign is not None and other != name and not _is_long(sight.since_s, view.asked_s)
            for other, sight in view.sights.items()
        )


def _grace_s(gap_s: float) -> float:
    """How much later than the end of a gap the signs of others begin to count; none before the first round."""
    return min(max(0.0, gap_s - HOST_WATCH_GAP_MS_MAX / 1000), RETURN_MS_MAX / 1000)


def _is_long(since_s: float, until_s: float) -> bool:
    return until_s - since_s >= limits.HOST_DEAD_MS / 1000

"""The host and the meta database die, hang, and have a wrong clock."""

from __future__ import annotations

import random
import signal

from loadtest.chaos.fault import CLOCK, HOST, META, Fault
from loadtest.chaos.room import SERVER_COUNT, Room
from tests.support.faults import FaultError

_CLOCK_OFFSETS_S = (-3_600, -60, -5, -1, 1, 5, 60, 3_600)


class HostKilled(Fault[Room]):
    kind = "host: kill -9"
    length_ms = (1, 4_000)

    def __init__(self, rng: random.Random) -> None:
        self.targets = frozenset({HOST, META})
        self._again = rng.random() < 0.25

    def begin(self, room: Room) -> None:
        room.kill_host()

    def end(self, room: Room) -> None:
        room.start_host()
        if self._again:
            # Before it has settled down: what the first left behind is taken over twice.
            room.kill_host()
            room.start_host()


class HostRestarted(Fault[Room]):
    """SIGTERM, and a second one when it has not drained until the end."""

    kind = "host: SIGTERM and start"
    length_ms = (300, 6_000)

    def __init__(self, rng: random.Random) -> None:
        self.targets = frozenset({HOST, META})

    def begin(self, room: Room) -> None:
        assert room.host is not None
        room.host.signal(signal.SIGTERM)

    def end(self, room: Room) -> None:
        assert room.host is not None
        # Two signals in a row may be noticed as one.
        room.host.wait_for_line("draining")
        if room.host.is_running:
            room.host.signal(signal.SIGTERM)
        code = room.host.wait()
        if code not in (0, -signal.SIGTERM):
            raise FaultError(f"the host ended with {code} on SIGTERM:\n{room.host.output}")
        room.kill_host()
        room.start_host()


class HostStopped(Fault[Room]):
    kind = "host: SIGSTOP"
    length_ms = (100, 15_000)

    def __init__(self, rng: random.Random) -> None:
        self.targets = frozenset({HOST})

    def begin(self, room: Room) -> None:
        assert room.host is not None
        room.host.signal(signal.SIGSTOP)

    def end(self, room: Room) -> None:
        assert room.host is not None
        room.host.signal(signal.SIGCONT)


class HostClockMoved(Fault[Room]):
    kind = "host: clock moved"

    def __init__(self, rng: random.Random) -> None:
        self.targets = frozenset({CLOCK})
        self.shards = frozenset()
        self._offset_s = rng.choice(_CLOCK_OFFSETS_S)

    def begin(self, room: Room) -> None:
        room.set_host_clock(self._offset_s)

    def end(self, room: Room) -> None:
        room.set_host_clock(0)


class MetaKilled(Fault[Room]):
    kind = "meta database: kill -9"

    def __init__(self, rng: random.Random) -> None:
        self.targets = frozenset({HOST, META})
        self.shards = frozenset()

    def begin(self, room: Room) -> None:
        room.servers[SERVER_COUNT].kill()

    def end(self, room: Room) -> None:
        room.servers[SERVER_COUNT].start()


class MetaStopped(Fault[Room]):
    kind = "meta database: SIGSTOP"

    def __init__(self, rng: random.Random) -> None:
        self.targets = frozenset({HOST, META})
        self.shards = frozenset()

    def begin(self, room: Room) -> None:
        room.servers[SERVER_COUNT].pause()

    def end(self, room: Room) -> None:
        room.servers[SERVER_COUNT].resume()

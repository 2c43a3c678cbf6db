"""MySQL servers die, hang, refuse to write, and have no room left."""

from __future__ import annotations

import random
from contextlib import suppress

import pymysql

from loadtest.chaos.fault import Fault, shards_of
from loadtest.chaos.room import SERVER_COUNT, SMALL, USER, Room


class ServerFault(Fault[Room]):
    """Of one server, drawn by chance."""

    def __init__(self, rng: random.Random) -> None:
        self._take(rng.randrange(SERVER_COUNT))

    def _take(self, server: int) -> None:
        self.server = server
        self.targets = frozenset({f"server-{server}"})
        self.shards = shards_of(server)

    def _execute(self, room: Room, *statements: str) -> None:
        with room.root(self.server) as session, session.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)


class ServerKilled(ServerFault):
    kind = "server: kill -9"
    length_ms = (1, 6_000)

    def begin(self, room: Room) -> None:
        room.servers[self.server].kill()

    def end(self, room: Room) -> None:
        room.servers[self.server].start()


class ServerRestarted(ServerFault):
    kind = "server: shutdown and start"
    length_ms = (1, 2_000)

    def begin(self, room: Room) -> None:
        room.servers[self.server].stop()

    def end(self, room: Room) -> None:
        room.servers[self.server].start()


class ServerStopped(ServerFault):
    kind = "server: SIGSTOP"
    length_ms = (100, 12_000)

    def begin(self, room: Room) -> None:
        room.servers[self.server].pause()

    def end(self, room: Room) -> None:
        room.servers[self.server].resume()


class ServerReadOnly(ServerFault):
    """Nothing is written while it lasts, and transactions under way fail at their commit."""

    kind = "server: read_only"

    def begin(self, room: Room) -> None:
        self._execute(room, "SET GLOBAL read_only = 1")

    def end(self, room: Room) -> None:
        self._execute(room, "SET GLOBAL read_only = 0")


class SessionsKilled(ServerFault):
    """KILL of all sessions that the host has there, once at the begin and once at the end."""

    kind = "server: sessions killed"
    length_ms = (1, 2_000)

    def begin(self, room: Room) -> None:
        with room.root(self.server) as session, session.cursor() as cursor:
            cursor.execute("SELECT id FROM information_schema.processlist WHERE user = %s", (USER,))
            for (session_id,) in cursor.fetchall():
                with suppress(pymysql.err.OperationalError):  # It is gone already.
                    cursor.execute(f"KILL {session_id}")

    def end(self, room: Room) -> None:
        self.begin(room)


class DiskFull(ServerFault):
    """The server may abort, or fail every statement that needs room; somebody makes room and starts it again."""

    kind = "server: disk full"
    length_ms = (1_000, 8_000)

    def __init__(self, rng: random.Random) -> None:
        self._take(SMALL)

    def begin(self, room: Room) -> None:
        assert room.small_disk is not None
        room.small_disk.fill()
        # It has allocated some room ahead: use that up.
        with suppress(pymysql.err.MySQLError):
            self._execute(room, *["INSERT INTO chaos.ballast (filling) VALUES (REPEAT('x', 4000000))"] * 8)

    def end(self, room: Room) -> None:
        assert room.small_disk is not None
        room.small_disk.free()
        room.revive_server(self.server)
        self._execute(room, "TRUNCATE TABLE chaos.ballast")

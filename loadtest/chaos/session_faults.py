"""Other sessions that hold what the host's sessions need."""

from __future__ import annotations

import random
from contextlib import suppress

import pymysql

from loadtest.chaos.fault import Fault, Work, shards_of
from loadtest.chaos.room import SHARDS, Room
from tests.support.faults.load import PAUSE_AFTER_FAILURE_S

_HELD = {
    "the next items": "SELECT id FROM item ORDER BY lane, urgency, due_at LIMIT 50 FOR UPDATE",
    "packs": "SELECT id FROM pack ORDER BY id LIMIT 50 FOR UPDATE",
    "some claims": "SELECT id FROM claim ORDER BY id LIMIT 20 FOR UPDATE",
    "the writer row": "SELECT one FROM writer FOR UPDATE",
}
_BALLAST = "INSERT INTO chaos.ballast (filling) VALUES " + ", ".join(["('x')"] * 2_000)
"""A transaction that changed this much is not the one that the server chooses to roll back."""


class SessionFault(Fault[Room]):
    """In the database of one shard, drawn by chance; on its server other faults may go on at the same time."""

    def __init__(self, rng: random.Random) -> None:
        self.shard = rng.choice(list(SHARDS))
        self.server = SHARDS[self.shard]
        self.targets = frozenset({f"server-{self.server}"})
        self.shards = shards_of(self.server)
        self._session: pymysql.Connection[pymysql.cursors.Cursor] | None = None

    def _open(self, room: Room) -> pymysql.cursors.Cursor:
        self._session = room.root(self.server, database=f"shard_{self.shard}", autocommit=False)
        return self._session.cursor()

    def end(self, room: Room) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.rollback()
            session.close()


class RowsLocked(SessionFault):
    """What the host's next transactions want to change is locked: they wait, and may time out."""

    kind = "server: rows locked"

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self._statement = _HELD[rng.choice(list(_HELD))]

    def begin(self, room: Room) -> None:
        with self._open(room) as cursor:
            cursor.execute("SET SESSION innodb_lock_wait_timeout = 2")
            with suppress(pymysql.err.OperationalError):  # The host holds them all the time.
                cursor.execute(self._statement)


class TablesLocked(SessionFault):
    kind = "server: FLUSH TABLES WITH READ LOCK"
    length_ms = (200, 4_000)

    def begin(self, room: Room) -> None:
        with self._open(room) as cursor:
            cursor.execute("FLUSH TABLES WITH READ LOCK")

    def end(self, room: Room) -> None:
        assert self._session is not None
        with self._session.cursor() as cursor:
            cursor.execute("UNLOCK TABLES")
        super().end(room)


class PurgeBlocked(SessionFault):
    """An old snapshot: no deleted row can be cleared away."""

    kind = "server: purge blocked"
    length_ms = (10_000, 40_000)

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.shards = frozenset()

    def begin(self, room: Room) -> None:
        with self._open(room) as cursor:
            cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
            cursor.execute("SELECT COUNT(*) FROM item")


class Deadlocks(SessionFault):
    """Transactions of so much weight that the server rolls back the host's, for they lock in another order."""

    kind = "server: deadlocks"
    length_ms = (1_000, 4_000)

    def begin(self, room: Room) -> None:
        cursor = self._open(room)
        cursor.execute("SET SESSION innodb_lock_wait_timeout = 1")
        self._work = _Deadlocking(cursor)
        self._work.start()

    def end(self, room: Room) -> None:
        try:
            self._work.stop()
        finally:
            super().end(room)


class _Deadlocking(Work):
    def __init__(self, cursor: pymysql.cursors.Cursor) -> None:
        super().__init__("deadlocks")
        self._cursor = cursor

    def once(self) -> None:
        with suppress(pymysql.err.OperationalError):  # A deadlock or a timeout, as is meant.
            self._cursor.execute(_BALLAST)
            # The host changes its items first and the writer row last.
            self._cursor.execute("SELECT one FROM writer FOR UPDATE")
            self._stopped.wait(PAUSE_AFTER_FAILURE_S)
            for table in ("pack", "item"):
                self._cursor.execute(f"SELECT id FROM {table} ORDER BY id LIMIT 200 FOR UPDATE")
        self._cursor.execute("ROLLBACK")

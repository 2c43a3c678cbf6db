"""Another session on a shard's database, which holds what a host's next transaction wants."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

from foqs.dev.local_server import LocalServer
from tests.support.waiting import PATIENCE_S

_WEIGHT_ROWS = 200
"""Changed by a transaction, they make it the one that the server does not choose to roll back."""
_WAITING_COUNT = "SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'"
"""Not information_schema.innodb_trx: its copy is renewed when nobody has read it for 100 ms, so polls freeze it."""


@contextmanager
def row_locked(server: LocalServer, database: str, key: int) -> Iterator[None]:
    """Nobody else changes the item's row meanwhile."""
    with closing(server.connect(database, autocommit=False)) as session, session.cursor() as cursor:
        cursor.execute("SELECT id FROM item WHERE id = %s FOR UPDATE", (key,))
        yield
        session.rollback()


@contextmanager
def deadlock(server: LocalServer, database: str, key: int) -> Iterator[None]:
    """The next transaction that changes the item's row is rolled back for a deadlock; those after it are not.

    The host changes its items first and the writer row last, and the other session does it the other way round.
    """
    ended: list[BaseException | None] = []
    with closing(server.connect(database, autocommit=False)) as session, session.cursor() as cursor:
        rows = [((1 << 62) + n,) for n in range(_WEIGHT_ROWS)]
        cursor.executemany("INSERT INTO claim (id, due_at, ahead, entries) VALUES (%s, 0, 0, '')", rows)
        cursor.execute("SELECT one FROM writer FOR UPDATE")

        def close_the_circle() -> None:
            try:
                until_somebody_waits(server)
                cursor.execute("SELECT id FROM item WHERE id = %s FOR UPDATE", (key,))
                session.rollback()
            except BaseException as error:
                ended.append(error)
                raise
            ended.append(None)

        thread = threading.Thread(target=close_the_circle, name="other-session")
        thread.start()
        try:
            yield
        finally:
            thread.join(PATIENCE_S + 5)
        assert ended == [None], f"there was no deadlock: {ended}"


def until_somebody_waits(server: LocalServer) -> None:
    """Return when a session waits for a row lock."""
    with closing(server.connect()) as session, session.cursor() as cursor:
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            cursor.execute(_WAITING_COUNT)
            if int(cursor.fetchone()[1]) > 0:
                return
            assert time.monotonic() < deadline_s, "nobody waits for a lock"
            threading.Event().wait(0.02)

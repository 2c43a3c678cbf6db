"""The log of dedup ids as a new owner reads it: where it begins and ends, and then its rows, while it serves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pymysql

from foqs.shard.port import SeenExtent, SeenRow, SessionLostError
from foqs.storage import statements as sql
from foqs.storage.formats import seen_count
from foqs.storage.script import seen_row
from foqs.storage.session import connect


def read_seen_extents(rows: Callable[..., Any]) -> list[SeenExtent]:
    """The logs that there are, each of a namespace that has a name; `rows` runs a statement in the owner's session."""
    return [
        SeenExtent(namespace, first, last_first, last_first + seen_count(size_bytes), at_ms)
        for namespace, first, last_first, size_bytes, at_ms in rows(sql.READ_SEEN_EXTENTS)
        if first is not None
    ]


class SeenLogReader:
    """Reads the log in a session of its own, beside the owner's transactions; one call at a time, on any thread.

    A namespace's log does not change while it is read: its owner takes no ids for it meanwhile, and drops none.
    """

    def __init__(self, url: Callable[[], str], shard_id: int) -> None:
        self._url = url
        self._shard_id = shard_id
        self._session: Any = None

    def read(self, namespace: int, first: int, limit: int) -> list[SeenRow]:
        """So many rows, from the one that begins at `first` or is the next; none are the end of it.

        Raises SessionLostError, after which it may be tried again.
        """
        try:
            if self._session is None:
                self._session = connect(self._url())
            with self._session.cursor() as cursor:
                cursor.execute(sql.READ_SEEN_LOG, (namespace, first, limit))
                found = [seen_row(values) for values in cursor.fetchall()]
            self._session.commit()
        except (pymysql.err.Error, OSError) as error:
            self.close()
            raise SessionLostError(f"shard {self._shard_id}: {error}") from error
        return found

    def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session._force_close()

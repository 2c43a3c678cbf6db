"""Dedup ids of a namespace written to a shard past any host, as one would have written them, and what that costs MySQL.

So ten million are there in a minute. Each transaction writes a thousand ids and, once there are more than the window
holds, deletes as many: by the statements and in the format of the host.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import closing
from types import TracebackType
from typing import Any, NamedTuple, Self

from foqs.model.ids import item_id
from foqs.model.seen import BLOCK_IDS, digests_of
from foqs.model.slots import slot_of
from foqs.storage.schema import statements as sql
from foqs.storage.sessions.exchange import run_script
from foqs.storage.sessions.session import connect
from foqs.storage.shard.formats import pack_seen, seen_count
from foqs.storage.shard.prepared import prepare_inserts
from loadtest.bench.usage import usage

_TRANSACTION_IDS = 1_000
_KEYS_FROM = 1 << 40
"""The first epoch's keys begin there: the items were long ago."""


class Cost(NamedTuple):
    """What an id cost the server, its commit included."""

    cpu_us: float
    written_bytes: float


class SeenFiller:
    """Appends ids to the log of a namespace whose shard nobody owns meanwhile. As a context manager it is connected."""

    def __init__(self, url: str, shard_id: int, namespace: str, window_ids: int) -> None:
        self._url, self._shard_id, self._namespace, self._window_ids = url, shard_id, namespace, window_ids
        self.appended_count = 0
        self._number = self._first = self._end = self._at_ms = 0
        self._session: Any = None

    def __enter__(self) -> Self:
        self._session = session = connect(self._url)
        with session.cursor() as cursor:
            cursor.execute("SELECT number FROM namespace WHERE name = %s", (self._namespace,))
            ((self._number,),) = cursor.fetchall()
            cursor.execute("SELECT steady_ms FROM writer")
            ((self._at_ms,),) = cursor.fetchall()
            of_log = "SELECT first, LENGTH(entries), ASCII(entries) FROM seen WHERE namespace = %s ORDER BY first"
            cursor.execute(of_log, (self._number,))
            rows = cursor.fetchall()
        session.commit()
        if rows:
            self._first, self._end = rows[0][0], rows[-1][0] + seen_count(*rows[-1][1:])
        inserts = prepare_inserts(session)
        assert inserts is not None
        self._inserts = inserts
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._session.close()

    def append(self, count: int, server_pid: int) -> Cost:
        """The next ids, and what they cost the server."""
        before = usage(server_pid)
        asyncio.run(self._append(count))
        spent = usage(server_pid).since(before)
        return Cost(spent.cpu_s * 1e6 / count, spent.written_bytes / count)

    async def _append(self, count: int) -> None:
        for start in range(0, count, _TRANSACTION_IDS):
            rows = self._rows(min(_TRANSACTION_IDS, count - start))
            ahead = self._inserts.ahead([], [], rows)
            await run_script(self._session, [f"DO {ahead.guard}", *self._deletes(), "COMMIT"], ahead=ahead.packets)

    def _rows(self, count: int) -> list[tuple[int, int, int, bytes]]:
        numbers = range(self.appended_count, self.appended_count + count)
        ids = [dedup_id(number) for number in numbers]
        digests = digests_of(self._number, [b""], [slot_of(self._namespace, "", 1)], ids)
        rows, done = [], 0
        while done < count:
            size = min(count - done, BLOCK_IDS - self._end % BLOCK_IDS)
            keys = [_KEYS_FROM + number for number in numbers[done : done + size]]
            entries = pack_seen(digests[done : done + size], [self._shard_id] * size, keys)
            rows.append((self._number, self._end, self._at_ms, entries))
            self._end += size
            done += size
        self.appended_count += count
        return rows

    def _deletes(self) -> list[str]:
        """Of the whole blocks that are beyond the window."""
        until = (self._end - self._window_ids) // BLOCK_IDS * BLOCK_IDS
        if until <= self._first:
            return []
        first, self._first = self._first, until
        return [sql.DELETE_SEEN % (self._number, first, until)]

    def known(self, numbers: Sequence[int]) -> list[str]:
        """The ids of the items that these numbers are said to have been."""
        return [item_id(self._shard_id, _KEYS_FROM + number) for number in numbers]


def dedup_id(number: int) -> str:
    """As long as a random one of the client library."""
    return f"{number:032x}"


def log_bytes(url: str) -> int:
    """What the log takes on the disk."""
    with closing(connect(url)) as session, session.cursor() as cursor:
        cursor.execute("ANALYZE TABLE seen")
        cursor.fetchall()
        cursor.execute(
            "SELECT data_length FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = 'seen'"
        )
        ((found,),) = cursor.fetchall()
        return int(found)

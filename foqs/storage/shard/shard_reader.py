"""Reads of a shard that must not delay its writer: pages for operators, the TTL scan. The only write is the slot copy.

Each read is prepared on the event loop, where the packed items are known, and done on a thread. An item that gets a row
in between is found twice, and shown once, by its row.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

import pymysql
import structlog

from foqs.model import limits
from foqs.model.copy_steps import CopyKey, CopyPlace
from foqs.model.errors import UnavailableError
from foqs.model.slots import NO_SLOTS, SlotMove, SlotTable, unpack_slots, unpacked
from foqs.shard.port import ItemRow, SlotArrival
from foqs.storage.schema import statements as sql
from foqs.storage.schema.item_columns import stored_row
from foqs.storage.sessions.session import connect, interrupt, is_lost
from foqs.storage.sessions.whole_reads import check_found, complete, only_row
from foqs.storage.shard.export_pages import Cell, ExportCriteria, KeyPage, merged_by_key, read_stored, sample_keys
from foqs.storage.shard.packs.pack_index import ExpiredPage, PackIndex, Page, merged_pages, with_packed
from foqs.storage.shard.script import edge_arguments, key_conditions
from foqs.storage.shard.server_name import read_server

EXPORT_PAUSE_S = 0.001
"""The pause between two answers of the server while a page of an export is read, in seconds."""

T = TypeVar("T")
_log = structlog.get_logger(__name__)


class ShardReader:
    """Not thread-safe: one reader thread does all reads. The session opens on first use and after a loss.

    If a session was lost while idle, by the server's timeout, a KILL or a fail-over, the read is sent again in a new
    one.
    """

    def __init__(self, shard_id: int, url: str, packs: PackIndex, served_on: Callable[[], str] = lambda: "") -> None:
        """`packs` belongs to the shard's store.

        `served_on` names the server on which the shard is served. It is empty if that is unknown. A session with
        another server would read a copy of the database.
        """
        self._shard_id = shard_id
        self._url = url
        self._packs = packs
        self._served_on = served_on
        self._session: Any = None
        self._server = ""
        """The server of the session."""
        self._interrupted = False

    def use_url(self, url: str) -> None:
        """Open future sessions with this URL, which must lead to the same database. Safe to call from any thread."""
        self._url = url

    def page(self, lane: int, edge: int, limit: int, bytes_max: int = limits.PAGE_BYTES_MAX) -> Callable[[], Page]:
        """Return a read of up to `limit` items of a lane after `edge`, in order, and a bool, True if more can follow.

        Their contents have at most `bytes_max` together, except for a single larger item. The read raises
        UnavailableError.
        """
        packed = self._packs.page(lane, edge, limit, bytes_max)

        def read() -> Page:
            stored = self._read(lambda: self._page(lane, edge, limit, bytes_max))
            return merged_pages(packed, stored, limit, bytes_max)

        return read

    def _page(self, lane: int, edge: int, limit: int, bytes_max: int) -> Page:
        """Read a page from one snapshot, because between two snapshots a row can be deleted or change its place."""
        self._rows(sql.SNAPSHOT)
        keys: list[int] = []
        size_bytes = 0
        found = self._rows(sql.SCAN, (lane, *edge_arguments(edge), limit))
        for _, _, key, row_bytes in found:
            size_bytes += row_bytes
            if keys and size_bytes > bytes_max:
                break
            keys.append(key)
        rows: list[ItemRow] = []
        for text, _ in key_conditions("id", keys):
            rows += map(stored_row, self._rows(sql.READ_ITEMS.format(text)))
        check_found("rows of a page", keys, {row.key: row for row in rows})
        self._session.rollback()
        more = len(keys) < len(found) or len(found) == limit
        return sorted(rows, key=lambda row: (row.urgency, row.due_at, row.key)), more

    def expired_page(self, after_key: int, now_ms: int) -> Callable[[], ExpiredPage]:
        """Return a read of the expired ones among the next limits.EXPIRY_SCAN_ITEMS rows, dead letters excepted.

        Each page also has some expired packed items, about as many at most. The read raises UnavailableError.
        """
        packed = self._packs.expired(now_ms, limits.EXPIRY_SCAN_ITEMS)

        def read() -> ExpiredPage:
            return with_packed(packed, self._read(lambda: self._expired_page(after_key, now_ms)))

        return read

    def _expired_page(self, after_key: int, now_ms: int) -> ExpiredPage:
        last_key, expires_first = only_row(
            self._rows(sql.SCAN_EXPIRY, (after_key, limits.EXPIRY_SCAN_ITEMS)), "a page of the TTL scan"
        )
        if expires_first is None or expires_first > now_ms:
            return ExpiredPage([], last_key or 0, expires_first or limits.NEVER_MS)
        expired = [row[0] for row in self._rows(sql.READ_EXPIRED, (after_key, last_key, now_ms))]
        return ExpiredPage(expired, last_key, expires_first)

    def export_page(self, criteria: ExportCriteria, is_of_namespace: Callable[[int], bool]) -> Callable[[], KeyPage]:
        """Return a read of the next items of a key range in the order of their keys, packed items included.

        If `criteria.topics` is None, `is_of_namespace` decides by the number of a topic if its packed items are wanted.
        The read raises UnavailableError.
        """
        packed = self._packs.export_places(criteria, is_of_namespace)

        def read() -> KeyPage:
            return merged_by_key(packed.page(criteria), self._read(lambda: self._export_page(criteria)), criteria)

        return read

    def _export_page(self, criteria: ExportCriteria) -> KeyPage:
        self._rows(sql.SNAPSHOT)
        page = read_stored(self._rows, criteria, _pause)
        self._session.rollback()
        return page

    def sample_keys(self, to_key: int) -> Callable[[], list[Cell]]:
        """Return a read of the spread of the items up to `to_key` over their keys. It raises UnavailableError."""
        packed = self._packs.cells()

        def read() -> list[Cell]:
            return [*packed, *self._read(lambda: sample_keys(self._rows, to_key))]

        return read

    def keep_slots(self, known: SlotTable) -> SlotTable:
        """Give the shard a copy of the slot table, and return the copy it has now: `known` or a newer table.

        Raises UnavailableError; the outcome of the write is then unknown.
        """
        return self._read(lambda: self._keep_slots(known))

    def _keep_slots(self, known: SlotTable) -> SlotTable:
        # Try twice, because another host can write a newer copy at the same time.
        for _ in range(2):
            found = [unpacked(version, packed) for version, packed in self._rows(sql.READ_SLOTS)]
            kept = found[0] if found else NO_SLOTS
            if kept.version >= known.version:
                return kept
            self._rows(sql.KEEP_SLOTS, (known.version, known.packed()))
        return known

    def read_arrival(self) -> SlotArrival | None:
        """Read the slots on their way to the shard. Raises UnavailableError."""
        return self._read(self._read_arrival)

    def _read_arrival(self) -> SlotArrival | None:
        for version, from_shard, slots in self._rows(sql.READ_ARRIVAL):
            move = SlotMove(version, from_shard, self._shard_id, unpack_slots(slots))
            arrived = self._rows(sql.READ_ARRIVED)
            return SlotArrival(move, {row[0]: row[3] for row in arrived if row[1] == version})
        return None

    def read_copy(self, copy: CopyKey) -> CopyPlace | None:
        """Read the state of a copy for a new consumer group; None if it has not begun. Raises UnavailableError."""
        found = self._read(lambda: self._rows(sql.READ_COPY, (copy.namespace, copy.job.encode())))
        return CopyPlace(*found[0]) if found else None

    def interrupt(self) -> None:
        """Make a running read fail, and open no more sessions; another thread may call it."""
        self._interrupted = True
        interrupt(self._session)

    def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session._force_close()

    def _read(self, read: Callable[[], T]) -> T:
        was_open = self._session is not None
        try:
            if not was_open:
                self._session = connect(self._url)
                self._session.autocommit(True)
                self._rows(sql.REPEATABLE)
                self._server = read_server(self._rows)
            if self._interrupted:
                raise UnavailableError(f"shard {self._shard_id} is not read any more: the host stops")
            if self._is_of_copy(is_new=not was_open):
                raise copy_error(self._shard_id)
            if self._session is not None:
                return read()
        except (pymysql.err.Error, OSError) as error:
            self.close()
            # A server that hung once would delay the reader by as long again.
            hung = isinstance(error.__context__, TimeoutError)
            if not was_open or not is_lost(error) or hung or self._interrupted:
                raise UnavailableError(f"shard {self._shard_id} cannot be read now: {error}") from error
        except BaseException:
            self.close()  # A snapshot can be open.
            raise
        return self._read(read)

    def _is_of_copy(self, *, is_new: bool) -> bool:
        """True if a new session leads to a copy of the database. Close an older one, because the shard has moved."""
        served_on = self._served_on()
        if not served_on or served_on == self._server:
            return False
        if not is_new:
            self.close()
            return False
        _log.warning("read_led_to_a_copy", shard=self._shard_id, server=self._server, served_on=served_on)
        return True

    def _rows(self, statement: str, arguments: tuple[object, ...] = ()) -> Any:
        with self._session.cursor() as cursor:
            cursor.execute(statement, arguments)
            return complete(statement, cursor.fetchall())


def copy_error(shard_id: int) -> UnavailableError:
    """The error of a read whose session leads to another server than the shard is served on. Its log has both names."""
    return UnavailableError(
        f"shard {shard_id} cannot be read now: its URL leads this host to a copy of its database. It is served on "
        "another server: correct the URL",
        nothing_done=True,
    )


def _pause() -> None:
    """Let the event loop run, after an answer whose parsing held the interpreter."""
    time.sleep(EXPORT_PAUSE_S)

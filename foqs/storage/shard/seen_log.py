"""A new owner's reads of dedup ids: first both ends of each log, then images and rows, while it serves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pymysql

from foqs.model.seen_image import HEAD_PART, ImageKey
from foqs.shard.port import SeenDigests, SeenExtent, SeenPart, SessionLostError, StoredImage
from foqs.storage.schema import statements as sql
from foqs.storage.sessions.session import connect, interrupt, is_lost
from foqs.storage.sessions.whole_reads import complete
from foqs.storage.shard.formats import seen_count, seen_digests


def read_seen_extents(rows: Callable[..., Any]) -> list[SeenExtent]:
    """Read the extents of all logs of named namespaces; `rows` runs a statement in the owner's session."""
    moved = {namespace: moved_end for namespace, *_, moved_end in rows(sql.READ_ARRIVED)}
    return [
        SeenExtent(
            namespace,
            first,
            last_first,
            last_first + seen_count(size_bytes, version),
            at_ms,
            moved.get(namespace, 0),
        )
        for namespace, first, last_first, size_bytes, version, at_ms in rows(sql.READ_SEEN_EXTENTS)
        if first is not None
    ]


def read_seen_images(rows: Callable[..., Any]) -> list[StoredImage]:
    """Read the stored images, whole or partial; `rows` runs a statement in the owner's session."""
    return [
        StoredImage(ImageKey(*key), first, last + 1, first == HEAD_PART and count == last + 1)
        for *key, first, last, count in rows(sql.READ_SEEN_IMAGES)
    ]


class SeenLogReader:
    """Reads in a session of its own, in parallel to the owner's transactions; one call at a time, on any thread.

    A namespace's log and images do not change while they are read, because its owner takes no ids for it meanwhile, and
    drops none. After SessionLostError a call can be repeated.
    """

    def __init__(self, url: Callable[[], str], shard_id: int) -> None:
        self._url = url
        self._shard_id = shard_id
        self._session: Any = None
        self._is_interrupted = False

    def read(self, namespace: int, first: int, limit: int) -> list[SeenDigests]:
        """Read up to `limit` rows, from the one that begins at `first` or the next one; empty at the log's end."""
        found = self._rows(sql.READ_SEEN_LOG, namespace, first, limit)
        return [SeenDigests(at, at_ms, seen_digests(entries)) for _, at, at_ms, entries in found]

    def read_parts(self, key: ImageKey, first: int, limit: int) -> list[SeenPart]:
        """Read up to `limit` parts of an image, from the one with this number or the next."""
        return [SeenPart(key, number, body) for number, body in self._rows(sql.READ_SEEN_PARTS, *key, first, limit)]

    def _rows(self, statement: str, *arguments: object) -> Any:
        was_open = self._session is not None
        try:
            if self._session is None:
                self._session = connect(self._url())
            if self._is_interrupted:
                raise SessionLostError(f"shard {self._shard_id}: its dedup ids are not read any more")
            with self._session.cursor() as cursor:
                cursor.execute(statement, arguments)
                found = complete(statement, cursor.fetchall())
            self._session.commit()
        except (pymysql.err.Error, OSError) as error:
            self.close()
            hung = isinstance(error.__context__, TimeoutError)
            if not was_open or not is_lost(error) or hung or self._is_interrupted:
                raise SessionLostError(f"shard {self._shard_id}: {error}") from error
            return self._rows(statement, *arguments)  # The session ended while it was idle.
        return found

    def interrupt(self) -> None:
        """Make the running call and all later ones fail; any thread may call it."""
        self._is_interrupted = True
        interrupt(self._session)

    def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session._force_close()

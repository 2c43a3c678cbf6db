"""A shard as read by the shard that receives its slots: its copy of the slot table, and its dedup ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pymysql
import structlog

from foqs.model.cluster import ShardIdentity, identity_problem
from foqs.model.errors import UnavailableError
from foqs.model.held import HeldChanges, HeldId, Holder, NamespaceDigest
from foqs.model.slots import NO_SLOTS, SlotTable, unpack_slots, unpacked
from foqs.shard.port import SeenName, SeenRow
from foqs.storage.schema import statements as sql
from foqs.storage.sessions.session import connect, interrupt, is_lost
from foqs.storage.sessions.whole_reads import complete, only_row
from foqs.storage.shard.held_ids import held_reads, take_held
from foqs.storage.shard.identity import read_identity
from foqs.storage.shard.script import seen_row
from foqs.storage.shard.seen_log import read_seen_extents
from foqs.storage.shard.server_name import read_server
from foqs.storage.shard.shard_reader import copy_error

_log = structlog.get_logger(__name__)


class SlotSource:
    """Reads a shard of any owner in a session of its own; one call at a time, on any thread.

    Each call sees all transactions committed before it. All calls raise UnavailableError, and can be repeated.
    """

    def __init__(self, shard_id: int, url: str, served_on: str = "") -> None:
        """`served_on` names the server on which the shard is served, or is empty if nobody knows."""
        self._shard_id = shard_id
        self._url = url
        self._served_on = served_on
        self._session: Any = None
        self._is_interrupted = False

    def slots(self) -> SlotTable:
        """Read the shard's copy of the slot table."""
        found = [unpacked(version, packed) for version, packed in self._rows(sql.READ_SLOTS)]
        return found[0] if found else NO_SLOTS

    def logs(self) -> list[SeenName]:
        """Read the shard's logs of dedup ids.

        A log's name is written before its first row and deleted after its last one. So the names are read last, and a
        log without a name no longer exists.
        """
        extents = read_seen_extents(self._rows)
        moved = {row[0]: (frozenset(unpack_slots(row[2])), row[4]) for row in self._rows(sql.READ_ARRIVED)}
        names = dict(self._rows(sql.READ_NAMESPACES))
        return [
            SeenName(one.namespace, names[one.namespace], one.first, one.end, *moved.get(one.namespace, ()))
            for one in extents
            if one.namespace in names
        ]

    def read(self, namespace: int, first: int, end: int) -> tuple[int, list[SeenRow]]:
        """Read the rows of a log whose first numbers are from `first` to before `end`, and the shard's steady clock.

        The clock is as its owner last wrote it, so an idle shard seems a little younger than it is.
        """
        found = [seen_row(values) for values in self._rows(sql.READ_SEEN_SPAN, namespace, first, end)]
        (steady_ms,) = only_row(self._rows(sql.READ_STEADY), "its table writer")
        return steady_ms, found

    def held(self, after: tuple[int, int], limit: int) -> list[HeldId]:
        """Read up to `limit` rows of held ids, from the one after this key and shard on."""
        key, shard_id = after
        return [HeldId._make(row) for row in self._rows(sql.SCAN_HELD, key, key, shard_id, limit)]

    def holders(self, ids: Sequence[NamespaceDigest]) -> dict[NamespaceDigest, Holder]:
        """Return the items of this shard that hold these ids."""
        found: dict[NamespaceDigest, Holder] = {}
        for statement in held_reads(HeldChanges(reads=list(ids))):
            take_held(self._rows(statement), found, self._shard_id)
        return {one: holder for one, holder in found.items() if holder.shard_id == self._shard_id}

    def interrupt(self) -> None:
        """Make the running call and all later ones fail; any thread may call it."""
        self._is_interrupted = True
        interrupt(self._session)

    def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session._force_close()

    def _check_shard(self) -> None:
        """Refuse the ids of any other shard."""
        identity = read_identity(self._rows)
        if problem := identity_problem(identity, ShardIdentity(b"", self._shard_id)):
            self.close()
            raise UnavailableError(f"shard {self._shard_id} cannot be read now: {problem}", nothing_done=True)
        if self._served_on and (server := read_server(self._rows)) != self._served_on:
            self.close()
            _log.warning("read_led_to_a_copy", shard=self._shard_id, server=server, served_on=self._served_on)
            raise copy_error(self._shard_id)

    def _rows(self, statement: str, *arguments: object) -> Any:
        was_open = self._session is not None
        try:
            if self._session is None:
                self._session = connect(self._url)
                self._session.autocommit(True)
                self._check_shard()
            if self._is_interrupted:
                raise UnavailableError(f"shard {self._shard_id} is not read any more", nothing_done=True)
            with self._session.cursor() as cursor:
                cursor.execute(statement, arguments)
                return complete(statement, cursor.fetchall())
        except (pymysql.err.Error, OSError) as error:
            self.close()
            hung = isinstance(error.__context__, TimeoutError)
            if was_open and is_lost(error) and not hung and not self._is_interrupted:
                return self._rows(statement, *arguments)  # The session ended while it was idle.
            raise UnavailableError(f"shard {self._shard_id} cannot be read now: {error}", nothing_done=True) from error

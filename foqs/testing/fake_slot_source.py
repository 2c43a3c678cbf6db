"""The reads of foqs.storage.shard.slot_source.SlotSource, from a FakeServer."""

from __future__ import annotations

from collections.abc import Sequence

from foqs.model.errors import UnavailableError
from foqs.model.held import HeldId, Holder, NamespaceDigest
from foqs.model.slots import SlotTable
from foqs.shard.port import SeenName, SeenRow
from foqs.testing.fake_server import FakeServer
from foqs.testing.fake_tables import Tables
from foqs.testing.short_reads import not_read


class FakeSlotSource:
    """A shard's slots and dedup ids, as the shard that receives its slots reads them."""

    def __init__(self, server: FakeServer) -> None:
        self._server = server

    def slots(self) -> SlotTable:
        return self._tables().slots

    def logs(self) -> list[SeenName]:
        tables = self._tables()
        found: list[SeenName] = []
        with not_read(self._server.shard_id):
            extents = self._server.reads.whole(tables.seen_extents())
        for one in extents:
            moved = tables.moved.get(one.namespace)
            again = (frozenset(moved.slots), moved.first) if moved else (frozenset[int](), 0)
            found.append(SeenName(one.namespace, tables.namespaces[one.namespace], one.first, one.end, *again))
        return found

    def read(self, namespace: int, first: int, end: int) -> tuple[int, list[SeenRow]]:
        tables = self._tables()
        with not_read(self._server.shard_id):
            return tables.writer.steady_ms, self._server.reads.whole(tables.seen_rows(namespace, first, end))

    def held(self, after: tuple[int, int], limit: int) -> list[HeldId]:
        tables = self._tables()
        with not_read(self._server.shard_id):
            return self._server.reads.whole([tables.held[at] for at in sorted(tables.held) if at > after][:limit])

    def holders(self, ids: Sequence[NamespaceDigest]) -> dict[NamespaceDigest, Holder]:
        shard_id = self._server.shard_id
        with not_read(shard_id):
            found = self._tables().holders_of(ids, shard_id, self._server.reads)
        return {one: holder for one, holder in found.items() if holder.shard_id == shard_id}

    def interrupt(self) -> None:
        return None

    def close(self) -> None:
        return None

    def _tables(self) -> Tables:
        if not self._server.up or self._server.frozen:
            raise UnavailableError(f"shard {self._server.shard_id} cannot be read now", nothing_done=True)
        tables = self._server.tables
        if tables.identity is not None and tables.identity.shard_id != self._server.shard_id:
            raise UnavailableError(f"shard {self._server.shard_id} cannot be read: it is elsewhere", nothing_done=True)
        return tables

"""A reader of a shard beside its owner, in memory: pages, exports and slots."""

from __future__ import annotations

from collections.abc import Callable

from foqs.model import limits
from foqs.model.copy_steps import CopyKey, CopyPlace
from foqs.model.errors import UnavailableError
from foqs.model.slots import SlotTable
from foqs.shard.port import ItemRow, SlotArrival
from foqs.storage.shard.export_pages import Cell, ExportCriteria, KeyPage, is_wanted, merged_by_key, without_contents
from foqs.storage.shard.packs.pack_index import ExpiredPage, PackIndex, Page, merged_pages, with_packed
from foqs.testing.fake_server import FakeServer
from foqs.testing.short_reads import not_read


class FakeReader:
    """The reads of foqs.storage.shard.shard_reader.ShardReader, from a FakeServer."""

    def __init__(self, server: FakeServer, packs: PackIndex) -> None:
        """`packs` is the index of the shard's store."""
        self._server = server
        self.packs = packs

    def page(self, lane: int, edge: int, limit: int, bytes_max: int = limits.PAGE_BYTES_MAX) -> Callable[[], Page]:
        packed = self.packs.page(lane, edge, limit, bytes_max)
        return lambda: merged_pages(packed, self._page(lane, edge, limit, bytes_max), limit, bytes_max)

    def _page(self, lane: int, edge: int, limit: int, bytes_max: int) -> Page:
        self._touch()
        tables = self._server.tables
        rows: list[ItemRow] = []
        size_bytes = 0
        with not_read(self._server.shard_id):
            found = self._server.reads.whole(tables.after(lane, edge, limit))
        for _, _, key in found:
            row = tables.items[key]
            size_bytes += row.size_bytes
            if rows and size_bytes > bytes_max:
                break
            rows.append(row)
        return rows, len(rows) < len(found) or len(found) == limit

    def expired_page(self, after_key: int, now_ms: int) -> Callable[[], ExpiredPage]:
        packed = self.packs.expired(now_ms, limits.EXPIRY_SCAN_ITEMS)
        return lambda: with_packed(packed, self._expired_page(after_key, now_ms))

    def _expired_page(self, after_key: int, now_ms: int) -> ExpiredPage:
        self._touch()
        items, packed = self._server.tables.items, self._server.tables.packed
        keys = sorted([key for key in items if key > after_key and key not in packed])[: limits.EXPIRY_SCAN_ITEMS]
        ends = {key: items[key].expires_at for key in keys if items[key].lane >= 0}
        with not_read(self._server.shard_id):
            expired = [key for (key,) in self._server.reads.whole([(key,) for key, at in ends.items() if at <= now_ms])]
        return ExpiredPage(expired, keys[-1] if keys else 0, min(ends.values(), default=limits.NEVER_MS))

    def export_page(self, criteria: ExportCriteria, is_of_namespace: Callable[[int], bool]) -> Callable[[], KeyPage]:
        packed = self.packs.export_places(criteria, is_of_namespace)
        return lambda: merged_by_key(packed.page(criteria), self._export_page(criteria), criteria)

    def _export_page(self, criteria: ExportCriteria) -> KeyPage:
        self._touch()
        tables = self._server.tables
        rows: list[ItemRow] = []
        size_bytes = 0
        with not_read(self._server.shard_id):
            self._server.reads.whole(
                [(key,) for key in tables.items if criteria.after_key < key <= criteria.to_key][: criteria.limit]
            )
        keys, up_to = criteria.keys or (tables.items, criteria.to_key)
        for key in sorted([key for key in keys if criteria.after_key < key <= criteria.to_key and key in tables.items]):
            row = tables.items[key]
            if key in tables.packed or not is_wanted(row, criteria.states) or not self._is_of(row.topic, criteria):
                continue
            row = without_contents(row, criteria)
            size_bytes += row.size_bytes
            if rows and size_bytes > criteria.bytes_max:
                return KeyPage(rows, rows[-1].key)
            rows.append(row)
            if len(rows) == criteria.limit:
                return KeyPage(rows, key)
        return KeyPage(rows, up_to)

    def _is_of(self, topic_number: int, criteria: ExportCriteria) -> bool:
        if criteria.topics is not None:
            return topic_number in criteria.topics
        namespace, name = self._server.tables.topics[topic_number]
        return namespace == criteria.namespace and name.startswith(criteria.prefix)

    def sample_keys(self, to_key: int) -> Callable[[], list[Cell]]:
        packed = self.packs.cells()

        def read() -> list[Cell]:
            self._touch()
            tables = self._server.tables
            keys = [key for key in tables.items if key <= to_key and key not in tables.packed]
            return [*packed, *[Cell(key - 1, key, 1) for key in keys]]

        return read

    def keep_slots(self, known: SlotTable) -> SlotTable:
        self._touch()
        tables = self._server.tables
        if known.version > tables.slots.version:
            tables.slots = known
        return tables.slots

    def read_arrival(self) -> SlotArrival | None:
        self._touch()
        move, moved = self._server.tables.arrival, self._server.tables.moved.values()
        with not_read(self._server.shard_id):
            self._server.reads.whole([move] if move else [])
            self._server.reads.whole([*moved] if move else [])
        read_to = {one.namespace: one.read_to for one in moved if move and one.version == move.version}
        return SlotArrival(move, read_to) if move else None

    def read_copy(self, copy: CopyKey) -> CopyPlace | None:
        self._touch()
        return self._server.tables.copies.get(copy)

    def interrupt(self) -> None:
        return None

    def close(self) -> None:
        return None

    def _touch(self) -> None:
        if not self._server.up or self._server.frozen:
            raise UnavailableError(f"shard {self._server.shard_id} cannot be read now")

"""The operation that writes the dedup ids of a transaction's items to the log, or has the items hold them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from foqs.model.clock import Now
from foqs.model.errors import FoqsError
from foqs.model.seen import BLOCK_IDS, SeenWindow
from foqs.shard.port import SeenIds, Transaction, TransactionResult
from foqs.shard.state.index import ShardIndex
from foqs.shard.state.ops.operation import Operation

if TYPE_CHECKING:
    from foqs.shard.state.ops.dedup import Dedup, Firsts


class Remembering(Operation):
    """The dedup ids of the items that a transaction inserts and logs together."""

    __slots__ = ("_by_namespace", "_index", "_rows", "_source")

    def __init__(self, source: Dedup, index: ShardIndex, firsts: list[Firsts]) -> None:
        self._source = source
        self._index = index
        self._by_namespace: dict[int, list[Firsts]] = {}
        self._rows: list[SeenIds] = []
        for some in firsts:
            self._by_namespace.setdefault(some.items[0].topic.namespace, []).append(some)

    def write(self, transaction: Transaction, now: Now) -> None:
        windows = self._source.windows
        for namespace, firsts in self._by_namespace.items():
            digests, keys, copies_counts = self._logged(transaction, firsts)
            if not digests:
                continue
            window = windows.get(namespace)
            if window is None:
                window = windows[namespace] = SeenWindow(namespace)
            start, number = 0, window.end
            while start < len(digests):
                stop = start + BLOCK_IDS - number % BLOCK_IDS
                part = digests[start:stop]
                counts = copies_counts[start:stop]
                self._rows.append(SeenIds(namespace, number, now.steady_ms, part, keys[start:stop], None, counts))
                start, number = stop, number + len(part)
        transaction.seen_new = self._rows

    def _logged(self, transaction: Transaction, firsts: Sequence[Firsts]) -> tuple[list[bytes], list[int], list[int]]:
        """Return the digests for the log, the keys of their items, and the numbers of copies behind these, if any.

        All other items hold their ids instead.
        """
        digests: list[bytes] = []
        keys: list[int] = []
        counts: dict[int, int] = {}
        for some in firsts:
            holding = some.outcome.holding
            counts |= some.copies_counts()
            if not holding:
                digests += some.digests
                keys += [item.key for item in some.items]
                continue
            for digest, item in zip(some.digests, some.items, strict=True):
                if item.key in holding:
                    copies = some.outcome.copies.get(item.key, ())
                    self._source.held.hold(transaction, digest, [item, *copies])
                else:
                    digests.append(digest)
                    keys.append(item.key)
        return digests, keys, [counts.get(key, 0) for key in keys] if counts else []

    def committed(self, result: TransactionResult, now: Now) -> None:
        source, shard_id = self._source, self._index.shard_id
        for row in self._rows:
            window = source.windows[row.namespace]
            window.add(row.digests, row.at_ms, source.forgetfulness.table_ids_max(window))
            window.last_first = row.first
            source.forgetfulness.added(window, row.at_ms, len(row.digests))
        for firsts in self._by_namespace.values():
            for some in firsts:
                keys = [item.key for item in some.items]
                some.outcome.made += keys
                some.release_room()
                source.note_firsts(some.digests, shard_id, keys, some.copies_counts())
                source.firsts_count -= 1

    def rolled_back(self, error: FoqsError) -> None:
        """Do nothing: the operation that inserts the batches refused them, and their ids with them."""

    def lost(self, unknown: FoqsError, undone: FoqsError) -> None:
        """Do nothing, for the same reason."""

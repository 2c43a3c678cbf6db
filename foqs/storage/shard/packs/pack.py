"""One pack in memory, and the effect of one transaction on packs."""

from __future__ import annotations

from array import array
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from foqs.model.failures import with_entry
from foqs.model.item import ShardItem, keys_of, sort_keys_of
from foqs.shard.port import ItemRow, Rewrite, Transaction
from foqs.storage.shard.formats import pack_items, packed_starts, unpack_item


class Pack:
    """A stored row that holds items inserted together, until its last item has left it."""

    __slots__ = (
        "_by_topic", "_listed_count", "_starts", "_topic_of", "born_ms", "contents", "expires_at", "expires_first_ms",
        "first_key", "id", "keys", "last_key", "left_count", "size_bytes", "sort_keys",
    )  # fmt: skip

    def __init__(self, pack_id: int, items: Sequence[ShardItem], size_bytes: int, born_ms: int) -> None:
        """`items` are in their order; `born_ms` is a time of the steady clock."""
        self.id = pack_id
        self.contents = pack_items(items)
        self.keys = keys_of(items)
        """Keys of all its items, including those that have left it."""
        self.first_key = min(self.keys)
        self.last_key = max(self.keys)
        self.sort_keys = sort_keys_of(items)
        self.left_count = len(self.keys)
        """Items that have not left it."""
        self.size_bytes = size_bytes
        """The bytes that it counts for in the bounds on memory."""
        self.born_ms = born_ms
        self.expires_at = array("q")
        for item in items:
            self.expires_at.extend([item.expires_at] * item.count)
        self.expires_first_ms = min(self.expires_at)
        """A time before which no remaining item expires."""
        self._starts = packed_starts(items)
        """The start of each item in the contents."""
        self._topic_of = list[int]()
        for item in items:
            self._topic_of += [item.topic.number] * item.count
        self._by_topic: dict[int, list[int]] = {}
        """Sort keys by topic, made on the first use, and again when half of the items have left the pack since."""
        self._listed_count = 0
        """Items whose sort keys are in it."""

    def topic_at(self, position: int) -> int:
        """Return the topic number of the item at this position in `keys`."""
        return self._topic_of[position]

    def row(self, key: int) -> ItemRow:
        """Return an item of the pack as a row."""
        return self.row_at(self.keys.index(key))

    def row_at(self, position: int) -> ItemRow:
        """Return the item at this position in `keys` as a row; for any thread."""
        return unpack_item(self.contents, self._starts[position], self.keys[position])

    @property
    def topics(self) -> dict[int, None]:
        """Return the numbers of the topics of its original items."""
        return dict.fromkeys(self._topic_of)

    def sort_keys_of(self, topic: int, packed: Container[int]) -> list[int]:
        """Return the sort keys of a topic of the pack, in order. `packed` has the keys of all items in packs.

        In all topics together, items that have left the pack have no more sort keys there than the remaining ones.
        """
        if not self._by_topic or self._listed_count > 2 * self.left_count:
            self._list_by_topic(packed)
        return self._by_topic.get(topic, [])

    def _list_by_topic(self, packed: Container[int]) -> None:
        by_topic: dict[int, list[int]] = {}
        for key, number, sort_key in zip(self.keys, self._topic_of, self.sort_keys, strict=True):
            if key in packed:
                if number in by_topic:
                    by_topic[number].append(sort_key)
                else:
                    by_topic[number] = [sort_key]
        self._by_topic = by_topic
        self._listed_count = self.left_count


class Tombstone(NamedTuple):
    """A row with the keys of items that have left their packs, kept while such a pack exists."""

    id: int
    keys: list[int]


@dataclass(slots=True)
class PackPlan:
    """The writes and reads of one transaction, based on the current set of packed items.

    A plan changes nothing. It stays valid until the index commits another one, so it can be reused for a transaction
    that was rolled back.
    """

    transaction: Transaction
    inserts: Sequence[ShardItem] = ()
    """Items that get rows at once."""
    packs_new: list[Pack] = field(default_factory=list)
    packed_count: int = 0
    """Number of items in the new packs."""
    promoted: list[ItemRow] = field(default_factory=list)
    """Items that leave their packs for rows, in their state after the transaction."""
    rewrites: list[Rewrite] = field(default_factory=list)
    """Rewrites of rows."""
    deletes: list[int] = field(default_factory=list)
    """Keys of rows."""
    tombstone: Tombstone | None = None
    packs_gone: list[int] = field(default_factory=list)
    """Ids of packs to delete with all their remaining items."""
    tombstones_gone: list[int] = field(default_factory=list)
    """Ids of tombstones that no pack needs any more."""
    fetches: list[int] = field(default_factory=list)
    """Keys of items to claim whose rows have to be read."""
    look_ups: list[int] = field(default_factory=list)
    """Keys with a row, or with no item, at the end of the transaction."""
    rows_count: int = 0
    """Rows of items that the transaction reads or writes at most."""
    leaving: dict[Pack, list[int]] = field(default_factory=dict)
    """Keys that leave their packs, because the items are deleted or promoted."""
    promotes_old: bool = False
    """True if items are promoted for their age."""


def _errors_after(row: ItemRow, rewrite: Rewrite) -> bytes:
    return row.errors if rewrite.error is None else with_entry(rewrite.error, row.errors, rewrite.errors_bytes_max)


def rewritten(row: ItemRow, rewrite: Rewrite) -> ItemRow:
    """Return an item's row after the rewrite."""
    content, metadata = row.content, rewrite.metadata
    row = row._replace(
        deliveries=rewrite.deliveries,
        failed_attempts=rewrite.failed_attempts,
        death_reason=row.death_reason if rewrite.death_reason is None else rewrite.death_reason,
        expires_at=row.expires_at if rewrite.expires_at is None else rewrite.expires_at,
        content=content if metadata is None else content._replace(metadata=metadata),
        errors=_errors_after(row, rewrite),
    )
    if rewrite.is_in_place:
        return row
    return row._replace(lane=rewrite.lane, urgency=rewrite.urgency, due_at=rewrite.due_at)

"""The tables of one shard as dictionaries, with the rows that its fake server has committed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from sortedcontainers import SortedDict, SortedList

from foqs.model import order
from foqs.model.cluster import ShardIdentity
from foqs.model.copy_steps import CopyKey, CopyPlace, CopyStep
from foqs.model.held import FREED, HeldChanges, HeldId, Holder, NamespaceDigest
from foqs.model.seen_image import ImageKey
from foqs.model.slot_changes import SlotIds
from foqs.model.slots import NO_SLOTS, SlotMove, SlotTable
from foqs.shard.port import (
    TIMER_LANE,
    ItemRow,
    LaneCounts,
    SeenExtent,
    SeenPart,
    SeenRow,
    StoredClaim,
    StoredImage,
)
from foqs.storage.shard.formats import seen_count, unpack_items, unpack_seen
from foqs.storage.shard.held_ids import take_held
from foqs.testing.short_reads import ReadCut

Place = tuple[int, int, int]


class FakeServerError(Exception):
    """The host asked for an impossible change: a key used twice, or the deletion of a missing row."""


@dataclass(slots=True)
class Writer:
    epoch: int = 0
    owner: str = ""
    transaction_number: int = 0
    delay_checkpoint: int = 0
    claim_checkpoint: int = 0
    topic_number_last: int = 0
    steady_ms: int = 0
    session_id: int = 0


@dataclass(slots=True)
class Tables:
    """The committed rows."""

    items: dict[int, ItemRow] = field(default_factory=dict)
    """The items with and without rows of their own. Each item is here once."""
    packs: dict[int, bytes] = field(default_factory=dict)
    """The contents of packs, by id."""
    tombstones: dict[int, list[int]] = field(default_factory=dict)
    packed: dict[int, int] = field(default_factory=dict)
    """The id of the pack by key, for items that have not left their pack. Statements on item rows do not find them."""
    lanes: dict[int, SortedList] = field(default_factory=dict)
    """The sort keys (urgency, due_at, key) of each lane, as in the index."""
    claims: dict[int, StoredClaim] = field(default_factory=dict)
    topics: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    namespaces: dict[int, bytes] = field(default_factory=dict)
    seen: SortedDict = field(default_factory=SortedDict)
    """The time and entries of each row of seen dedup ids, by namespace and number of its first id."""
    seen_parts: dict[tuple[ImageKey, int], bytes] = field(default_factory=dict)
    """The parts of images of tables of seen dedup ids."""
    writer: Writer = field(default_factory=Writer)
    identity: ShardIdentity | None = None
    slots: SlotTable = NO_SLOTS
    arrival: SlotMove | None = None
    """The slots that are on their way to the shard."""
    moved: dict[int, SlotIds] = field(default_factory=dict)
    """The ids that came with the last slots, by namespace."""
    held: dict[tuple[int, int], HeldId] = field(default_factory=dict)
    """The ids that items hold, by key and shard of the item."""
    copies: dict[CopyKey, CopyPlace] = field(default_factory=dict)
    """The copies for new consumer groups."""

    def write_copies(self, ended: list[CopyKey], begun: list[tuple[CopyKey, int]], steps: list[CopyStep]) -> None:
        for key in ended:
            self.copies.pop(key, None)
        for key, up_to in begun:
            self.copies.setdefault(key, CopyPlace(up_to, 0, 0))
        for key, position, count in steps:
            require(key in self.copies, f"copy {key} has items and has not begun")
            before = self.copies[key]
            require(before.position < position <= before.up_to, f"copy {key} moves from {before} to {position:x}")
            self.copies[key] = before._replace(position=position, copied_count=before.copied_count + count)

    def put(self, row: ItemRow) -> None:
        old = self.items.get(row.key)
        if old is not None:
            self._unindex(old)
        self.items[row.key] = row
        if row.lane not in self.lanes:
            self.lanes[row.lane] = SortedList()
        self.lanes[row.lane].add((row.urgency, row.due_at, row.key))

    def delete(self, key: int) -> None:
        self._unindex(self.items.pop(key))

    def row(self, key: int) -> ItemRow | None:
        return None if key in self.packed else self.items.get(key)

    def promote_all(self) -> None:
        """Give a row to each packed item that no tombstone names, as a new owner does."""
        found = self.left_in_packs()
        for key in self.packed:
            self.delete(key)
        for row in found:
            require(row.key not in self.items, f"{row.key:x} has a row, and is in a pack as well")
            self.put(row)
        self.packs.clear()
        self.tombstones.clear()
        self.packed.clear()

    def left_in_packs(self) -> list[ItemRow]:
        """The items that a new owner finds in packs and in no tombstone."""
        gone = {key for keys in self.tombstones.values() for key in keys}
        return [row for contents in self.packs.values() for row in unpack_items(contents) if row.key not in gone]

    def needs(self, tombstone_ids: Collection[int]) -> bool:
        """True if a pack has a key of these tombstones."""
        gone = {key for tombstone_id in tombstone_ids for key in self.tombstones[tombstone_id]}
        return bool(gone) and any(row.key in gone for packed in self.packs.values() for row in unpack_items(packed))

    def after(self, lane: int, edge: int, limit: int) -> list[Place]:
        sort_keys = self.lanes.get(lane)
        if sort_keys is None:
            return []
        at = 0
        if edge != order.FIRST:
            at = sort_keys.bisect_right((order.urgency_of(edge), order.due_at_of(edge), order.key_of(edge)))
        if not self.packed:
            return list(sort_keys[at : at + limit])
        return list(islice((sort_key for sort_key in sort_keys[at:] if sort_key[2] not in self.packed), limit))

    def seen_rows(self, namespace: int, first: int, end: int) -> list[SeenRow]:
        """The rows of a namespace's log of dedup ids with first numbers from `first` and before `end`."""
        found = self.seen.irange((namespace, first), (namespace, end), inclusive=(True, False))
        return [SeenRow(at[0], at[1], self.seen[at][0], *unpack_seen(self.seen[at][1])) for at in found]

    def forget_moved(self) -> None:
        """Forget the ids that came with slots for namespaces that have no log any more."""
        logs = {namespace for namespace, _ in self.seen}
        self.moved = {namespace: one for namespace, one in self.moved.items() if namespace in logs}

    def seen_extents(self) -> list[SeenExtent]:
        extents: dict[int, SeenExtent] = {}
        for (namespace, first), (at_ms, entries) in self.seen.items():
            end = first + seen_count(len(entries), entries[0])
            earlier = extents.get(namespace)
            moved = self.moved.get(namespace)
            moved_end = moved.moved_end if moved else 0
            extents[namespace] = SeenExtent(
                namespace, earlier.first if earlier else first, first, end, at_ms, moved_end
            )
        return list(extents.values())

    def seen_images(self) -> list[StoredImage]:
        numbers: dict[ImageKey, list[int]] = {}
        for key, number in sorted(self.seen_parts):
            numbers.setdefault(key, []).append(number)
        return [
            StoredImage(key, some[0], some[-1] + 1, some == list(range(len(some)))) for key, some in numbers.items()
        ]

    def parts_of(self, key: ImageKey) -> list[SeenPart]:
        """The parts of an image, in order."""
        numbers = sorted([number for of, number in self.seen_parts if of == key])
        return [SeenPart(key, number, self.seen_parts[key, number]) for number in numbers]

    def holding(self) -> list[tuple[int]]:
        """The namespaces with items that hold their ids."""
        return sorted({(one.namespace,) for one in self.held.values()})

    def holders_of(
        self, ids: Sequence[NamespaceDigest], shard_id: int, reads: ReadCut
    ) -> dict[NamespaceDigest, Holder]:
        """The holders of the held ones of these ids."""
        if not ids:
            return {}
        wanted = set(ids)
        found = [one for one in self.held.values() if (one.namespace, one.digest) in wanted]
        holders: dict[NamespaceDigest, Holder] = {}
        take_held(
            [(one.namespace, one.digest, one.shard_id, one.first, one.copies_count) for one in reads.whole(found)],
            holders,
            shard_id,
        )
        return holders

    def write_held(self, changes: HeldChanges, shard_id: int) -> None:
        for key in changes.ended:
            self.held.pop((key, shard_id), None)
        freed, released = set(changes.freed), {(one, *holder[:2]) for one, holder in changes.released}
        for at, one in list(self.held.items()) if freed or released else ():
            digest = NamespaceDigest(one.namespace, one.digest)
            if (digest, one.shard_id, one.first) in released or (digest in freed and at[1] == shard_id):
                del self.held[at]
            elif digest in freed:
                self.held[at] = one._replace(first=FREED)
        for one in changes.new:
            before = self.held.setdefault((one.key, one.shard_id), one)
            if one.first < before.first:
                self.held[one.key, one.shard_id] = one

    def counts(self) -> LaneCounts:
        delayed: dict[int, int] = {}
        for _, _, key in self.lanes.get(TIMER_LANE, ()):
            number = self.items[key].topic
            delayed[number] = delayed.get(number, 0) + 1
        return LaneCounts(
            [(lane, len(sort_keys)) for lane, sort_keys in self.lanes.items() if sort_keys], list(delayed.items())
        )

    def copy(self) -> Tables:
        lanes = {lane: sort_keys.copy() for lane, sort_keys in self.lanes.items()}
        return Tables(
            dict(self.items), dict(self.packs), dict(self.tombstones), dict(self.packed), lanes, dict(self.claims),
            dict(self.topics), dict(self.namespaces), SortedDict(self.seen), dict(self.seen_parts),
            replace(self.writer), self.identity, self.slots, self.arrival, dict(self.moved), dict(self.held),
            dict(self.copies),
        )  # fmt: skip

    def _unindex(self, row: ItemRow) -> None:
        self.lanes[row.lane].remove((row.urgency, row.due_at, row.key))


def require(holds: bool, complaint: str) -> None:
    if not holds:
        raise FakeServerError(complaint)

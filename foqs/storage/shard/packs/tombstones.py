"""The tombstones of a shard: which of its packs still need them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from foqs.storage.shard.packs.pack import Tombstone


class Tombstones:
    """Knows the stored tombstones of one shard by their ids, without their keys.

    A tombstone is needed as long as a pack exists that had an item which it names. So a pack that lives for hours keeps
    the tombstones of its own items, and no others.
    """

    def __init__(self) -> None:
        self._packs_of: dict[int, set[int]] = {}
        """The ids of the packs that need a tombstone, by its id, the oldest first."""
        self._of_pack: dict[int, set[int]] = {}
        """The ids of the tombstones that a pack needs, by its id."""
        self._keys_counts: dict[int, int] = {}
        self.keys_count = 0
        """Keys in all tombstones."""

    def __len__(self) -> int:
        return len(self._packs_of)

    def __iter__(self) -> Iterator[int]:
        """Yield the ids, the oldest first."""
        return iter(self._packs_of)

    @property
    def packs_of_oldest(self) -> list[int]:
        """The ids of the packs that need the oldest tombstone, in order."""
        return sorted(next(iter(self._packs_of.values()), ()))

    def not_needed_without(self, packs_gone: Collection[int]) -> list[int]:
        """Return the tombstones that no pack needs once these packs are deleted."""
        gone, found = set(packs_gone), set[int]()
        for pack_id in packs_gone:
            found.update([one for one in self._of_pack.get(pack_id, ()) if self._packs_of[one] <= gone])
        return sorted(found)

    def add(self, tombstone: Tombstone, pack_ids: Iterable[int]) -> None:
        """Note a new tombstone, and the packs that need it."""
        needed_by = self._packs_of[tombstone.id] = set(pack_ids)
        for pack_id in needed_by:
            self._of_pack.setdefault(pack_id, set()).add(tombstone.id)
        self._keys_counts[tombstone.id] = len(tombstone.keys)
        self.keys_count += len(tombstone.keys)

    def remove(self, tombstone_ids: Iterable[int]) -> None:
        """Forget deleted tombstones."""
        for tombstone_id in tombstone_ids:
            self.keys_count -= self._keys_counts.pop(tombstone_id)
            for pack_id in self._packs_of.pop(tombstone_id):
                self._of_pack[pack_id].remove(tombstone_id)

    def forget_pack(self, pack_id: int) -> None:
        """Note that a pack was deleted and needs no tombstone any more."""
        for tombstone_id in self._of_pack.pop(pack_id, ()):
            self._packs_of[tombstone_id].discard(pack_id)

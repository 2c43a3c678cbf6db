"""Dedup ids that items hold until they end, for items with DedupUntil.ACKED.

The transaction that inserts such an item writes that it holds its id, and the transaction that ends the item deletes
that (foqs/model/held.py). So an id is taken if and only if its item lives. The log of dedup ids does not have it. An
enqueue with an id of a namespace with held ids reads the holder before it makes an item
(foqs/shard/state/ops/check.py). Memory has only the numbers of these namespaces.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from foqs.model.held import HeldChanges, HeldId
from foqs.model.item import ShardItem
from foqs.shard.port import Transaction


class Holds:
    """Knows the namespaces in which items might hold ids, and writes the ends of held ids with those of their items."""

    def __init__(self, shard_id: int, namespaces: Iterable[int]) -> None:
        self.shard_id = shard_id
        self.namespaces = set(namespaces)
        """The namespaces with items that hold ids, and some whose items have ended since the shard was opened."""

    def hold(self, transaction: Transaction, digest: bytes, copies: Sequence[ShardItem]) -> None:
        """Let an inserted item hold its id, as long as one of its copies lives."""
        first, namespace = copies[0].key, copies[0].topic.namespace
        self.namespaces.add(namespace)
        behind = len(copies) - 1
        changes_of(transaction).new += [
            HeldId(one.key, self.shard_id, namespace, digest, first, behind) for one in copies
        ]

    def note_ends(self, transaction: Transaction) -> None:
        """Note which items the planned transaction ends: it deletes them, or makes them dead letters."""
        dead = [rewrite.key for rewrite in transaction.rewrites if rewrite.lane < 0]
        if dead or transaction.deletes:
            changes_of(transaction).ended = [*transaction.deletes, *dead]


def changes_of(transaction: Transaction) -> HeldChanges:
    """Return the held ids of a transaction to add to."""
    if transaction.held is None:
        transaction.held = HeldChanges()
    return transaction.held

"""The claim journal: one row leases all items that one transaction claims.

A delivery does not touch the wide item row; the owner keeps all open claims in memory and a new owner reads them back
(docs/decisions/0002: 14.6 µs of MySQL per item instead of 23.0 with a row update per delivery).
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence

from foqs.model import limits
from foqs.model.clock import Now
from foqs.model.errors import FoqsError
from foqs.model.item import Claim, ShardItem, keys_of
from foqs.shard.port import ClaimEntries, StoredClaim, Transaction, TransactionResult
from foqs.shard.state.index import ShardIndex
from foqs.shard.state.ops.operation import Operation

CLAIM_SPARSE_RATIO = 8
"""A claim is rewritten when less than one in this many of its items is still open."""
CLAIM_REWRITE_ITEMS_MIN = 64
"""The fewest items of a claim for which a rewrite pays."""
CLAIM_REWRITE_EVERY_MS = 10 * limits.SECOND_MS
"""The pause between two rewrites of claims."""


class Journal:
    """The journal of claims: the deliveries that a new owner has to honour, and until when.

    Claims and extensions add rows, and every end of a lease leaves its row. The journal owns the open rows, deletes
    rows without open items, and rewrites rows with few.
    """

    def __init__(self, index: ShardIndex) -> None:
        self.exact = False
        """True if ended claims justify a transaction of their own (on drain); otherwise they are written with other
        work.
        """
        self.open: OrderedDict[int, Claim] = OrderedDict()
        """The rows by id, which grows. A plain dict would search its first entry behind the gaps of removed ones."""
        self.new: list[Claim] = []
        """Rows of the transaction that is being planned."""
        self.gone: list[int] = []
        """Rows to delete."""
        self.sparse: dict[int, Claim] = {}
        """Rows to rewrite."""
        self._index = index
        self._rewritten_at = 0

    def add(self, transaction: Transaction, lease_due_at: int, items: list[ShardItem], *, is_ahead: bool) -> Claim:
        """Claim the present deliveries of the items with this transaction, a little longer than their lease."""
        due_at = lease_due_at + limits.CLAIM_SLACK_MS
        claim = Claim(self._index.next_key(), due_at, keys_of(items), is_ahead=is_ahead)
        self.open[claim.id] = claim
        self.new.append(claim)
        transaction.claims.append(ClaimEntries(claim.id, claim.due_at, items, is_ahead))
        return claim

    def adopt(self, stored: StoredClaim, items: list[ShardItem]) -> None:
        """Adopt a claim found at the take-over, with those of its items that it still leases."""
        if not items:
            self.gone.append(stored.id)
            return
        keys = [key for key, _ in stored.entries]
        claim = Claim(stored.id, stored.due_at, keys, is_ahead=stored.is_ahead, is_inherited=True)
        self.open[claim.id] = claim
        claim.open_count = len(items)
        for item in items:
            item.claim = claim

    def leave(self, items: Sequence[ShardItem]) -> None:
        """Note that the items no longer need their claims."""
        left: dict[Claim, None] = {}
        last: Claim | None = None
        for item in items:
            claim = item.claim
            if claim is not None:
                item.claim = None
                claim.open_count -= item.count
                if claim is not last:  # Items that were claimed together mostly leave together.
                    left[claim] = None
                    last = claim
        for claim in left:
            if claim.open_count == 0:
                self.close(claim)
            elif self.exact or (
                len(claim.keys) >= CLAIM_REWRITE_ITEMS_MIN and claim.open_count * CLAIM_SPARSE_RATIO < len(claim.keys)
            ):
                self.sparse[claim.id] = claim

    def close(self, claim: Claim) -> None:
        del self.open[claim.id]
        self.sparse.pop(claim.id, None)
        self.gone.append(claim.id)

    def make_exact(self) -> None:
        """Drop the entries of all returned items, so that a new owner can serve these at once."""
        self.exact = True
        self.sparse = {claim.id: claim for claim in self.open.values() if claim.open_count < len(claim.keys)}

    def checkpoint(self) -> int:
        """Return a bound on the ids of claims: no open claim, and none still to be deleted, has a smaller one."""
        first = next(iter(self.open), self._index.last_key)
        return min([first, *self.gone])

    def begin(self, transaction: Transaction, now: Now, *, is_worth_commit: bool) -> list[Journaling]:
        """Take the next transaction's changes to the journal, last of all its operations.

        Deletions and rewrites need another reason for a transaction, unless `exact`; `is_worth_commit` is True if one
        exists.
        """
        new, self.new = self.new, []
        gone: list[int] = []
        sparse: list[Claim] = []
        is_wanted = self.exact or is_worth_commit
        if self.sparse and is_wanted and (self.exact or now.steady_ms - self._rewritten_at >= CLAIM_REWRITE_EVERY_MS):
            self._rewritten_at = now.steady_ms
            sparse = list(self.sparse.values())
            self.sparse = {}
        if self.gone and is_wanted:
            gone, self.gone = self.gone, []
        if not (new or gone or sparse):
            return []
        operation = Journaling(self, self._index, new, gone, sparse)
        operation.write(transaction, now)
        return [operation]

    def take_back(self, new: list[Claim], gone: list[int], sparse: list[tuple[Claim, array[int]]]) -> None:
        """Undo `begin`, because the transaction has failed."""
        self.gone += gone
        for claim in new:
            del self.open[claim.id]
        for claim, keys in sparse:
            claim.keys = keys
            if claim.id in self.open:
                self.sparse[claim.id] = claim


class Journaling(Operation):
    """The changes of one transaction to the journal: rows that are new, deleted, and rewritten with fewer entries."""

    __slots__ = ("_gone", "_index", "_new", "_rewritten", "_source", "_sparse")

    def __init__(
        self, source: Journal, index: ShardIndex, new: list[Claim], gone: list[int], sparse: list[Claim]
    ) -> None:
        self._source = source
        self._index = index
        self._new = new
        """Claims and extensions have put them into the transaction."""
        self._gone = gone
        self._sparse = sparse
        self._rewritten: list[tuple[Claim, array[int]]] = []
        """The rewritten rows, each with its former keys."""

    def write(self, transaction: Transaction, now: Now) -> None:
        transaction.claims_gone = self._gone
        leases = self._index.leases
        for claim in self._sparse:
            found = dict.fromkeys(map(leases.get, claim.keys))
            items = [item for item in found if item is not None and item.claim is claim]
            transaction.claims_rewritten.append(ClaimEntries(claim.id, claim.due_at, items, claim.is_ahead))
            self._rewritten.append((claim, claim.keys))
            claim.keys = array("Q", keys_of(items))

    def committed(self, result: TransactionResult, now: Now) -> None:
        """Do nothing."""

    def rolled_back(self, error: FoqsError) -> None:
        self._source.take_back(self._new, self._gone, self._rewritten)

    def lost(self, unknown: FoqsError, undone: FoqsError) -> None:
        """Do nothing, because no caller waits for it."""

"""The claim journal: one row leases all that one transaction claims.

A delivery does not touch the wide item row; the owner keeps all open claims in memory and a new owner reads
them back (docs/decisions/0002: 14.6 µs of MySQL per item instead of 23.0 with a row update per delivery).
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence

from foqs.model import limits
from foqs.model.clock import Now
from foqs.model.errors import FoqsError
from foqs.model.item import Claim, ShardItem
from foqs.shard.port import ClaimEntries, StoredClaim, Transaction, TransactionResult
from foqs.shard.state.index import ShardIndex


class Journal:
    """The journal of claims: its rows say which deliveries a new owner has to honour, and until when.

    Claims and extensions add rows, and whatever ends a lease leaves its row. It owns the open rows, deletes those that
    say nothing any more, and rewrites those of which little is left.
    """

    def __init__(self, index: ShardIndex) -> None:
        self.exact = False
        """Claims that went are a reason for a transaction (on drain), not only company for other work."""
        self._index = index
        self._open: OrderedDict[int, Claim] = OrderedDict()
        """By id, which grows: of a plain dict the first entry is behind the sort keys of all that went before it."""
        self._gone: list[int] = []
        self._sparse: dict[int, Claim] = {}
        self._rewritten_at = 0
        self._in_flight_new: list[Claim] = []
        self._in_flight_gone: list[int] = []
        self._in_flight_sparse: list[tuple[Claim, array[int]]] = []
        """With the keys that they had before."""

    def add(self, transaction: Transaction, lease_due_at: int, items: list[ShardItem], *, is_ahead: bool) -> Claim:
        """Claim the present deliveries of the items with this transaction, a little longer than their lease."""
        due_at = lease_due_at + limits.CLAIM_SLACK_MS
        claim = Claim(self._index.next_key(), due_at, [item.key for item in items], is_ahead=is_ahead)
        self._open[claim.id] = claim
        self._in_flight_new.append(claim)
        transaction.claims.append(ClaimEntries(claim.id, claim.due_at, items, is_ahead))
        return claim

    def adopt(self, stored: StoredClaim, items: list[ShardItem]) -> None:
        """A claim as it was at the take-over, with those of its items that it still leases."""
        if not items:
            self._gone.append(stored.id)
            return
        keys = [key for key, _ in stored.entries]
        claim = Claim(stored.id, stored.due_at, keys, is_ahead=stored.is_ahead, is_inherited=True)
        self._open[claim.id] = claim
        claim.open_count = len(items)
        for item in items:
            item.claim = claim

    def leave(self, items: Sequence[ShardItem]) -> None:
        """The items need their claims no more."""
        left: dict[Claim, None] = {}
        for item in items:
            claim = item.claim
            if claim is not None:
                item.claim = None
                claim.open_count -= 1
                left[claim] = None
        for claim in left:
            if claim.open_count == 0:
                self.close(claim)
            elif self.exact or (
                len(claim.keys) >= limits.CLAIM_REWRITE_ITEMS_MIN
                and claim.open_count * limits.CLAIM_SPARSE_RATIO < len(claim.keys)
            ):
                self._sparse[claim.id] = claim

    def close(self, claim: Claim) -> None:
        del self._open[claim.id]
        self._sparse.pop(claim.id, None)
        self._gone.append(claim.id)

    def make_exact(self) -> None:
        """Let no entry stay whose item was given back, so that a new owner can serve it at once."""
        self.exact = True
        self._sparse = {claim.id: claim for claim in self._open.values() if claim.open_count < len(claim.keys)}

    def checkpoint(self) -> int:
        """No claim that is open, or still to be deleted, has a smaller id."""
        return min([next(iter(self._open), self._index.last_key), *self._gone])

    def take(self, transaction: Transaction, now: Now) -> None:
        """Last of all parts: what has gone goes with whatever else there is to write."""
        due = now.steady_ms - self._rewritten_at >= limits.CLAIM_REWRITE_EVERY_MS
        if self._sparse and (self.exact or (due and not transaction.is_empty)):
            self._rewritten_at = now.steady_ms
            self._take_sparse(transaction)
        if self._gone and (self.exact or not transaction.is_empty):
            self._in_flight_gone, self._gone = self._gone, []
            transaction.claims_gone = self._in_flight_gone

    def _take_sparse(self, transaction: Transaction) -> None:
        sparse, self._sparse = self._sparse, {}
        leases = self._index.leases
        for claim in sparse.values():
            items = [item for item in map(leases.get, claim.keys) if item is not None and item.claim is claim]
            transaction.claims_rewritten.append(ClaimEntries(claim.id, claim.due_at, items, claim.is_ahead))
            self._in_flight_sparse.append((claim, claim.keys))
            claim.keys = array("Q", [item.key for item in items])

    def committed(self, transaction: Transaction, result: TransactionResult, now: Now) -> None:
        self._in_flight_new, self._in_flight_gone, self._in_flight_sparse = [], [], []

    def failed(self, error: FoqsError) -> None:
        self._gone += self._in_flight_gone
        for claim in self._in_flight_new:
            del self._open[claim.id]
        for claim, keys in self._in_flight_sparse:
            claim.keys = keys
            if claim.id in self._open:
                self._sparse[claim.id] = claim
        self._in_flight_new, self._in_flight_gone, self._in_flight_sparse = [], [], []

    def abandon(self, unknown: FoqsError, undone: FoqsError) -> None:
        return None

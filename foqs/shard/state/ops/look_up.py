"""Look-ups: rows read in step with the state, for operators and the TTL scan."""

from __future__ import annotations

from collections import deque

from foqs.model import limits
from foqs.model.clock import Now
from foqs.model.errors import FoqsError
from foqs.shard.port import Transaction, TransactionResult
from foqs.shard.state.events import LookedUp, LookUp
from foqs.shard.state.index import ShardIndex
from foqs.shard.state.ops.operation import Operation


class LookUps:
    """The look-ups that wait for a transaction."""

    def __init__(self, index: ShardIndex) -> None:
        self.waiting: deque[LookUp] = deque()
        self._index = index

    def look_up(self, look_up: LookUp) -> None:
        """Read rows in the next transaction, in step with this state. Raises OverloadedError if too many wait."""
        if len(self.waiting) >= limits.LOOK_UPS_WAITING_MAX:
            raise self._index.overloaded(f"{len(self.waiting)} look-ups wait for it")
        self.waiting.append(look_up)

    def begin(self, transaction: Transaction, now: Now) -> LookingUp:
        """Take the first look-ups of the same kind; fewer if they read payloads."""
        with_payload = self.waiting[0].with_payload
        count_max = limits.TRANSACTION_PAYLOAD_LOOK_UPS_MAX if with_payload else limits.TRANSACTION_LOOK_UPS_MAX
        taken: list[LookUp] = []
        count = 0
        while self.waiting and self.waiting[0].with_payload is with_payload and count < count_max:
            look_up = self.waiting.popleft()
            taken.append(look_up)
            count += len(look_up.keys)
        operation = LookingUp(self, self._index, taken)
        operation.write(transaction, now)
        return operation

    def refuse_undone(self, undone: FoqsError) -> None:
        """Refuse all look-ups that no transaction has taken."""
        waiting, self.waiting = self.waiting, deque()
        self.fail(list(waiting), undone)

    def abandon(self, undone: FoqsError) -> None:
        self.refuse_undone(undone)

    def fail(self, look_ups: list[LookUp], error: FoqsError) -> None:
        self._index.events.looked_up += [LookedUp(look_up, {}, error) for look_up in look_ups]


class LookingUp(Operation):
    """Look-ups in one transaction, which reads them last, so that the rows are as it leaves them."""

    __slots__ = ("_index", "_look_ups", "_source")

    def __init__(self, source: LookUps, index: ShardIndex, look_ups: list[LookUp]) -> None:
        self._source = source
        self._index = index
        self._look_ups = look_ups

    def write(self, transaction: Transaction, now: Now) -> None:
        transaction.look_ups_with_payload = self._look_ups[0].with_payload
        transaction.look_ups = [key for look_up in self._look_ups for key in look_up.keys]

    def refuse_undone(self, undone: FoqsError) -> None:
        self._source.fail(self._look_ups, undone)
        self._look_ups = []

    def committed(self, result: TransactionResult, now: Now) -> None:
        rows = result.looked_up
        if rows is None:
            self._source.waiting.extendleft(reversed(self._look_ups))
            return
        for look_up in self._look_ups:
            found = {key: rows[key] for key in look_up.keys if key in rows}
            self._index.events.looked_up.append(LookedUp(look_up, found))

    def rolled_back(self, error: FoqsError) -> None:
        self._source.fail(self._look_ups, error)

    def lost(self, unknown: FoqsError, undone: FoqsError) -> None:
        self._source.fail(self._look_ups, undone)

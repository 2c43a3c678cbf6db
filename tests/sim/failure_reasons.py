"""The failures that operators are shown of an item: the reasons of its own nacks, the newest first, none missing."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from foqs.model import ids, limits
from foqs.model.calls import Delivery, ItemFailure, StoredItem
from foqs.model.failures import FAILURES_SHOWN_MAX, LEASE_ENDED, entry, failures_of
from tests.histories.history import Call, Outcome

if TYPE_CHECKING:
    from tests.sim.world import World

_SHARE = 0.3
"""Of nacks with a reason."""
_SHARED_SHARE = 0.3
"""Of calls whose nacks have one reason, by which the statements of a transaction are grouped."""
_ENTRY_BYTES_MAX = 150


@dataclass(slots=True)
class _Given:
    """A reason that a nack gave, by the numbers of its delivery and its attempt."""

    delivery: int
    attempt: int
    reason: str
    done_at: int | None = None
    """When it was known to be done, by the book's count of looks and answers; None while it is not."""


class ReasonBook:
    """The reasons of a run. Clients note what they send and what came of it, and what they are shown."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._given: dict[str, dict[str, _Given]] = {}
        """By the id of the item and the reason, which no two nacks of an item share."""
        self._attempts: dict[str, int] = {}
        """By receipt."""
        self._count = 0

    def delivered(self, item: Delivery) -> None:
        self._attempts[item.receipt] = item.attempt

    def drawn(self, chance: random.Random, receipts: Sequence[str]) -> list[str | None]:
        """The reasons for the nacks of one call."""
        is_shared = chance.random() < _SHARED_SHARE
        reasons: list[str | None] = []
        self._count += 1
        for at, receipt in enumerate(receipts):
            if chance.random() >= _SHARE:
                reasons.append(None)
                continue
            reason = f"{self._count} é" if is_shared else f"{self._count}.{at} {'x' * chance.choice([1, 5, 90])}"
            reasons.append(reason)
            given = _Given(ids.parse(receipt)[2], self._attempts[receipt], reason)
            self._given.setdefault(receipt.partition(":")[0], {})[reason] = given
        return reasons

    def settled(self, call: Call, receipts: Sequence[str], reasons: Sequence[str | None]) -> None:
        """Note what came of the nacks of a call, and look at the rows of their items."""
        for position, (receipt, reason) in enumerate(zip(receipts, reasons, strict=True)):
            outcome = call.outcome_at(position)
            if reason is not None and outcome is Outcome.OK:
                self._given[receipt.partition(":")[0]][reason].done_at = self.now()
            elif reason is not None and outcome is Outcome.FAIL:
                del self._given[receipt.partition(":")[0]][reason]
        for receipt in receipts:
            shard_id, key, _ = ids.parse(receipt)
            row = self._world.servers[shard_id].tables.items.get(key)
            if row is not None:
                self._check(receipt.partition(":")[0], failures_of(row.errors), self.now(), FAILURES_SHOWN_MAX)

    def now(self) -> int:
        """Return a number that grows, to be asked for before a look."""
        self._count += 1
        return self._count

    def shown(self, items: Sequence[StoredItem], since: int, count_max: int = 1) -> None:
        """Check the failures of items that were asked for at `since`."""
        for item in items:
            self._check(item.id, item.errors, since, count_max)
            self._world.counts["items shown with errors"] += bool(item.errors)

    def _check(self, item_id: str, errors: Sequence[ItemFailure], since: int, count_max: int) -> None:
        if problem := self._problem(self._given.get(item_id, {}), errors, since, count_max):
            shown = [(one.attempt, one.reason) for one in errors]
            self._world.complain(f"item {item_id} has the errors {shown}: {problem}")
        self._world.counts["failures looked at"] += len(errors)

    def _problem(self, given: dict[str, _Given], errors: Sequence[ItemFailure], since: int, count_max: int) -> str:
        if len(errors) > count_max:
            return f"more than {count_max}"
        found: list[int] = []
        for one in errors:
            if one.reason == LEASE_ENDED:
                continue
            if one.reason not in given:
                return f"no nack of the item gave the reason {one.reason!r}"
            if one.attempt != given[one.reason].attempt:
                return f"attempt {given[one.reason].attempt} gave the reason {one.reason!r}"
            found.append(given[one.reason].delivery)
        if found != sorted(set(found), reverse=True):
            return f"their deliveries {found} are not in order"
        size_bytes = sum([len(entry(0, one.attempt, one.reason)) for one in errors])
        is_full = len(errors) == count_max or size_bytes > limits.ERRORS_BYTES_DEFAULT - _ENTRY_BYTES_MAX
        for nacked in given.values():
            is_known = nacked.done_at is not None and nacked.done_at <= since and not self._world.restored
            is_behind = is_full and (not found or nacked.delivery < found[-1])
            if is_known and nacked.delivery not in found and not is_behind:
                return f"{nacked.reason!r} of delivery {nacked.delivery} was done before the look"
        return ""

"""Extension of a lease: a new claim of the same delivery, which lasts longer."""

from __future__ import annotations

from collections import deque

from foqs.model import limits
from foqs.model.clock import Now
from foqs.model.errors import FoqsError, StaleLeaseError
from foqs.model.item import Claim, Phase, ShardItem
from foqs.shard.port import Transaction, TransactionResult
from foqs.shard.state.events import Completion
from foqs.shard.state.index import ShardIndex
from foqs.shard.state.journal import Journal
from foqs.shard.state.lease_table import LeaseTable
from foqs.shard.state.ops.operation import Operation


class Extension:
    """An extension of one lease to `lease_ms` from now."""

    __slots__ = ("claim", "completion", "item", "lease_ms", "position")

    def __init__(self, item: ShardItem, lease_ms: int, completion: Completion, position: int) -> None:
        self.item = item
        self.lease_ms = lease_ms
        self.completion = completion
        self.position = position
        self.claim: Claim | None = None
        """The new claim; None until a transaction has taken the extension."""


class Extensions:
    """The extensions that wait for a transaction."""

    def __init__(self, index: ShardIndex, journal: Journal, leases: LeaseTable) -> None:
        self.waiting: deque[Extension] = deque()
        self._index = index
        self._journal = journal
        self._leases = leases

    def extend(self, item: ShardItem, lease_ms: int, completion: Completion, position: int) -> None:
        """Let the lease end `lease_ms` after its commit. Raises OverloadedError if too many extensions wait."""
        if len(self.waiting) >= limits.EXTENSIONS_WAITING_MAX:
            raise self._index.overloaded(f"{len(self.waiting)} extensions of leases wait for it")
        completion.open_count += 1
        self.waiting.append(Extension(item, lease_ms, completion, position))

    def begin(self, transaction: Transaction, now: Now) -> list[Extending]:
        """Take the first extensions whose leases have not ended."""
        taken: list[Extension] = []
        while self.waiting and len(taken) < limits.TRANSACTION_EXTENSIONS_MAX:
            extension = self.waiting.popleft()
            if extension.item.phase is Phase.LEASED:
                taken.append(extension)
            else:
                self.fail(extension, StaleLeaseError("the lease of this receipt ended before its extension"))
        if not taken:
            return []
        operation = Extending(self, self._index, self._journal, self._leases, taken)
        operation.write(transaction, now)
        return [operation]

    def refuse_undone(self, undone: FoqsError) -> None:
        """Refuse the extensions that no transaction has taken."""
        waiting, self.waiting = self.waiting, deque()
        for extension in waiting:
            if extension.claim is None:
                self.fail(extension, undone)
            else:
                self.waiting.append(extension)

    def abandon(self, undone: FoqsError, unknown: FoqsError) -> None:
        for extension in self.waiting:
            # A waiting extension might have been written before, for a time that proved too short.
            self.fail(extension, undone if extension.claim is None else unknown)

    def fail(self, extension: Extension, error: FoqsError) -> None:
        self._index.events.fail(extension.completion, [extension.position], error)


class Extending(Operation):
    """Extensions that are in one transaction."""

    __slots__ = ("_extensions", "_index", "_journal", "_leases", "_source")

    def __init__(
        self, source: Extensions, index: ShardIndex, journal: Journal, leases: LeaseTable, extensions: list[Extension]
    ) -> None:
        self._source = source
        self._index = index
        self._journal = journal
        self._leases = leases
        self._extensions = extensions

    def write(self, transaction: Transaction, now: Now) -> None:
        for extension in self._extensions:
            self._leases.pause(extension.item)
            due_at = now.steady_ms + extension.lease_ms
            extension.claim = self._journal.add(transaction, due_at, [extension.item], is_ahead=False)

    def committed(self, result: TransactionResult, now: Now) -> None:
        for extension in self._extensions:
            item, claim = extension.item, extension.claim
            assert claim is not None
            lease_due_at = now.steady_ms + extension.lease_ms
            if item.phase not in (Phase.LEASED, Phase.SETTLING):
                self._journal.close(claim)  # The item was returned meanwhile.
            elif claim.due_at < lease_due_at:
                # The write took too long for the claim to cover the lease. It is claimed anew before the caller gets an
                # answer; until then the earlier claim backs the earlier promise.
                self._journal.close(claim)
                self._source.waiting.append(extension)
                continue
            else:
                self._journal.leave([item])
                item.claim = claim
                self._leases.resume(item, min(lease_due_at, claim.due_at))
            self._index.events.done(extension.completion)

    def rolled_back(self, error: FoqsError) -> None:
        for extension in self._extensions:
            self._leases.resume(extension.item, extension.item.lease_due_at)
            self._source.fail(extension, error)

    def lost(self, unknown: FoqsError, undone: FoqsError) -> None:
        for extension in self._extensions:
            self._source.fail(extension, unknown)

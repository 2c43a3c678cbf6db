"""Dedup ids that become free before their time: by order of an operator, or because their item elsewhere has ended.

Ids in the log cannot be deleted there, so the log gets them once more, without an item: the youngest entry counts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from foqs.model.clock import Now
from foqs.model.errors import FoqsError, NotFoundError, UnavailableError
from foqs.model.held import Holder, NamespaceDigest
from foqs.model.seen import BLOCK_IDS, slot_of_digest
from foqs.shard.port import SeenIds, Transaction, TransactionResult
from foqs.shard.state.events import Completion
from foqs.shard.state.index import ShardIndex
from foqs.shard.state.ops.check import NO_ITEM, find_seen
from foqs.shard.state.ops.dedup import Dedup
from foqs.shard.state.ops.hold import changes_of
from foqs.shard.state.ops.operation import Operation

FREE_RETRY_MS = 100
"""The retry_after_ms of an order for an id that is just being enqueued, or whose log is being read."""


class FreeCall(NamedTuple):
    """Ids of one namespace to make free, each counted in the completion, with their positions there."""

    namespace: int
    digests: Sequence[bytes]
    positions: Sequence[int]
    completion: Completion
    ended: Sequence[Holder] = ()
    """The holders of the ids, if only these have ended. They are on other shards. Empty to make the ids free."""


class Frees:
    """The calls that wait for a transaction, in their order."""

    def __init__(self, index: ShardIndex, dedup: Dedup) -> None:
        self.waiting: deque[FreeCall] = deque()
        self._index = index
        self._dedup = dedup

    def free(self, namespace: int, digests: Sequence[bytes], positions: Sequence[int], completion: Completion) -> None:
        """Make ids free by order of an operator. An id that is free already gets NotFoundError."""
        self._add(FreeCall(namespace, digests, positions, completion))

    def release(
        self, namespace: int, digests: Sequence[bytes], ended: Sequence[Holder], completion: Completion
    ) -> None:
        """Make ids free whose holders, which are on other shards, have ended."""
        self._add(FreeCall(namespace, digests, range(len(digests)), completion, ended))

    def _add(self, call: FreeCall) -> None:
        call.completion.open_count += len(call.digests)
        self.waiting.append(call)

    def begin(self, transaction: Transaction, now: Now) -> Freeing:
        """Take the first call."""
        operation = Freeing(self._index, self._dedup, self.waiting.popleft())
        operation.write(transaction, now)
        return operation

    def abandon(self, undone: FoqsError) -> None:
        """Refuse all calls that no transaction has taken."""
        waiting, self.waiting = self.waiting, deque()
        for call in waiting:
            self._index.events.fail(call.completion, list(call.positions), undone)

    refuse_undone = abandon


class Freeing(Operation):
    """Ids that one transaction makes free."""

    __slots__ = ("_blocks", "_call", "_dedup", "_index", "_open", "_rows")

    def __init__(self, index: ShardIndex, dedup: Dedup, call: FreeCall) -> None:
        self._index = index
        self._dedup = dedup
        self._call = call
        self._open: list[int] = []
        """The places in the call of the ids that the transaction makes free."""
        self._blocks: dict[int, list[int]] = {}
        """The blocks of the log with these ids, by place in the call."""
        self._rows: list[SeenIds] = []

    def write(self, transaction: Transaction, now: Now) -> None:
        call, dedup = self._call, self._dedup
        held = changes_of(transaction)
        if call.ended:
            ids = [NamespaceDigest(call.namespace, digest) for digest in call.digests]
            held.released += zip(ids, call.ended, strict=True)
            self._open = list(range(len(ids)))
            return
        busy = [at for at, digest in enumerate(call.digests) if self._is_busy(digest)]
        if busy:
            self._refuse(busy, self._busy_error())
        skipped = set(busy)
        self._open = [at for at in range(len(call.digests)) if at not in skipped]
        digests = [call.digests[at] for at in self._open]
        ids = [NamespaceDigest(call.namespace, digest) for digest in digests]
        if call.namespace in dedup.held.namespaces:
            held.reads += ids
            held.freed += ids
        window = dedup.windows.get(call.namespace)
        found = window.probe(digests) if window is not None else {}
        self._blocks = {self._open[at]: blocks for at, blocks in found.items()}
        places = [(call.namespace, block) for blocks in found.values() for block in blocks]
        transaction.seen_reads = list(dict.fromkeys([*transaction.seen_reads, *places]))
        if window is None or not found:
            return
        # Number them after the ids of the items that this transaction inserts, and those that it moves here.
        before = [len(row.digests) for row in transaction.seen_new if row.namespace == call.namespace]
        logged, number = [call.digests[at] for at in self._blocks], window.end + sum(before)
        start = 0
        while start < len(logged):
            part = logged[start : start + BLOCK_IDS - number % BLOCK_IDS]
            self._rows.append(SeenIds(call.namespace, number, now.steady_ms, part, [NO_ITEM] * len(part)))
            start, number = start + len(part), number + len(part)
        transaction.seen_new = transaction.seen_new + self._rows

    def _is_busy(self, digest: bytes) -> bool:
        dedup = self._dedup
        return (
            digest in dedup.pending
            or self._call.namespace in dedup.loading
            or slot_of_digest(digest) in dedup.closed_slots
        )

    def _busy_error(self) -> FoqsError:
        return UnavailableError(
            f"shard {self._index.shard_id} enqueues an item with this dedup id just now, or reads or moves its ids: "
            "it was not made free, try again",
            retry_after_ms=FREE_RETRY_MS,
            nothing_done=True,
        )

    def committed(self, result: TransactionResult, now: Now) -> None:
        call, dedup = self._call, self._dedup
        for row in self._rows:
            window = dedup.windows[row.namespace]
            window.add(row.digests, row.at_ms, dedup.forgetfulness.table_ids_max(window))
            window.last_first = row.first
            dedup.forgetfulness.added(window, row.at_ms, len(row.digests))
        free: list[int] = []
        if not call.ended:
            for at in self._open:
                digest = call.digests[at]
                is_seen = find_seen(call.namespace, digest, self._blocks.get(at, ()), result.seen) is not None
                if not is_seen and NamespaceDigest(call.namespace, digest) not in result.held:
                    free.append(at)
        if free:
            self._refuse(free, NotFoundError("no item with this dedup id is known: it was free already"))
        if len(free) < len(self._open):
            self._index.events.done(call.completion, len(self._open) - len(free))

    def rolled_back(self, error: FoqsError) -> None:
        if self._open:
            self._refuse(self._open, error)

    def lost(self, unknown: FoqsError, undone: FoqsError) -> None:
        if self._open:
            self._refuse(self._open, unknown)

    def _refuse(self, places: Sequence[int], error: FoqsError) -> None:
        call = self._call
        self._index.events.fail(call.completion, [call.positions[at] for at in places], error)

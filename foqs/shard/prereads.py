"""Rows that the server has to read from its disk are read ahead of the transaction that needs them.

A backlog can be larger than the server's cache. Then a transaction that refills a window waits for the disk, and with
it the enqueues and acks that it commits. So while reads are slow, another session makes them first, and the transaction
finds the pages in the cache (as mk-slave-prefetch of Maatkit did it for replicas, after Paul Tuckfield of YouTube). Of
what a preread finds only the number of rows is used, and how long it took.
"""

from __future__ import annotations

from typing import NamedTuple

from foqs.core import limits
from foqs.storage.transaction import Preread, Refill


class Reads(NamedTuple):
    """What the next transaction would read: ranges of lanes, and rows by key."""

    refills: list[Refill]
    keys: list[int]


class Prereads:
    """Decides whether reads go ahead of transactions, and which of them have."""

    def __init__(self) -> None:
        self._is_cold = False
        """Reads were slow a while ago."""
        self._slow_at_ms = 0
        self._lanes: frozenset[int] = frozenset()
        self._keys: frozenset[int] = frozenset()
        """What has been read ahead, for the next transaction."""
        self._not_before_ms = 0

    @property
    def is_due(self) -> bool:
        """There is to be one, unless one is under way."""
        return self._is_cold and not self._lanes and not self._keys

    @property
    def refill_items_max(self) -> int:
        """As many rows of a lane may be read at once."""
        return limits.PREREAD_ITEMS_MAX if self._is_cold else limits.WINDOW_ITEMS_MAX

    def may_refill(self, lane: int) -> bool:
        """If not, the next transaction shall not read on in the lane."""
        return not self._is_cold or lane in self._lanes

    def may_fetch(self, key: int) -> bool:
        """If not, the next transaction shall not read the row."""
        return not self._is_cold or key in self._keys

    def taken(self) -> None:
        """A transaction has been put together. What it has left may be out of the cache by the time of the next one."""
        self._lanes = self._keys = frozenset()

    def read(self, row_count: int, elapsed_us: int, now_ms: int) -> None:
        """A transaction has read so many rows."""
        if now_ms >= self._not_before_ms and _is_slow(row_count, elapsed_us):
            self._is_cold = True
            self._slow_at_ms = now_ms

    def ended(self, reads: Reads, preread: Preread, now_ms: int) -> None:
        """They have been read ahead."""
        if not self._is_cold:
            return
        self._lanes = frozenset([refill.lane for refill in reads.refills])
        self._keys = frozenset(reads.keys)
        if _is_slow(*preread):
            self._slow_at_ms = now_ms
        self._is_cold = now_ms - self._slow_at_ms < limits.COLD_MS

    def failed(self, now_ms: int) -> None:
        """Transactions read for themselves, for a while."""
        self.give_up(now_ms + limits.PREREAD_PAUSE_MS)

    def give_up(self, until_ms: int = limits.NEVER_MS) -> None:
        """Transactions read for themselves, until then at least."""
        self._is_cold = False
        self._not_before_ms = max(self._not_before_ms, until_ms)


def _is_slow(row_count: int, elapsed_us: int) -> bool:
    """By the server's clock: on a busy host an answer waits longer than the rows took."""
    return elapsed_us >= limits.COLD_READ_US_MIN and elapsed_us >= limits.COLD_READ_ROW_US_MIN * row_count

"""How many rows a transaction may read, so that what commits with it does not wait long for them.

In the server's cache a row takes microseconds, on its disk a hundred times as much, and a backlog can outgrow the
cache. Nobody says which rows are where: so the number follows the time that reads took, as a congestion window follows
what became of packets (Jacobson, Congestion Avoidance and Control, 1988).
"""

from __future__ import annotations

from foqs.model import limits


class ReadBudget:
    """`rows_max`: of the topics whose windows a transaction refills together, and of the items it claims, each."""

    def __init__(self) -> None:
        self.rows_max = limits.READ_ROWS_FIRST

    def read(self, row_count: int, elapsed_us: int) -> None:
        """A transaction has read so many rows, which took the server so long.

        Rows of many topics share a page: after a slow read come fast ones, which say little of the next page. So it
        grows slowly, and only by reads that made use of it. One that was slow by chance costs three quarters at most.
        """
        target_us = limits.READ_US_TARGET
        if elapsed_us > target_us and row_count > limits.READ_ROWS_MIN:
            fitting = min(row_count, self.rows_max) * target_us // elapsed_us
            self.rows_max = max(limits.READ_ROWS_MIN, min(self.rows_max, fitting), self.rows_max // 4)
        elif elapsed_us <= target_us // 2 and row_count >= self.rows_max // 2:
            self.rows_max = min(limits.READ_ROWS_MAX, self.rows_max + self.rows_max // 32 + 1)

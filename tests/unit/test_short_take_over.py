"""A take-over of a shard of whose reads one comes back short: nobody loses a lease by it, and no item is lost."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import count

from foqs.testing.memory_queue import MemoryQueue

_READS = 16
"""Those of more than a row that a take-over has, and some after it."""


def _is_number(numbers: Iterator[int], at: int) -> bool:
    return next(numbers) == at


def test_whichever_read_of_a_take_over_comes_back_short_leases_hold_and_no_item_is_lost() -> None:
    with MemoryQueue() as queue:
        client, host = queue.client(), queue._traffic.host
        writer, reads = host._host._shards.writers[0], host._servers[0].reads
        cut_count = 0
        for at in range(_READS):
            for part in range(4):
                client.enqueue("default", "t", b"%d %d" % (at, part))
            leased = [item for _ in range(2) for item in client.dequeue("default", "t", 1, lease_ms=600_000)]
            reads.is_cut = partial(_is_number, count(), at)
            reads.rows_max, reads.cut_count = 1, 0
            host._loop.call(writer._ownership.give_up, "somebody wants it so")
            queue.clock.advance(2_000)
            reads.rows_max = None
            cut_count += reads.cut_count
            queue.clock.advance(10_000)
            for item in leased:
                client.ack("default", item)
            others = client.dequeue("default", "t", 4)
            assert len(others) == 2
            for item in others:
                client.ack("default", item)
        assert cut_count > 1

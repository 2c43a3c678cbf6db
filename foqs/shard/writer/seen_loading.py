"""The dedup ids of a shard that was opened: their log is read into the shard's state while the shard serves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import structlog

from foqs.model.outage import Outage
from foqs.shard.port import SeenExtent, SeenLog, SeenRow, SessionLostError
from foqs.shard.state.engine import ShardState
from foqs.shard.writer.worker_thread import WorkerThread

SEEN_READ_ROWS = 256
"""Rows of the log that are read at a time: 0.8 MiB, if they are full."""
SEEN_SLICE_IDS = 2_000
"""Ids that one turn of the event loop takes in: about 2 ms."""
SEEN_RETRY_MS = 500
"""The pause before a log is read on after its session was lost."""

_log = structlog.get_logger(__name__)


class SeenLoading:
    """Reads the logs of one ownership, small ones first, so that most namespaces wait least.

    `Ownership` runs it as a task when it has opened the shard, and cancels it with the ownership. Enqueues with ids of
    a namespace wait until its log is read; nothing else does.
    """

    def __init__(self, shard_id: int, wake: Callable[[], None]) -> None:
        """`wake` is called when items may be inserted that have waited."""
        self._shard_id = shard_id
        self._wake = wake
        self._outage = Outage(asyncio.get_running_loop().time)

    async def run(self, shard: ShardState, extents: list[SeenExtent], log: SeenLog) -> None:
        thread = WorkerThread(f"shard-{self._shard_id}-seen")
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            for extent in sorted(extents, key=lambda extent: extent.end - extent.first):
                await self._read(shard, extent, log, thread)
        finally:
            thread.run(log.close)
            thread.leave()
        ids_count = sum([extent.end - extent.first for extent in extents])
        _log.info("dedup_ids_read", shard=self._shard_id, ids_count=ids_count, seconds=round(loop.time() - began_s, 3))

    async def _read(self, shard: ShardState, extent: SeenExtent, log: SeenLog, thread: WorkerThread) -> None:
        first = extent.first
        while True:
            try:
                rows = await thread.run(partial(log.read, extent.namespace, first, SEEN_READ_ROWS))
            except SessionLostError as error:
                if self._outage.is_to_be_told(str(error)):
                    _log.warning("dedup_ids_not_read", shard=self._shard_id, error=str(error))
                await asyncio.sleep(SEEN_RETRY_MS / 1000)
                continue
            self._outage.has_ended()
            if await self._take_in(shard, extent.namespace, rows):
                self._wake()
                return
            first = rows[-1].first + 1

    async def _take_in(self, shard: ShardState, namespace: int, rows: list[SeenRow]) -> bool:
        """Whether the log is read to its end."""
        if not rows:
            return shard.load_seen(namespace, rows)
        start = 0
        while start < len(rows):
            stop, ids_count = start, 0
            while stop < len(rows) and ids_count < SEEN_SLICE_IDS:
                ids_count += len(rows[stop].digests)
                stop += 1
            if shard.load_seen(namespace, rows[start:stop]):
                return True
            start = stop
            await asyncio.sleep(0)
        return False

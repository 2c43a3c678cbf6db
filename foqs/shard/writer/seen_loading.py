"""Loads the dedup ids of an opened shard, from images and logs, into its state while the shard serves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import structlog

from foqs.background.lane import Lane
from foqs.background.outage_log import OutageLog
from foqs.model.seen import BLOCK_IDS, DIGEST_BYTES, Hash, hashes_in
from foqs.model.seen_image import HEAD_PART, BadImageError, ImageHead, ImageKey, ImageReader, read_head
from foqs.shard.port import SeenDigests, SeenExtent, SeenLog, SessionLostError, StoredImage
from foqs.shard.state.engine import ShardState

SEEN_READ_ROWS = 256
"""Rows of the log that are read at a time: 0.8 MiB, if they are full."""
SEEN_SEARCH_ROWS = 8
"""Rows of the log that are read at a time in a search for one row."""
SEEN_READ_PARTS = 8
"""Parts of an image that are read at a time: 0.8 MiB, if its table is full."""
SEEN_SLICE_IDS = 2_000
"""Ids that one turn of the event loop adds: about 3 ms. A part of an image costs less than that."""
SEEN_RETRY_MS = 500
"""The pause before a log is read further after its session was lost."""

T = TypeVar("T")
_log = structlog.get_logger(__name__)


class SeenLoading:
    """Reads the logs of one ownership, small ones first, so that most namespaces wait least.

    `Ownership` runs it as a task when it has opened the shard, and cancels it with the ownership. Only enqueues with
    ids of a namespace wait until its log is read.
    """

    def __init__(self, shard_id: int, shard: ShardState, log: SeenLog, wake: Callable[[], None]) -> None:
        """`wake` is called when items that have waited can be inserted."""
        self._shard_id = shard_id
        self._shard = shard
        self._log = log
        self._wake = wake
        self._lane = Lane(f"shard-{self._shard_id}-seen")
        self._outage = OutageLog(asyncio.get_running_loop().time, "dedup_ids_not_read")
        self._imaged_count = 0
        """Ids that were loaded from images."""

    async def run(self, extents: list[SeenExtent]) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            for extent in sorted(extents, key=lambda extent: extent.end - extent.first):
                await self._read(extent.namespace)
        finally:
            # Python waits for its threads when it ends, and this one might wait for a server that hangs.
            self._log.interrupt()
            self._lane.end(self._log.close)
        ids_count = sum([extent.end - extent.first for extent in extents])
        _log.info(
            "dedup_ids_read", shard=self._shard_id, ids_count=ids_count, of_images_count=self._imaged_count,
            seconds=round(loop.time() - began_s, 3),
        )  # fmt: skip

    async def _read(self, namespace: int) -> None:
        """Read the images of a namespace, and the parts of its log before, between and after them."""
        while (image := self._shard.next_seen_image(namespace)) is not None:
            await self._read_log(namespace, image.key.first)
            await self._read_image(image)
        await self._read_log(namespace, None)
        self._wake()

    async def _read_log(self, namespace: int, until: int | None) -> None:
        """Read the ids before the number `until`, or all."""
        first = self._shard.load_seen_from(namespace)
        if until is not None and first >= until:
            return
        while True:
            rows = await self._ask(partial(self._log.read, namespace, first, SEEN_READ_ROWS))
            if await self._take_in(namespace, rows, until):
                return
            if not rows:
                problem = f"the log of dedup ids of namespace {namespace} ends before its last row"
                raise SessionLostError(f"shard {self._shard_id}: {problem}")
            first = rows[-1].first + 1

    async def _take_in(self, namespace: int, rows: list[SeenDigests], until: int | None) -> bool:
        """Add rows to the state. Returns True if the log is read to its end, or to `until`."""
        if not rows:
            return self._shard.load_seen(namespace, rows, until)
        start = 0
        while start < len(rows):
            stop, ids_count = start, 0
            while stop < len(rows) and ids_count < SEEN_SLICE_IDS:
                ids_count += len(rows[stop].digests) // DIGEST_BYTES
                stop += 1
            if self._shard.load_seen(namespace, rows[start:stop], until):
                return True
            start = stop
            await asyncio.sleep(0)
        return False

    async def _read_image(self, image: StoredImage) -> None:
        """Add the image's table to the state, if it is whole and of this log."""
        try:
            head = await self._read_head(image.key)
            reader = ImageReader(head)
            while (number := reader.next_number) != HEAD_PART:
                parts = await self._ask(partial(self._log.read_parts, image.key, number, SEEN_READ_PARTS))
                if not parts:
                    break
                for part in parts:
                    reader.take(part.number, part.body)
                    await asyncio.sleep(0)
            table = reader.table()
        except BadImageError as error:
            _log.warning("dedup_image_not_used", shard=self._shard_id, error=f"{image.key} is not used: {error}")
            self._shard.refuse_seen_image(image)
            return
        self._shard.load_seen_image(image, table, head.marks)
        self._imaged_count += image.key.ids_count

    async def _read_head(self, key: ImageKey) -> ImageHead:
        parts = await self._ask(partial(self._log.read_parts, key, HEAD_PART, 1))
        if not parts or parts[0].number != HEAD_PART:
            raise BadImageError("it has no head")
        head = read_head(key, parts[0].body)
        if head.last_hash != await self._hash_at(key.namespace, key.end - 1):
            raise BadImageError(f"its last id is not number {key.end - 1} of the log: it is of another log")
        return head

    async def _hash_at(self, namespace: int, number: int) -> Hash | None:
        """Return the hash of the id with this number in the log. A block has one row, or many small ones."""
        first = number // BLOCK_IDS * BLOCK_IDS
        while rows := await self._ask(partial(self._log.read, namespace, first, SEEN_SEARCH_ROWS)):
            for row in rows:
                at = (number - row.first) * DIGEST_BYTES
                if at < 0:
                    return None
                if at < len(row.digests):
                    return hashes_in(row.digests[at : at + DIGEST_BYTES])[0]
            first = rows[-1].first + 1
        return None

    async def _ask(self, read: Callable[[], T]) -> T:
        """Return the result of `read`, after retries while the session is lost."""
        while True:
            try:
                found = await self._lane.run(read)
            except SessionLostError as error:
                self._outage.failed(error, shard=self._shard_id)
                await asyncio.sleep(SEEN_RETRY_MS / 1000)
                continue
            self._outage.worked()
            return found

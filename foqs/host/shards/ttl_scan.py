"""The TTL scan of a shard, which ends expired items; and look-ups of rows in step with the shard's state."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import structlog

from foqs.background.tasks import Tasks, log_defect
from foqs.model import limits
from foqs.model.errors import FoqsError, OverloadedError, UnavailableError
from foqs.model.item import Phase
from foqs.shard.port import ItemRow
from foqs.shard.state.engine import ShardState
from foqs.shard.state.events import Completion, Events, LookUp
from foqs.shard.writer.shard_writer import ShardWriter
from foqs.storage.shard.shard_reader import ShardReader

EXPIRY_SCAN_PAUSE_MS = 200
"""The pause between two steps of the TTL scan. A million rows take a little over three minutes."""
EXPIRY_LAP_PAUSE_MS = 2 * limits.SECOND_MS
"""The pause between two walks of the TTL scan through a shard. An expired item is never delivered meanwhile."""
EXPIRY_LAP_MS_MAX = 12 * limits.HOUR_MS
"""The longest time between two walks, while no row is known to expire earlier."""

_log = structlog.get_logger(__name__)
T = TypeVar("T")


class TtlScan:
    """Walks one shard slowly, by key, whenever a row has possibly expired, and ends items past their TTL.

    `OwnedShard` starts and stops it. It owns a task, and asks the shard for look-ups and deletions.
    """

    def __init__(
        self,
        writer: ShardWriter,
        reader: ShardReader,
        read: Callable[[Callable[[], Any]], Awaitable[Any]],
        on_events: Callable[[Events], None],
    ) -> None:
        """`read` runs the reader's work on a thread; `on_events` gets the events of deletions."""
        self._writer = writer
        self._reader = reader
        self._read = read
        self._on_events = on_events
        self._tasks = Tasks(f"TTL scan of shard {writer.shard_id}")

    def start(self) -> None:
        self._tasks.spawn(self._run())

    async def stop(self) -> None:
        await self._tasks.stop()

    async def _run(self) -> None:
        writer = self._writer
        after_key, pause_ms = 0, EXPIRY_LAP_PAUSE_MS
        while True:
            await asyncio.sleep(pause_ms / 1000)
            shard, now_ms, pause_ms = writer.shard, writer.now_ms(), EXPIRY_LAP_PAUSE_MS
            if shard is None:
                continue  # Expired items could not be deleted without ownership.
            if not after_key:
                if shard.index.expires_first_ms > now_ms:
                    continue
                # Pages and commits lower it meanwhile. A later walk finds the rows that this one misses.
                shard.index.expires_first_ms = now_ms + EXPIRY_LAP_MS_MAX
            try:
                page = await self._read(self._reader.expired_page(after_key, now_ms))
                for keys in in_parts(page.keys) if writer.shard is shard else ():
                    self._expire(shard, keys)
                shard.index.expires_first_ms = min(shard.index.expires_first_ms, page.expires_first_ms)
                after_key = page.last_key
                if after_key:
                    pause_ms = EXPIRY_SCAN_PAUSE_MS
                continue
            except UnavailableError as error:
                _log.warning("ttl_scan_paused", shard=writer.shard_id, error=str(error))
            except Exception:  # A defect must not end the scan for good.
                log_defect(f"TTL scan of shard {writer.shard_id}")
            if not after_key:
                shard.index.expires_first_ms = 0

    def _expire(self, shard: ShardState, keys: list[int]) -> None:
        """End the items of these rows that have expired and are not under lease."""
        writer = self._writer
        completion = Completion(lambda ended: _log.info("items_expired", shard=writer.shard_id, count=len(keys)))
        completion.open_count += 1

        def on_rows(rows: dict[int, ItemRow]) -> None:
            for position, row in enumerate(rows.values()):
                item = shard.index.leases.get(row.key) if row.lane > 0 else None
                held = item is not None
                if item is not None and item.phase is not Phase.SETTLING:
                    # It can be ready again then, without a consumer that asks for it.
                    now = writer.now()
                    ends_ms = max(now.on_server(item.lease_due_at), now.server_ms + limits.PREFETCH_HOLD_MS_MAX)
                    shard.index.expires_first_ms = min(shard.index.expires_first_ms, ends_ms)
                if not held and row.lane >= 0 and row.expires_at <= writer.now_ms():
                    try:
                        shard.expire_row(row, writer.now_ms(), completion, position)
                    except UnavailableError:
                        _log.debug("expired_item_settled_meanwhile", shard=writer.shard_id)
            writer.wake()
            events = shard.take_events()
            events.done(completion)
            self._on_events(events)

        def on_failed(error: FoqsError) -> None:
            _log.warning("ttl_scan_paused", shard=writer.shard_id, error=str(error))
            shard.index.expires_first_ms = 0

        ask(shard, LookUp(keys, on_rows, on_failed))
        writer.wake()


def ask(shard: ShardState, look_up: LookUp) -> None:
    """Start the look-up of rows. If too many others wait, `look_up.on_failed` is called."""
    try:
        shard.look_up(look_up)
    except OverloadedError as error:
        look_up.on_failed(error.with_traceback(None))


def in_parts(rows: list[T]) -> Iterator[list[T]]:
    """Yield slices of the rows to look up, each small enough for one transaction."""
    for first in range(0, len(rows), limits.TRANSACTION_LOOK_UPS_MAX):
        yield rows[first : first + limits.TRANSACTION_LOOK_UPS_MAX]

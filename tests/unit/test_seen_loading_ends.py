"""The reading of a shard's dedup ids ends with its ownership, though the server does not answer."""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings
from typing import Any, cast
from unittest.mock import Mock

from foqs.model.shard_place import Tenure
from foqs.shard.port import SeenDigests, SeenExtent, SeenPart, SessionLostError, ShardImage
from foqs.shard.writer.seen_loading import SeenLoading
from tests.support.slow_store import SlowStore, writer_of
from tests.support.waiting import PATIENCE_S


class HangingLog:
    """A SeenLog whose server answers nothing until the read is interrupted."""

    def __init__(self) -> None:
        self.hangs, self.is_closed = threading.Event(), threading.Event()
        self._is_interrupted = threading.Event()

    def read(self, namespace: int, first: int, limit: int) -> list[SeenDigests]:
        self.hangs.set()
        self._is_interrupted.wait(2 * PATIENCE_S)
        raise SessionLostError("the server has not answered")

    def read_parts(self, key: Any, first: int, limit: int) -> list[SeenPart]:
        raise AssertionError("there are no images")

    def interrupt(self) -> None:
        self._is_interrupted.set()

    def close(self) -> None:
        self.is_closed.set()


async def test_a_read_that_hangs_ends_with_the_ownership() -> None:
    """Python waits for all of its threads at the end: the process of a host would wait for the server with it."""
    log = HangingLog()
    shard = Mock(next_seen_image=Mock(return_value=None), load_seen_from=Mock(return_value=0))
    loading = asyncio.create_task(
        SeenLoading(3, cast(Any, shard), cast(Any, log), lambda: None).run([SeenExtent(7, 0, 0, 1, 0)])
    )
    assert await asyncio.to_thread(log.hangs.wait, PATIENCE_S)
    loading.cancel()
    await asyncio.gather(loading, return_exceptions=True)
    assert await asyncio.to_thread(log.is_closed.wait, PATIENCE_S)


class StoreOfIds(SlowStore):
    """Its shard has dedup ids to be read."""

    def open(self, tenure: Tenure | None = None) -> ShardImage:
        image = super().open(tenure)
        image.seen, image.seen_log = [SeenExtent(7, 0, 0, 1, 0)], HangingLog()
        return image


async def test_a_read_that_has_not_begun_ends_without_a_warning() -> None:
    """A host that is stopped as it opens a shard would write one, and one is an error in the tests of users."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        async with writer_of(StoreOfIds(asyncio.get_running_loop())) as writer:
            cancelled: list[bool] = []

            def opened(*_: object) -> None:
                (task,) = [task for task in asyncio.all_tasks() if task.get_name().endswith("-seen")]
                cancelled.append(task.cancel())

            writer.listener.shard_opened.side_effect = opened
            await writer.start()
            await asyncio.sleep(0)
            assert cancelled == [True]
        gc.collect()
    assert not [str(one.message) for one in caught if "never awaited" in str(one.message)]

"""A shard that is opened with more topics than one turn of the event loop should take."""

from __future__ import annotations

import asyncio
import threading
from unittest.mock import Mock

import pytest

from foqs.model import limits
from foqs.model.shard_place import Tenure
from foqs.model.topic import ShardTopic
from foqs.shard.port import ShardImage
from foqs.shard.state.engine import ShardState
from foqs.shard.writer import ownership
from tests.support.slow_store import SlowStore, TickedWriter, writer_of

TOPIC_COUNT = 25
SLICE = 10


class StoreOfTopics(SlowStore):
    def open(self, tenure: Tenure | None = None) -> ShardImage:
        image = super().open(tenure)
        image.topics = [(number, 7, b"%d" % number) for number in range(1, TOPIC_COUNT + 1)]
        return image


async def test_topics_are_adopted_in_slices_and_none_that_went_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TOPICS_PER_TICK_MAX", SLICE)
    async with writer_of(StoreOfTopics(asyncio.get_running_loop())) as writer:
        listener = writer.listener
        assert isinstance(listener, Mock)
        slices: list[list[int]] = []

        def adopt(topics: list[ShardTopic]) -> None:
            slices.append([topic.number for topic in topics])

        def opened(shard_id: int, topics: list[ShardTopic]) -> None:
            adopt(topics)
            shard = writer.shard
            assert shard is not None
            asyncio.get_running_loop().call_soon(lambda: shard._forget_topic(shard.index.by_number[SLICE + 1]))

        listener.shard_opened.side_effect, listener.adopt.side_effect = opened, adopt
        await writer.start()
        assert [number for part in slices for number in part] == [
            n for n in range(1, TOPIC_COUNT + 1) if n != SLICE + 1
        ]
        assert max(map(len, slices)) == SLICE


async def test_the_state_of_a_shard_is_built_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []

    def build(*arguments: object) -> ShardState:
        threads.append(threading.current_thread().name)
        return ShardState(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(ownership, "ShardState", build)
    async with writer_of(SlowStore(asyncio.get_running_loop())) as writer:
        await writer.start()
    assert isinstance(writer, TickedWriter)
    assert threads
    assert threading.main_thread().name not in threads

"""A page of items next to a server that hangs."""

from __future__ import annotations

import asyncio
import threading
from unittest.mock import Mock

import pytest

from foqs.core import limits
from foqs.core.errors import UnavailableError
from foqs.host.inspection import Inspection
from foqs.host.waiting import Waiting
from foqs.storage.shard_reader import ShardReader
from tests.support.shards import NAMESPACE, Shards


async def test_calls_behind_a_read_that_hangs_are_answered_in_time_and_not_read_for_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "CALL_MS_MAX", 50)
    shards, reader, server_answers = Shards(1), Mock(spec=ShardReader), threading.Event()
    shards.enqueue(0, "a")
    served = Mock(runners={0: None}, serving=lambda number: (None, shards.states[number]))
    reader.page.side_effect = lambda *_: (server_answers.wait(), ([], False))[1]
    inspection = Inspection(served, {0: reader}, Mock(spec=Waiting), Mock())
    namespace = Mock(number=NAMESPACE)
    calls = [inspection.page(namespace, "a", 10, "", dead=False) for _ in range(3)]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(answer) for answer in answers] == [UnavailableError] * 3
    assert "50 ms" in str(answers[0])
    server_answers.set()
    page = await inspection.page(namespace, "a", 10, "", dead=False)
    assert page.items == []
    assert reader.page.call_count == 2
    await inspection.stop()

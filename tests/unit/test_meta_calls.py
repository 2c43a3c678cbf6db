"""Admin calls on the meta database have bounds, in number and in time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest

from foqs.host.registry import meta_calls
from foqs.host.registry.meta_calls import MetaCalls
from foqs.model import limits
from foqs.model.errors import OverloadedError, UnavailableError
from tests.support.waiting import PATIENCE_S


@pytest.fixture
def answers() -> Iterator[threading.Event]:
    """The database hangs until it is set."""
    event = threading.Event()
    yield event
    event.set()


async def test_calls_beyond_those_that_may_wait_are_refused_at_once(
    answers: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "META_CALLS_WAITING_MAX", 3)
    calls = MetaCalls(cast(Any, "meta"))
    running = [asyncio.create_task(calls.run(lambda meta: answers.wait(PATIENCE_S) and meta)) for _ in range(5)]
    await asyncio.sleep(0)
    with pytest.raises(OverloadedError, match="5 calls wait for the meta database") as caught:
        await calls.run(lambda meta: meta)
    assert caught.value.retry_after_ms == limits.META_CALLS_RETRY_MS
    answers.set()
    assert await asyncio.gather(*running) == ["meta"] * 5
    assert await calls.run(lambda meta: meta) == "meta"
    await calls.stop()


async def test_a_call_is_answered_in_time_and_counts_until_its_thread_is_free(
    answers: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "META_CALL_MS_MAX", 10)
    monkeypatch.setattr(limits, "META_CALLS_WAITING_MAX", 0)
    calls = MetaCalls(cast(Any, None))
    for _ in range(meta_calls.META_CALL_THREADS):
        with pytest.raises(UnavailableError, match="whether the call was done is unknown") as caught:
            await calls.run(lambda _: answers.wait(PATIENCE_S))
        assert not caught.value.nothing_done
    with pytest.raises(OverloadedError):
        await calls.run(lambda _: None)
    answers.set()
    await calls.stop()


async def test_what_a_call_raises_is_raised() -> None:
    calls = MetaCalls(cast(Any, None))
    with pytest.raises(ZeroDivisionError):
        await calls.run(lambda _: 1 / 0)
    await calls.stop()

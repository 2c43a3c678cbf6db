"""Waits for transactions: each ends with its completion, or after a bound, and whoever is gone disturbs nobody."""

from __future__ import annotations

import asyncio

import pytest

from foqs.host.shards.waiting import Answer, Waiting
from foqs.model import limits
from foqs.model.errors import OverloadedError, UnavailableError


class Clock:
    """The event loop's, but for the time, which a test moves."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.create_future = asyncio.get_running_loop().create_future

    def time(self) -> float:
        return self.now_s


def _expecting(waiting: Waiting, parts_count: int) -> Answer:
    answer = Answer(waiting)
    answer.open_count = parts_count
    return answer


@pytest.fixture
async def clock() -> Clock:
    return Clock()


@pytest.fixture
async def waiting(clock: Clock) -> Waiting:
    return Waiting(clock)  # type: ignore[arg-type]


async def test_an_answer_ends_with_its_last_part(waiting: Waiting) -> None:
    answer = _expecting(waiting, 2)
    answer.part_done()
    assert not answer.done.done()
    answer.part_done()
    await answer.done


async def test_the_failure_of_a_call_is_raised(waiting: Waiting) -> None:
    answer = _expecting(waiting, 1)
    answer.failure = OverloadedError("full")
    answer.part_done()
    with pytest.raises(OverloadedError, match="full"):
        await answer.done


async def test_a_wait_ends_after_its_bound_and_what_comes_later_changes_nothing(clock: Clock, waiting: Waiting) -> None:
    answer = _expecting(waiting, 1)
    clock.now_s = limits.CALL_MS_MAX / 1000 - 0.001
    waiting.tick()
    assert not answer.done.done()
    clock.now_s += 0.001
    waiting.tick()
    answer.part_done()
    with pytest.raises(UnavailableError, match="whether the call was done is unknown") as raised:
        await answer.done
    assert not raised.value.nothing_done


async def test_a_caller_who_is_gone_is_told_nothing(waiting: Waiting) -> None:
    answer = _expecting(waiting, 1)
    answer.done.cancel()
    answer.part_done()
    assert answer.done.cancelled()


async def test_what_is_over_is_forgotten_also_what_a_shard_has_refused(clock: Clock, waiting: Waiting) -> None:
    refused, done, gone, open_one = [_expecting(waiting, count) for count in (0, 1, 1, 1)]
    done.part_done()
    gone.done.cancel()
    waiting.tick()
    assert [answer for _, answer in waiting.by_age] == [open_one]
    clock.now_s = limits.CALL_MS_MAX / 1000
    waiting.tick()
    assert not waiting.by_age
    assert isinstance(open_one.done.exception(), UnavailableError)
    assert not refused.done.done(), "nobody waits for it"

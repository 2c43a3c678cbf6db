"""What runs in the background ends as a whole, whoever gives up waiting for that."""

from __future__ import annotations

import asyncio

import pytest

from foqs.background.service import Service, ServiceState


class SlowToEnd(Service):
    """It ends when the test says so."""

    def __init__(self) -> None:
        super().__init__("slow-to-end")
        self.may_end = asyncio.Event()
        self.begun_count = 0
        self.is_gone = False

    async def _stop(self) -> None:
        self.begun_count += 1
        await self.may_end.wait()
        self.is_gone = True


async def test_a_stop_that_is_cancelled_halfway_is_finished_and_another_one_waits_for_that() -> None:
    service = SlowToEnd()
    await service.start()
    first = asyncio.create_task(service.stop())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    second = asyncio.create_task(service.stop())
    await asyncio.sleep(0)
    assert service.state is ServiceState.STOPPED
    assert not second.done()
    service.may_end.set()
    await second
    assert service.is_gone
    await service.stop()
    assert service.begun_count == 1


async def test_a_stop_that_was_ended_itself_is_taken_up_again() -> None:
    service = SlowToEnd()
    first = asyncio.create_task(service.stop())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert service.begun_count == 1
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    service.may_end.set()
    await service.stop()
    assert service.is_gone

"""A page of items next to a server that hangs."""

from __future__ import annotations

import asyncio
import threading
from unittest.mock import Mock

import pytest

from foqs.contract.requests import PeekItemsRequest
from foqs.host.shards.shards import OwnedShard
from foqs.host.shards.waiting import Waiting
from foqs.host.verbs import page_reads
from foqs.host.verbs.inspection import Inspection
from foqs.host.verbs.page_reads import PageBudget, Slices
from foqs.model import limits
from foqs.model.calls import CallContext
from foqs.model.errors import OverloadedError, UnavailableError
from foqs.model.principal import EVERYBODY
from foqs.shard import mysql_server
from foqs.shard.writer.shard_writer import ShardWriter
from foqs.storage.shard.shard_reader import ShardReader
from tests.support.shards import NAMESPACE, Shards
from tests.support.waiting import until

CALL = CallContext("test", principal=EVERYBODY)
NAMESPACES = Mock(get=lambda name: Mock(number=NAMESPACE))


async def test_calls_behind_a_read_that_hangs_are_answered_in_time_and_not_read_for_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "CALL_MS_MAX", 50)
    shards, reader, server_answers = Shards(1), Mock(spec=ShardReader), threading.Event()
    shards.enqueue(0, "a")
    owned = owned_of(shards, reader)
    served = Mock(
        by_id=owned,
        asked=lambda wanted: [(number, shards.serving(number)[1]) for number in owned],
        writers=shards.writers,
        serving=shards.serving,
    )
    reader.page.return_value = reads = Mock(side_effect=lambda: (server_answers.wait(), ([], False))[1])
    inspection = Inspection(
        NAMESPACES,
        served,
        Mock(spec=Waiting),
        Mock(),
        Slices(asyncio.get_running_loop()),
        PageBudget(),
        Mock(),
    )
    calls = [inspection.peek_items(CALL, PeekItemsRequest("jobs", "a", 10)) for _ in range(3)]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(answer) for answer in answers] == [UnavailableError] * 3
    assert "50 ms" in str(answers[0])
    server_answers.set()
    page = await inspection.peek_items(CALL, PeekItemsRequest("jobs", "a", 10))
    assert page.items == []
    assert reads.call_count == 2
    for shard in owned.values():
        await shard.stop()


def owned_of(shards: Shards, *readers: Mock) -> dict[int, OwnedShard]:
    """With these readers, by shard; they are not started."""
    owned: dict[int, OwnedShard] = {}
    for number, reader in enumerate(readers):
        writer = Mock(spec=ShardWriter, shard_id=number, shard=shards.states[number])
        owned[number] = OwnedShard(writer, Mock(), reader, Mock(), Mock(), Mock())
    return owned


class Sickness:
    """Of a shard, as foqs.host.shards.shards.Shards tells it."""

    def __init__(self) -> None:
        self.is_sick = False

    def check_healthy(self, shard_id: int) -> None:
        if self.is_sick:
            raise UnavailableError(f"shard {shard_id} is sick", nothing_done=True)


async def test_a_page_of_a_sick_shard_fails_at_once_and_one_that_waits_for_it_as_soon_as_it_is_sick(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mysql_server, "PULSE_MS", 5)
    shards, server_answers, sickness = Shards(2), threading.Event(), Sickness()
    hung, well = Mock(spec=ShardReader), Mock(spec=ShardReader)
    for number in (0, 1):
        shards.enqueue(number, "a")
    hung.page.return_value = hangs = Mock(side_effect=lambda: (server_answers.wait(), ([], False))[1])
    well.page.return_value = Mock(return_value=([], False))
    owned = owned_of(shards, hung, well)
    served = Mock(
        by_id=owned,
        asked=lambda wanted: [(number, shards.serving(number)[1]) for number in owned],
        writers=shards.writers,
        serving=shards.serving,
        check_healthy=sickness.check_healthy,
    )
    inspection = Inspection(
        NAMESPACES,
        served,
        Mock(spec=Waiting),
        Mock(),
        Slices(asyncio.get_running_loop()),
        PageBudget(),
        Mock(),
    )
    calls = [
        asyncio.create_task(inspection.peek_items(CALL, PeekItemsRequest("jobs", "a", 10))) for _ in range(150)
    ]  # fmt: skip
    await until(lambda: hangs.call_count == 1)
    sickness.is_sick = True
    answers = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), limits.CALL_MS_MAX / 2_000)
    assert {type(answer) for answer in answers} == {UnavailableError}
    assert all("is sick" in str(answer) for answer in answers)
    read_count = well.page.call_count
    assert read_count <= limits.PAGES_BYTES_MAX // limits.PAGE_BYTES_MAX, "the others held nothing"
    with pytest.raises(UnavailableError):
        await inspection.peek_items(CALL, PeekItemsRequest("jobs", "a", 10))
    server_answers.set()
    for shard in owned.values():
        await shard.stop()
    assert (hangs.call_count, well.page.call_count) == (1, read_count)
    assert inspection._budget.held_bytes == 0


async def test_pages_together_hold_no_more_than_their_budget_and_the_others_wait_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "PAGES_BYTES_MAX", 100)
    monkeypatch.setattr(limits, "PAGES_WAITING_MAX", 5)
    budget, held, gates = PageBudget(), [], {}

    async def page(number: int, size_bytes: int) -> None:
        async with budget.hold(size_bytes):
            held.append(number)
            await gates[number].wait()

    async def settle() -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    calls = {}
    for number, size_bytes in enumerate([60, 40, 500, 10, 10, 60, 10]):
        gates[number] = asyncio.Event()
        calls[number] = asyncio.create_task(page(number, size_bytes))
        await settle()
    assert (held, budget.held_bytes) == ([0, 1], 100)
    with pytest.raises(OverloadedError, match="nothing was done") as refused:
        await page(7, 1)
    assert refused.value.retry_after_ms == page_reads.PAGE_RETRY_MS
    calls[4].cancel()
    for number in (0, 1):
        gates[number].set()
        await settle()
    assert (held, budget.held_bytes) == ([0, 1, 2], 500), "more than the budget is held alone"
    gates[2].set()
    await settle()
    assert (held[3:], budget.held_bytes) == ([3, 5, 6], 80)
    for gate in gates.values():
        gate.set()
    await asyncio.gather(*calls.values(), return_exceptions=True)
    assert budget.held_bytes == 0


async def test_a_page_that_waits_for_too_long_is_refused_and_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CALL_MS_MAX", 10)
    budget = PageBudget()
    async with budget.hold(limits.PAGES_BYTES_MAX):
        with pytest.raises(OverloadedError):
            async with budget.hold(1):
                pytest.fail("there is no room")
        assert budget.held_bytes == limits.PAGES_BYTES_MAX
    assert budget.held_bytes == 0
    async with budget.hold(1):
        assert budget.held_bytes == 1

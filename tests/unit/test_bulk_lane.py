"""Bulk calls go through the host in slices: few at a time beside interactive calls, with a pause, and never starved."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from foqs.contract.requests import EnqueueRequest
from foqs.host.admission import bulk_lane
from foqs.host.admission.bulk_lane import BulkEnqueues, BulkLane
from foqs.model import limits
from foqs.model.calls import CallContext, EnqueueResult
from foqs.model.errors import FoqsError, InvalidArgumentError, OverloadedError, TooLargeError, UnavailableError
from foqs.model.namespace import Namespace, NamespaceSettings
from foqs.model.principal import EVERYBODY
from foqs.testing.manual_loop import ManualLoop

COMMIT_S = 0.004


class World:
    """A lane before a shard that takes COMMIT_S for each slice, on a loop whose clock a test moves."""

    def __init__(self) -> None:
        self.loop = ManualLoop()
        self.lane = BulkLane(self.loop)
        settings = NamespaceSettings(batch_items_max=1_000)
        namespaces: Any = SimpleNamespace(serving=lambda name: Namespace(1, name, settings, 0))
        self.enqueues = BulkEnqueues(namespaces, self.lane, self._enqueue)
        self.slices: list[tuple[float, int]] = []
        """When each slice began, and its items."""
        self.items_max = 0
        self.errors: dict[int, FoqsError] = {}
        """By number of the slice, what it fails with."""
        self.commit_s = COMMIT_S
        self._tasks: list[asyncio.Task[Any]] = []

    def close(self) -> None:
        for task in self._tasks:
            self.loop.call(task.cancel)
        self.loop.turn()
        self.loop.close()

    async def _enqueue(self, context: CallContext, request: EnqueueRequest) -> EnqueueResult:
        items: Any = request.items
        number = len(self.slices)
        self.slices.append((self.loop.time(), len(items)))
        self.items_max = max(self.items_max, self.lane.items_count)
        await asyncio.sleep(self.commit_s)
        if number in self.errors:
            raise self.errors[number]
        return EnqueueResult([f"{item.name}" for item in items], {}, [0])

    def start(self, count: int = 1_000, *, bulk: bool = True, payload: bytes = b"x") -> asyncio.Task[EnqueueResult]:
        items: Any = [SimpleNamespace(payload=payload, name=number) for number in range(count)]

        async def call() -> EnqueueResult:
            return await self.enqueues.enqueue(CallContext("a", principal=EVERYBODY), EnqueueRequest("ns", items, bulk))

        return self.spawn(call())

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = self.loop.call(self.loop.create_task, work)
        self._tasks.append(task)
        self.loop.turn()
        return task

    def pass_time(self, until_s: float, *, interactive: bool) -> None:
        """Move on, by the milliseconds, with or without a call of somebody else in each of them."""
        while self.loop.time() < until_s:
            if interactive:
                self.lane.note_interactive()
            self.loop.move_to(self.loop.time() + 0.001)


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


def items_in(world: World, from_s: float, until_s: float) -> int:
    return sum(items for at_s, items in world.slices if from_s <= at_s < until_s)


def test_alone_bulk_calls_have_many_items_under_way_and_no_pause(world: World) -> None:
    calls = [world.start() for _ in range(8)]
    world.pass_time(1.0, interactive=False)
    assert all(len(call.result().ids) == 1_000 for call in calls)
    assert {items for _, items in world.slices} == {bulk_lane.SLICE_ITEMS_MAX}
    assert world.items_max == limits.BULK_ITEMS_MAX
    assert max(at_s for at_s, _ in world.slices) <= 8 * 1_000 / limits.BULK_ITEMS_MAX * COMMIT_S + 0.01


def test_beside_interactive_calls_few_items_are_under_way_and_half_of_the_time_there_are_none(world: World) -> None:
    world.lane.note_interactive()
    for _ in range(8):
        world.start()
    busy = 0
    while world.loop.time() < 0.5:
        world.lane.note_interactive()
        busy += world.lane.items_count > 0
        world.loop.move_to(world.loop.time() + 0.001)
    assert {items for _, items in world.slices} == {bulk_lane.SHARED_SLICE_ITEMS_MAX}
    assert world.items_max <= limits.BULK_SHARED_ITEMS_MAX
    assert 0.3 * 500 <= busy <= 0.65 * 500
    assert items_in(world, 0.0, 0.5) >= 0.35 * 500 / (COMMIT_S * 1000) * bulk_lane.SHARED_SLICE_ITEMS_MAX, "it goes on"


def test_soon_after_the_last_interactive_call_a_bulk_call_has_all_again(world: World) -> None:
    world.lane.note_interactive()
    calls = [world.start() for _ in range(30)]
    alone_s = bulk_lane.SHARED_MS / 1000
    world.pass_time(alone_s + 0.1, interactive=False)
    assert all(call.done() and not call.cancelled() for call in calls)
    before, after = items_in(world, 0, alone_s), sum(len(call.result().ids) for call in calls)
    assert after == 30_000
    assert before < after


def test_an_interactive_call_never_waits(world: World) -> None:
    for _ in range(20):
        world.start()
    single = world.start(1, bulk=False)
    world.loop.move_to(world.loop.time() + COMMIT_S)
    assert single.result().ids == ["0"]
    assert world.lane.is_shared


def test_calls_take_turns_slice_by_slice(world: World) -> None:
    world.lane.note_interactive()
    first, second = world.start(300), world.start(100)
    world.pass_time(3 * COMMIT_S + 2 * COMMIT_S, interactive=True)
    assert second.done()
    assert not first.done()


def test_slices_are_small_in_bytes_too_but_have_an_item(world: World) -> None:
    world.lane.note_interactive()
    world.start(10, payload=bytes(bulk_lane.SHARED_SLICE_BYTES_MAX))
    world.pass_time(1.0, interactive=True)
    assert [items for _, items in world.slices] == [1] * 10


def test_what_has_no_turn_for_long_is_refused_and_told_when_to_try_again(world: World) -> None:
    world.commit_s = 0.4
    world.lane.note_interactive()
    calls = [world.start(100) for _ in range(10)]
    world.pass_time(3.0, interactive=True)
    refused = [call for call in calls if call.exception() is not None]
    assert 0 < len(refused) < 10
    for call in refused:
        error = call.exception()
        assert isinstance(error, OverloadedError)
        assert error.retry_after_ms == limits.BULK_WAIT_MS_MAX
    assert (world.lane.items_count, world.lane.waiting_count) == (0, 0)


def test_a_slice_on_a_shard_that_hangs_holds_up_the_others_for_a_moment_only(world: World) -> None:
    world.commit_s = 20.0
    world.lane.note_interactive()
    hung = world.start(100)
    world.commit_s = COMMIT_S
    other = world.start(100)
    world.pass_time(bulk_lane.SLICE_MS_MAX / 1000 + 0.1, interactive=True)
    assert other.done()
    assert not hung.done()
    world.pass_time(21.0, interactive=False)
    assert (hung.done(), world.lane.items_count, world.lane.size_bytes) == (True, 0, 0)


def test_callers_that_give_up_leave_nothing_behind(world: World) -> None:
    world.lane.note_interactive()
    calls = [world.start() for _ in range(5)]
    for call in (calls[0], calls[2], calls[4]):
        world.loop.call(call.cancel)
    world.pass_time(1.0, interactive=True)
    assert [call.cancelled() for call in calls] == [True, False, True, False, True]
    assert all(len(calls[number].result().ids) == 1_000 for number in (1, 3))
    assert (world.lane.items_count, world.lane.size_bytes, world.lane.waiting_count) == (0, 0, 0)


def test_results_of_slices_are_one_result_by_position(world: World) -> None:
    world.lane.note_interactive()
    call = world.start(250)
    world.pass_time(1.0, interactive=True)
    assert call.result().ids == [str(number) for number in range(250)]
    assert call.result().duplicates == [0, 100, 200]


def test_the_first_slice_that_fails_fails_the_call_and_a_later_one_the_positions_from_there_on(world: World) -> None:
    world.lane.note_interactive()
    world.errors[0] = UnavailableError("unknown")
    first = world.start(300)
    world.pass_time(0.1, interactive=True)
    assert first.exception() is world.errors[0]
    for error, behind in (
        (UnavailableError("unknown"), OverloadedError),
        (UnavailableError("away", nothing_done=True), UnavailableError),
        (InvalidArgumentError("wrong"), OverloadedError),
    ):
        world.errors = {len(world.slices) + 1: error}
        call = world.start(300)
        world.pass_time(world.loop.time() + 0.1, interactive=True)
        result = call.result()
        assert result.ids == [*map(str, range(100)), *[""] * 200]
        assert {type(result.errors[position]) for position in range(100, 200)} == {type(error)}
        assert {type(result.errors[position]) for position in range(200, 300)} == {behind}
        assert all(result.errors[position].nothing_done for position in range(200, 300))


def test_a_call_over_the_batch_limit_is_refused_whole(world: World) -> None:
    world.lane.note_interactive()
    call = world.start(1_001)
    world.pass_time(0.1, interactive=True)
    assert isinstance(call.exception(), TooLargeError)
    assert world.slices == []


def test_an_empty_call_is_one_slice(world: World) -> None:
    call = world.start(0)
    world.pass_time(0.1, interactive=False)
    assert call.result().ids == []

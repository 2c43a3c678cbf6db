"""What is pulled from other hosts before what is here, and until when."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from foqs.cluster.homes.host_turns import Turn
from foqs.cluster.homes.interests import Wait
from foqs.cluster.routing.pulls import PULL_WAIT_MS_MAX, STOP_MS_MAX, Pulls
from foqs.contract import requests as of
from foqs.model.calls import CallContext, Delivery, PositionErrors
from foqs.model.errors import (
    FoqsError,
    HostUnreachableError,
    InternalError,
    InvalidArgumentError,
    OverloadedError,
    PermissionDeniedError,
    RateLimitedError,
    TooLargeError,
    UnavailableError,
    UnknownNamespaceError,
)
from foqs.model.principal import EVERYBODY
from foqs.model.stocks import ANY_TOPIC, Pointer, Stock, Topic
from foqs.testing.manual_loop import ManualLoop

MAIL = (1, "mail")


def delivered(priorities: Iterable[int]) -> list[Delivery]:
    return [Delivery(f"1-{at}", f"1-{at}-r", "mail", at, 0, 0, 0, 1, b"", b"") for at in priorities]


class News:
    """It has told of one host, until that is exhausted."""

    def __init__(self, pointer: Pointer) -> None:
        self.pointer: Pointer | None = pointer

    def asked(self, topics: Iterable[Topic]) -> None: ...

    def asked_any(self, topic: Topic) -> None: ...

    def better(self, topics: Iterable[Topic]) -> Pointer | None:
        return self.pointer

    def served(self, pointer: Pointer) -> None: ...

    def was_exhausted(self, pointer: Pointer) -> None:
        self.pointer = None

    def begin_turn(self, topic: Topic, count: int) -> Turn:
        self.left_count = count
        return Turn(topic, "host-1", self.pointer, {"host-1": 1}, count)

    def end_turn(self, turn: Turn, count: int) -> None:
        self.left_count -= count


async def nothing_given_back(*call: Any) -> PositionErrors:
    raise AssertionError("no caller has gone")


class Queue:
    """A host whose next items have these priorities."""

    def __init__(self, priorities: Sequence[int]) -> None:
        self.priorities = priorities

    async def call(self, *call: Any) -> list[Delivery]:
        return delivered(self.priorities)


class Refusing:
    """A host that does nothing of what it is asked."""

    def __init__(self, error: FoqsError) -> None:
        self.error = error
        self.calls_count = 0

    async def call(self, *call: Any) -> list[Delivery]:
        self.calls_count += 1
        await asyncio.sleep(0)
        raise self.error


async def pulled(pointer: Pointer, there: Sequence[int]) -> tuple[list[Delivery], Pointer | None]:
    """What a call gets where the items here have priority 7, and who is believed to have better ones afterwards."""
    news: Any = News(pointer)
    here: Any = Queue([7])
    remote: Any = Queue(there)
    pulls = Pulls(here.call, news, lambda host_id: remote, lambda name: 1, lambda: True, nothing_given_back)
    context = CallContext("", principal=EVERYBODY)
    if pointer.topic == MAIL:
        items = await pulls.dequeue(context, of.DequeueRequest("jobs", [of.TopicDemand("mail", 3)], None, 0))
    else:
        items = await pulls.dequeue(context, of.DequeueRequest("jobs", [], None, 0, "", 3))
    return items, news.pointer


@pytest.mark.parametrize(
    ("there", "is_believed"),
    [
        pytest.param([0, 0, 0], True, id="more of the urgent ones may be there"),
        pytest.param([0, 0, 2], False, id="after the urgent ones others have come"),
    ],
)
async def test_another_host_is_asked_first_for_as_long_as_it_has_what_is_more_urgent(
    there: Sequence[int], is_believed: bool
) -> None:
    pointer = Pointer(MAIL, "host-1", Stock(3, 0))
    items, believed = await pulled(pointer, there)
    assert [item.priority for item in items] == there
    assert believed == (pointer if is_believed else None)


async def test_a_host_that_gives_nothing_is_not_asked_first_again() -> None:
    items, believed = await pulled(Pointer(MAIL, "host-1", Stock(3, 0)), [])
    assert [item.priority for item in items] == [7], "what is here"
    assert believed is None


async def test_a_call_for_any_topic_goes_to_the_host_whose_turn_it_is_whatever_the_priorities_are() -> None:
    pointer = Pointer((1, ANY_TOPIC), "host-1", Stock(3, 0))
    items, believed = await pulled(pointer, [5])
    assert [item.priority for item in items] == [5]
    assert believed == pointer


class StrictNews(News):
    """It is told of no call that is refused."""

    def asked(self, topics: Iterable[Topic]) -> None:
        raise AssertionError("names of a refused call are kept")

    def asked_any(self, topic: Topic) -> None:
        raise AssertionError("a refused call is kept")

    def wait(self, topics: Mapping[Topic, int]) -> Wait:
        raise AssertionError("a refused call waits")


REFUSED: Mapping[str, tuple[Sequence[tuple[str, int]], tuple[str | None, int | None]]] = {
    "too many topics": ([(f"x{number}", 1) for number in range(10_000)], (None, None)),
    "a name of 15 MB": ([("mail", 1), ("x" * 15_000_000, 1)], (None, None)),
    "no name": ([("mail", 1), ("", 1)], (None, None)),
    "no items": ([("mail", 0)], (None, None)),
    "a count beside the topics": ([("mail", 1)], (None, 1)),
    "topics beside a prefix": ([("mail", 1)], ("", 1)),
    "a prefix of 15 MB": ([], ("x" * 15_000_000, 1)),
    "a prefix without a count": ([], ("", None)),
}


@pytest.mark.parametrize(("topics", "any_of"), REFUSED.values(), ids=REFUSED.keys())
@pytest.mark.parametrize("is_better_there", [False, True])
async def test_nothing_is_kept_of_a_call_that_is_refused_and_no_other_host_hears_of_it(
    topics: Sequence[tuple[str, int]], any_of: tuple[str | None, int | None], is_better_there: bool
) -> None:
    there = Refusing(UnavailableError("it was asked"))
    news: Any = StrictNews(Pointer(MAIL if any_of[0] is None else (1, ANY_TOPIC), "host-1", Stock(3, 0)))
    here: Any = Refusing(InvalidArgumentError("this host says what is wrong"))
    if not is_better_there:
        news.pointer = None
    pulls = Pulls(here.call, news, lambda host_id: cast(Any, there), lambda name: 1, lambda: True, nothing_given_back)
    demands = [of.TopicDemand(*demand) for demand in topics]
    with pytest.raises((InvalidArgumentError, TooLargeError)):
        await pulls.dequeue(CallContext("", principal=EVERYBODY), of.DequeueRequest("jobs", demands, None, 0, *any_of))
    assert there.calls_count == 0


@pytest.mark.parametrize(("topics", "any_of"), REFUSED.values(), ids=REFUSED.keys())
async def test_a_host_without_shards_refuses_what_is_wrong_with_a_call_that_it_has_nothing_for(
    topics: Sequence[tuple[str, int]], any_of: tuple[str | None, int | None]
) -> None:
    news: Any = StrictNews(Pointer(MAIL, "host-1", Stock(3, 0)))
    news.pointer = None
    here: Any = Refusing(UnavailableError("it has no shards"))
    pulls = Pulls(here.call, news, lambda host_id: None, lambda name: 1, lambda: False, nothing_given_back)
    demands = [of.TopicDemand(*demand) for demand in topics]
    with pytest.raises((InvalidArgumentError, TooLargeError)):
        await pulls.dequeue(CallContext("", principal=EVERYBODY), of.DequeueRequest("jobs", demands, None, 0, *any_of))


async def test_the_names_of_calls_that_get_items_and_of_those_that_get_none_are_kept_alike() -> None:
    asked: list[Topic] = []
    news = EagerNews()
    news.asked = asked.extend  # type: ignore[method-assign]
    await waited(news, {}, 0)
    assert asked == [MAIL, (1, "other")]
    news.pointer = Pointer(MAIL, "host-1", Stock(9, 0))
    assert await waited(news, {"host-1": Queue([0])}, 0) != []
    assert asked == [MAIL, (1, "other")] * 2


REFUSALS = [HostUnreachableError("the link is cut"), OverloadedError("full")]


@pytest.mark.parametrize("refusal", REFUSALS, ids=["unreachable", "overloaded"])
async def test_a_better_host_that_cannot_be_asked_takes_nothing_from_what_is_here(refusal: FoqsError) -> None:
    there = Refusing(refusal)
    news: Any = News(Pointer(MAIL, "host-1", Stock(3, 0)))
    here, remote = Queue([7]), cast(Any, there)
    pulls = Pulls(here.call, news, lambda host_id: remote, lambda name: 1, lambda: True, nothing_given_back)
    items = await pulls.dequeue(
        CallContext("", principal=EVERYBODY), of.DequeueRequest("jobs", [of.TopicDemand("mail", 3)], None, 0)
    )
    assert [item.priority for item in items] == [7]


class EagerNews(News):
    """The home of all topics: it names the same hosts again, whenever it is asked."""

    def __init__(self, *pointers: Pointer) -> None:
        self.pointer = None
        self.pointers = pointers

    def wait(self, topics: Mapping[Topic, int]) -> Wait:
        wait = Wait(topics)
        self.find_again(wait)
        return wait

    def find_again(self, wait: Wait) -> None:
        for pointer in self.pointers:
            wait.notify(pointer)

    def leave(self, wait: Wait) -> None: ...

    def keep_unused(self, pointers: Iterable[Pointer]) -> None: ...


async def waited(news: EagerNews, hosts: Mapping[str, Any], wait_ms: int) -> list[Delivery]:
    pulls = Pulls(Queue([]).call, cast(Any, news), hosts.get, lambda name: 1, lambda: False, nothing_given_back)
    demands = [of.TopicDemand(name, 3) for name in ("mail", "other")]
    return await pulls.dequeue(CallContext("", principal=EVERYBODY), of.DequeueRequest("jobs", demands, None, wait_ms))


@pytest.mark.parametrize("refusal", REFUSALS, ids=["unreachable", "overloaded"])
async def test_a_host_that_cannot_be_asked_is_not_asked_again_and_again_while_a_call_waits(refusal: FoqsError) -> None:
    there, news = Refusing(refusal), EagerNews(Pointer(MAIL, "host-1", Stock(1_000_000, 0)))
    assert await waited(news, {"host-1": there}, 20) == []
    assert there.calls_count == 1


async def test_a_host_that_cannot_be_asked_keeps_no_call_from_what_another_one_has() -> None:
    away = Refusing(HostUnreachableError("the link is cut"))
    news = EagerNews(Pointer(MAIL, "host-1", Stock(9, 0)), Pointer((1, "other"), "host-2", Stock(9, 5)))
    items = await waited(news, {"host-1": away, "host-2": Queue([5])}, 20_000)
    assert [item.priority for item in items] == [5]


@pytest.mark.parametrize(
    "refusal",
    [PermissionDeniedError("only hosts"), UnknownNamespaceError("not known here"), RateLimitedError("too many")],
    ids=lambda error: type(error).__name__,
)
async def test_what_a_peer_refuses_keeps_no_call_from_what_another_one_has(refusal: FoqsError) -> None:
    """It sees the cluster otherwise than this host, which has let the call through."""
    news = EagerNews(Pointer(MAIL, "host-1", Stock(9, 0)), Pointer((1, "other"), "host-2", Stock(9, 5)))
    items = await waited(news, {"host-1": Refusing(refusal), "host-2": Queue([5])}, 20_000)
    assert [item.priority for item in items] == [5]


async def test_a_defect_of_a_peer_is_no_defect_of_the_host_that_was_asked() -> None:
    news = EagerNews(Pointer(MAIL, "host-1", Stock(9, 0)))
    with pytest.raises(UnavailableError, match="host-1 was asked") as caught:
        await waited(news, {"host-1": Refusing(InternalError("a bug"))}, 20_000)
    assert not caught.value.nothing_done, "items may have been leased"


class Frozen:
    """A host that answers when the test says so."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[list[Delivery]] | None = None
        self.calls_count = 0
        self.host_id = "host-1"

    async def call(self, *call: Any) -> list[Delivery]:
        self.calls_count += 1
        self.answer = self.answer or asyncio.get_running_loop().create_future()
        return await asyncio.shield(self.answer)


class FrozenWorld:
    """Calls of a host whose news name a frozen one, on a loop whose time the test moves."""

    def __init__(self, news: News, here: Sequence[int]) -> None:
        self.loop = ManualLoop()
        self.there = Frozen()
        remote = cast(Any, self.there)
        queue: Any = Queue(here)
        self.returned: list[str] = []
        """The receipts that were given back as unseen."""
        self.errors: PositionErrors = {}
        """What comes of that."""
        self.pulls = Pulls(queue.call, cast(Any, news), lambda _: remote, lambda _: 1, lambda: False, self._release)

    async def _release(self, context: CallContext, request: of.NackRequest) -> PositionErrors:
        self.returned += [str(nack.receipt) for nack in request.nacks if nack.release and nack.unseen]
        return self.errors

    def dequeue(
        self, wait_ms: int, context: CallContext | None = None, *, is_any: bool = False
    ) -> asyncio.Task[list[Delivery]]:
        topics = [] if is_any else [of.TopicDemand("mail", 3)]
        any_of = ("", 3) if is_any else ()
        call = self.pulls.dequeue(
            context or CallContext("", principal=EVERYBODY), of.DequeueRequest("jobs", topics, None, wait_ms, *any_of)
        )
        task: asyncio.Task[list[Delivery]] = self.loop.call(self.loop.create_task, call)
        self.loop.turn()
        return task

    def answer(self, outcome: list[Delivery] | FoqsError) -> None:
        assert self.there.answer is not None
        if isinstance(outcome, FoqsError):
            self.loop.call(self.there.answer.set_exception, outcome)
        else:
            self.loop.call(self.there.answer.set_result, outcome)
        self.loop.turn()

    def stop(self) -> asyncio.Task[None]:
        task: asyncio.Task[None] = self.loop.call(self.loop.create_task, self.pulls.stop())
        self.loop.turn()
        return task

    def close(self) -> None:
        self.stop()
        self.loop.move_to(self.loop.time() + STOP_MS_MAX / 1000)
        self.loop.close()


@pytest.fixture
def frozen_worlds() -> Iterator[Callable[..., FrozenWorld]]:
    worlds: list[FrozenWorld] = []

    def make(news: News, here: Sequence[int] = ()) -> FrozenWorld:
        worlds.append(FrozenWorld(news, here))
        return worlds[-1]

    yield make
    for world in worlds:
        world.close()


TO_MAIL = Pointer(MAIL, "host-1", Stock(3, 0))


def test_a_call_that_outlives_the_server_ends_when_pulls_are_stopped(
    frozen_worlds: Callable[..., FrozenWorld],
) -> None:
    world = frozen_worlds(EagerNews())
    call = world.dequeue(20_000)
    assert not call.done()
    stopped: asyncio.Task[None] = world.loop.call(world.loop.create_task, world.pulls.stop())
    world.loop.turn()
    assert stopped.done()
    assert call.done()
    assert call.result() == []


@pytest.mark.parametrize("wait_ms", [0, 100])
def test_a_call_that_pulls_from_a_frozen_host_is_answered_a_second_after_its_wait(
    frozen_worlds: Callable[..., FrozenWorld], wait_ms: int
) -> None:
    world = frozen_worlds(EagerNews(TO_MAIL))
    call = world.dequeue(wait_ms)
    world.loop.move_to(wait_ms / 1000 + PULL_WAIT_MS_MAX / 1000)
    assert call.done()
    assert call.result() == []
    world.answer(delivered([0, 1]))
    assert world.returned == ["1-0-r", "1-1-r"], "what comes late is given back"


def test_a_call_that_still_waits_gets_what_a_slow_host_gives(frozen_worlds: Callable[..., FrozenWorld]) -> None:
    world = frozen_worlds(EagerNews(TO_MAIL))
    call = world.dequeue(10_000)
    world.loop.move_to(5)
    world.answer(delivered([0]))
    assert [item.priority for item in call.result()] == [0]
    assert world.returned == []


@pytest.mark.parametrize("is_any", [False, True])
def test_a_frozen_host_with_better_items_keeps_a_call_from_what_is_here_for_a_second_and_no_other_call(
    frozen_worlds: Callable[..., FrozenWorld], is_any: bool
) -> None:
    news = News(Pointer((1, ANY_TOPIC), "host-1", Stock(3, 0)) if is_any else TO_MAIL)
    world = frozen_worlds(news, [7])
    pointer = news.pointer
    call = world.dequeue(20_000, is_any=is_any)
    world.loop.move_to(PULL_WAIT_MS_MAX / 1000)
    assert [item.priority for item in call.result()] == [7]
    news.pointer = pointer
    assert [item.priority for item in world.dequeue(20_000, is_any=is_any).result()] == [7]
    assert world.there.calls_count == 1
    world.answer([])
    news.pointer = pointer
    assert world.dequeue(0, is_any=is_any).done()
    assert world.there.calls_count == 2, "it has answered: it is asked again"


def test_one_call_at_a_time_goes_for_what_is_better_elsewhere_and_the_others_take_what_is_here(
    frozen_worlds: Callable[..., FrozenWorld],
) -> None:
    world = frozen_worlds(News(TO_MAIL), [7])
    first = world.dequeue(0)
    assert [item.priority for item in world.dequeue(0).result()] == [7]
    world.answer(delivered([0]))
    assert [item.priority for item in first.result()] == [0]
    world.dequeue(0)
    assert world.there.calls_count == 2, "the next one goes there again"


def test_a_call_waits_for_a_pull_a_second_beyond_its_deadline_at_most(
    frozen_worlds: Callable[..., FrozenWorld],
) -> None:
    world = frozen_worlds(EagerNews(TO_MAIL))
    call = world.dequeue(100, CallContext("", deadline_s=0.05, principal=EVERYBODY))
    world.loop.move_to(0.05 + PULL_WAIT_MS_MAX / 1000)
    assert call.result() == []
    assert world.dequeue(100, CallContext("", deadline_s=0.05, principal=EVERYBODY)).result() == []
    assert world.there.calls_count == 1


def test_what_a_busy_host_gives_soon_after_the_wait_of_a_call_is_not_given_back(
    frozen_worlds: Callable[..., FrozenWorld],
) -> None:
    """Calls that wait have their wait as a deadline, which on a busy host is short next to a pull."""
    world = frozen_worlds(EagerNews(TO_MAIL))
    call = world.dequeue(20, CallContext("", deadline_s=0.02, principal=EVERYBODY))
    world.loop.move_to(0.06)
    world.answer(delivered([0]))
    assert [item.priority for item in call.result()] == [0]
    assert world.returned == []


def test_what_came_of_a_pull_may_be_unknown_after_its_call_was_answered(
    frozen_worlds: Callable[..., FrozenWorld],
) -> None:
    world = frozen_worlds(EagerNews(TO_MAIL))
    call = world.dequeue(0)
    world.loop.move_to(PULL_WAIT_MS_MAX / 1000)
    assert call.result() == []
    with capture_logs() as logs:
        world.answer(UnavailableError("the connection broke"))
    assert [entry["event"] for entry in logs] == ["pull_not_given_back"]


def test_of_what_comes_late_and_cannot_be_given_back_the_log_tells_how_much_it_is(
    frozen_worlds: Callable[..., FrozenWorld],
) -> None:
    world = frozen_worlds(EagerNews(TO_MAIL))
    world.errors = {1: UnavailableError("its shard is away")}
    world.dequeue(0)
    world.loop.move_to(PULL_WAIT_MS_MAX / 1000)
    with capture_logs() as logs:
        world.answer(delivered([0, 1]))
    assert [(entry["event"], entry["count"], entry["error"]) for entry in logs] == [
        ("pull_not_given_back", 1, "its shard is away")
    ]


def test_a_host_that_stops_gives_back_what_comes_late(frozen_worlds: Callable[..., FrozenWorld]) -> None:
    world = frozen_worlds(EagerNews(TO_MAIL))
    world.dequeue(0)
    world.loop.move_to(PULL_WAIT_MS_MAX / 1000)
    stop = world.stop()
    assert not stop.done()
    world.answer(delivered([0, 1]))
    assert len(world.returned) == 2
    assert stop.done()


def test_a_host_that_stops_tells_what_came_too_late_even_for_that(frozen_worlds: Callable[..., FrozenWorld]) -> None:
    world = frozen_worlds(EagerNews(TO_MAIL))
    world.dequeue(0)
    world.loop.move_to(PULL_WAIT_MS_MAX / 1000)
    stop = world.stop()
    with capture_logs() as logs:
        world.loop.move_to((PULL_WAIT_MS_MAX + STOP_MS_MAX) / 1000)
    assert stop.done()
    assert [(entry["event"], entry["error"]) for entry in logs] == [("pull_not_given_back", "this host stops")]


def test_a_call_is_told_that_the_outcome_of_its_pull_is_unknown_while_it_waits(
    frozen_worlds: Callable[..., FrozenWorld],
) -> None:
    world = frozen_worlds(EagerNews(TO_MAIL))
    call = world.dequeue(0)
    world.answer(UnavailableError("the connection broke"))
    assert isinstance(call.exception(), UnavailableError)

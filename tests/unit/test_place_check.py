"""The check of a place for a new shard tells callers nothing of what is open where, neither by words nor by time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Collection
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pytest
from structlog.testing import capture_logs

from foqs.host.registry.meta_calls import MetaCalls
from foqs.host.verbs import place_check
from foqs.host.verbs.place_check import NotOpenedError, PlaceCheck
from foqs.model.cluster import ShardRow, ShardUse
from foqs.model.errors import AlreadyExistsError, InvalidArgumentError, UnavailableError
from foqs.storage.meta.meta_store import MetaStore
from tests.support.place_databases import databases
from tests.support.waiting import until

PLACE = "mysql://db-7:3306/s7"


@pytest.fixture
async def calls() -> AsyncIterator[MetaCalls]:
    row = ShardRow(1, 5, "host-1", 0, "mysql://db-1:3306/s1", ShardUse.SERVING, "", "", "", 0)
    rows = [row, row._replace(shard_id=2, place="")]
    calls = MetaCalls(cast(MetaStore, SimpleNamespace(shards=SimpleNamespace(read_all=lambda: rows))))
    yield calls
    await calls.stop()


@pytest.fixture
def waits_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long callers were made to wait after the reason was known; the waits themselves are left out."""
    found: list[float] = []

    async def sleep(seconds: float) -> None:
        found.append(seconds)

    monkeypatch.setattr(place_check.asyncio, "sleep", sleep)
    return found


def made(
    calls: MetaCalls,
    check_database: Callable[[int, str], None],
    check_server: Callable[[str, Collection[str]], None] = lambda place, before: None,
) -> PlaceCheck:
    return PlaceCheck(calls, databases(check_server=check_server, check_database=check_database), "host-1")


def failing(error: Exception) -> Callable[[int, str], None]:
    def fail(shard_id: int, place: str) -> None:
        raise error

    return fail


@pytest.mark.parametrize("words", ["Connection refused", "Access denied for user", "Name or service not known"])
async def test_all_that_cannot_be_opened_have_one_text_and_the_log_has_the_reason(
    calls: MetaCalls, waits_s: list[float], words: str
) -> None:
    with capture_logs() as logs, pytest.raises(InvalidArgumentError) as refused:
        await made(calls, failing(NotOpenedError(words))).check(7, PLACE)
    assert str(refused.value) == (
        f"the database of shard 7 at {PLACE} could not be opened: nothing was done, see the log of host host-1"
    )
    (log,) = logs
    assert (log["event"], log["log_level"], log["shard"], log["place"], log["error"]) == (
        "shard_place_refused", "warning", 7, PLACE, words,
    )  # fmt: skip


async def test_they_also_have_one_time(calls: MetaCalls, waits_s: list[float]) -> None:
    """Whatever the server did, the answer comes when the time for it is over."""
    now_s = asyncio.get_running_loop().time()
    with pytest.raises(InvalidArgumentError):
        await made(calls, failing(NotOpenedError("refused at once"))).check(7, PLACE)
    spent_s = asyncio.get_running_loop().time() - now_s
    (waited_s,) = waits_s
    bound_s = place_check.PLACE_CHECK_MS / 1000
    assert bound_s - spent_s <= waited_s <= bound_s


async def test_a_server_that_hangs_is_not_waited_for_and_told_as_the_others(calls: MetaCalls) -> None:
    go_on = threading.Event()
    check = made(calls, lambda shard_id, place: cast(Any, go_on.wait()))
    try:
        with (
            patch.object(place_check, "PLACE_CHECK_MS", 50),
            capture_logs() as logs,
            pytest.raises(InvalidArgumentError, match="could not be opened: nothing was done"),
        ):
            await check.check(7, PLACE)
        assert logs[0]["error"] == "it was not open after 50 ms"
        with pytest.raises(UnavailableError, match="one at a time") as busy:
            await check.check(8, PLACE)
        assert busy.value.nothing_done
    finally:
        go_on.set()
    await until(lambda: not check._database_lock.locked())
    await check.check(8, PLACE)


async def test_shards_are_added_one_at_a_time_also_while_an_answer_is_held_back(
    calls: MetaCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    held_back, go_on = asyncio.Event(), asyncio.Event()

    async def sleep(seconds: float) -> None:
        held_back.set()
        await go_on.wait()

    monkeypatch.setattr(place_check.asyncio, "sleep", sleep)
    check = made(calls, failing(NotOpenedError("no")))
    first = asyncio.create_task(check.check(7, PLACE))
    await held_back.wait()
    with pytest.raises(UnavailableError, match="one at a time"):
        await check.check(8, PLACE)
    go_on.set()
    with pytest.raises(InvalidArgumentError):
        await first
    with pytest.raises(InvalidArgumentError):
        await check.check(8, PLACE)


async def test_a_server_where_nobody_may_log_in_is_not_called_and_told_at_once(
    calls: MetaCalls, waits_s: list[float]
) -> None:
    asked: list[Collection[str]] = []

    def check_server(place: str, before: Collection[str]) -> None:
        asked.append(before)
        raise InvalidArgumentError("list it in shard_places")

    with pytest.raises(InvalidArgumentError, match="shard_places"):
        await made(calls, failing(AssertionError("it was called")), check_server).check(7, PLACE)
    assert asked == [["mysql://db-1:3306/s1"]]
    assert waits_s == []


async def test_what_an_open_database_says_is_told(calls: MetaCalls, waits_s: list[float]) -> None:
    problem = InvalidArgumentError("its database is that of shard 3")
    with pytest.raises(InvalidArgumentError, match="that of shard 3"):
        await made(calls, failing(problem)).check(7, PLACE)
    assert waits_s == []


async def test_of_an_id_that_has_a_shard_no_database_is_opened(calls: MetaCalls, waits_s: list[float]) -> None:
    """What is wrong with that database is no matter: another id is wanted."""
    opened: list[str] = []
    with pytest.raises(AlreadyExistsError, match="shard 1 exists already"):
        await made(calls, lambda shard_id, place: opened.append(place)).check(1, PLACE)
    assert opened == []
    assert waits_s == []

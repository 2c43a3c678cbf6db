"""The names of consumers on one host: their bound, their end, and items whose callers have left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast
from unittest.mock import Mock

import pytest

from foqs.client.consumer_names import consumer_name
from foqs.cluster.routing.by_all import MergedCalls
from foqs.contract.permissions import Permission
from foqs.contract.requests import DequeueRequest, ListConsumersRequest, ReleaseLeasesRequest, TopicDemand
from foqs.host.dispatch.consumers import CONSUMERS_MAX, FORGOTTEN_AFTER_S, Consumers
from foqs.host.verbs.consumer_rows import ConsumerRows, merged_consumers, place_of, token_of
from foqs.host.verbs.consumer_verbs import ConsumerVerbs, _incomplete, _Release
from foqs.model.calls import CallContext
from foqs.model.errors import InvalidArgumentError, UnavailableError
from foqs.model.holder import (
    CONSUMER_BYTES_MAX,
    OTHERS_NAME,
    ConsumerPage,
    ConsumerRow,
    LeaseHolder,
    ReleaseResult,
    RowKey,
)
from foqs.model.principal import EVERYBODY, Principal
from foqs.shard.state.ops.settle import Settlements
from foqs.wire.codec import structs
from tests.support.shards import Shards

CALLER = CallContext("10.0.0.1", principal=EVERYBODY)
OF_HOST = CallContext("10.0.0.9", peer="other#1", principal=EVERYBODY)


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


def test_beyond_20_000_names_consumers_share_one_until_others_are_forgotten() -> None:
    clock = Clock()
    consumers = Consumers(clock)
    assert CONSUMERS_MAX == 20_000
    for number in range(CONSUMERS_MAX):
        assert consumers.asks(CALLER, 1, f"w{number}") is not None
    assert len(consumers.known()) == CONSUMERS_MAX
    for name in ("one more", "another"):
        shared = consumers.asks(CALLER, 1, name)
        assert shared is not None
        assert shared.name == OTHERS_NAME
    known = consumers.asks(CALLER, 1, "w7")
    assert known is not None
    assert known.name == "w7"
    (first, second) = (consumers.asks(CALLER, number, "beyond") for number in (1, 2))
    assert first is not second  # One namespace shows nothing of the callers of another.
    assert first is not None
    assert (first.name, first.caller, first.is_connected) == (OTHERS_NAME, "", False)
    assert len(consumers.known()) == CONSUMERS_MAX
    clock.now_s += FORGOTTEN_AFTER_S + 1
    fresh = consumers.asks(CALLER, 1, "one more")
    assert fresh is not None
    assert fresh.name == "one more"
    assert len(consumers.known()) < CONSUMERS_MAX


def test_a_consumer_is_forgotten_ten_minutes_after_its_last_call_and_one_that_calls_is_not() -> None:
    clock = Clock()
    consumers = Consumers(clock)
    first, second = consumers.asks(CALLER, 1, "first"), consumers.asks(CALLER, 1, "second")
    assert first is not None
    assert second is not None
    clock.now_s += 500
    assert consumers.holds(1, "second") is second
    clock.now_s += 101
    assert (consumers.is_forgotten(first), consumers.is_forgotten(second)) == (True, False)
    consumers.asks(CALLER, 1, "third")
    assert [holder.name for _, holder in consumers.known()] == ["second", "third"]


def test_names_of_two_namespaces_are_two_consumers_and_hosts_that_call_are_none() -> None:
    consumers = Consumers(Clock())
    assert consumers.asks(CALLER, 1, "w") is not consumers.asks(CALLER, 2, "w")
    assert consumers.asks(OF_HOST, 1, None) is None
    handed_on = consumers.asks(OF_HOST, 3, "w")
    assert handed_on is not None
    assert (handed_on.caller, handed_on.is_connected) == ("", False)
    unnamed = consumers.asks(CALLER, 1, None)
    assert unnamed is not None
    assert (unnamed.name, unnamed.caller) == ("10.0.0.1", "10.0.0.1")


def test_calls_of_clients_wait_and_those_of_hosts_do_not_count() -> None:
    consumers = Consumers(Clock())
    request = DequeueRequest("jobs", [TopicDemand("t", 1)], consumer="w")
    with consumers.waits(CALLER, 1, ["t"], request), consumers.waits(OF_HOST, 1, ["t"], request):
        (call,) = consumers.waiting
        assert (call.holder.name, call.namespace, list(call.topics), call.prefix) == ("w", 1, ["t"], None)
    assert consumers.waiting == {}


def delivered_to(shards: Shards, holder: LeaseHolder | None) -> list[LeaseHolder | None]:
    """Take the item for a consumer. Return who has it then, and after its caller left."""
    call = shards.dequeue({"a": 1})
    call.holder = holder
    shards.run(0)
    shards.dispatcher.tick()
    (item,) = call.items or ()
    found = [item.holder]
    shards.dispatcher.deliveries.unclaim([item])
    found.append(item.holder)
    shards.run(0)
    return found


def test_an_item_whose_caller_left_has_no_holder() -> None:
    shards = Shards(1)
    shards.enqueue(0, "a", count=1)
    shards.run(0)
    holder = LeaseHolder("first", 0.0)
    assert delivered_to(shards, holder) == [holder, None]
    assert delivered_to(shards, None) == [None, None]


def test_that_finds_an_unclaim_that_leaves_the_holder(monkeypatch: pytest.MonkeyPatch) -> None:
    unclaim = Settlements.unclaim

    def leaves_the_holder(self: Settlements, item: object) -> bool:
        holder = item.holder  # type: ignore[attr-defined]
        done = unclaim(self, item)  # type: ignore[arg-type]
        item.holder = holder  # type: ignore[attr-defined]
        return done

    monkeypatch.setattr(Settlements, "unclaim", leaves_the_holder)
    with pytest.raises(AssertionError):
        test_an_item_whose_caller_left_has_no_holder()


def rows_of(keys: list[RowKey], after: RowKey | None, limit: int) -> tuple[list[tuple[str, str, int]], str]:
    rows = ConsumerRows(after, limit)
    for key in keys:
        rows.add(key, None, held=1 if key.topic else 0)
        rows.prune()
    found, token = rows.page("host", lambda at_s: 0)
    return [(row.name, row.topic, row.held) for row in found], token


@pytest.mark.parametrize("limit", [1, 2, 3, 50])
def test_pages_of_more_rows_than_are_kept_have_each_row_once(limit: int) -> None:
    names = [f"w{number:05}" for number in range(5_000)]
    keys = [RowKey(name, topic, "") for name in reversed(names) for topic in ("t", "")]
    after, found = None, []
    for _ in range(4):
        page, token = rows_of(keys, after, limit)
        found += page
        after = place_of(token)
    assert found == [(name, "t", 1) for name in names][: len(found)]  # Those without a topic say nothing more.
    assert len(found) >= 2 * limit


def test_rows_of_hosts_are_merged_up_to_where_all_are_known() -> None:
    first, token = rows_of([RowKey(name, "t", "") for name in "acde"], None, 2)
    one = ConsumerRows(None, 2)
    other = ConsumerRows(None, 2)
    for name in "acde":
        one.add(RowKey(name, "t", ""), None, held=1, since_ms=5)
    for name in "ad":
        other.add(RowKey(name, "t", ""), None, held=2, since_ms=3)
    assert [name for name, _, _ in first] == ["a", "c"]
    pages = [rows.page("host", lambda at_s: 0) for rows in (one, other)]
    assert pages[0][1] == token
    merged, more = merged_consumers(pages, 2)
    assert [(row.name, row.held, row.held_since_ms) for row in merged] == [("a", 3, 3), ("c", 1, 5)]
    assert place_of(more) == RowKey("c", "t", "")
    assert place_of(token_of(RowKey("a", "", "g", True, "em"))) == RowKey("a", "", "g", True, "em")


def test_a_row_of_another_host_has_the_last_call_of_its_consumer() -> None:
    connected = LeaseHolder("w", 0.0)
    connected.calls_from("10.0.0.1")
    connected.dequeued_s = 5.0
    here, there = ConsumerRows(None, 9), ConsumerRows(None, 9)
    here.add(RowKey("w", "", ""), connected)
    there.add(RowKey("w", "t", ""), LeaseHolder("w", 0.0), held=2)
    merged, _ = merged_consumers([rows.page("host", lambda at_s: 5_000) for rows in (here, there)], 9)
    found = [(row.topic, row.held, row.caller, row.hosts, row.last_dequeue_at_ms) for row in merged]
    assert found == [("t", 2, "10.0.0.1", ["host"], 5_000)]


@pytest.mark.parametrize(
    "token",
    ["x", "[]", "{}", "[" * 10_000, "[" * 100_000, '["a"]', '["a","b","c",0,"e"]', "null", '["a","b","c",true,null]'],
)
def test_a_page_token_of_others_is_refused(token: str) -> None:
    with pytest.raises(InvalidArgumentError, match="page_token"):
        place_of(token)


def test_the_name_of_a_consumer_says_the_program_the_machine_and_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "machine-1")
    monkeypatch.setattr("os.getpid", lambda: 7)
    monkeypatch.setattr("sys.argv", ["/srv/app/mailer.py"])
    assert consumer_name(None) == "mailer@machine-1/7"
    assert consumer_name("billing") == "billing@machine-1/7"
    monkeypatch.setattr("sys.argv", ["-c"])
    assert consumer_name(None) == "python@machine-1/7"
    monkeypatch.setattr("socket.gethostname", lambda: "h" * 300)
    longest = consumer_name("ü" * 64)
    assert len(longest.encode()) <= CONSUMER_BYTES_MAX
    assert longest.endswith("h/7")
    for bad in ("", "a\nb", "x" * 129, "a\ud800"):
        with pytest.raises(InvalidArgumentError, match="name"):
            consumer_name(bad)


def test_a_release_says_that_nothing_was_done_only_before_the_first_end_of_a_lease() -> None:
    release = _Release(cast(Any, None), cast(Any, None), "w", at_most_once=False)
    away = UnavailableError("shard 2 is away", nothing_done=True)
    assert _incomplete(release, away).nothing_done is True
    release.has_begun = True
    assert _incomplete(release, away).nothing_done is False
    assert "shard 2 is away" in _incomplete(release, away).message


async def test_a_release_is_refused_while_a_shard_is_away() -> None:
    away = UnavailableError("shard 2 is away", nothing_done=True)
    shards = Mock(here=[1, 2], serves=lambda shard_id: shard_id == 1, none_served=lambda shard_ids: away)
    verbs = ConsumerVerbs(Mock(), shards, Consumers(Clock()), Mock(), Mock(), "host", lambda: 0, lambda *_: None)
    with pytest.raises(UnavailableError, match="shard 2 is away"):
        await verbs.release_leases(CALLER, ReleaseLeasesRequest("jobs", "w"))
    with pytest.raises(UnavailableError, match="shard 2 is away"):
        await verbs.list_consumers(CALLER, ListConsumersRequest("jobs"))


async def test_hosts_that_have_ended_leases_count_though_another_one_fails() -> None:
    away = UnavailableError("host b is away", nothing_done=True)

    async def by_all(context: Any, here: Any, there: Any) -> Any:
        await here(context)
        raise away

    async def release(context: Any, request: Any) -> ReleaseResult:
        return ReleaseResult(3, 0)

    calls = MergedCalls({"releaseLeases": release}, Mock(by_all=by_all), Mock(is_alone=False), Mock())
    with pytest.raises(UnavailableError, match=r"3 leases were ended.*host b is away") as failed:
        await calls.call("releaseLeases", CALLER, ReleaseLeasesRequest("jobs", "w"))
    assert failed.value.nothing_done is False


def test_a_namespace_with_many_consumers_leaves_a_share_to_each_other_one() -> None:
    consumers = Consumers(lambda: 0.0)
    for number in range(CONSUMERS_MAX):
        consumers.holds(1, f"greedy {number}")
    assert [consumers.holds(2, f"c{number}").name for number in range(100)] == [f"c{number}" for number in range(100)]
    assert len(consumers.known()) == CONSUMERS_MAX
    assert consumers.holds(1, "one more").name == "(others)"
    of_one = [holder.name for namespace, holder in consumers.known() if namespace == 1]
    assert of_one == [f"greedy {number}" for number in range(100, CONSUMERS_MAX)], "the oldest made room"


def test_equal_shares_of_two_namespaces_are_not_taken_from_each_other() -> None:
    consumers = Consumers(lambda: 0.0)
    for number in range(CONSUMERS_MAX // 2):
        consumers.holds(1, f"a{number}")
        consumers.holds(2, f"b{number}")
    assert {consumers.holds(namespace, "more").name for namespace in (1, 2)} == {"(others)"}


@pytest.mark.parametrize("make", [ConsumerRow, structs.ConsumerRow], ids=["own", "of another host"])
async def test_the_names_of_hosts_are_for_callers_that_can_watch_the_cluster(make: Callable[..., Any]) -> None:
    async def by_all(*_: Any, **__: Any) -> list[ConsumerPage]:
        return [ConsumerPage([make("worker", "10.0.0.1", "t", 0, 1, 1, 1, ["host-a"])], "")]

    calls = MergedCalls({"listConsumers": Mock()}, Mock(by_all=by_all), Mock(), Mock())
    hosts = []
    for bits in (0, int(Permission.WATCH)):
        context = CallContext("10.0.0.2", principal=Principal("ann", bits, names={"jobs": int(Permission.OBSERVE)}))
        page = await calls.call("listConsumers", context, ListConsumersRequest("jobs", limit=10))
        hosts.append([one.hosts for one in page.consumers])
    assert hosts == [[[]], [["host-a"]]]

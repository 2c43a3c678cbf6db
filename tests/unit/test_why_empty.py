"""A dequeue that gets nothing tells why: by what operators have set, and by what all hosts say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs import Dequeued, ReasonCode
from foqs.cluster.ownership.owner_map import ShardOwner
from foqs.cluster.routing.explaining import Explaining
from foqs.contract.permissions import Permission
from foqs.contract.requests import DequeueRequest, TopicDemand
from foqs.model.calls import CallContext
from foqs.model.cluster import HostRow
from foqs.model.errors import UnavailableError
from foqs.model.facts import Facts, HostFacts, HostTopic, ShardFact, ShardFacts, TopicFacts
from foqs.model.judging import judge
from foqs.model.principal import EVERYBODY, Principal
from foqs.model.reasons import NOT_ASKED, NOT_READY, REASONS_EXPLAINED_MAX, REASONS_MAX, Reason
from foqs.testing import MemoryQueue


@pytest.fixture
def queue() -> Iterator[MemoryQueue]:
    with MemoryQueue("jobs") as queue:
        yield queue


def why(queue: MemoryQueue, topics: Any = "mail", **options: Any) -> Dequeued:
    items = queue.client().dequeue("jobs", topics, want_why=True, **options)
    assert isinstance(items, Dequeued)
    return items


def codes(found: Dequeued) -> list[int]:
    return [reason.code for reason in found.why_empty]


def test_a_dequeue_that_gets_items_tells_no_reasons(queue: MemoryQueue) -> None:
    queue.client().enqueue("jobs", "mail", b"1")
    found = why(queue)
    assert [item.payload for item in found] == [b"1"]
    assert found.why_empty == []
    assert not found.is_partial


def test_a_dequeue_that_does_not_ask_is_told_nothing(queue: MemoryQueue) -> None:
    assert type(queue.client().dequeue("jobs", "mail")) is list


def test_of_a_topic_that_nobody_has_it_is_said_that_there_is_nothing(queue: MemoryQueue) -> None:
    found = why(queue)
    assert codes(found) == [ReasonCode.NOTHING_THERE]
    assert found.is_none_ready
    assert "'mail' holds no item" in found.why_empty[0].text


def test_items_that_are_not_due_or_under_lease_or_dead_are_told_apart_with_their_numbers(queue: MemoryQueue) -> None:
    client = queue.client()
    client.enqueue("jobs", "mail", b"leased")
    (leased,) = client.dequeue("jobs", "mail")
    client.enqueue("jobs", "mail", b"dead")
    client.nack("jobs", client.dequeue("jobs", "mail"), dead_letter=True)
    for _ in range(2):
        client.enqueue("jobs", "mail", b"later", delay_ms=60_000)
    found = why(queue)
    assert {reason.code: reason.count for reason in found.why_empty} == {
        ReasonCode.DELAYED: 2, ReasonCode.LEASED: 1, ReasonCode.DEAD: 1
    }  # fmt: skip
    assert found.is_none_ready
    client.ack("jobs", leased.receipt)
    assert ReasonCode.LEASED not in codes(why(queue))


def test_ready_items_of_a_capped_topic_are_not_called_none(queue: MemoryQueue) -> None:
    client = queue.client()
    queue.admin().set_topic_policy("jobs", "mail", deliveries_per_second_max=0.01)
    for _ in range(5):
        client.enqueue("jobs", "mail", b"1")
    while client.dequeue("jobs", "mail"):
        pass
    found = why(queue)
    assert codes(found)[0] == ReasonCode.TOPIC_CAPPED
    assert found.why_empty[0].count >= 3
    assert "cap of 0.01" in found.why_empty[0].text
    assert not found.is_none_ready
    assert ReasonCode.NOTHING_THERE not in codes(found)


def test_ready_items_that_wait_for_the_cap_of_their_namespace_say_so(queue: MemoryQueue) -> None:
    client = queue.client()
    queue.admin().update_namespace("jobs", deliveries_per_second_max=0.01)
    for _ in range(5):
        client.enqueue("jobs", "mail", b"1")
    while client.dequeue("jobs", "mail"):
        pass
    found = why(queue)
    assert codes(found)[0] == ReasonCode.NAMESPACE_CAPPED
    assert not found.is_none_ready


def test_a_paused_topic_beside_an_empty_one_is_named_with_the_operators_reason(queue: MemoryQueue) -> None:
    queue.client().enqueue("jobs", "mail", b"1")
    queue.admin().set_topic_policy("jobs", "mail", dequeue_paused=True, reason="migration")
    found = why(queue, {"mail": 1, "other": 1})
    first = found.why_empty[0]
    assert (first.code, first.topic, first.count) == (ReasonCode.TOPIC_PAUSED, "mail", 1)
    assert "migration" in first.text
    assert first.remedy == "foqs topic resume --dequeue jobs mail"
    assert not found.is_none_ready


def test_a_call_for_any_topic_hears_of_some_topics_with_its_prefix(queue: MemoryQueue) -> None:
    client = queue.client()
    for number in range(12):
        client.enqueue("jobs", f"mail.{number:02}", b"1", delay_ms=60_000)
    client.enqueue("jobs", "other", b"1", delay_ms=60_000)
    found = why(queue, (), topic_prefix="mail.")
    assert {reason.topic.partition(".")[0] for reason in found.why_empty if reason.topic} == {"mail"}
    assert len(found.why_empty) <= REASONS_MAX
    assert codes(why(queue, (), topic_prefix="nobody's")) == [ReasonCode.NOTHING_THERE]


def test_a_call_that_names_many_topics_says_how_many_were_not_looked_at(queue: MemoryQueue) -> None:
    found = why(queue, {f"t{number}": 1 for number in range(1_000)})
    assert len(found.why_empty) <= REASONS_MAX
    assert {996} == {reason.count for reason in found.why_empty if reason.code == ReasonCode.NOT_LOOKED_AT}
    assert found.is_partial


def test_names_that_a_shell_would_read_otherwise_are_quoted_in_remedies() -> None:
    for name, quoted in (("a b; rm", "jobs 'a b; rm'"), ("-x", "-- jobs -x")):
        facts = Facts("jobs", [TopicFacts(name, is_paused=True)])
        assert judge(facts).reasons[0].remedy == f"foqs topic resume --dequeue {quoted}"


_COUNTS = ("ready", "delayed", "leased", "dead", "free", "claimed", "busy", "no_room", "waiting_calls")
_HOST_TOPIC = st.builds(HostTopic, st.just("t"), **{name: st.integers(0, 2) for name in _COUNTS})
_TOPIC = st.builds(
    TopicFacts, st.sampled_from("abcd"), st.booleans(), st.just(""), st.sampled_from([0.0, 2.0]),
    by_host=st.lists(st.tuples(st.just("h"), _HOST_TOPIC), max_size=2),
)  # fmt: skip
_SHARDS = st.lists(st.builds(ShardFact, st.integers(0, 9), st.just("h"), st.just("full")), max_size=9)
_FACTS = st.builds(
    Facts, st.just("jobs"), st.lists(_TOPIC, max_size=4), st.booleans(), st.just(""), st.sampled_from([0.0, 5.0]),
    sick=_SHARDS, unserved=_SHARDS, silent=st.lists(st.tuples(st.just("h"), st.just("hangs")), max_size=5),
    unjudged_count=st.integers(0, 2), is_dequeue=st.just(True),
)  # fmt: skip


@given(_FACTS)
def test_whatever_is_known_there_are_some_reasons_and_none_claims_what_was_not_asked(facts: Facts) -> None:
    reasons = judge(facts).reasons
    told = {reason.code for reason in reasons}
    assert 1 <= len(reasons) <= REASONS_EXPLAINED_MAX
    if facts.is_partial or facts.unjudged_count:
        assert told & NOT_ASKED
        assert ReasonCode.NOTHING_THERE not in told or not facts.is_partial
    unpaused = [topic for topic in facts.topics if not topic.is_paused]
    if any(topic.sum("free") and topic.sum("ready") for topic in unpaused):
        assert told - NOT_READY, "some items are ready"


# ---- several hosts ----


class Peer:
    """Another host, or a silent one."""

    def __init__(self, found: HostFacts | Exception) -> None:
        self._found = found

    async def call(self, context: CallContext, verb: str, request: Any) -> HostFacts:
        assert verb == "getFacts"
        if isinstance(self._found, Exception):
            raise self._found
        return self._found


def answer(*shards: tuple[int, str], topic: HostTopic | None = None) -> HostFacts:
    found = [ShardFacts(shard_id, state, 1, "disk full" if state == "sick" else "") for shard_id, state in shards]
    return HostFacts(5, found, [] if topic is None else [topic])


async def reasons_of(
    answers: Mapping[str, HostFacts | Exception], owned: Sequence[int] = (), who: Principal = EVERYBODY
) -> list[Reason]:
    """The reasons of a dequeue for topic t at a host without shards."""

    async def nothing(request: Any) -> HostFacts:
        return HostFacts(5)

    local = SimpleNamespace(facts=Facts, of_topic=lambda namespace, name: TopicFacts(name), host_facts=nothing)
    rows = {name: HostRow(f"{name}#1", f"{name}:1", 0, 1) for name in ["me", *answers]}
    owners = SimpleNamespace(
        parked=(),
        owners={at: ShardOwner(at, 1, "gone#1", "") for at in owned},
        living={row.id: row for row in rows.values()},
    )
    peers = SimpleNamespace(get=lambda host_id, _: Peer(answers[host_id.partition("#")[0]]))
    explaining = Explaining("me#1", cast(Any, local), cast(Any, owners), cast(Any, peers), lambda: 0.0)
    request = DequeueRequest("jobs", [TopicDemand("t", 1)])
    return await explaining.why_empty(CallContext("1.2.3.4", principal=who), request)


async def why_of(answers: Mapping[str, HostFacts | Exception], owned: Sequence[int] = ()) -> set[tuple[int, int]]:
    """The codes and shards of these reasons."""
    return {(reason.code, reason.shard_id) for reason in await reasons_of(answers, owned)}


SILENT = UnavailableError("host b#1 has not answered")


async def test_where_all_hosts_and_shards_answer_nothing_is_there() -> None:
    answers = {"a": answer((0, "owned"), (1, "lost")), "b": answer((1, "owned"))}
    assert await why_of(answers, [0, 1]) == {(ReasonCode.NOTHING_THERE, -1)}


async def test_a_sick_shard_of_another_host_is_named_and_nothing_is_claimed_of_what_it_has() -> None:
    answers = {"a": answer((0, "owned")), "b": answer((1, "sick"))}
    assert await why_of(answers, [0, 1]) == {(ReasonCode.SHARD_SICK, 1)}


async def test_a_shard_that_no_host_serves_is_named() -> None:
    assert await why_of({"a": answer((0, "owned"), (2, "lost"))}, [0, 1]) == {
        (ReasonCode.UNSERVED, 1), (ReasonCode.UNSERVED, 2)
    }  # fmt: skip


async def test_shards_that_move_or_count_or_have_two_owners_are_named() -> None:
    answers = {"a": answer((0, "leaving"), (1, "counting"), (2, "owned")), "b": answer((2, "owned"))}
    assert await why_of(answers) == {
        (ReasonCode.LEAVING, 0), (ReasonCode.COUNTING, 1), (ReasonCode.MAP_DIFFERS, 2)
    }  # fmt: skip


async def test_hosts_and_the_texts_of_their_errors_are_for_callers_that_can_watch_the_cluster() -> None:
    answers = {"a": answer((0, "owned"), (2, "sick")), "b": SILENT}
    tenant = Principal("mailer", names={"jobs": int(Permission.CONSUME)})
    operator = Principal("ann", int(Permission.WATCH), names={"jobs": int(Permission.CONSUME)})
    given, shown = await reasons_of(answers, [3], tenant), await reasons_of(answers, [3], operator)
    assert [(one.code, one.shard_id) for one in given] == [(one.code, one.shard_id) for one in shown]
    assert "disk full" in shown[0].text
    assert "b#1 has not answered" in shown[2].text
    assert [one.shard_id for one in given] == [2, 3, -1]
    assert not [one.host for one in given if one.host]
    assert not [one.text for one in given if "disk full" in one.text or "b#1" in one.text or "b:1" in one.text]


async def test_a_host_that_is_silent_is_named() -> None:
    assert await why_of({"a": answer((0, "owned")), "b": SILENT}, [0]) == {(ReasonCode.HOST_SILENT, -1)}


async def test_the_items_of_all_hosts_are_added_up() -> None:
    answers = {
        "a": answer((0, "owned"), topic=HostTopic("t", delayed=2)),
        "b": answer((1, "owned"), topic=HostTopic("t", delayed=3, leased=1)),
    }
    found = {reason.code: reason.count for reason in await reasons_of(answers)}
    assert found == {ReasonCode.DELAYED: 5, ReasonCode.LEASED: 1}

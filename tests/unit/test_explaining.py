"""The verb explain at one host: who sees which texts, its bound, and the second look at what nobody can explain."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
import structlog

import foqs
from foqs import ReasonCode, Verdict
from foqs.cluster.routing.explaining import EXPLAINED_PER_SECOND_MAX, STUCK_LOGGED_MS, Explaining
from foqs.contract.permissions import Permission
from foqs.contract.requests import ExplainRequest, GetFactsRequest
from foqs.model import limits
from foqs.model.calls import CallContext
from foqs.model.cluster import HostRow
from foqs.model.errors import OverloadedError, PermissionDeniedError
from foqs.model.facts import Facts, HostFacts, HostTopic, TopicFacts
from foqs.model.principal import EVERYBODY, Principal
from foqs.testing import MemoryQueue

PRINCIPALS = {
    "viewer": {"jobs": ["viewer"]},
    "reader": {"jobs": ["reader"]},
    "mailer": {"jobs": ["consumer"]},
    "shop": {"other": ["owner"]},
}
ONCE = foqs.RetryPolicy(deadline_ms=0)


@pytest.fixture
def queue() -> Iterator[MemoryQueue]:
    with MemoryQueue(["jobs", "other"], principals=PRINCIPALS) as queue:
        yield queue


def test_texts_of_consumers_are_for_readers_alone(queue: MemoryQueue) -> None:
    client = queue.client()
    item_id = client.enqueue("jobs", "t", b"x")
    client.nack("jobs", client.dequeue("jobs", "t"), delay_ms=60_000, reason="card 4711 refused")
    texts = {
        name: queue.as_principal(name).admin().explain("jobs", item_id=item_id).reasons[0].text
        for name in ("viewer", "reader", "mailer")
    }
    assert texts["reader"] == "it is due in 60 s; 1 attempt failed: card 4711 refused"
    assert texts["viewer"] == texts["mailer"] == "it is due in 60 s; 1 attempt failed"
    client.enqueue("jobs", "u", b"x")
    dead = client.dequeue("jobs", "u")
    client.nack("jobs", dead, dead_letter=True, reason="card 4711 refused")
    for name, shown in (("viewer", False), ("reader", True)):
        found = queue.as_principal(name).admin().explain("jobs", item_id=dead[0].id)
        assert (found.reasons[0].code, "4711" in str(found)) == (ReasonCode.DEAD, shown)


def test_who_cannot_observe_the_namespace_gets_nothing(queue: MemoryQueue) -> None:
    for wanted in ({}, {"topic": "t"}, {"item_id": "0-10000000001"}):
        with pytest.raises(PermissionDeniedError, match="it lacks OBSERVE"):
            queue.as_principal("shop").admin(retry=ONCE).explain("jobs", **wanted)


def test_an_item_of_another_namespace_is_gone(queue: MemoryQueue) -> None:
    item_id = queue.client().enqueue("other", "secret", b"x")
    found = queue.as_principal("viewer").admin().explain("jobs", item_id=item_id)
    assert (found.verdict, "secret" in str(found)) == (Verdict.GONE, False)


# ---- stops of a whole shard ----


def codes(queue: MemoryQueue, **wanted: str) -> list[ReasonCode]:
    return [ReasonCode(reason.code) for reason in queue.admin().explain("jobs", **wanted).reasons]


def test_a_shard_has_as_many_leases_as_it_can_have(queue: MemoryQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "OPEN_LEASES_MAX", 2)
    for _ in range(6):
        queue.client().enqueue("jobs", "t", b"x")
    items = queue.client().dequeue("jobs", "t", 6)
    first = queue.admin().explain("jobs", "t").reasons[0]
    assert (first.code, first.count, first.until_ms) == (ReasonCode.LEASES_FULL, 4, items[0].lease_expires_at_ms)
    queue.client().ack("jobs", items)
    assert len(queue.client().dequeue("jobs", "t", 6)) == 2


def test_a_server_that_is_away_is_the_reason_of_its_items(queue: MemoryQueue) -> None:
    item_id = queue.client().enqueue("jobs", "t", b"x")
    servers = queue._traffic.host._servers.values()
    for server in servers:
        server.crash()
    queue.clock.advance(timedelta(seconds=3))
    for wanted in ({"topic": "t"}, {"item_id": item_id}, {}):
        assert codes(queue, **wanted)[0] == ReasonCode.SHARD_SICK, wanted
    for server in servers:
        server.restart()
    queue.clock.advance(timedelta(seconds=5))
    assert codes(queue, topic="t") == [ReasonCode.NO_CONSUMERS]


# ---- with other hosts and other facts ----


class Local:
    """The facts of this host: those that were put in, the last one again and again."""

    def __init__(self, *topics: HostTopic) -> None:
        self.topics = list(topics)
        self.asked_count = 0

    def facts(self, namespace_name: str) -> Facts:
        return Facts(namespace_name)

    def of_topic(self, namespace_name: str, name: str) -> TopicFacts:
        return TopicFacts(name)

    def hidden_name(self, namespace_name: str, topic: str, *_: Any) -> str:
        return topic

    def number_of(self, namespace_name: str) -> int:
        return 1

    async def host_facts(self, request: GetFactsRequest) -> HostFacts:
        self.asked_count += 1
        return HostFacts(5, topics=[self.topics.pop(0) if len(self.topics) > 1 else self.topics[0]])


def explaining(local: Local, now_s: list[float]) -> Explaining:
    row = HostRow("me#1", "", 0, 1)
    owners = SimpleNamespace(owners={}, living={row.id: row})
    return Explaining(row.id, cast(Any, local), cast(Any, owners), cast(Any, None), lambda: now_s[0])


CONTEXT = CallContext("1.2.3.4", principal=EVERYBODY)
ASK = ExplainRequest("jobs", "t")
MOVING = HostTopic("t", ready=1, free=1, free_ms=5, waiting_calls=1)
STUCK = HostTopic("t", ready=1, free=1, free_ms=9_000, waiting_calls=1, waited_ms=9_000)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foqs.cluster.routing.explaining.AGAIN_MS", 0)


def logged(local: Local, now_s: list[float], one: Explaining | None = None) -> tuple[int, list[str]]:
    """The verdict, and the events of the log."""
    with structlog.testing.capture_logs() as logs:
        found = asyncio.run((one or explaining(local, now_s)).explain(CONTEXT, ASK))
    return found.verdict, [line["event"] for line in logs]


def test_what_nobody_can_explain_is_looked_at_again() -> None:
    local = Local(STUCK, MOVING)
    assert logged(local, [0.0]) == (Verdict.MOVING, [])
    assert local.asked_count == 2


def test_what_stays_unexplained_is_logged_once_a_minute() -> None:
    now_s = [0.0]
    one = explaining(local := Local(STUCK), now_s)
    assert logged(local, now_s, one) == (Verdict.UNEXPLAINED, ["stuck"])
    now_s[0] = STUCK_LOGGED_MS / 1000 - 1
    assert logged(local, now_s, one) == (Verdict.UNEXPLAINED, [])
    now_s[0] = STUCK_LOGGED_MS / 1000
    assert logged(local, now_s, one) == (Verdict.UNEXPLAINED, ["stuck"])


async def test_names_and_errors_of_hosts_are_for_callers_that_can_watch_the_cluster() -> None:
    one = explaining(Local(MOVING), [0.0])
    silent = HostRow("gone#1", "", 0, 1)
    cast(Any, one)._owners.living[silent.id] = silent
    tenant = Principal("viewer", names={"jobs": int(Permission.OBSERVE)})
    operator = Principal("ann", int(Permission.WATCH), names={"jobs": int(Permission.OBSERVE)})
    shown = await one.explain(CallContext("1.2.3.4", principal=operator), ASK)
    hidden = await one.explain(CallContext("1.2.3.4", principal=tenant), ASK)
    assert "gone#1 reports no address" in str(shown)
    assert shown.missing
    assert [reason.code for reason in hidden.reasons] == [reason.code for reason in shown.reasons]
    assert ("gone" in str(hidden), hidden.missing) == (False, [])


async def test_a_host_explains_so_often_a_second_and_no_more() -> None:
    now_s = [7.1]
    one = explaining(Local(MOVING), now_s)
    for _ in range(EXPLAINED_PER_SECOND_MAX):
        await one.explain(CONTEXT, ASK)
    with pytest.raises(OverloadedError) as refused:
        await one.explain(CONTEXT, ASK)
    assert (refused.value.nothing_done, refused.value.retry_after_ms) == (True, 1_000)
    now_s[0] = 8.0
    assert (await one.explain(CONTEXT, ASK)).verdict == Verdict.MOVING


async def test_facts_are_for_living_hosts() -> None:
    one = explaining(Local(MOVING), [0.0])
    for peer in ("", "dead#1"):
        with pytest.raises(PermissionDeniedError):
            await one.get_facts(CallContext("1.2.3.4", peer=peer, principal=EVERYBODY), GetFactsRequest("jobs", ["t"]))
    context = CallContext("1.2.3.4", peer="me#1", principal=EVERYBODY)
    assert (await one.get_facts(context, GetFactsRequest("jobs", ["t"]))).topics == [MOVING]

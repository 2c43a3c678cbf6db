"""Why items move or do not: stops that are staged on a MemoryQueue as on a host with MySQL, and the remedy of each."""

from __future__ import annotations

from foqs import Explanation, NewItem, Reason, ReasonCode, Verdict
from tests.contract.queue_world import NS, SECOND_MS, World
from tests.support.remedies import check_is_command, run_remedy

LEASE_MS = 20 * SECOND_MS


def put(world: World, count: int = 1, topic: str = "t", **fields: object) -> list[str]:
    items = [NewItem(topic, b"%d" % number, **fields) for number in range(count)]  # type: ignore[arg-type]
    return list(world.client.enqueue_many(NS, items).ids)


def check(found: Explanation, verdict: Verdict, code: ReasonCode, count: int = 0) -> Reason:
    """Check the decisive reason of an explanation, and that the command line of each remedy is one of foqs."""
    first = found.reasons[0]
    assert (Verdict(found.verdict), ReasonCode(first.code)) == (verdict, code), found
    assert first.count == count, first
    assert found.summary
    assert found.as_of_ms > 0
    for reason in found.reasons:
        if reason.remedy:
            check_is_command(reason.remedy)
    return first


def test_nothing_is_there(world: World) -> None:
    assert check(world.admin.explain(NS, "t"), Verdict.EMPTY, ReasonCode.NOTHING_THERE).topic == "t"


def test_nobody_asks(world: World) -> None:
    put(world, 2)
    first = check(world.admin.explain(NS, "t"), Verdict.STOPPED, ReasonCode.NO_CONSUMERS, 2)
    assert first.text == "no consumer asks for topic 't': 2 ready items are waiting for one"
    world.payloads()
    assert world.admin.explain(NS, "t").verdict == Verdict.MOVING


def test_a_topic_is_paused(world: World) -> None:
    (item_id,) = put(world)
    world.admin.set_topic_policy(NS, "t", dequeue_paused=True, reason="migration")
    first = check(world.admin.explain(NS, "t"), Verdict.STOPPED, ReasonCode.TOPIC_PAUSED, 1)
    assert first.text == "dequeues of topic 't' are paused by an operator: migration"
    assert first.remedy == f"foqs topic resume --dequeue {NS} t"
    check(world.admin.explain(NS, item_id=item_id), Verdict.STOPPED, ReasonCode.TOPIC_PAUSED, 1)
    check(world.admin.explain(NS), Verdict.STOPPED, ReasonCode.TOPIC_PAUSED, 1)
    run_remedy(first.remedy, world.admin, world.client)
    assert world.payloads() == [b"0"]

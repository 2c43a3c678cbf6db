"""Reasons of failures over a socket and in MySQL: bytes of any kind, take-overs, and what is written."""

from __future__ import annotations

import pytest

from foqs.client.queue_items import Nack, NewItem
from foqs.model import limits
from foqs.model.failures import entry
from foqs.shard.port import Rewrite
from foqs.storage.shard.script import rewrite_statements
from foqs.wire.codec import structs
from tests.support.running_host import running_host
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def reasons(host, item_id: str) -> list[tuple[int, str]]:
    return [(failure.attempt, failure.reason) for failure in (await host.admin.get_item("jobs", item_id)).errors]


async def test_bytes_of_any_kind_and_size_are_a_reason_that_does_not_fail_the_call(host):
    await host.admin.update_namespace("jobs", attempts_max=100)
    item_id = await host.client.enqueue("jobs", "t", b"x")
    expected: list[tuple[int, str]] = []
    for given, kept in (
        (b"caf\xc3", "caf\N{REPLACEMENT CHARACTER}"),
        (b"\xff\xfe\x00\x1b[2J'", "\N{REPLACEMENT CHARACTER}" * 2 + "  [2J'"),
        (b"x" * 3_000_000, "x" * 500),
        (b"", None),
        (None, None),
    ):
        (item,) = await host.client.dequeue("jobs", "t", wait_ms=20_000)
        nack = structs.Nack(receipt=item.receipt)
        nack.reason = given
        reply = await host.call("nack", structs.NackRequest(namespace_name="jobs", nacks=[nack]))
        assert reply.error is None
        assert not reply.response.errors
        if kept is not None:
            expected.insert(0, (item.attempt, kept))
        assert await reasons(host, item_id) == expected


async def test_another_owner_of_the_shard_shows_the_reasons_of_the_one_before(meta_url, shard_urls):
    async with running_host(meta_url, shard_urls) as host:
        result = await host.client.enqueue_many("jobs", [NewItem("t", b"%d" % n) for n in range(40)])
        items = []
        while len(items) < 40:
            items += await host.client.dequeue("jobs", "t", 40, wait_ms=20_000)
        kinds = [{"delay_ms": 1}, {"dead_letter": True}, {}, {"release": True}]
        nacks = [Nack(item.receipt, reason=f"é {item.id}", **kinds[n % 4]) for n, item in enumerate(items)]
        assert await host.client.nack("jobs", nacks) == {}
    async with running_host(meta_url, shard_urls, name="other") as other:
        await until(lambda: other.host.owned_count == len(shard_urls))
        for item_id in result.ids:
            assert await reasons(other, item_id) == [(1, f"é {item_id}")]
        dead = (await other.admin.list_dead_letters("jobs", "t")).items
        assert len(dead) == 10
        assert (await other.admin.redrive_dead_letters("jobs", "t")).count == 10
        (item, *_) = await other.client.dequeue("jobs", "t", 40, wait_ms=20_000)
        assert await other.client.nack("jobs", [item], reason="later") == {}
        shown = await reasons(other, item.id)
        assert [reason for _, reason in shown] == ["later", f"é {item.id}"]


async def test_the_column_never_has_more_than_its_bytes(host):
    await host.admin.update_namespace("jobs", attempts_max=100)
    item_id = await host.client.enqueue("jobs", "t", b"x")
    for attempt in range(1, 8):
        (item,) = await host.client.dequeue("jobs", "t", wait_ms=20_000)
        await host.client.nack("jobs", item, reason=f"{attempt} {'é' * 300}", delay_ms=attempt % 2)
    assert sum(host.rows("SELECT MAX(OCTET_LENGTH(errors)) FROM item"), ()).count(limits.ERRORS_BYTES_DEFAULT) == 1
    shown = await reasons(host, item_id)
    assert [attempt for attempt, _ in shown] == [7, 6][: len(shown)]


def rewrite(key: int, error: bytes | None, *, is_in_place: bool = True) -> Rewrite:
    return Rewrite(key, 1, 0, 0, 2, 1, is_in_place=is_in_place, error=error)


async def test_without_a_reason_the_statements_are_those_of_before():
    plain = [rewrite(1, None), rewrite(2, None), rewrite(3, None, is_in_place=False)]
    assert list(rewrite_statements(plain)) == [
        "UPDATE item SET lane = 1, urgency = 0, due_at = 0, deliveries = IF(@changed := @changed + 1, 2, 0), "
        "failed_attempts = 1, expires_at = COALESCE(NULL, expires_at), metadata = COALESCE(NULL, metadata), "
        "death_reason = COALESCE(NULL, death_reason) WHERE id = 3",
        "UPDATE item FORCE INDEX (PRIMARY) SET deliveries = 2, failed_attempts = 1 WHERE id IN (1,2) "
        "ORDER BY id LIMIT 2",
        "SET @changed = @changed + ROW_COUNT()",
    ]


async def test_items_that_failed_alike_are_one_statement():
    one, other = entry(5, 1, "one"), entry(5, 1, "other")
    found = list(rewrite_statements([rewrite(key, one if key % 2 else other) for key in range(1, 1_001)]))
    updates = [statement for statement in found if statement.startswith("UPDATE")]
    assert len(updates) == 2
    assert f"errors = LEFT(CONCAT(x'{one.hex()}', errors), {limits.ERRORS_BYTES_DEFAULT})" in updates[0]

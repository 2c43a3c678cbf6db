"""Ids, receipts, splits and jobs of one namespace, in the hands of a caller of another one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import foqs
from foqs import RetryPolicy
from foqs.model.errors import ErrorCode
from foqs.testing import MemoryQueue

ONCE = RetryPolicy(deadline_ms=0)
PRINCIPALS = {"shop": {"orders": "owner"}, "thief": {"mails": "owner"}}


@pytest.fixture
def queue() -> Iterator[MemoryQueue]:
    with MemoryQueue(["orders", "mails"], principals=PRINCIPALS) as queue:
        yield queue


def test_what_one_namespace_gave_is_of_no_use_in_another(queue: MemoryQueue) -> None:
    shop, own = queue.as_principal("shop").client(retry=ONCE), queue.as_principal("shop").admin(retry=ONCE)
    thief, admin = queue.as_principal("thief").client(retry=ONCE), queue.as_principal("thief").admin(retry=ONCE)
    ids = shop.enqueue_many("orders", [foqs.NewItem("t", b"one"), foqs.NewItem("t", b"two")]).ids
    (leased,) = shop.dequeue("orders", "t", 1)
    own.create_job("orders", "night")
    waiting = next(one for one in ids if one != leased.id)
    for receipt in (leased.receipt, leased.id, waiting):
        for refused in (
            thief.ack("mails", [receipt], return_errors=True),
            thief.nack("mails", [receipt], return_errors=True),
            thief.extend("mails", [receipt], 60_000, return_errors=True),
        ):
            assert set(refused) == {0}, receipt
            assert refused[0].code in (ErrorCode.STALE_LEASE, ErrorCode.NOT_FOUND)
    for item_id in (leased.id, waiting):
        with pytest.raises(foqs.NotFoundError):
            admin.get_item("mails", item_id)
        assert set(admin.delete_items("mails", [item_id], return_errors=True)) == {0}
        for changed in (admin.redrive_dead_letters, admin.purge_dead_letters):
            assert set(changed("mails", "t", ids=[item_id], return_errors=True).errors) == {0}
    with pytest.raises(foqs.NotFoundError):
        admin.get_job("mails", "night")
    admin.create_job("mails", "night")  # It tells nothing of that of others.
    for split in own.plan_export("orders").splits:
        page = admin.export_items("mails", split)
        assert (list(page.items), page.next_after_key) == ([], 0)
    assert {item.payload for item in own.peek_items("orders", "t", 10).items} == {b"one", b"two"}
    shop.ack("orders", leased)

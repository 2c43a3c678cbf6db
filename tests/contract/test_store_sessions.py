"""A shard store whose session is lost or overtaken."""

from __future__ import annotations

import pytest

from foqs.storage.transaction import ClaimEntries, OwnershipLostError, SessionLostError
from tests.contract.owner import Owner, new_item
from tests.contract.test_store_ownership import LOST, reopen, take_over


def test_an_overtaken_owner_of_the_same_name_does_not_put_the_new_one_out(shard):
    old = Owner(shard, "one")
    old.run(inserts=[new_item(1)])
    new = take_over(shard, "one")
    assert new.image.epoch > old.image.epoch
    with pytest.raises(LOST):
        old.run(deletes=[1])
    with pytest.raises(OwnershipLostError):
        reopen(old)
    assert list(new.look_up(1)) == [1]


def test_a_store_without_a_session_says_so(shard):
    owner = Owner(shard)
    shard.cut(owner.store)
    with pytest.raises(SessionLostError):
        owner.store.now_ms()
    with pytest.raises(SessionLostError):
        owner.run(inserts=[new_item(1)])
    with pytest.raises(SessionLostError):
        owner.store.now_ms()
    with pytest.raises(SessionLostError):
        owner.store.check()
    assert reopen(owner) == 0


def test_claimed_rows_have_bytes_for_payload_and_metadata(shard):
    owner = Owner(shard)
    item = new_item(1, payload=b"x", metadata=b"m")
    owner.run(inserts=[item], claims=[ClaimEntries(10_001, 5_000, [item])])
    owner.store.close()
    row = Owner(shard).image.claimed_rows[1]
    assert (row.payload, row.metadata) == (b"", b"")

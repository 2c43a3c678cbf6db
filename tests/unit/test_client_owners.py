"""What a client takes of what a host tells about the owners of shards."""

from __future__ import annotations

import pytest

from foqs.client.addresses import Address
from foqs.client.owners import Owners
from foqs.model.calls import ShardAddress, ShardMap


@pytest.mark.parametrize("address", ["", " ", ",", "a,b", "a:1,b:2", "a:0", "a:1:2", "..", "9" * 70])
def test_an_address_that_is_none_or_several_is_passed_over(address: str) -> None:
    """A call for this shard goes to the hosts that the client knows; one for the other shard goes to its owner."""
    owners = Owners()
    owners.update(ShardMap(1, [], [ShardAddress(1, address), ShardAddress(2, "c:3")]), 0)
    assert owners.of_ids(["1-10000000001"]) is None
    assert owners.of_ids(["2-10000000001"]) == Address("c", 3)
    assert owners.of_ids(["1-10000000001", "1-10000000002", "2-10000000001"]) == Address("c", 3)


def test_an_owner_that_is_not_known_any_more_is_forgotten() -> None:
    owners = Owners()
    owners.update(ShardMap(1, [], [ShardAddress(1, "a:1")]), 0)
    assert owners.of_ids(["1-10000000001"]) == Address("a", 1)
    owners.update(ShardMap(1, [], [ShardAddress(1, "a,b")]), 0)
    assert owners.of_ids(["1-10000000001"]) is None

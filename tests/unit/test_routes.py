"""Which host does which part of a call that is for all shards."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from foqs.cluster.owner_map import OwnerMap, ShardOwner
from foqs.cluster.routes import Routes
from foqs.model.calls import CallContext


async def test_a_shard_that_was_opened_a_moment_ago_is_asked_before_the_hosts_know_who_has_it() -> None:
    owners = OwnerMap()
    owners.learn([ShardOwner(0, 1, "other", "127.0.0.1:1"), ShardOwner(1, 4, "gone", "127.0.0.1:2")])
    served = {1, 3}
    local = SimpleNamespace(
        served=lambda: served, serves=served.__contains__, know=None, number_of=None, is_of_tier=None
    )
    peers = SimpleNamespace(get=lambda host_id, address: SimpleNamespace(host_id=host_id))
    routes = Routes("me", owners, cast(Any, peers), cast(Any, local))

    async def here(context: CallContext) -> tuple[str, frozenset[int] | None]:
        return "me", context.shards

    async def there(remote: Any, context: CallContext) -> tuple[str, frozenset[int] | None]:
        return remote.host_id, context.shards

    asked = await routes.by_all(CallContext("127.0.0.1"), here, there)
    assert sorted(asked) == [("me", frozenset({1, 3})), ("other", frozenset({0}))]

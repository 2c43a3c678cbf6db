"""The routing of a host that has stopped, while its membership still reports hosts."""

from __future__ import annotations

from typing import Any
from unittest.mock import AsyncMock, Mock

from structlog.testing import capture_logs

from foqs.cluster.ownership.owner_map import OwnerMap
from foqs.cluster.routing.routing import Chance, LocalHost, Routing
from foqs.contract.verbs import VERBS


def routing_of(peers: Any, local: Any) -> Routing:
    chance = Chance(lambda below: 0, bytes)
    table: Any = {verb: AsyncMock() for verb in VERBS}
    owners = OwnerMap(lambda: 0.0, "a", lambda addresses, leaving: None)
    return Routing("a", "c", table, local, Mock(), owners, peers, lambda: None, Mock(), chance, lambda: 0.0, Mock())


async def test_hosts_that_are_reported_after_the_end_change_nothing() -> None:
    peers, local = Mock(stop=AsyncMock()), Mock(spec=LocalHost)
    local.known_topics.return_value = [(1, "t")]
    routing = routing_of(peers, local)
    await routing.start()
    routing.follow_hosts({"a": "a:1"}, set())
    await routing.stop()
    peers.reset_mock()
    with capture_logs() as logs:
        routing.follow_hosts({"a": "a:1", "b": "b:1"}, set())
    assert routing.is_alone
    assert routing.caps.hosts_count == 1
    assert not peers.keep.called, "no connection is made or kept"
    assert not local.known_topics.called, "there is nobody to report topics"
    assert not logs


async def test_hosts_that_are_reported_before_the_start_count() -> None:
    routing = routing_of(Mock(stop=AsyncMock()), Mock(spec=LocalHost))
    routing.follow_hosts({"a": "a:1", "b": "b:1"}, set())
    assert not routing.is_alone
    assert routing.caps.hosts_count == 2
    await routing.stop()

"""A peer that fails in whatever way is one that has failed: this host does what it can do without it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from foqs.cluster.peers.guarded_peers import GuardedPeers
from foqs.cluster.peers.peer_table import PeerTable
from foqs.model.calls import CallContext
from foqs.model.cluster import HostRow
from foqs.model.errors import RateLimitedError, UnavailableError
from foqs.model.principal import EVERYBODY

RAISED = [
    ValueError("v"),
    OSError(5, "o"),
    UnicodeError("u"),
    OverflowError("f"),
    KeyError("k"),
    TypeError("t"),
    TimeoutError(),
]
CALLER = CallContext("1.2.3.4", principal=EVERYBODY)


class Peer:
    host_id = "b"

    def __init__(self, raised: Exception | None) -> None:
        self.raised = raised

    async def call(self, *call: Any) -> Any:
        if self.raised is not None:
            raise self.raised
        return call


def guarded(raised: Exception | None) -> Any:
    table = SimpleNamespace(get=lambda host_id, address: Peer(raised))
    return GuardedPeers("a", cast(PeerTable, table), lambda: 0.0).get("b", "queue-b:1")


@pytest.mark.parametrize("raised", RAISED, ids=lambda error: type(error).__name__)
async def test_what_is_no_error_of_the_contract_leaves_the_outcome_unknown(raised: Exception) -> None:
    with capture_logs() as logs:
        for _ in range(3):
            with pytest.raises(UnavailableError, match=f"ack to host b .*{type(raised).__name__}") as caught:
                await guarded(raised).call(CALLER, "ack", ["1-1"])
            assert not caught.value.nothing_done
    assert {log["event"] for log in logs} == {"peer_call_failed"}


@pytest.mark.parametrize(
    ("told", "called"), [("queue-b:7601", "queue-b:7601"), ("", "queue-b:7600"), (None, "queue-b:7600")]
)
def test_a_host_is_called_at_its_address_for_hosts_if_it_has_one(told: str | None, called: str) -> None:
    addresses: list[str] = []
    table = SimpleNamespace(
        get=lambda host_id, address: addresses.append(address) or Peer(None), keep=lambda host_ids: None
    )
    row = HostRow("b", "queue-b:7600", 1, 1, peer_address=told)
    peers = GuardedPeers("a", cast(PeerTable, table), lambda: 0.0, lambda: {"b": row})
    peers.live({"a": "queue-a:7600", "b": "queue-b:7600"})
    peers.get("b", "queue-b:7600")
    peers.living("b")
    assert addresses == [called] * 2


async def test_a_defect_that_goes_on_is_not_logged_with_each_call() -> None:
    peer = guarded(KeyError("k"))
    with capture_logs() as logs:
        for _ in range(3):
            with pytest.raises(UnavailableError):
                await peer.call(CALLER, "ack", ["1-1"])
    assert len(logs) == 1


async def test_an_error_of_the_contract_comes_as_the_peer_says_it() -> None:
    said = RateLimitedError("too much", retry_after_ms=7)
    with pytest.raises(RateLimitedError) as caught:
        await guarded(said).call(CALLER, "ack", [])
    assert caught.value is said


async def test_a_call_that_is_done_comes_back_as_it_was() -> None:
    assert await guarded(None).call(CALLER, "ack", ["1-1"]) == (CALLER, "ack", ["1-1"])

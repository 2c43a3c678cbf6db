"""The other hosts of the cluster, as the parts that route calls see them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from foqs.model.calls import CallContext


class Peer(Protocol):
    """The calls of one host to another, which does them by itself or refuses: a call is forwarded once at most.

    Each call raises UnavailableError without a response; it says `nothing_done` if the call was never sent.
    """

    @property
    def host_id(self) -> str: ...

    async def call(self, context: CallContext, verb: str, request: Any) -> Any:
        """Have a verb of the contract done by that host, and return its result."""


class PeerSource(Protocol):
    def get(self, host_id: str, address: str) -> Peer: ...


class PeerTable(PeerSource, Protocol):
    """Gives the other hosts; foqs.transport.peers.Peers is the real one."""

    def keep(self, host_ids: set[str]) -> None:
        """Keep only these hosts."""

    @property
    def calls_total(self) -> Mapping[tuple[str, ...], int]:
        """How often each verb was called with each outcome."""

    def states(self) -> Mapping[str, int]:
        """How many peers are in each state."""

    async def stop(self) -> None: ...

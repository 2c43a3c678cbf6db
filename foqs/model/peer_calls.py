"""The calls between hosts of one cluster, without Thrift and without sockets.

A host counts as a peer once it has proven to be one: foqs/model/peer_proof.py. Its claims from then on, and how long
they are believed, are in docs/decisions/0042-proof-of-hosts.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from foqs.model.calls import CallContext
from foqs.model.errors import PermissionDeniedError

SECRET_BYTES = 32


class GreetResult(NamedTuple):
    """The answer of a host to a greeting."""

    nonce: bytes


class JoinResult(NamedTuple):
    """The answer of a host to the proof of its caller: its own proof."""

    proof: bytes


class HelloResult(NamedTuple):
    """The answer of a host to the first call of a host of an older build."""

    host_id: str
    proof: bytes
    """The proof for the caller's challenge."""
    challenge: bytes
    """A challenge for the caller, good for one proof."""


class TopicStockFields(Protocol):
    """The stock of a topic on a host, as it comes over the wire."""

    namespace_number: int | None
    topic: str | None
    ready_count: int | None
    priority: int | None
    oldest_at_ms: int | None
    is_wanted: bool | None


class OpenedShardFields(Protocol):
    """A shard that a host has opened, as it comes over the wire."""

    shard_id: int | None
    epoch: int | None


class TopicWishFields(Protocol):
    namespace_number: int | None
    topic: str | None
    count: int | None


class TopicPointerFields(Protocol):
    namespace_number: int | None
    topic: str | None
    host_id: str | None
    ready_count: int | None
    priority: int | None
    oldest_at_ms: int | None


class TopicPointer(NamedTuple):
    """A host that has ready items of a topic."""

    namespace_number: int
    topic: str
    host_id: str
    ready_count: int
    priority: int
    oldest_at_ms: int


class CapAskFields(Protocol):
    """The ask of a host to the home of a cap, as it comes over the wire."""

    namespace_number: int | None
    topic: str | None
    per_second: float | None
    wanted_count: int | None
    held_count: int | None
    unused_count: int | None
    weight: int | None
    is_short: bool | None


class CapGrantFields(Protocol):
    namespace_number: int | None
    topic: str | None
    granted_count: int | None
    after_ms: float | None
    ends_ms: float | None
    share_per_second: float | None


class CapGrantTold(NamedTuple):
    """Tokens of a cap, for a host that has asked the cap's home."""

    namespace_number: int
    topic: str
    granted_count: int
    after_ms: float
    ends_ms: float
    share_per_second: float


class SeekResult(NamedTuple):
    """The answer of a home to a host that seeks topics."""

    pointers: Sequence[TopicPointer]
    grants: Sequence[CapGrantTold]


class PeerCalls(Protocol):
    """The verbs of service FoqsPeer."""

    def is_living(self, host_id: str) -> bool:
        """True if a peer that has proven to be this host is still permitted to call as such."""

    async def greet(
        self, context: CallContext, version: int, caller_id: str, callee_id: str, nonce: bytes
    ) -> GreetResult: ...

    async def join(self, context: CallContext, proof: bytes) -> JoinResult: ...

    async def hello(self, context: CallContext, host_id: str, challenge: bytes) -> HelloResult: ...

    async def prove(self, context: CallContext, host_id: str, challenge: bytes, proof: bytes) -> None: ...

    async def report(
        self, context: CallContext, stocks: Sequence[TopicStockFields], opened: Sequence[OpenedShardFields]
    ) -> Sequence[TopicPointer]: ...

    async def seek(
        self, context: CallContext, wishes: Sequence[TopicWishFields], asks: Sequence[CapAskFields]
    ) -> SeekResult: ...

    async def hint(self, context: CallContext, pointers: Sequence[TopicPointerFields]) -> None: ...


class NoPeers:
    """The peer verbs of a host that has no peers."""

    def is_living(self, host_id: str) -> bool:
        return False

    async def greet(
        self, context: CallContext, version: int, caller_id: str, callee_id: str, nonce: bytes
    ) -> GreetResult:
        raise _no_peers()

    async def join(self, context: CallContext, proof: bytes) -> JoinResult:
        raise _no_peers()

    async def hello(self, context: CallContext, host_id: str, challenge: bytes) -> HelloResult:
        raise _no_peers()

    async def prove(self, context: CallContext, host_id: str, challenge: bytes, proof: bytes) -> None:
        raise _no_peers()

    async def report(
        self, context: CallContext, stocks: Sequence[TopicStockFields], opened: Sequence[OpenedShardFields]
    ) -> Sequence[TopicPointer]:
        raise _no_peers()

    async def seek(
        self, context: CallContext, wishes: Sequence[TopicWishFields], asks: Sequence[CapAskFields]
    ) -> SeekResult:
        raise _no_peers()

    async def hint(self, context: CallContext, pointers: Sequence[TopicPointerFields]) -> None:
        raise _no_peers()


def _no_peers() -> PermissionDeniedError:
    return PermissionDeniedError("this host has no peers: only hosts of its own cluster may call this")

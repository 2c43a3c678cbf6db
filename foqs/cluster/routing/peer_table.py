"""The other hosts of the cluster, as the parts that route calls see them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from foqs.cluster.homes.home_table import Reported
from foqs.model.calls import (
    CallContext,
    DeadLettersResult,
    ExportPage,
    ExportPlan,
    ExportQuery,
    HostStatus,
    PositionErrors,
    QueueCalls,
    StoredItem,
    StoredItemPage,
)
from foqs.model.cluster import OpenedShard
from foqs.model.shared_caps import CapAsk, CapGrant
from foqs.model.stocks import Pointer, Topic


class Peer(QueueCalls, Protocol):
    """The calls of one host to another, which does them by itself or refuses: a call is handed on once at most.

    Each call raises UnavailableError where there is no response; it says `nothing_done` if the call was never sent.
    """

    @property
    def host_id(self) -> str: ...

    async def peek_items(
        self, context: CallContext, namespace_name: str, topic: str, limit: int, page_token: str
    ) -> StoredItemPage: ...

    async def get_item(self, context: CallContext, namespace_name: str, item_id: str) -> StoredItem: ...

    async def delete_items(
        self, context: CallContext, namespace_name: str, item_ids: Sequence[str]
    ) -> PositionErrors: ...

    async def list_dead_letters(
        self, context: CallContext, namespace_name: str, topic: str, limit: int, page_token: str
    ) -> StoredItemPage: ...

    async def redrive_dead_letters(
        self, context: CallContext, namespace_name: str, topic: str, item_ids: Sequence[str] | None, limit: int
    ) -> DeadLettersResult: ...

    async def purge_dead_letters(
        self, context: CallContext, namespace_name: str, topic: str, item_ids: Sequence[str] | None, limit: int
    ) -> DeadLettersResult: ...

    async def plan_export(
        self, context: CallContext, namespace_name: str, splits_per_shard: int, partial: bool = False
    ) -> ExportPlan: ...

    async def export_items(self, context: CallContext, namespace_name: str, query: ExportQuery) -> ExportPage: ...

    async def remove_shard(self, context: CallContext, shard_id: int) -> None: ...

    async def get_host_status(self, context: CallContext) -> HostStatus: ...

    async def report(self, stocks: Mapping[Topic, Reported]) -> Sequence[Pointer]: ...

    async def announce(self, opened: Sequence[OpenedShard]) -> None: ...

    async def seek(self, wishes: Mapping[Topic, int]) -> Sequence[Pointer]: ...

    async def ask(self, asks: Sequence[CapAsk]) -> Sequence[CapGrant] | None: ...

    async def hint(self, pointers: Sequence[Pointer]) -> None: ...


class PeerTable(Protocol):
    """Gives the other hosts; foqs.transport.peers.Peers is the real one."""

    def get(self, host_id: str, address: str) -> Peer: ...

    def keep(self, host_ids: set[str]) -> None:
        """Keep only these hosts."""

    @property
    def calls_total(self) -> Mapping[tuple[str, ...], int]:
        """How often each verb was called with each outcome."""

    def states(self) -> Mapping[str, int]:
        """How many peers are in each state."""

    async def stop(self) -> None: ...

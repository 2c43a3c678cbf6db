"""The partners of a shard's writer: the listener, which delivers the shard's items, and the meter."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from foqs.model.namespace import SettingsTable
from foqs.model.topic import ShardTopic
from foqs.shard.port import Transaction, TransactionResult
from foqs.shard.state.events import Demand, Events


class ShardListener(Protocol):
    """Gives a writer its demand and gets its reports. The real one is foqs.host.dispatch.dispatcher.Dispatcher."""

    settings: SettingsTable
    """The settings of namespaces, as its shards read them."""

    def demand(self, topics: Iterable[ShardTopic]) -> Mapping[ShardTopic, Demand]:
        """Return the present demand of its consumers for these topics; a missing topic is not wanted."""

    def on_events(self, events: Events) -> None:
        """Take the events of a served shard."""

    def shard_opened(self, shard_id: int, topics: Collection[ShardTopic]) -> None:
        """Note that the shard is served; `topics` are some of its topics, and `adopt` adds the others."""

    def adopt(self, topics: Collection[ShardTopic]) -> None:
        """Take topics of a shard that was opened, or whose breaker has opened or closed."""

    def shard_lost(self, shard_id: int, topics: Collection[ShardTopic]) -> None:
        """Forget the claims of a lost shard, which are no longer this host's. `disown` gets the other topics."""

    def disown(self, topics: Collection[ShardTopic]) -> None:
        """Drop topics of a lost shard, before it is opened again."""

    def shard_health(self, shard_id: int, topics: Collection[ShardTopic], *, healthy: bool) -> None:
        """Note that a shard's breaker opened or closed, for some of its topics; `adopt` adds the others."""


class TransactionMeter(Protocol):
    """Counts the transactions of a host's shards for operators, by the reports of each shard's writer."""

    def waited(self, shard_id: int, wait_s: float) -> None:
        """Note the shard's wait for a slot of the server, before a transaction."""

    def ended(self, shard_id: int, elapsed_s: float, outcome: str) -> None:
        """Note the end of a transaction; `outcome` is committed, failed or unknown."""

    def committed(self, shard_id: int, transaction: Transaction, result: TransactionResult) -> None:
        """Note that the transaction happened, even if its outcome was unknown for a while."""

    def lost(self, shard_id: int, count: int) -> None:
        """Note that committed transactions are missing, because the shard was reset to an older state."""

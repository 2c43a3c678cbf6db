"""Those whom the writer of a shard asks and tells: the listener, which hands out its items, and the meter."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from foqs.model.namespace import SettingsTable
from foqs.model.topic import ShardTopic
from foqs.shard.port import Transaction, TransactionResult
from foqs.shard.state.events import Demand, Events


class ShardListener(Protocol):
    """The one whom a writer asks and tells of its shard. The real one is foqs.host.dispatch.Dispatcher."""

    settings: SettingsTable
    """The settings of namespaces, as its shards read them."""

    def demand(self, topics: Iterable[ShardTopic]) -> Mapping[ShardTopic, Demand]:
        """The demand of its consumers for these topics now; a topic that is missing is not wanted."""

    def on_events(self, events: Events) -> None:
        """Take in the events of a shard that is served."""

    def shard_opened(self, shard_id: int, topics: Collection[ShardTopic]) -> None:
        """The shard is served; `topics` are some of it, and the others come by `adopt`."""

    def adopt(self, topics: Collection[ShardTopic]) -> None:
        """Topics of a shard that was opened, or whose breaker has opened or closed."""

    def shard_lost(self, shard_id: int, topics: Collection[ShardTopic]) -> None:
        """Forget the claims of a lost shard: they are not ours any more. `disown` gets the topics not in `topics`."""

    def disown(self, topics: Collection[ShardTopic]) -> None:
        """Topics of a shard that was lost, before it is opened again."""

    def shard_health(self, shard_id: int, topics: Collection[ShardTopic], *, healthy: bool) -> None:
        """Note that a shard's breaker opened or closed, for some of its topics; the others come by `adopt`."""


class TransactionMeter(Protocol):
    """Counts the transactions of a host's shards for operators; each shard's writer tells it of them."""

    def waited(self, shard_id: int, wait_s: float) -> None:
        """The shard has waited for a slot of the server, before a transaction."""

    def ended(self, shard_id: int, elapsed_s: float, outcome: str) -> None:
        """`outcome` is committed, failed or unknown."""

    def committed(self, shard_id: int, transaction: Transaction, result: TransactionResult) -> None:
        """The transaction happened, whether that was known at once or not."""

    def lost(self, shard_id: int, count: int) -> None:
        """Transactions that had happened are not there any more: the shard went back to an older state."""

"""Whoever hands out the items of a shard: its writer asks and tells it what the state, which calls nobody, does not."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from foqs.model.namespace import SettingsTable
from foqs.model.topic import ShardTopic
from foqs.shard.state.events import Demand, Events


class ShardListener(Protocol):
    """What a writer asks and tells of its shard. The real one is foqs.host.dispatch.Dispatcher."""

    settings: SettingsTable
    """What its shards read of namespaces."""

    def demand(self, topics: Iterable[ShardTopic]) -> Mapping[ShardTopic, Demand]:
        """What its consumers want of these topics now; nothing of those that are missing."""

    def on_events(self, events: Events) -> None:
        """What has happened in a shard that is served."""

    def shard_opened(self, shard_id: int, topics: Collection[ShardTopic]) -> None:
        """The shard is served; `topics` are some of it, and the others come by `adopt`."""

    def adopt(self, topics: Collection[ShardTopic]) -> None:
        """Topics of a shard that was opened, or whose breaker has opened or closed."""

    def shard_lost(self, shard_id: int, topics: Collection[ShardTopic]) -> None:
        """What was claimed there is not ours to hand out any more; `topics` are some of it, the others by `disown`."""

    def disown(self, topics: Collection[ShardTopic]) -> None:
        """Topics of a shard that was lost, before it is opened again."""

    def shard_health(self, shard_id: int, topics: Collection[ShardTopic], *, healthy: bool) -> None:
        """Its breaker has opened or closed; `topics` are some of it, and the others come by `adopt`."""

"""Shards and a dispatcher on tables in memory, step by step: no clock, thread or database."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from foqs.host.dispatch.dispatcher import Dispatcher
from foqs.host.dispatch.topic_queue import DequeueCall
from foqs.model import limits, order
from foqs.model.calls import ItemContent
from foqs.model.clock import Now
from foqs.model.errors import UnavailableError
from foqs.model.item import Phase, ShardItem
from foqs.model.namespace import Namespace, NamespaceSettings, SettingsTable
from foqs.model.policy import NOTHING_SAID
from foqs.shard import mysql_server
from foqs.shard.port import Transaction
from foqs.shard.state.engine import ShardState
from foqs.shard.state.events import Completion
from foqs.shard.writer.shard_listener import ShardListener
from tests.support.stored_shard import StoredShard

NAMESPACE = 7
ITEM_BYTES_MAX = 1_000_000


class StillWriter:
    """What a host asks of the writer of a shard; its transactions are run step by step."""

    scheduler = SimpleNamespace(placement_run_items=mysql_server.PLACEMENT_RUN_ITEMS)

    def __init__(self, shard_id: int, states: Mapping[int, ShardState], now: Callable[[int], Now]) -> None:
        self.shard_id = shard_id
        self.counted = asyncio.Event()
        self.counted.set()
        self._states = states
        self._now = now

    @property
    def shard(self) -> ShardState | None:
        return self._states.get(self.shard_id)

    @property
    def held(self) -> ShardState | None:
        return self.shard

    def now(self) -> Now:
        return self._now(self.shard_id)

    def now_ms(self) -> int:
        return self.now().server_ms

    def wake(self) -> None:
        return None


class Shards:
    """Numbered from 0. What is passed as `shards` to others is this itself, as foqs.host.shards.shards.Shards is."""

    def __init__(self, count: int, **others: Any) -> None:
        """`others` are further arguments of `Dispatcher`."""
        self.draining: frozenset[int] = frozenset()
        self.moving: frozenset[int] = frozenset()
        self.tiers: dict[int, str] = {}
        self.clock_ms = 1_000_000
        """Steady; callers and tests that care for no steps take it for the server's too."""
        self.server_ahead_ms = 0
        self._others = others
        self.settings = SettingsTable()
        self.states: dict[int, ShardState] = {}
        self.allow_item_bytes(ITEM_BYTES_MAX)
        self.stored = {number: StoredShard(number, self.server_ms, self.clock_ms) for number in range(count)}
        self.tables = {number: stored.tables for number, stored in self.stored.items()}
        self.take_over()

    def take_over(self, unseen: Collection[int] = (), *, announces: bool = True) -> None:
        """All of them anew, from the tables; `unseen` as the process remembers it that had them before.

        Without `announces` it is the moment before the first slice of their topics is announced.
        """
        self.states = {}
        self.settings.item_bytes_seen = {}
        self.writers = {number: StillWriter(number, self.states, self.now) for number in self.tables}
        self.dispatcher = Dispatcher(
            cast(Any, self.writers), lambda: self.clock_ms / 1000, self.settings, lambda *_: None, **self._others
        )
        for number, stored in self.stored.items():
            image = stored.open()
            shard = self.states[number] = ShardState(number, image, self.settings, unseen)
            for namespace in self.settings.by_number.values():
                shard.index.name_namespace(namespace)
            self.dispatcher.shard_opened(number, shard.index.topics.values() if announces else ())
            list(shard.add_counts(image.count()))

    @property
    def uses(self) -> Collection[int]:
        """All shards of the cluster: those of this host."""
        return self.tables

    @property
    def here(self) -> list[int]:
        return list(self.writers)

    def serves(self, number: int) -> bool:
        return number in self.states

    def is_elsewhere(self, number: int) -> bool:
        return False

    @property
    def owns_any(self) -> bool:
        return bool(self.states)

    def tier_of(self, number: int) -> str:
        return self.tiers.get(number, "")

    def change_settings(self, namespace: int = 0, **settings: float | str) -> None:
        """Of one namespace, NAMESPACE unless another is named; all else stays as it is."""
        number = namespace or NAMESPACE
        before = self.settings.by_number.get(number, Namespace(number, "n", NamespaceSettings(), 0))
        after = replace(before, settings=replace(before.settings, **settings))
        self.settings.replace({**self.settings.by_number, number: after})
        for shard in self.states.values():
            shard.index.name_namespace(after)

    def allow_item_bytes(self, item_bytes_max: int, namespace: int = 0) -> None:
        """All the content of an item together."""
        rest_bytes_max = limits.CONTENT_BYTES_MAX - limits.PAYLOAD_BYTES_MAX - limits.METADATA_BYTES_MAX
        self.change_settings(namespace, payload_bytes_max=item_bytes_max - rest_bytes_max, metadata_bytes_max=0)

    def enqueue(
        self, number: int, topic: str, priority: int = 0, *, lease_ms: int = 0, delay_ms: int = 0, count: int = 1,
        payload: bytes = b"p", at_most_once: bool = False,
    ) -> list[ShardItem]:  # fmt: skip
        shard, items, due_at = self.states[number], [], self.clock_ms + delay_ms
        for _ in range(count):
            key = shard.index.next_key()
            sort_key = order.sort_key(priority, due_at, key, number)
            items.append(
                ShardItem(
                    key, shard.index.topic(NAMESPACE, topic), priority, due_at, sort_key, Phase.INSERTING,
                    self.clock_ms, self.clock_ms + 10**9, lease_ms, at_most_once, ItemContent(payload, b""),
                )
            )  # fmt: skip
        shard.insert(items, 10, Completion(lambda _: None))
        return items

    def dequeue(self, wants: dict[str, int], lease_ms: int | None = None) -> DequeueCall:
        call = DequeueCall(lease_ms, 30_000, self.clock_ms / 1000)
        self.dispatcher.start(NAMESPACE, wants, call)
        return call

    def dequeue_any(self, count: int, prefix: str = "", lease_ms: int | None = None, group: str = "") -> DequeueCall:
        call = DequeueCall(lease_ms, 30_000, self.clock_ms / 1000)
        ring = self.dispatcher.rings.ring(NAMESPACE, prefix, group)
        while ring.unfilled:
            self.dispatcher.rings.fill(ring)
        self.dispatcher.start_any(ring, count, call)
        return call

    def set_policy(self, topic: str, **changes: Any) -> None:
        """Hosts learn of it with the next tick."""
        before = self.settings.policies.get(NAMESPACE, {})
        after = replace(before.get(topic, NOTHING_SAID), **changes)
        policies = {**self.settings.policies, NAMESPACE: {**before, topic: after}}
        self.settings.replace_policies(policies, self.settings.prefix_policies)

    def set_prefix_policy(self, prefix: str, **changes: Any) -> None:
        """Hosts learn of it with the next tick."""
        before = self.settings.prefix_policies.get(NAMESPACE, {})
        after = replace(before.get(prefix, NOTHING_SAID), **changes)
        prefixes = {name: own for name, own in {**before, prefix: after}.items() if own != NOTHING_SAID}
        self.settings.replace_policies(self.settings.policies, {NAMESPACE: prefixes})

    def pass_ms(self, passed_ms: int, step_ms: int = 20) -> None:
        """Time passes, the dispatcher ticks, and shards do what there is to do."""
        for _ in range(passed_ms // step_ms):
            self.clock_ms += step_ms
            self.dispatcher.tick()
            for number in self.states:
                self.run(number)

    def begin(self, number: int) -> Transaction | None:
        shard = self.states[number]
        tick(shard, self.dispatcher, self.now(number))
        return plan(shard, self.dispatcher, self.now(number))

    def end(self, number: int, *, well: bool = True) -> None:
        shard = self.states[number]
        assert shard.in_flight is not None
        if well:
            events = shard.committed(self.stored[number].apply(shard.in_flight), self.now(number))
        else:
            events = shard.failed("a lock wait")
        self.dispatcher.on_events(events)

    def run(self, number: int) -> None:
        """Transactions until there is nothing to do."""
        while self.begin(number) is not None:
            self.end(number)

    def rest(self) -> None:
        """Until nothing more is claimed for consumers that were there."""
        self.clock_ms += limits.PREFETCH_HOLD_MS_MAX + 1
        self.dispatcher.sweep()

    # ---- as foqs.host.shards.shards.Shards ----

    def owned(self) -> list[tuple[StillWriter, ShardState]]:
        return [(self.writers[number], shard) for number, shard in self.states.items()]

    def serving(self, number: int) -> tuple[StillWriter, ShardState]:
        return self.writers[number], self.states[number]

    def check_owns_any(self) -> None:
        if not self.states:
            raise UnavailableError("no shard", nothing_done=True)

    def now(self, number: int) -> Now:
        return Now(self.server_ms(), self.clock_ms)

    def server_ms(self) -> int:
        return self.clock_ms + self.server_ahead_ms


class NamespacesOf:
    """What verbs ask of foqs.host.registry.namespaces.Namespaces, of a few namespaces."""

    def __init__(self, *namespaces: Namespace) -> None:
        self._by_name = {namespace.name: namespace for namespace in namespaces}
        self.settings = SettingsTable()

    def serving(self, name: str) -> Namespace:
        return self._by_name[name]

    get = serving

    def check_open(self, number: int) -> None:
        return None


def tick(shard: ShardState, listener: ShardListener, now: Now) -> bool:
    """As a writer does; True when time has brought something for a transaction."""
    is_work = shard.tick(now)
    listener.on_events(shard.take_events())
    return is_work


def plan(shard: ShardState, listener: ShardListener, now: Now, probe: bool = False) -> Transaction | None:
    """The next transaction of the shard, as a writer takes it."""
    transaction = shard.take(now, listener.demand(shard.topics_arriving()), probe=probe)
    listener.on_events(shard.take_events())
    return transaction

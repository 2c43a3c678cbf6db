"""Limits of items in flight in runs of their own kind: an operator changes them, and consumers never have more items.

A lease counts from its delivery until the owner of its shard knows that it has ended. Each lease is held against the
limit that its host knew when it claimed the item: no more leases of a topic run at the same time than the highest of
these limits.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from foqs.client.client_errors import NotSentError
from foqs.client.queue_items import NewItem
from foqs.model import limits
from foqs.model.errors import FoqsError, UnavailableError
from foqs.model.item import Phase, ShardItem, keys_of, undivided
from foqs.model.permit_book import PermitAnswer, PermitAsk
from foqs.model.policy import OwnPolicy
from foqs.model.stocks import Topic
from foqs.model.topic import ShardTopic
from foqs.shard.state.ops.claim import Claims
from foqs.testing.fake_meta_tables import Reach
from foqs.testing.fake_permits import FakePermits
from tests.histories.history import Put

if TYPE_CHECKING:
    from tests.sim.run import Outcome
    from tests.sim.world import World

_CHANGE_S = 0.4
_LIMITS = (1, 1, 2, 3, 6)
_LOST_SHARE = 0.1
_KEYED_TOPICS = "ac"
"""Of the asks of books, whose answers are lost."""
_NUMBER = 1
"""Of the namespace with the limits."""
_claim, _claim_fresh = Claims.claim, Claims.claim_fresh


class InFlight:
    """Limits topics in a run, and counts the leases of each."""

    def __init__(self, world: World, namespace: str) -> None:
        self._world = world
        self._namespace = namespace
        self._chance = random.Random(f"in flight {world.seed}")
        self.is_there = False
        self._changes = self._chance.random() < 0.5
        self._out: dict[Topic, dict[tuple[int, int, int], float]] = {}
        """The limits of running leases, by topic, and by shard, key and number of the delivery."""
        self._claimed_under: dict[tuple[int, int], float] = {}
        """The limit that held when an item was claimed, by shard and key."""

    def begin(self, topics: tuple[str, ...]) -> None:
        """Limit most topics from the beginning on."""
        self.is_there = True
        chosen = {name: OwnPolicy(in_flight_max=self._chance.choice(_LIMITS)) for name in topics[1:]}
        self._world.meta.tables.policies = {_NUMBER: chosen}

    async def run(self, until_s: float, topics: tuple[str, ...]) -> None:
        """Change limits, in half of the runs."""
        chance = self._chance
        while self.is_there and self._changes and self._world.loop.time() < until_s:
            await asyncio.sleep(chance.expovariate(1 / _CHANGE_S))
            await self._set(chance.choice(topics), chance.choice((0, *_LIMITS)))

    async def _set(self, topic: str, in_flight_max: int) -> None:
        host = self._world.pick_host(self._chance)
        try:
            if host is None:
                raise NotSentError("no host listens")
            await self._world.call(
                host,
                lambda door: door.admin.set_topic_policy(self._namespace, topic, in_flight_max=in_flight_max),
                limits.CALL_MS_MAX / 1000 + 2,
            )
            self._world.counts["limits of items in flight changed"] += 1
        except FoqsError as error:
            self._world.trace("in flight", f"failed: {error!r}")

    # ---- the check ----

    def claimed(self, claims: Claims, topic: ShardTopic, items: list[int]) -> None:
        """Note the limit under which items of a topic are claimed, by their keys."""
        limit = claims._index.settings.policy(topic.namespace, topic.name).in_flight_max
        for key in items:
            self._claimed_under[topic.shard_id, key] = float(limit or math.inf)

    def delivered(self, items: list[ShardItem]) -> Iterator[str]:
        """Count the leases of the topics of an answer."""
        if not self.is_there:
            return
        topics: dict[Topic, None] = {}
        for item in items:
            topic = item.topic.namespace, item.topic.base_name
            shard_id = item.topic.shard_id
            out = self._out.setdefault(topic, {})
            out[shard_id, item.key, item.deliveries + 1] = self._claimed_under.get((shard_id, item.key), math.inf)
            topics[topic] = None
        profile, world = self._world.profile, self._world
        if world.restored or profile.undurable_rate:
            return  # Leases or permits are lost with the database.
        for topic in topics:
            running = self._out[topic] = {
                one: limit for one, limit in self._out[topic].items() if self._is_running(*one)
            }
            allowed = max(running.values(), default=0.0)
            if allowed < math.inf:
                world.counts["deliveries under a limit of items in flight"] += 1
                world.counts["deliveries that reached the limit"] += len(running) == allowed
                world.counts["leases on several shards"] += len({shard_id for shard_id, _, _ in running}) > 1
            if len(running) > allowed:
                shown = [(shard_id, f"{key:x}", limit) for (shard_id, key, _), limit in running.items()]
                yield f"{len(running)} items of {topic} are in flight under a limit of {allowed:.0f}: {shown}"

    def _is_running(self, shard_id: int, key: int, delivery: int) -> bool:
        shard = self._world._states[shard_id]
        item = shard.index.leases.get(key)
        return item is not None and item.deliveries + 1 == delivery and item.phase in (Phase.LEASED, Phase.SETTLING)

    @contextmanager
    def patches(self) -> Iterator[None]:
        """Watch the claims of all shards."""

        def claim(claims: Claims, topic: ShardTopic, sort_keys: list[int]) -> None:
            _claim(claims, topic, sort_keys)
            self.claimed(claims, topic, keys_of(item for item in claims.waiting.values() if item.topic is topic))

        def claim_fresh(claims: Claims, topic: ShardTopic, items: list[ShardItem]) -> None:
            _claim_fresh(claims, topic, items)
            self.claimed(claims, topic, keys_of(one for one in undivided(items) if one.phase is Phase.ARRIVING))

        if not self.is_there:
            yield
            return
        with ExitStack() as stack:
            stack.enter_context(patch.object(Claims, "claim", claim))
            stack.enter_context(patch.object(Claims, "claim_fresh", claim_fresh))
            yield


class SimPermits(FakePermits):
    """The books, whose answers are lost at times."""

    def __init__(self, world: World, reach: Reach) -> None:
        super().__init__(reach)
        self._world = world
        self._chance = random.Random(f"permits {world.seed}")

    def ask(self, asks: Mapping[Topic, PermitAsk]) -> dict[Topic, PermitAnswer]:
        answers = super().ask(asks)
        if not self._world.delays.calm and self._chance.random() < _LOST_SHARE:
            self._world.counts["answers of books of permits lost"] += 1
            raise UnavailableError("the meta database does not answer")
        self._world.counts["books of permits asked"] += len(answers)
        return answers


def run_in_flight(
    seed: int,
    *,
    is_cluster: bool = False,
    load_s_max: float = math.inf,
    has_fairness_keys: bool = False,
    **options: Any,
) -> Outcome:
    """A run with limits of items in flight, which hold for all keys of a topic together."""
    from tests.sim import clients
    from tests.sim.run import run_seed

    new_item = clients._new_item

    def keyed(put: Put) -> NewItem:
        return replace(new_item(put), fairness_key="key" if put.topic[-1] in _KEYED_TOPICS else None)

    with patch.object(clients, "_new_item", keyed if has_fairness_keys else new_item):
        return run_seed(seed, load_s_max=load_s_max, is_cluster=is_cluster, limits_in_flight=True, **options)

"""Caps, pauses and weights in the simulation: an operator who changes them, and what must hold of deliveries."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from foqs.client.client_errors import NotSentError
from foqs.model import limits
from foqs.model.caps import burst_of
from foqs.model.errors import FoqsError
from foqs.model.item import ShardItem
from foqs.model.namespace import SettingsTable
from foqs.model.policies import Policies
from foqs.model.policy import NO_POLICY, TopicPolicy
from tests.sim.host import FakeDoor

if TYPE_CHECKING:
    from tests.sim.world import World

_CHANGE_S = 0.3
"""How often the operator changes something."""
_RATES = (0.0, 5.0, 40.0, 300.0)
_SHARED_RATES = (3.0, 5.0)
"""In some runs of clusters there are caps all the time, so low that each host alone could deliver more."""
_RATES_AT_REST = (0.0, 0.0, 300.0)
"""All that there is has to be consumed at them."""


class CapKeeper:
    """Pauses, limits and weighs topics, and limits their namespace, in some of the runs."""

    def __init__(self, world: World, namespace: str, topics: Iterable[str]) -> None:
        self._world = world
        self._chance = random.Random(f"caps {world.seed}")
        self._namespace = namespace
        self._topics = tuple(topics)
        self.is_there = self._chance.random() < 0.4
        self.is_steady = world.profile.has_steady_caps
        """Caps stay as they are for the whole run, and more is delivered than they let through."""
        if self.is_steady:
            self.is_there = True
        self._prefix_chance = random.Random(f"{world.seed}/prefix policies")
        """A stream of its own: what a seed brings besides stays as it was."""
        self.has_prefixes = self.is_there and not self.is_steady and self._prefix_chance.random() < 0.3

    async def run(self, until_s: float) -> None:
        if self.is_steady:
            await self._steady(until_s)
        elif self.has_prefixes:
            await asyncio.gather(self._change(until_s), self._change_prefixes(until_s))
        else:
            await self._change(until_s)

    async def _change(self, until_s: float) -> None:
        chance = self._chance
        while self.is_there and self._world.loop.time() < until_s:
            await asyncio.sleep(chance.expovariate(1 / _CHANGE_S))
            if chance.random() < 0.2:
                await self._limit_namespace(chance.choice(_RATES))
            else:
                await self._set(
                    chance.choice(self._topics), dequeue_paused=chance.random() < 0.3,
                    enqueue_paused=chance.random() < 0.1, deliveries_per_second_max=chance.choice(_RATES),
                    weight=chance.choice([1, 1, 4]),
                )  # fmt: skip

    async def _change_prefixes(self, until_s: float) -> None:
        """Change what is said of prefixes, here names of topics as well, and at once what a topic says over it."""
        chance = self._prefix_chance
        while self._world.loop.time() < until_s:
            await asyncio.sleep(chance.expovariate(1 / _CHANGE_S))
            topic = chance.choice(self._topics)
            wanted = [
                SimpleNamespace(
                    topic=topic, is_prefix=True, group=None, dequeue_paused=chance.random() < 0.3,
                    enqueue_paused=chance.random() < 0.1, deliveries_per_second_max=chance.choice(_RATES),
                    weight=chance.choice([1, 1, 4]),
                )
            ]  # fmt: skip
            if chance.random() < 0.3:
                wanted.append(
                    SimpleNamespace(topic=topic, is_prefix=False, group=None, dequeue_paused=chance.random() < 0.5)
                )
            if await self._set_all(self._namespace, wanted):
                self._world.counts["policies of prefixes changed"] += 1

    async def _set_all(self, namespace: str, wanted: Sequence[SimpleNamespace]) -> bool:
        return await self._quietly(lambda door: door.admin.set_topic_policies(namespace, wanted), self._prefix_chance)

    async def _steady(self, until_s: float) -> None:
        """One cap of the namespace, or one of each topic, and other weights now and then."""
        chance = self._chance
        rate, is_of_namespace = chance.choice(_SHARED_RATES), chance.random() < 0.7
        while self._world.pick_host(chance) is None and self._world.loop.time() < until_s:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        if is_of_namespace:
            await self._limit_namespace(rate)
        for topic in self._topics:
            topic_rate = 0.0 if is_of_namespace else rate
            await self._set(topic, weight=chance.choice([1, 1, 4]), deliveries_per_second_max=topic_rate)

    async def lift(self) -> None:
        """Let everything go on, some of it at a rate: a restored meta database may have brought anything back."""
        tables = self._world.meta.tables
        numbers = {one.number: name for name, one in tables.namespaces.items()}
        for number, prefixes in list(tables.prefix_policies.items()):
            words = {"dequeue_paused": False, "enqueue_paused": False, "deliveries_per_second_max": 0.0, "weight": 1}
            wanted = [SimpleNamespace(topic=name, is_prefix=True, group=None, **words) for name in sorted(prefixes)]
            if number in numbers:
                await self._set_all(numbers[number], wanted)
        for number, policies in list(tables.policies.items()):
            for topic, policy in policies.items():
                is_slow = policy.deliveries_per_second_max not in _RATES_AT_REST
                if number in numbers and (policy.dequeue_paused or policy.enqueue_paused or is_slow):
                    rate = self._chance.choice(_RATES_AT_REST)
                    changes = {"dequeue_paused": False, "enqueue_paused": False, "deliveries_per_second_max": rate}
                    await self._set(topic, numbers[number], **changes)
        for name, namespace in list(tables.namespaces.items()):
            if namespace.settings.deliveries_per_second_max not in _RATES_AT_REST:
                await self._limit_namespace(self._chance.choice(_RATES_AT_REST), name)

    async def _set(self, topic: str, namespace: str = "", **changes: Any) -> None:
        name = namespace or self._namespace
        if await self._quietly(lambda door: door.admin.set_topic_policy(name, topic, **changes)):
            self._world.counts["policies changed"] += 1

    async def _limit_namespace(self, rate: float, namespace: str = "") -> None:
        changes = SimpleNamespace(deliveries_per_second_max=rate)
        await self._quietly(lambda door: door.admin.update_namespace(namespace or self._namespace, changes))

    async def _quietly(self, work: Callable[[FakeDoor], Awaitable[Any]], chance: random.Random | None = None) -> bool:
        """Whether it was done, as far as is known."""
        host = self._world.pick_host(chance or self._chance)
        try:
            if host is None:
                raise NotSentError("no host listens")
            await self._world.call(host, work, limits.CALL_MS_MAX / 1000 + 2)
        except FoqsError as error:
            self._world.trace("caps", f"failed: {error!r}")
            return False
        return True


class CapCheck:
    """What one dispatcher delivers, against what the settings of its host say: P10.

    `look` is called when the dispatcher has followed the settings, and `delivered` with the items of each answer.
    """

    def __init__(self, settings: SettingsTable) -> None:
        self._settings = settings
        self._followed: tuple[Policies, Policies] = ({}, {})
        """What was said of topics and of prefixes when what waits followed it last."""
        self._rates: dict[tuple[int, str], float] = {}
        self._levels: dict[tuple[int, str], tuple[float, float]] = {}
        """Of each cap: how much of its burst was used, and when."""
        self._version = -1

    def look(self) -> None:
        """Also what waits follows the settings from now on."""
        self._followed = self._settings.policies, self._settings.prefix_policies
        self._read_rates()

    def _read_rates(self) -> None:
        self._version = self._settings.version
        # A cap that has changed begins anew.
        self._levels = {key: level for key, level in self._levels.items() if self._rate_of(key) == self._rates[key]}

    def _rate_of(self, key: tuple[int, str]) -> float:
        number, name = key
        settings = self._settings
        if not name:
            return settings.caps.get(number, 0.0)
        rate: float = _said(settings.policies, settings.prefix_policies, number, name, "deliveries_per_second_max")
        return rate

    def delivered(self, items: list[ShardItem], now_s: float, *, is_shared: bool = False) -> Iterator[str]:
        if self._version != self._settings.version:
            self._read_rates()
        for item in items:
            topic = item.topic
            now = self._settings.policies, self._settings.prefix_policies
            if all(_said(*told, topic.namespace, topic.name, "dequeue_paused") for told in (now, self._followed)):
                yield f"P10: {item.key:x} of {topic.name} was delivered, which is paused"
            for key in ((topic.namespace, topic.name), (topic.namespace, "")):
                rate = self._rates[key] = self._rate_of(key)
                if rate and not is_shared:
                    level, at_s = self._levels.get(key, (0.0, now_s))
                    level = max(0.0, level - rate * (now_s - at_s)) + 1
                    self._levels[key] = (level, now_s)
                    if level > burst_of(rate) + 1e-6:
                        yield f"P10: {key} was delivered faster than {rate} a second: {level:.3f} at once"


def _said(policies: Policies, prefix_policies: Policies, number: int, name: str, field: str) -> Any:
    """What a field is for a topic by the words of operators, read as plainly as can be."""
    own, prefixes = policies.get(number, {}).get(name), prefix_policies.get(number, {})
    found = [prefix for prefix in prefixes if name.startswith(prefix)]
    base: TopicPolicy = prefixes[max(found, key=len)] if found else NO_POLICY
    return getattr(own if own is not None and own.is_set(field) else base, field)

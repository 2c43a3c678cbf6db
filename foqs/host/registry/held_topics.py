"""The topics, prefixes and slots of a census of which a shard holds items."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from itertools import islice

from foqs.model import limits
from foqs.model.census import Census, ClosedKind, bits_of
from foqs.model.namespace import SettingsTable
from foqs.model.serial import slot_of_hidden
from foqs.model.topic import ShardTopic
from foqs.model.topic_name import parts
from foqs.shard.state.engine import ShardState


class HeldTopics:
    """Finds the closed things of a census among the topics of a shard that hold items, which it sees one by one."""

    def __init__(self, census: Census, settings: SettingsTable) -> None:
        self._census = census
        self._settings = settings
        self._topics = frozenset(census.closed(ClosedKind.TOPIC))
        self._prefixes = census.closed(ClosedKind.PREFIX)
        self._slots = frozenset(map(int, census.closed(ClosedKind.SLOT)))
        self._held: set[tuple[ClosedKind, str]] = set()

    def see(self, number: int, name: str) -> None:
        """Note that the shard holds items of a topic, by its namespace and hidden name."""
        if number == self._census.topic_namespace:
            topic, _ = parts(name)
            if topic in self._topics:
                self._held.add((ClosedKind.TOPIC, topic))
            self._held |= {(ClosedKind.PREFIX, one) for one in self._prefixes if topic.startswith(one)}
        if self._slots and (slot := slot_of_serial(self._settings, number, name)) in self._slots:
            self._held.add((ClosedKind.SLOT, str(slot)))

    def bits(self) -> bytes:
        return bits_of([(one.kind, one.name) in self._held for one in self._census.closes])


def slot_of_serial(settings: SettingsTable, number: int, name: str) -> int | None:
    """Return the slot of a serial topic, of a group or a key of one too, by its hidden name; None for another topic."""
    if settings.serial_policy(number, name) is None or (namespace := settings.by_number.get(number)) is None:
        return None
    return slot_of_hidden(namespace.name, name)


async def held_slots(shard: ShardState, settings: SettingsTable, slots: Collection[int]) -> set[int]:
    """Return the slots among these that have items of serial topics on the shard, which takes no more meanwhile."""
    found: set[int] = set()
    async for topic in topics_holding(shard, 0, limits.TOPICS_PER_TICK_MAX):
        slot = slot_of_serial(settings, topic.namespace, topic.name)
        if slot is not None and slot in slots:
            found.add(slot)
    return found


async def topics_holding(shard: ShardState, namespace: int, at_a_time: int) -> AsyncIterator[ShardTopic]:
    """Yield the topics of a namespace, or of all for 0, that have items on the shard, also items not inserted yet.

    Each turn of the event loop reads `at_a_time` topics.
    """
    topics = iter(shard.topics_that_can_hold(namespace))
    while some := list(islice(topics, at_a_time)):
        for topic, is_waited_for in some:
            if is_waited_for or not topic.empty:
                yield topic
        await asyncio.sleep(0)

"""Serial topics: one item out at a time in the whole cluster, in the order of priority and commit.

The idea is RabbitMQ's queue with a single active consumer. The order is that of the keys, which a shard assigns, so no
clock has a part in it (docs/decisions/0068-serial-topics.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from foqs.model.errors import PausedError
from foqs.model.slots import SLOTS_COUNT, slot_of
from foqs.model.topic_name import base_of, described, of_topic, parts

if TYPE_CHECKING:
    from foqs.model.namespace import SettingsTable
    from foqs.model.policies import NamespacePolicies
    from foqs.model.policy import TopicPolicy

SERIAL_DUE_AT: Final = 0
"""The due time of the items of serial topics, which are sorted by their keys alone."""
KEY_BATCH_MAX: Final = 1_000
"""The largest key_batch."""
CLOSED_RETRY_MS: Final = 500
"""The retry_after_ms of an enqueue to a topic that is about to become serial."""


class OnDead(IntEnum):
    """The effect of a dead letter on the other items of a serial topic."""

    CONTINUE = 0
    """The next item is delivered."""
    HOLD = 1
    """Nothing is delivered until the dead letter is redriven, deleted or purged."""


class ClosedTopics:
    """The topics of a namespace that take no items during a census. It is immutable."""

    __slots__ = ("names", "prefixes")

    def __init__(self, names: Iterable[str], prefixes: Iterable[str]) -> None:
        self.names = frozenset(names)
        self.prefixes = tuple(prefixes)

    def has(self, topic: str) -> bool:
        return topic in self.names or topic.startswith(self.prefixes)


NONE_CLOSED = ClosedTopics((), ())


class Serials:
    """The serial topics of a namespace, and those that are about to be. It is immutable, so any thread can read it."""

    __slots__ = ("_closed", "_policies")

    def __init__(self, policies: NamespacePolicies, closed: ClosedTopics) -> None:
        self._policies = policies
        self._closed = closed

    def policy(self, name: str) -> TopicPolicy:
        """Return the policy that has the order of a topic: that of the topic itself, also for each of its groups."""
        return self._policies.of(parts(name)[0])

    def is_serial(self, topic: str) -> bool:
        """True if the topic is serial by its policy."""
        return self._policies.of(topic).serial

    def closed_fault(self, topic: str) -> PausedError | None:
        """Return the error for an item of a topic that is about to become serial, or None."""
        if not self._closed.has(base_of(topic)):
            return None
        return PausedError(
            f"{described(base_of(topic))} is about to become serial, and takes no items until all shards have "
            "answered: try again",
            retry_after_ms=CLOSED_RETRY_MS,
        )


def serial_slot(namespace_name: str, topic: str) -> int:
    """Return the slot whose shard has all items of a serial topic, and of its groups."""
    return slot_of(namespace_name, topic, SLOTS_COUNT)


def slot_of_serial(settings: SettingsTable, number: int, name: str) -> int | None:
    """Return the slot of a serial topic by its hidden name; None for another topic.

    Groups have the slot of their topic, ordering keys have their own.
    """
    if settings.serial_policy(number, name) is None or (namespace := settings.by_number.get(number)) is None:
        return None
    return serial_slot(namespace.name, of_topic(name))


def shown_due_at(due_at: int, enqueued_at: int) -> int:
    """Return the due time that callers see: items of serial topics are due since their enqueue."""
    return due_at or enqueued_at


def oldest_shown(due_at: int | None, enqueued_at: int) -> int | None:
    """Return the due time of the oldest ready item; `enqueued_at` stands for it in a serial topic, or 0 if unknown."""
    return (enqueued_at or None) if due_at == SERIAL_DUE_AT else due_at

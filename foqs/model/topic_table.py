"""All topics of one shard: by name, by number, and the serial ones by the slots of which they are."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from foqs.model.topic import NO_SLOT, ItemCounts, KeyedTopics, NamespaceTopics, ShardTopic
from foqs.model.topic_name import is_keyed


class TopicTable:
    """All topics of one shard."""

    __slots__ = (
        "by_number", "counted", "counts", "empty_keyed_since_ms", "empty_since_ms", "namespaces", "serial",
        "serial_by_slot", "shut_slots", "slot_of", "steady_ms", "topics",
    )  # fmt: skip

    def __init__(self, steady_ms: int, slot_of: Callable[[int, str], int | None]) -> None:
        """`slot_of` returns the slot of a serial topic, by its namespace and hidden name."""
        self.topics: dict[tuple[int, str], ShardTopic] = {}
        """Topics by namespace and name."""
        self.by_number: dict[int, ShardTopic] = {}
        self.namespaces: dict[int, NamespaceTopics] = {}
        """The namespaces that have topics, by number. A namespace that holds items is always among them."""
        self.counts = ItemCounts(None)
        self.counted = False
        """True if the counts are exact."""
        self.empty_since_ms: OrderedDict[ShardTopic, int] = OrderedDict()
        """The time at which a topic was last empty, the earliest first; it can hold items again."""
        self.empty_keyed_since_ms: OrderedDict[ShardTopic, int] = OrderedDict()
        """The same of keyed topics, which are forgotten sooner."""
        self.serial: dict[ShardTopic, None] = {}
        """The topics that deliver one item at a time."""
        self.serial_by_slot: dict[int, dict[ShardTopic, None]] = {}
        """The same topics, by slot."""
        self.shut_slots: frozenset[int] = frozenset()
        """The slots of whose serial topics another shard delivers."""
        self.slot_of = slot_of
        self.steady_ms = steady_ms
        """The time of the last tick."""

    def add(self, topic: ShardTopic) -> None:
        namespace = self.namespaces.get(topic.namespace)
        if namespace is None:
            namespace = self.namespaces[topic.namespace] = NamespaceTopics(self)
        topic.parent = topic.of_namespace = namespace
        if is_keyed(topic.name):
            self._add_keyed(topic, namespace)
        else:
            namespace.by_name[topic.name] = topic
        self.topics[topic.namespace, topic.name] = topic
        self.by_number[topic.number] = topic
        self.note_order(topic)
        self.note_empty(topic)

    def _add_keyed(self, topic: ShardTopic, namespace: NamespaceTopics) -> None:
        base = self.topics[topic.namespace, topic.base_name]
        if base.keyed is None:
            base.keyed = KeyedTopics(namespace)
        base.keyed.by_name[topic.name] = topic
        topic.parent, topic.base = base.keyed, base

    def remove(self, topic: ShardTopic) -> None:
        """Forget a topic that holds no items, and has no keyed topics."""
        del self.topics[topic.namespace, topic.name]
        del self.by_number[topic.number]
        self.empty_since_ms.pop(topic, None)
        self.empty_keyed_since_ms.pop(topic, None)
        self._forget_order(topic)
        if topic.base is not None:
            assert topic.base.keyed is not None, "it has this topic"
            del topic.base.keyed.by_name[topic.name]
            if not topic.base.keyed.by_name:
                topic.base.keyed = None
                self.note_empty(topic.base)
            return
        namespace = self.namespaces[topic.namespace]
        del namespace.by_name[topic.name]
        if not namespace.by_name:
            del self.namespaces[topic.namespace]

    def note_order(self, topic: ShardTopic) -> None:
        """Note if the topic is serial."""
        self._forget_order(topic)
        if topic.is_serial:
            self.serial[topic] = None
            slot = self.slot_of(topic.namespace, topic.name)
            if slot is not None:
                topic.slot = slot
                self.serial_by_slot.setdefault(slot, {})[topic] = None

    def _forget_order(self, topic: ShardTopic) -> None:
        self.serial.pop(topic, None)
        of_slot = self.serial_by_slot.get(topic.slot)
        if of_slot is not None:
            of_slot.pop(topic, None)
            if not of_slot:
                del self.serial_by_slot[topic.slot]
        topic.slot = NO_SLOT

    def shut(self, slots: frozenset[int]) -> list[ShardTopic]:
        """Deliver no item of the serial topics of these slots, and of no others. Returns those that deliver again."""
        opened, self.shut_slots = self.shut_slots - slots, slots
        if not opened or not self.serial_by_slot:
            return []
        return [topic for slot in opened for topic in self.serial_by_slot.get(slot, ())]

    def note_empty(self, topic: ShardTopic) -> None:
        """Note that the topic is empty, as far as is known."""
        since_ms = self.empty_since_ms if topic.base is None else self.empty_keyed_since_ms
        since_ms.pop(topic, None)
        since_ms[topic] = self.steady_ms

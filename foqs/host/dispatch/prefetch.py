"""The memory of prefetched items, and an upper bound of the memory of items being claimed."""

from __future__ import annotations

from operator import attrgetter

from foqs.model import limits
from foqs.model.item import ShardItem
from foqs.model.namespace import SettingsTable
from foqs.model.topic import ShardTopic

_size_bytes = attrgetter("size_bytes")


class PrefetchMemory:
    """The memory of prefetched items on the host, and the most memory that items of claims in flight can take.

    The dispatcher owns it, reports every claim and item to it, and reads the room left.
    """

    def __init__(self, settings: SettingsTable) -> None:
        self.prefetched_bytes = 0
        """Payload and metadata of all prefetch buffers."""
        self._settings = settings
        self._claiming_bytes = 0
        self._claiming_bytes_of: dict[ShardTopic, int] = {}
        """The bytes of claims in flight by topic, of healthy shards only, because a sick shard's come late, or never.
        """

    def room(self, namespace: int) -> int:
        """Return the number of items, each of the largest size, that fit; at least one, so that work continues."""
        bytes_left = limits.PREFETCH_BYTES_MAX - self.prefetched_bytes - self._claiming_bytes
        return max(1, bytes_left // self._bytes_each(namespace))

    def release(self, items: list[ShardItem]) -> None:
        self.prefetched_bytes -= sum(map(_size_bytes, items))

    def claims_started(self, topic: ShardTopic, count: int) -> None:
        size_bytes = count * self._bytes_each(topic.namespace)
        self._claiming_bytes_of[topic] = self._claiming_bytes_of.get(topic, 0) + size_bytes
        self._claiming_bytes += size_bytes

    def claims_ended(self, topic: ShardTopic, count: int, items: list[ShardItem]) -> None:
        """Note that `count` claims of a topic ended and brought `items`; its `claiming_count` claims remain."""
        if items:
            sizes_bytes = list(map(_size_bytes, items))
            self.prefetched_bytes += sum(sizes_bytes)
            self._settings.note_item_bytes(topic.namespace, max(sizes_bytes))
        size_bytes = self._claiming_bytes_of.pop(topic, 0)
        if size_bytes:
            left_bytes = size_bytes * topic.claiming_count // (topic.claiming_count + count)
            self._claiming_bytes -= size_bytes - left_bytes
            if left_bytes:
                self._claiming_bytes_of[topic] = left_bytes

    def forget_claims(self, topic: ShardTopic) -> None:
        self._claiming_bytes -= self._claiming_bytes_of.pop(topic, 0)

    def _bytes_each(self, namespace: int) -> int:
        return limits.RESIDENT_ITEM_BYTES + self._settings.item_bytes_max(namespace)

"""The facts of one shard that the parts of its state share: topics, open leases, resident payloads."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from foqs.model import ids, limits, order
from foqs.model.errors import FoqsError, OverloadedError
from foqs.model.item import Phase, ShardItem, divide, keys_of, move_all, sort_keys_of
from foqs.model.namespace import Namespace, SettingsTable, number_in_use
from foqs.model.serial import slot_of_serial
from foqs.model.topic import ItemCounts, NamespaceTopics, ShardTopic
from foqs.model.topic_name import base_of, is_keyed
from foqs.model.topic_table import TopicTable
from foqs.model.window_budget import WindowBudget
from foqs.shard.port import ClaimedRow, FetchedRow, ItemRow, ShardImage
from foqs.shard.state.events import Events

ENQUEUE_BUFFER_RETRY_MS = 200
"""The retry_after_ms of an enqueue for which all buffers are full."""
READ_US_TARGET = 10_000
"""Target time of the reads of a transaction, in microseconds. If they take longer, the next transaction reads less,
because everything else in it waits.
"""
READ_ROWS_FIRST = 1_000
"""Rows that a transaction can read before the speed of the server is known."""
READ_ROWS_MIN = 32
"""The fewest rows that a transaction reads, even if reads are slow."""
READ_ROWS_MAX = 8_000
"""The most rows that a transaction reads to refill windows, and as many again for claims. Either can exceed it by
READ_ROWS_MIN.
"""


class ShardIndex:
    """The facts that the parts of one shard's state share: topics by name and number, open leases, resident items.

    The engine makes it when the shard is opened. It owns the sequence of keys and the counts of items. Every part of
    the state reads and changes it; other modules only read it.
    """

    def __init__(self, shard_id: int, image: ShardImage, settings: SettingsTable) -> None:
        self.shard_id = shard_id
        self.epoch = image.epoch
        self.settings = settings
        self.events = Events()
        """The events since they were last taken."""
        self.topic_table = TopicTable(
            image.steady_ms, lambda namespace, name: slot_of_serial(self.settings, namespace, name)
        )
        self.topics = self.topic_table.topics
        """Topics by namespace and name."""
        self.by_number = self.topic_table.by_number
        self.topic_number_last = image.topic_number_last
        self.namespace_names = {number: name.decode() for number, name in image.namespaces}
        """Names of namespaces by number, as the shard has them: those with topics here, and the greatest number."""
        self.budget = WindowBudget()
        self.read_budget = ReadBudget()
        self.leases: dict[int, ShardItem] = {}
        """Every item that is not ready: claimed, held, delivered or being settled."""
        self.resident: OrderedDict[int, ShardItem] = OrderedDict()
        """The ready items whose contents are in memory."""
        self.on_divided: list[Callable[[ShardItem, list[ShardItem]], None]] = []
        """Called with a bundle and its parts by those who hold bundles."""
        self.waiting_calls_count = 0
        """Calls that enqueued or settled items here and wait for the next transaction."""
        self.expires_first_ms = 0
        """No TTL ends before it, except of dead letters and of rows that the TTL scan has not read yet; 0 while
        unknown.
        """
        self._resident_bytes = 0
        self.last_key = image.last_key
        stored = [(number, namespace, name.decode()) for number, namespace, name in image.topics]
        for number, namespace, name in sorted(stored, key=_is_keyed_topic):  # A base comes before its keyed topics.
            topic = ShardTopic(shard_id, number, namespace, name, self.budget, self.leases, stored=True)
            topic.follow(settings.serial_policy(namespace, topic.name))
            if (base := self._missing_base(namespace, name)) is not None:
                self._add_read_base(base, stored)
            self.topic_table.add(topic)
        self.budget.share(len(self.topics))

    @property
    def counted(self) -> bool:
        """True if the topics' counts are exact."""
        return self.topic_table.counted

    @counted.setter
    def counted(self, counted: bool) -> None:
        self.topic_table.counted = counted

    @property
    def serial_topics(self) -> list[ShardTopic]:
        """The topics that deliver one item at a time."""
        return list(self.topic_table.serial)

    @property
    def counts(self) -> ItemCounts:
        """Items of the shard by state; exact once `counted`."""
        return self.topic_table.counts

    @property
    def namespaces(self) -> dict[int, NamespaceTopics]:
        """The namespaces that have topics here by number, each with the counts of its items and its topics by name.

        Exact once `counted`. Another thread can walk a copy of it.
        """
        return self.topic_table.namespaces

    def name_namespace(self, namespace: Namespace) -> None:
        """Record the name of a namespace before its first items.

        Raises UnavailableError if another one has its number.
        """
        name = self.namespace_names.setdefault(namespace.number, namespace.name)
        if not namespace.is_known_as(name):
            raise number_in_use(namespace, name, self.shard_id)

    def next_key(self) -> int:
        self.last_key += 1
        return self.last_key

    def next_keys(self, count: int) -> int:
        """Return the first one of this many consecutive keys."""
        first = self.last_key + 1
        self.last_key += count
        return first

    @property
    def keys_left_count(self) -> int:
        """The number of keys left in the epoch; the first key beyond it is of the next epoch."""
        return ((self.epoch + 1) << ids.SEQUENCE_BITS) - 1 - self.last_key

    def begin_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        self.last_key = epoch << ids.SEQUENCE_BITS

    def overloaded(self, what: str) -> OverloadedError:
        return OverloadedError(
            f"shard {self.shard_id} does not keep up, {what}: nothing was done",
            retry_after_ms=ENQUEUE_BUFFER_RETRY_MS,
        )

    def topic(self, namespace: int, name: str) -> ShardTopic:
        """Return the topic, which is made on first use. Raises OverloadedError."""
        topic = self.topics.get((namespace, name))
        if topic is None:
            base = self._missing_base(namespace, name)
            topic = self.new_topic(namespace, name, beside=0 if base is None else 1)
            if base is not None:
                self._add_base(base, self.topic_number_last + 1)
            self.add_topic(topic)
        return topic

    def _missing_base(self, namespace: int, name: str) -> ShardTopic | None:
        """Return the base of a keyed topic, without a number, if the shard lacks it."""
        base = base_of(name)
        return self.draft_topic(namespace, base) if base != name and (namespace, base) not in self.topics else None

    def _add_base(self, base: ShardTopic, number: int) -> None:
        """Add the base of a keyed topic, which is stored once it has items of its own."""
        base.number = number
        self.topic_table.add(base)
        self.topic_number_last = max(self.topic_number_last, number)
        self.events.topics_changed[base] = None

    def _add_read_base(self, base: ShardTopic, stored: Sequence[tuple[int, int, str]]) -> None:
        """Add a base while the stored topics are read, if need be with a number that was used and is free again."""
        number = self.topic_number_last + 1
        if number > limits.TOPIC_NUMBER_MAX:
            used = {other for other, _, _ in stored}.union(self.by_number)
            number = next(free for free in range(limits.TOPIC_NUMBER_MAX, 0, -1) if free not in used)
        self._add_base(base, number)

    def new_topic(self, namespace: int, name: str, beside: int = 0) -> ShardTopic:
        """Make a topic that counts only after `add_topic`, besides `beside` others. Raises OverloadedError."""
        self.check_room_for_topics(beside + 1)
        number = self.topic_number_last + beside + 1
        if number > limits.TOPIC_NUMBER_MAX:
            raise OverloadedError(
                f"shard {self.shard_id} has named {limits.TOPIC_NUMBER_MAX} topics in its life, which is its limit: "
                "use topics that are there, and let an operator drain the shard and make it anew"
            )
        return self._made(ShardTopic(self.shard_id, number, namespace, name, self.budget, self.leases, stored=False))

    def check_room_for_topics(self, count: int) -> None:
        """Raise OverloadedError if the shard has no room for `count` more topics."""
        if len(self.topics) + count > limits.TOPICS_PER_SHARD_MAX:
            raise OverloadedError(
                f"shard {self.shard_id} has {len(self.topics)} topics, ordering keys included, and "
                f"{limits.TOPICS_PER_SHARD_MAX} is its limit: use fewer topics or keys",
                retry_after_ms=limits.TOPIC_IDLE_MS,
            )

    def _made(self, topic: ShardTopic) -> ShardTopic:
        topic.follow(self.settings.serial_policy(topic.namespace, topic.name))
        return topic

    def draft_topic(self, namespace: int, name: str) -> ShardTopic:
        """Make a topic without a number, for items that might not be made; `add_drafts` replaces it by the real one."""
        return self._made(ShardTopic(self.shard_id, 0, namespace, name, self.budget, self.leases, stored=False))

    def add_drafts(self, items: Sequence[ShardItem]) -> dict[ShardTopic, FoqsError]:
        """Move items, which are now made, from drafts to real topics. Returns the drafts for which no room is left."""
        drafts = [topic for topic in dict.fromkeys([item.topic for item in items]) if not topic.number]
        if not drafts:
            return {}
        added: dict[ShardTopic, ShardTopic] = {}
        refused: dict[ShardTopic, FoqsError] = {}
        for draft in drafts:
            try:
                added[draft] = topic = self.topic(draft.namespace, draft.name)
            except OverloadedError as error:
                refused[draft] = error.with_traceback(None)
            else:
                topic.has_places = topic.has_places or draft.has_places  # The items have them already.
        for item in items:
            item.topic = added.get(item.topic, item.topic)
        return refused

    def add_topic(self, topic: ShardTopic) -> None:
        """Add a new topic to the shard. Topics are added in the order in which they were made."""
        self.topic_number_last = topic.number
        self.topic_table.add(topic)
        self.budget.share(len(self.topics))

    def remove_topic(self, topic: ShardTopic) -> None:
        self.topic_table.remove(topic)
        self.budget.items_count -= len(topic.window)
        self.budget.share(len(self.topics))

    def sort_key_of(self, row: ItemRow) -> int:
        return order.sort_key(row.urgency, row.due_at, row.key, self.shard_id)

    def make_ready(self, topic: ShardTopic, items: Sequence[ShardItem], old: Phase) -> None:
        """Make items of the topic, all in the phase `old`, claimable, and keep their contents in memory.

        The caller must report the change of the topic, unless the dispatcher itself caused it.
        """
        for item in items:
            item.lease_due_at = item.delivered_at = 0
        self.keep_resident(items)
        move_all(topic, items, old, Phase.READY)
        topic.window.add_all(sort_keys_of(items))

    def take_ready(self, row: ItemRow) -> ShardItem:
        """Take a ready row out of its window, so that it is not claimed."""
        sort_key = self.sort_key_of(row)
        item = self.one(self.resident.get(row.key), row.key) or ShardItem(
            row.key, self.by_number[row.topic], row.priority, row.due_at, sort_key
        )
        item.topic.window.remove(sort_key)
        self.events.topics_changed[item.topic] = None
        self.drop_resident(item)
        self.leases[row.key] = item
        return item

    def add_leases(self, items: Iterable[ShardItem]) -> None:
        for item in items:
            if item.bundle is None:
                self.leases[item.key] = item
            else:
                self.leases.update(dict.fromkeys(item.keys, item))

    def end_leases(self, items: Iterable[ShardItem]) -> None:
        leases = self.leases
        for key in keys_of(items):
            del leases[key]

    def leased(self, key: int) -> ShardItem | None:
        """Return the item with this key by itself, if it is not ready."""
        return self.one(self.leases.get(key), key)

    def one(self, item: ShardItem | None, key: int) -> ShardItem | None:
        """Return the item with this key by itself, though the one that was found can be a bundle.

        A bundle that is being settled stays whole, because it ends as a whole.
        """
        if item is None or item.bundle is None or item.phase is Phase.SETTLING:
            return item
        return self.divide(item)[key - item.key]

    def ones(self, items: Iterable[ShardItem]) -> list[ShardItem]:
        """Return the items, each by itself."""
        return [one for item in items for one in ([item] if item.bundle is None else self.divide(item))]

    def divide(self, item: ShardItem, at: int | None = None) -> list[ShardItem]:
        """Divide a bundle before its item number `at`, or into its single items, for all who hold it."""
        parts = divide(item, at)
        resident = self.resident
        if resident.get(item.key) is item:
            for part in parts:
                resident.update(dict.fromkeys(part.keys, part))
        for on_divided in self.on_divided:
            on_divided(item, parts)
        return parts

    def drop_resident(self, item: ShardItem) -> None:
        if self.resident.get(item.key) is item:
            for key in item.keys:
                del self.resident[key]
            self._resident_bytes -= item.count * limits.RESIDENT_ITEM_BYTES + item.size_bytes

    def take_resident(self, topic: ShardTopic, sort_keys: Sequence[int]) -> list[ShardItem]:
        """Take ready items out of memory to claim them; their sort keys are neighbours in the window.

        A bundle is divided if it stands there in part. An item whose content is not in memory is made anew.
        """
        resident, found = self.resident, list[ShardItem]()
        at, end = 0, len(sort_keys)
        while at < end:
            sort_key = sort_keys[at]
            key = order.key_of(sort_key)
            item = resident.get(key)
            if item is None:
                item = ShardItem(key, topic, order.urgency_of(sort_key), order.due_at_of(sort_key), sort_key)
            else:
                if item.bundle is not None:
                    item = self._standing(item, key, sort_keys, at)
                self.drop_resident(item)
            found.append(item)
            at += item.count
        return found

    def _standing(self, item: ShardItem, key: int, sort_keys: Sequence[int], at: int) -> ShardItem:
        """Return the part of a bundle that stands at `at`, with nothing else among its items."""
        count = min(item.count, len(sort_keys) - at)
        # No other place is between those of a bundle, so that its first and last one tell that all are there.
        if item.key == key and sort_keys[at + count - 1] == item.sort_keys[count - 1]:
            return item if count == item.count else self.divide(item, count)[0]
        return self.divide(item)[key - item.key]

    def keep_resident(self, items: Sequence[ShardItem]) -> None:
        """Keep the contents of ready items in memory while room is left."""
        resident = self.resident
        for item in items:
            if item.content is not None:
                if item.bundle is None:
                    resident[item.key] = item
                else:
                    resident.update(dict.fromkeys(item.keys, item))
                self._resident_bytes += item.count * limits.RESIDENT_ITEM_BYTES + item.size_bytes
        while self._resident_bytes > limits.RESIDENT_BYTES_MAX:
            # In a plain dict the first entry stands behind the gaps of all removed entries.
            self.drop_resident(next(iter(resident.values())))


class ReadBudget:
    """The number of rows that a transaction can read without a long delay for its other work.

    In the server's cache a row takes microseconds, on its disk a hundred times as much, and a backlog can outgrow the
    cache. The place of a row is unknown, so the number follows the time of past reads, as a congestion window follows
    the fate of packets (Jacobson, Congestion Avoidance and Control, 1988).

    `rows_max` applies to the topics whose windows a transaction refills together, and to the items that it claims.
    """

    def __init__(self) -> None:
        self.rows_max = READ_ROWS_FIRST

    def read(self, row_count: int, elapsed_us: int) -> None:
        """Note a transaction's reads: their rows, and their time on the server in microseconds.

        Rows of many topics share a page, so fast reads follow a slow one and say little of the next page. Therefore the
        number grows slowly, and only by reads that made use of it. A read that was slow by chance costs three quarters
        at most.
        """
        target_us = READ_US_TARGET
        if elapsed_us > target_us and row_count > READ_ROWS_MIN:
            fitting = min(row_count, self.rows_max) * target_us // elapsed_us
            self.rows_max = max(READ_ROWS_MIN, min(self.rows_max, fitting), self.rows_max // 4)
        elif elapsed_us <= target_us // 2 and row_count >= self.rows_max // 2:
            self.rows_max = min(READ_ROWS_MAX, self.rows_max + self.rows_max // 32 + 1)


def _is_keyed_topic(stored: tuple[int, int, str]) -> bool:
    return is_keyed(stored[2])


def fill(item: ShardItem, row: ItemRow | FetchedRow) -> None:
    """Fill in an item that was known by its sort key alone, from its row."""
    fill_head(item, row)
    item.content = row.content
    item.size_bytes = sum(map(len, row.content))


def fill_head(item: ShardItem, row: ItemRow | FetchedRow | ClaimedRow) -> None:
    """Fill in all but the content of an item."""
    item.priority = row.priority  # The sort key alone has only the urgency.
    item.enqueued_at = row.enqueued_at
    item.expires_at = row.expires_at
    item.lease_ms = row.lease_ms
    item.at_most_once = bool(row.at_most_once)
    item.deliveries = row.deliveries
    item.failed_attempts = row.failed_attempts
    item.was_dead = bool(row.was_dead)

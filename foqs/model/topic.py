"""The topics of one shard: of each its number, its ready window and its exact counts; by namespace in order."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sized

from sortedcontainers import SortedDict

from foqs.model import limits, order
from foqs.model.counts import ItemCounts
from foqs.model.window import ReadyWindow, WindowBudget


class NamespaceTopics(ItemCounts):
    """What one namespace has on one shard: the counts of its topics together, and the topics by name, in order."""

    __slots__ = ("_table", "by_name")

    def __init__(self, table: TopicTable) -> None:
        super().__init__(table.counts)
        self._table = table
        self.by_name: SortedDict = SortedDict()
        """ShardTopic by name."""

    def after(self, name: str, prefix: str) -> Iterator[ShardTopic]:
        """Its topics whose names come after `name` and begin with `prefix`, in the order of their names."""
        is_within = prefix <= name
        by_name = self.by_name
        for found in by_name.irange(name if is_within else prefix, inclusive=(not is_within, True)):
            if not found.startswith(prefix):
                return
            yield by_name[found]

    def emptied(self, topic: ShardTopic) -> None:
        self._table.note_empty(topic)


class TopicTable:
    """All topics of one shard."""

    __slots__ = ("by_number", "counts", "empty_since_ms", "namespaces", "steady_ms", "topics")

    def __init__(self, steady_ms: int) -> None:
        self.topics: dict[tuple[int, str], ShardTopic] = {}
        """By namespace and name."""
        self.by_number: dict[int, ShardTopic] = {}
        self.namespaces: dict[int, NamespaceTopics] = {}
        """By number, those that have topics: one that holds items is always here."""
        self.counts = ItemCounts(None)
        """Of the parent shard."""
        self.empty_since_ms: OrderedDict[ShardTopic, int] = OrderedDict()
        """When a topic was empty last, the first one first; it may hold items again."""
        self.steady_ms = steady_ms
        """The time of the last tick."""

    def add(self, topic: ShardTopic) -> None:
        namespace = self.namespaces.get(topic.namespace)
        if namespace is None:
            namespace = self.namespaces[topic.namespace] = NamespaceTopics(self)
        namespace.by_name[topic.name] = topic
        topic.parent = topic.of_namespace = namespace
        self.topics[topic.namespace, topic.name] = topic
        self.by_number[topic.number] = topic
        self.note_empty(topic)

    def remove(self, topic: ShardTopic) -> None:
        """Forget a topic that holds no items."""
        del self.topics[topic.namespace, topic.name]
        del self.by_number[topic.number]
        self.empty_since_ms.pop(topic, None)
        namespace = self.namespaces[topic.namespace]
        del namespace.by_name[topic.name]
        if not namespace.by_name:
            del self.namespaces[topic.namespace]

    def note_empty(self, topic: ShardTopic) -> None:
        """From now on it is empty, as far as is known."""
        self.empty_since_ms.pop(topic, None)
        self.empty_since_ms[topic] = self.steady_ms


class ShardTopic(ItemCounts):
    """The counts are what changed since the take-over until the shard's rows are counted, and exact after."""

    __slots__ = (
        "_leases",
        "claim_head",
        "claiming_count",
        "name",
        "namespace",
        "number",
        "of_namespace",
        "shard_id",
        "stored",
        "window",
    )

    def __init__(
        self,
        shard_id: int,
        number: int,
        namespace: int,
        name: str,
        budget: WindowBudget,
        leases: Sized,
        *,
        stored: bool,
    ) -> None:
        super().__init__(None)
        self.of_namespace: NamespaceTopics | None = None
        """None while it is no topic of the shard: then nothing counts."""
        self.shard_id = shard_id
        self.number = number
        self.namespace = namespace
        self.name = name
        self.stored = stored
        """Its row is in the topic table."""
        self._leases = leases
        """Of the parent shard."""
        self.window = ReadyWindow(budget, complete=not stored)
        self.claim_head = order.LAST
        """The first sort key that was taken from the window and whose claim is not committed yet."""
        self.claiming_count = 0
        """Claims on the way to the database."""

    def count(self, rows: int = 0, leased: int = 0, delayed: int = 0, dead: int = 0) -> None:
        super().count(rows, leased, delayed, dead)
        if self.of_namespace is not None and self.empty:
            self.of_namespace.emptied(self)

    @property
    def empty(self) -> bool:
        return not (self.rows or self.delayed or self.dead)

    @property
    def room(self) -> int:
        """How many items more may be claimed.

        A topic may have so many times what is left free to all: one that never settles leaves room for the others
        (dynamic thresholds, Choudhury and Hahne 1998).
        """
        ratio, free = limits.OPEN_LEASES_OF_TOPIC_RATIO, limits.OPEN_LEASES_MAX - len(self._leases)
        spare = ratio * free - self.leased - self.claiming_count
        return (spare + ratio) // (ratio + 1) if spare > 0 else 0  # Each one claimed is one less that is free, too.

    @property
    def first_sort_key(self) -> int:
        """The most urgent item that can be claimed or is being claimed; the last sort key when there is none."""
        head = self.window.head
        return head if head < self.claim_head and self.room else self.claim_head

    def __repr__(self) -> str:
        return f"ShardTopic({self.shard_id}, {self.name!r})"

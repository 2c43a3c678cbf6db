"""One topic on one shard: its number, its ready window and its exact counts."""

from __future__ import annotations

from collections.abc import Sized

from foqs.core import limits, order
from foqs.core.window import Window, WindowBudget


class ShardTopic:
    """The counts are what changed since the take-over until the shard's rows are counted, and exact after."""

    __slots__ = (
        "_leases",
        "claim_head",
        "claiming_bytes",
        "claiming_count",
        "dead",
        "delayed",
        "empty_since_ms",
        "lease_ms",
        "leased",
        "name",
        "namespace",
        "number",
        "pack_count",
        "rows",
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
        self.shard_id = shard_id
        self.number = number
        self.namespace = namespace
        self.name = name
        self.stored = stored
        """Its row is in the topic table."""
        self._leases = leases
        """Of the whole shard."""
        self.window = Window(budget, complete=not stored)
        self.rows = 0
        """Of the topic's lane: ready, claimed or under lease."""
        self.pack_count = 0
        """Packs that hold, or have held, items of the topic: while there are any, no query finds all its items."""
        self.leased = 0
        self.lease_ms = limits.LEASE_MS_DEFAULT
        """The longest lease that its consumers lately asked for."""
        self.delayed = 0
        self.dead = 0
        self.empty_since_ms = 0
        self.claim_head = order.LAST
        """The first place that was taken from the window and whose claim is not committed yet."""
        self.claiming_count = 0
        """Claims on the way to the database."""
        self.claiming_bytes = 0
        """The most that their items may have; of a sick shard they do not count."""

    @property
    def ready(self) -> int:
        return self.rows - self.leased

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
    def first_place(self) -> int:
        """The most urgent item that can be claimed or is being claimed; the last place when there is none."""
        head = self.window.head
        return head if head < self.claim_head and self.room else self.claim_head

    def __repr__(self) -> str:
        return f"ShardTopic({self.shard_id}, {self.name!r})"

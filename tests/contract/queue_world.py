"""A queue as its users see it: a foqs.testing.MemoryQueue, or a host with MySQL (the fixture `world`)."""

from __future__ import annotations

from dataclasses import dataclass

import foqs
from foqs import RetryPolicy

NS = "default"
ONCE = RetryPolicy(deadline_ms=0)
SECOND_MS = 1_000


@dataclass(frozen=True, slots=True)
class World:
    client: foqs.Client
    admin: foqs.AdminClient
    idempotent: foqs.Client
    """Gives every item a dedup id of its own."""

    def payloads(self, topic: str = "t", count: int = 10, wait_ms: int = 0) -> list[bytes]:
        """Take items and leave their leases open."""
        return [item.payload for item in self.client.dequeue(NS, topic, count, wait_ms=wait_ms)]

    def let_pass(self, wait_ms: int) -> None:
        """Let time go by."""
        assert not self.client.dequeue(NS, "nothing comes here", 1, wait_ms=wait_ms)

    def dead(self, topic: str = "t") -> list[foqs.StoredItem]:
        return list(self.admin.list_dead_letters(NS, topic, 10).items)

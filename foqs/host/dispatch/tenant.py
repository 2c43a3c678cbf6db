"""One namespace on this host: its cap, its weighted turns, and the calls that take items of any of its topics."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from foqs.model.caps import Cap

if TYPE_CHECKING:
    from foqs.host.dispatch.topic_queue import DequeueCall, TopicQueue


class ReadyRing:
    """The topics of a namespace that begin with a prefix and may have something to give, in a round.

    Whose turn it is gets as many items as it has credit, which grows by its weight with each turn (weighted deficit
    round robin, Shreedhar and Varghese 1996). A topic that has nothing to give, or must not, stands in no ring.
    """

    __slots__ = ("current", "entries", "hungry", "prefix", "tenant", "unfilled", "used_s")

    def __init__(self, tenant: Tenant, prefix: str) -> None:
        self.tenant = tenant
        self.prefix = prefix
        self.entries: OrderedDict[TopicQueue, int] = OrderedDict()
        """The credit of each topic, the one whose turn it is first."""
        self.current: TopicQueue | None = None
        """The topic whose turn has begun."""
        self.hungry: dict[DequeueCall, None] = {}
        """Calls that want something of any of these topics, the oldest first."""
        self.unfilled: list[list[TopicQueue]] = []
        """Topics that may belong into it and were there before it."""
        self.used_s = 0.0
        """When a call named the prefix last."""

    def turn(self) -> tuple[TopicQueue, int]:
        """The topic whose turn it is, which begins if it has not, and the topic's credit."""
        queue = next(iter(self.entries))
        if self.current is not queue:
            self.current = queue
            self.entries[queue] += queue.weight
        return queue, self.entries[queue]

    def end_turn(self, queue: TopicQueue, credit: int) -> None:
        """End the turn of a topic that has so much credit left; without credit the turn goes to the next one."""
        self.entries[queue] = credit
        if credit <= 0:
            self.current = None
            self.entries.move_to_end(queue)


class Tenant:
    """One namespace on this host, as far as it is a part of who gets which item. The dispatcher makes it."""

    __slots__ = (
        "cap", "hungry_count", "is_any_first", "namespace", "parked_slot", "prefix_lengths", "queues_count", "ring",
        "rings", "starved", "turn_count", "version",
    )  # fmt: skip

    def __init__(self, namespace: int) -> None:
        self.namespace = namespace
        self.version = -1
        """The version up to which its settings are known."""
        self.cap: Cap | None = None
        self.queues_count = 0
        self.ring = ReadyRing(self, "")
        """All its topics."""
        self.rings: dict[str, ReadyRing] = {}
        """The rings of calls that name a prefix, by it."""
        self.prefix_lengths: list[int] = []
        """The lengths of these prefixes, each once."""
        self.hungry_count = 0
        """Calls in all rings that want something of any topic."""
        self.starved: OrderedDict[TopicQueue, None] = OrderedDict()
        """Topics with calls that wait for a token of the namespace, in the order in which they get one."""
        self.parked_slot = 0
        """The slot of the wheel until which it waits for a token; 0 when it does not."""
        self.is_any_first = False
        """The last time calls for any topic took their tokens first, and the next time topics that wait for them do."""
        self.turn_count = 0
        """The tokens that each of them may take now; 0 while it is none's turn."""

    def rings_of(self, name: str) -> list[ReadyRing]:
        """The rings that a topic may stand in."""
        if not self.rings:
            return [self.ring]
        prefixes = {name[:length] for length in self.prefix_lengths}
        return [self.ring, *[self.rings[prefix] for prefix in prefixes if prefix in self.rings]]

    def enter(self, queue: TopicQueue) -> None:
        """Let a topic stand in the ring: it may have something to give."""
        queue.in_ring = True
        for ring in self.rings_of(queue.name):
            ring.entries.setdefault(queue, 0)

    def leave(self, queue: TopicQueue) -> None:
        """Take a topic out of the ring: it has nothing to give, or must not."""
        queue.in_ring = False
        for ring in self.rings_of(queue.name):
            ring.entries.pop(queue, None)
            if ring.current is queue:
                ring.current = None

    def wait(self, call: DequeueCall) -> None:
        """The call wants something of any topic of its ring."""
        ring = call.ring
        assert ring is not None
        if call not in ring.hungry:
            ring.hungry[call] = None
            self.hungry_count += 1

    def stop_waiting(self, call: DequeueCall) -> None:
        ring = call.ring
        assert ring is not None
        if call in ring.hungry:
            del ring.hungry[call]
            self.hungry_count -= 1

"""The prefetch buffer against a plain sorted list."""

from __future__ import annotations

from hypothesis import settings, strategies
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from foqs.host.dispatch.prefetch_buffer import PrefetchBuffer
from foqs.model import order
from foqs.model.item import ShardItem
from foqs.model.topic import ShardTopic
from foqs.model.window_budget import WindowBudget

TOPIC = ShardTopic(3, 1, 1, "t", WindowBudget(), {}, stored=True)


class BufferAndList(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.buffer = PrefetchBuffer()
        self.held: list[ShardItem] = []
        """In the order in which they came."""
        self.key = 0

    def ordered(self) -> list[ShardItem]:
        return sorted(self.held, key=lambda item: item.sort_key)

    @rule(urgencies=strategies.lists(strategies.integers(0, 3), min_size=1, max_size=70))
    def add(self, urgencies):
        items = []
        for urgency in urgencies:
            self.key += 1
            items.append(ShardItem(self.key, TOPIC, urgency, 5, order.sort_key(urgency, 5, self.key, 3)))
        self.buffer.add(items)
        self.held += items

    @precondition(lambda self: self.held)
    @rule(count=strategies.integers(1, 20))
    def take(self, count):
        first = self.ordered()[:count]
        assert self.buffer.most_urgent(len(first)) == first
        self.buffer.take(len(first))
        for item in first:
            self.held.remove(item)

    @precondition(lambda self: self.held)
    @rule(data=strategies.data())
    def discard(self, data):
        item = data.draw(strategies.sampled_from(self.held))
        self.buffer.discard(item)
        self.held.remove(item)

    @rule(rest=strategies.integers(0, 4))
    def remove(self, rest):
        unwanted = [item for item in self.held if item.key % 5 == rest]
        self.buffer.remove(unwanted)
        self.held = [item for item in self.held if item not in unwanted]

    @rule(urgency=strategies.integers(-1, 4), key=strategies.integers(0, 500), bound=strategies.integers(0, 200))
    def count_up_to(self, urgency, key, bound):
        sort_key = order.sort_key(urgency, 5, key, 3)
        count = len([item for item in self.held if item.sort_key <= sort_key])
        assert self.buffer.count_up_to(sort_key, bound) == min(count, bound)

    @invariant()
    def they_agree(self):
        ordered = self.ordered()
        assert len(self.buffer) == len(ordered)
        assert self.buffer.items == self.held
        assert self.buffer.last == (ordered[-1].sort_key if ordered else order.FIRST)
        assert [self.buffer.place_at(rank) for rank in range(1, len(ordered) + 1)] == [
            item.sort_key for item in ordered
        ]


TestBufferAndList = BufferAndList.TestCase
TestBufferAndList.settings = settings(max_examples=60, stateful_step_count=30)

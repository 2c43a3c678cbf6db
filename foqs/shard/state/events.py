"""What a shard tells whoever hands out its items: plain values, which it gives when it is asked, and nobody is called.

As with the Ready of etcd's raft: who called the shard takes the events afterwards, when all of the call is done.
"""

from __future__ import annotations

from typing import NamedTuple

from foqs.model.errors import FoqsError
from foqs.model.item import ItemEvent, ShardItem
from foqs.model.topic import ShardTopic
from foqs.shard.port import ItemRow
from foqs.shard.state.callers import Completion, LookUp


class LookedUp(NamedTuple):
    """What became of a look-up: its rows by key, as they are when the state knows the same, or why there are none."""

    look_up: LookUp
    rows: dict[int, ItemRow]
    error: FoqsError | None = None


class ClaimsStarted(NamedTuple):
    """Claims that are made with the inserts of a transaction: the least urgent one is of the item at `last`."""

    topic: ShardTopic
    claims_count: int
    last: int


class ClaimsEnded:
    """Claims of one topic that are not on the way any more; `items` of them are prefetched now."""

    __slots__ = ("count", "items")

    def __init__(self) -> None:
        self.count = 0
        self.items: list[ShardItem] = []


class Events:
    """What has happened since they were taken last, in the order in which it is to be told."""

    __slots__ = (
        "claims_ended", "claims_started", "completed", "counted", "looked_up", "topics_changed", "topics_gone",
        "withdrawn",
    )  # fmt: skip

    def __init__(self) -> None:
        self.completed: list[Completion] = []
        self.withdrawn: list[ShardItem] = []
        """They were prefetched, and are not to be handed out any more."""
        self.claims_started: list[ClaimsStarted] = []
        self.claims_ended: dict[ShardTopic, ClaimsEnded] = {}
        self.counted: dict[tuple[int, ItemEvent], int] = {}
        """Items for the counts of operators, by namespace and event."""
        self.looked_up: list[LookedUp] = []
        self.topics_changed: dict[ShardTopic, None] = {}
        """Their ready or prefetched items are others than before."""
        self.topics_gone: list[ShardTopic] = []

    def done(self, completion: Completion, count: int = 1) -> None:
        """So much of it is durable."""
        completion.open_count -= count
        if not completion.open_count:
            self.completed.append(completion)

    def fail(self, completion: Completion, positions: list[int], error: FoqsError) -> None:
        """What the call has at these positions was not done."""
        completion.errors.update(dict.fromkeys(positions, error))
        self.done(completion, len(positions))

    def refuse(self, completion: Completion, error: FoqsError) -> None:
        """All of it was not done."""
        completion.failure = error
        self.done(completion)

    def end_claims(self, topic: ShardTopic, count: int, prefetched: list[ShardItem]) -> None:
        ended = self.claims_ended.get(topic)
        if ended is None:
            ended = self.claims_ended[topic] = ClaimsEnded()
        ended.count += count
        ended.items += prefetched

    def count(self, namespace: int, event: ItemEvent, count: int) -> None:
        self.counted[namespace, event] = self.counted.get((namespace, event), 0) + count

    def forget_items(self) -> None:
        """The shard is lost: of its items there is nothing to hand out, and only callers are left to be told."""
        self.withdrawn, self.claims_started, self.claims_ended = [], [], {}
        self.topics_changed, self.topics_gone = {}, []

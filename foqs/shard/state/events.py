"""The values that a shard exchanges with its host. They are plain, so that the shard calls no other part.

As with the Ready of etcd's raft: demand comes in before a transaction is planned, and the caller takes the events
afterwards, when the whole call is done.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from foqs.model.errors import FoqsError
from foqs.model.item import ItemEvent, Outcome, ShardItem
from foqs.model.topic import ShardTopic
from foqs.shard.port import ItemRow


class Demand(NamedTuple):
    """The number of ready items of one topic to claim, at most `items_max`.

    It is the shortage, and all items before a prefetched item of this demand, because as ready items they would hold
    that one back.
    """

    items_max: int
    shortage: int
    before: int
    """The sort key before which all items are to be claimed."""

    def count_of(self, sort_keys: list[int]) -> int:
        """Return how many items at these sort keys, which are in order, are to be claimed."""
        return min(self.items_max, max(self.shortage, bisect_left(sort_keys, self.before)))


class Completion:
    """A caller's part of transactions. It is complete once every part is durable or has failed.

    `on_done` is the caller's own callback, which the host calls; the shard never does.
    """

    __slots__ = ("errors", "failure", "on_done", "open_count")

    def __init__(self, on_done: Callable[[Completion], None]) -> None:
        self.on_done = on_done
        self.errors: dict[int, FoqsError] = {}
        """The errors of items that failed alone, by position in the call."""
        self.failure: FoqsError | None = None
        """The reason why the whole call failed."""
        self.open_count = 0
        """The number of its items and other parts that have not ended. The operation that accepts a part counts it
        here.
        """


class DepthRoom(Protocol):
    """The room that is left in topics whose depth has a limit; foqs.host.admission.depths.Room is the real one."""

    def take(self, names: Sequence[str]) -> FoqsError | None:
        """Take room for one item in each of these topics, or return the error of a full one."""

    def recount(self) -> None:
        """Let the next item find out again how much room is left, because others can have taken room meanwhile."""

    def stored(self, names: Sequence[str]) -> None:
        """Give back the room of an item, which its shard counts from now on."""


class OnceOutcome:
    """The outcome of one `insert_once`, by the keys of its items. Items without an entry are still under way."""

    __slots__ = ("copies", "elsewhere", "errors", "first_copies", "firsts", "holding", "made", "refusal", "room")

    def __init__(
        self,
        refusal: FoqsError | None = None,
        copies: Mapping[int, Sequence[ShardItem]] | None = None,
        room: DepthRoom | None = None,
        holding: Collection[int] = (),
    ) -> None:
        """`refusal`: the error for items that are no repeats, in which case no item is made.

        `copies`: items by the key of the one that is made together with them, or not at all. `room`: items that are no
        repeats take room from it, or are refused; None without limits. `holding`: the keys of the items that hold their
        ids until they end.
        """
        self.room = room
        self.refusal = refusal
        self.copies = copies or {}
        self.holding = holding
        self.made: list[int] = []
        """The keys of durable items that are the first ones with their dedup ids."""
        self.firsts: dict[int, tuple[int, int]] = {}
        """Shard and key of the item made earlier with the same dedup id, by the key of the item that was not made."""
        self.first_copies: dict[int, int] = {}
        """The number of copies behind the items of `firsts` that have some, by the same keys."""
        self.elsewhere: dict[int, bytes] = {}
        """The digests of those of `firsts` that held their ids on another shard, which alone knows whether they still
        do, by the key of the item that was not made.
        """
        self.errors: dict[int, FoqsError] = {}
        """The errors of items that were not made. Unless the error is `nothing_done`, they might have been made."""


class LookUp:
    """Rows to read. `on_rows` gets them once the state is in step with them, or `on_failed` gets the error.

    Both are the caller's own callbacks, which the host calls; the shard calls neither. `with_payload`: with metadata
    and payload, which can be a gigabyte for a thousand rows; without it they are empty.
    """

    __slots__ = ("keys", "on_failed", "on_rows", "with_payload")

    def __init__(
        self,
        keys: list[int],
        on_rows: Callable[[dict[int, ItemRow]], None],
        on_failed: Callable[[FoqsError], None],
        *,
        with_payload: bool = False,
    ) -> None:
        self.keys = keys
        self.with_payload = with_payload
        self.on_rows = on_rows
        self.on_failed = on_failed


class LookedUp(NamedTuple):
    """The outcome of a look-up: its rows by key, in step with the state, or the error."""

    look_up: LookUp
    rows: dict[int, ItemRow]
    error: FoqsError | None = None


class ClaimsStarted(NamedTuple):
    """Claims that are made with the inserts of a transaction. The least urgent one is that of the item at `last`."""

    topic: ShardTopic
    claims_count: int
    last: int


class ClaimsEnded:
    """Ended claims of one topic, of which `items` are now prefetched."""

    __slots__ = ("count", "items")

    def __init__(self) -> None:
        self.count = 0
        self.items: list[ShardItem] = []


class Ends(NamedTuple):
    """Ends of deliveries, or of lives without one, all with the same outcome and durable since `at_ms`.

    The items no longer change, and they have no contents.
    """

    outcome: Outcome
    at_ms: int
    """The time by the server's clock."""
    items: dict[ShardTopic, list[ShardItem]]


class Enqueued(NamedTuple):
    """Items of one topic that are durable since `at_ms`, by the server's clock."""

    topic: ShardTopic
    at_ms: int
    priorities: list[int]


class Events:
    """The events since they were last taken, in the order in which they are to be reported."""

    __slots__ = (
        "claims_ended", "claims_started", "completed", "counted", "ends", "enqueued", "looked_up", "topics_changed",
        "topics_gone", "unclaimed",
    )  # fmt: skip

    def __init__(self) -> None:
        self.completed: list[Completion] = []
        self.unclaimed: list[ShardItem] = []
        """Prefetched items that must not be delivered any more."""
        self.claims_started: list[ClaimsStarted] = []
        self.claims_ended: dict[ShardTopic, ClaimsEnded] = {}
        self.counted: dict[tuple[int, ItemEvent], int] = {}
        """Items for the counts of operators, by namespace and event."""
        self.ends: list[Ends] = []
        """Ends for the event log. They and `enqueued` are empty if the host has no event log."""
        self.enqueued: list[Enqueued] = []
        self.looked_up: list[LookedUp] = []
        self.topics_changed: dict[ShardTopic, None] = {}
        """Topics whose ready or prefetched items have changed."""
        self.topics_gone: list[ShardTopic] = []

    def done(self, completion: Completion, count: int = 1) -> None:
        """Note that `count` parts of the call are durable."""
        completion.open_count -= count
        if not completion.open_count:
            self.completed.append(completion)

    def fail(self, completion: Completion, positions: list[int], error: FoqsError) -> None:
        """Note that the parts of the call at these positions were not done."""
        completion.errors.update(dict.fromkeys(positions, error))
        self.done(completion, len(positions))

    def refuse(self, completion: Completion, error: FoqsError) -> None:
        """Note that no part of the call was done."""
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
        """Drop the events on items, because the shard is lost; only the outcomes for callers remain."""
        self.unclaimed, self.claims_started, self.claims_ended = [], [], {}
        self.topics_changed, self.topics_gone = {}, []

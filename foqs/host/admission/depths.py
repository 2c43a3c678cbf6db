"""The depths of topics that have a limit, and the room that is left in them for enqueues.

The depth of a topic is the number of its ready, delayed and leased items on all shards of the cluster. Items that this
host is just writing count as well, so the enqueues of one host never exceed a limit together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from foqs.model.errors import PausedError
from foqs.model.namespace import SettingsTable
from foqs.model.policies import NamespacePolicies
from foqs.model.stocks import Topic
from foqs.model.topic_name import base_of, described, is_keyed
from foqs.shard.state.engine import ShardState
from foqs.shard.state.events import Completion

FULL_RETRY_MS = 1_000
"""The retry_after_ms of an enqueue to a full topic."""


class Depths:
    """Counts the items of topics with a limit. It owns the counts of the items that are being written."""

    def __init__(self, settings: SettingsTable, owned: Callable[[], Iterable[tuple[object, ShardState]]]) -> None:
        """`owned` returns the shards of this host, each with its writer."""
        self.settings = settings
        self.elsewhere: Callable[[Topic], int] = lambda topic: 0
        """Returns the items of a topic on other hosts, as far as this one knows. The cluster sets it."""
        self.arriving: Counter[Topic] = Counter()
        """The items that are being written, by topic."""
        self._owned = owned

    def limited(self, number: int, names: Iterable[str]) -> list[Topic]:
        """Return the topics with a limit among those of these names and their consumer groups."""
        policies = self.settings.depth_limits(number)
        if policies is None:
            return []
        groups = self.settings.groups.get(number)
        found: list[Topic] = []
        for name in names:
            copies = None if groups is None else groups.copies(name)
            each = [name] if copies is None else [copy.name for copy in copies]
            found += [(number, one) for one in each if policies.of(one).depth_max]
        return found

    def here(self, topic: Topic) -> int:
        """Return the depth of a topic on this host. A shard that was just taken over counts once it is counted."""
        found = [shard.index.topics.get(topic) for _, shard in self._owned()]
        stored = sum([max(0, one.depth) for one in found if one is not None])
        return stored + self.arriving[topic]


class Room:
    """The room for items of one call. The items that have taken it count until they are stored or have failed."""

    __slots__ = ("_depths", "_full", "_left", "_number", "_policies", "_taken")

    def __init__(self, depths: Depths, number: int, policies: NamespacePolicies) -> None:
        self._depths = depths
        self._number = number
        self._policies = policies
        self._left: dict[str, int | None] = {}
        """The room that is left in each topic; None without a limit."""
        self._full: dict[str, PausedError] = {}
        self._taken: Counter[Topic] = Counter()

    def another(self) -> Room:
        """Return the room for other items of the call, which is given back at another time."""
        return Room(self._depths, self._number, self._policies)

    def take(self, names: Sequence[str]) -> PausedError | None:
        """Take room for one item in each of these topics. If one is full, take none, and return its error.

        Keyed topics take the room of their base.
        """
        if names and is_keyed(names[0]):
            names = list(map(base_of, names))
        for name in names:
            left = self._left[name] if name in self._left else self._find(name)
            if left is not None and left <= 0:
                return self._full[name]
        for name in names:
            left = self._left[name]
            if left is not None:
                topic = self._number, name
                self._left[name] = left - 1
                self._taken[topic] += 1
                self._depths.arriving[topic] += 1
        return None

    def recount(self) -> None:
        """Let the next item find out again how much room is left, because others can have taken room meanwhile."""
        self._left.clear()

    def stored(self, names: Sequence[str]) -> None:
        """Give back the room of an item in these topics, whose shard counts it from now on."""
        for name in map(base_of, names):
            topic = self._number, name
            if self._taken[topic]:
                self._release(topic, 1)

    def hold_until(self, completion: Completion) -> None:
        """Keep the room until the completion of the items is over, also if their caller has left before."""
        end = completion.on_done

        def close_and_end(ended: Completion) -> None:
            self.close()
            end(ended)

        completion.on_done = close_and_end

    def close(self) -> None:
        """Give the room back. Stored items are counted by their shards from then on."""
        for topic, count in list(self._taken.items()):
            self._release(topic, count)

    def _release(self, topic: Topic, count: int) -> None:
        for counts in (self._taken, self._depths.arriving):
            counts[topic] -= count
            if not counts[topic]:
                del counts[topic]

    def _find(self, name: str) -> int | None:
        """Return the room that is left in a topic, which its items of this call share."""
        limit = self._policies.of(name).depth_max
        left: int | None = None
        if limit:
            topic = self._number, name
            depth = self._depths.here(topic) + self._depths.elsewhere(topic)
            left = limit - depth
            self._full[name] = _full(name, max(depth, limit), limit)
        self._left[name] = left
        return left


def _full(name: str, depth: int, limit: int) -> PausedError:
    return PausedError(
        f"{described(name)} is full: it has {depth} items, and its depth_max is {limit}: try again when consumers have "
        "acked some, or set a higher depth_max",
        retry_after_ms=FULL_RETRY_MS,
    )

"""The items that a call makes on one shard, and the common way to make them: in bundles, one kind after the other."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from operator import attrgetter
from typing import Final

from foqs.contract.requests import NewItem
from foqs.host import arguments
from foqs.host.admission.depths import Room
from foqs.model import ids, limits, order
from foqs.model.calls import ItemContent, PositionErrors
from foqs.model.errors import FoqsError
from foqs.model.item import Phase, ShardItem, bundle_of
from foqs.model.namespace import Namespace
from foqs.model.topic import ShardTopic
from foqs.shard.state.engine import ShardState
from foqs.wire.item_batch import KIND_ITEMS_MIN, KINDS_MAX, ItemBatch, ItemKind

BUNDLE_ITEMS_MAX = 256
"""The most items of a bundle."""
BUNDLE_BYTES_MAX = 48 * limits.KIB
"""The most content of a bundle, with limits.PACKED_ITEM_BYTES for each item, so that one fits into a pack."""
BUNDLED_ITEM_BYTES_MAX = 2 * limits.KIB
"""The most content of an item in a bundle: each can be packed."""

_PLACE: Final = attrgetter("topic", "priority")
_UNCOMMON: Final = attrgetter(
    "deliver_after_ms", "delay_ms", "delivery", "dedup_id", "ordering_key", "dedup_until", "fairness_key"
)
"""Fields of which each item with one needs attention by itself."""
_COMMON: Final = (None,) * 7
_KIND: Final = attrgetter("topic", "priority", "ttl_ms", "lease_ms", "metadata", "trace_context")


class Made:
    """The items of a call that were made for one shard."""

    __slots__ = ("bundles", "copies", "items", "room")

    def __init__(self) -> None:
        self.room: Room | None = None
        """The room for the items; None if no topic of the namespace has a limit on its depth."""
        self.items: dict[int, ShardItem] = {}
        """The item at each position; the first of its copies. A bundle is at the position of each of its items."""
        self.bundles: list[tuple[ShardItem, Sequence[int]]] = []
        """The bundles among the items, each with its positions in the order of its keys."""
        self.copies: dict[int, list[ShardItem]] = {}
        """The further copies by the key of the first one. Their keys follow it without a gap."""

    def all(self) -> list[ShardItem]:
        """Return all items, copies included."""
        copies = self.copies
        if not copies:
            return list(dict.fromkeys(self.items.values()) if self.bundles else self.items.values())
        return [one for item in self.items.values() for one in (item, *copies.get(item.key, ()))]

    def count(self) -> int:
        return len(self.items) + sum(map(len, self.copies.values()))

    def without(self, positions: Collection[int]) -> Made:
        """Return the items at all other positions; bundles cannot be among them."""
        left = Made()
        left.room = self.room
        left.items = {at: item for at, item in self.items.items() if at not in positions}
        left.copies = self.copies and {item.key: self.copies[item.key] for item in left.items.values()
                                       if item.key in self.copies}  # fmt: skip
        return left

    def id_of(self, shard_id: int, item: ShardItem) -> str:
        """Return the id of an item, which names all its copies."""
        item_id = ids.item_id(shard_id, item.key)
        return ids.with_copies(item_id, len(self.copies[item.key])) if item.key in self.copies else item_id

    def enter_ids(self, shard_id: int, by_position: list[str]) -> None:
        for bundle, positions in self.bundles:
            for position, text in zip(positions, ids.item_ids(shard_id, bundle.keys), strict=True):
                by_position[position] = text
        alone = self.items
        if self.bundles:
            alone = {position: item for position, item in alone.items() if item.bundle is None}
        if self.copies:
            texts = [self.id_of(shard_id, item) for item in alone.values()]
        else:
            texts = ids.item_ids(shard_id, [item.key for item in alone.values()])
        for position, text in zip(alone, texts, strict=True):
            by_position[position] = text


def made_in_bundles(
    shard: ShardState,
    namespace: Namespace,
    now_ms: int,
    new_items: Sequence[NewItem],
    positions: Sequence[int],
    topic_of: Callable[[str], ShardTopic | FoqsError | None],
    new_topic: Callable[[str], ShardTopic],
    errors: PositionErrors,
) -> Made | None:
    """Return the items by position, and add the errors of invalid ones to `errors`.

    `topic_of` finds a topic, or the error of its name; `new_topic` makes it if it is missing and has a valid item.

    None if the items must be made one by one: they have uncommon fields, or several kinds have one place in the order,
    where the order of the call counts. Raises FoqsError when the shard takes no items.
    """
    kinds = _kinds(new_items, positions)
    payload_bytes_max = namespace.settings.payload_bytes_max
    if kinds is None or any(len(payload) > payload_bytes_max for kind in kinds for payload in kind.payloads):
        return None
    made = Made()
    for kind in kinds:
        new = kind.item
        try:
            topic = topic_of(new.topic or "")
            if isinstance(topic, FoqsError):
                raise topic
            content, due_at = arguments.check_item(new, namespace.settings, now_ms)
            topic = topic or new_topic(new.topic or "")
        except FoqsError as error:
            errors.update(dict.fromkeys(kind.positions, error.with_traceback(None)))
            continue
        first_key = shard.index.next_keys(len(kind.payloads))
        expires_at = due_at + (new.ttl_ms or namespace.settings.ttl_ms_default)
        shared_bytes = len(content.metadata) + len(content.trace_context)
        # Behind the edge of a window each item gets a row of its own.
        count_max = BUNDLE_ITEMS_MAX if topic.window.complete else 1
        for first, end in _parts(kind.payloads, shared_bytes, count_max):
            key = first_key + first
            sort_key = order.sort_key(new.priority, due_at, key, shard.shard_id)
            item = ShardItem(
                key, topic, new.priority, due_at, sort_key, Phase.INSERTING, now_ms, expires_at, new.lease_ms or 0,
                content=ItemContent(kind.payloads[first], content.metadata, content.trace_context),
            )  # fmt: skip
            if end - first > 1:
                made.bundles.append((bundle_of(item, kind.payloads[first:end], content), kind.positions[first:end]))
            made.items.update(dict.fromkeys(kind.positions[first:end], item))
    if made.items and shard.index.namespace_names.get(namespace.number) != namespace.name:
        shard.index.name_namespace(namespace)
    return made


def _kinds(new_items: Sequence[NewItem], positions: Sequence[int]) -> Sequence[ItemKind] | None:
    """Return the kinds of the items at these positions, or None if they are uncommon, or too many for so few items."""
    kinds_max = min(KINDS_MAX, len(positions) // KIND_ITEMS_MIN)
    if isinstance(new_items, ItemBatch) and len(positions) == len(new_items):
        kinds = new_items.kinds
    else:
        found: dict[object, tuple[NewItem, list[int], list[bytes]]] = {}
        for position in positions:
            new = new_items[position]
            if not isinstance(new.payload, bytes) or _UNCOMMON(new) != _COMMON:
                return None
            _, some_positions, payloads = found.setdefault(_KIND(new), (new, [], []))
            if len(found) > kinds_max:
                return None
            some_positions.append(position)
            payloads.append(new.payload)
        kinds = list(map(ItemKind._make, found.values()))
    if len({_PLACE(kind.item) for kind in kinds}) < len(kinds):
        return None
    return None if any(_UNCOMMON(kind.item) != _COMMON for kind in kinds) else kinds


def _parts(payloads: Sequence[bytes], shared_bytes: int, count_max: int) -> Iterator[tuple[int, int]]:
    """Divide the items of a kind by their payloads. Yields the first position, and the end, of each bundle or item."""
    first = size_bytes = 0
    for at, payload in enumerate(payloads):
        item_bytes = len(payload) + shared_bytes
        is_large = item_bytes > BUNDLED_ITEM_BYTES_MAX
        more_bytes = item_bytes + limits.PACKED_ITEM_BYTES
        is_full = at - first == count_max or size_bytes + more_bytes > BUNDLE_BYTES_MAX
        if first < at and (is_large or is_full):
            yield first, at
            first, size_bytes = at, 0
        size_bytes += more_bytes
        if is_large:
            yield at, at + 1
            first, size_bytes = at + 1, 0
    if first < len(payloads):
        yield first, len(payloads)

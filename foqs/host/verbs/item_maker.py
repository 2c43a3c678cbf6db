"""The items of an enqueue, made for one shard: one of each new item, or a copy for each consumer group of its topic."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from foqs.contract.requests import NewItem
from foqs.host import arguments
from foqs.host.admission.depths import Depths, Room
from foqs.host.verbs.serial_rules import aging_fault, bucket_fault, serial_due_at, serial_fault
from foqs.model import ids, limits, order
from foqs.model.aging import aging_place
from foqs.model.calls import DeliveryPolicy, ItemContent, PositionErrors
from foqs.model.copy_steps import CopyKey
from foqs.model.errors import FoqsError, InvalidArgumentError, PausedError, TooLargeError
from foqs.model.groups import COPIES_PER_CALL_MAX, Copy, NamespaceGroups
from foqs.model.item import Phase, ShardItem, by_topic, count_of, keys_of
from foqs.model.namespace import Namespace, SettingsTable
from foqs.model.policy import TopicPolicy
from foqs.model.topic import ShardTopic
from foqs.model.topic_name import base_of, check_length, described, is_hidden, is_keyed
from foqs.shard.state.engine import ShardState
from foqs.shard.writer.shard_writer import ShardWriter

AT_MOST_ONCE = int(DeliveryPolicy.AT_MOST_ONCE)

BUNDLE_ITEMS_MAX = 256
"""The most items of a bundle. An end of leases can divide one more bundle than it has room for."""
BUNDLE_BYTES_MAX = 48 * limits.KIB
"""The most content of a bundle, with limits.PACKED_ITEM_BYTES for each item, so that one fits into a pack."""
BUNDLE_ITEM_BYTES_MAX = 2 * limits.KIB
"""The most content of an item in a bundle: each can be packed."""

NewTopic = Callable[[str], ShardTopic]
"""Makes the missing topic of a name."""


class Made:
    """The items of a call that were made for one shard."""

    __slots__ = ("copies", "items", "room")

    def __init__(self) -> None:
        self.room: Room | None = None
        """The room for the items; None if no topic of the namespace has a limit on its depth."""
        self.items: dict[int, ShardItem] = {}
        """The item at each position; the first of its copies. A bundle stands at its first position alone."""
        self.copies: dict[int, list[ShardItem]] = {}
        """The further copies by the key of the first one. Their keys follow it without a gap."""

    def all(self) -> list[ShardItem]:
        """Return all items, copies included."""
        copies = self.copies
        if not copies:
            return list(self.items.values())
        return [one for item in self.items.values() for one in (item, *copies.get(item.key, ()))]

    def count(self) -> int:
        return count_of(self.items.values()) + sum(map(len, self.copies.values()))

    def positions(self) -> list[int]:
        """Return the positions of all items."""
        return [at for first, item in self.items.items() for at in range(first, first + item.count)]

    def without(self, positions: Collection[int]) -> Made:
        """Return the items at all other positions."""
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
        if self.copies:
            texts = [self.id_of(shard_id, item) for item in self.items.values()]
        else:
            texts = ids.item_ids(shard_id, keys_of(self.items.values()))
        for position, text in zip(self.positions(), texts, strict=True):
            by_position[position] = text


class Costs:
    """The costs of the positions of a call, in items of the quota: one for each copy."""

    __slots__ = ("_by_position", "all")

    def __init__(self, count: int, by_position: Sequence[int] | None = None) -> None:
        """`by_position` is None if each of `count` positions has one copy."""
        self._by_position = by_position
        self.all = count if by_position is None else sum(by_position)

    def of(self, positions: Collection[int]) -> int:
        """Return the cost of some positions."""
        by_position = self._by_position
        return len(positions) if by_position is None else sum([by_position[at] for at in positions])


def costs_of(items: Sequence[NewItem], groups: NamespaceGroups | None) -> Costs:
    """Return the costs of items. Raises TooLargeError for a call with too many copies."""
    if groups is None:
        return Costs(len(items))
    # An item without a copy still costs one, as any item that is refused later.
    counts = [max(1, len(found)) if (found := groups.copies(new.topic or "")) is not None else 1 for new in items]
    costs = Costs(len(items), counts)
    if costs.all > COPIES_PER_CALL_MAX:
        most = COPIES_PER_CALL_MAX // max(counts)
        raise TooLargeError(
            f"{len(items)} items are {costs.all} copies for the groups of their topics, and the limit of a call is "
            f"{COPIES_PER_CALL_MAX}: send {most} items at a time"
        )
    size_bytes = sum([count * _content_bytes(new) for new, count in zip(items, counts, strict=True)])
    if size_bytes > limits.FRAME_BYTES_MAX:
        raise TooLargeError(
            f"the copies of these {len(items)} items for the groups of their topics have {size_bytes} bytes, and the "
            f"limit of a call is {limits.FRAME_BYTES_MAX}: send fewer items at a time"
        )
    return costs


def _content_bytes(new: NewItem) -> int:
    return len(new.payload or b"") + len(new.metadata or b"")


class ItemMaker:
    """Makes items from the checked arguments of a call. It owns nothing."""

    def __init__(self, settings: SettingsTable, depths: Depths) -> None:
        self._settings = settings
        self._depths = depths

    def make(
        self,
        writer: ShardWriter,
        shard: ShardState,
        namespace: Namespace,
        new_items: Sequence[NewItem],
        positions: Sequence[int],
        errors: PositionErrors,
        fair: Collection[str],
    ) -> Made:
        """Make items for a shard, and its missing topics; `fair` are those of fairness keys.

        Raises FoqsError when the shard takes no items.
        """
        index, number, topics = shard.index, namespace.number, dict[str, ShardTopic]()

        def new_topic(name: str) -> ShardTopic:
            base = base_of(name)
            if base != name and base not in topics and (number, base) not in index.topics:
                topics[base] = index.new_topic(number, base, len(topics))
            if name not in topics:  # Else it is the base of a key that came before it.
                topics[name] = index.new_topic(number, name, len(topics))
            return topics[name]

        made = self.make_items(writer, shard, namespace, new_items, positions, new_topic, errors, fair=fair)
        if made.items:
            for topic in topics.values():
                index.add_topic(topic)
        return made

    def make_items(
        self,
        writer: ShardWriter,
        shard: ShardState,
        namespace: Namespace,
        new_items: Sequence[NewItem],
        positions: Sequence[int],
        new_topic: NewTopic,
        errors: PositionErrors,
        serial: Collection[str] = (),
        *,
        fair: Collection[str] = (),
        takes_room: bool = True,
    ) -> Made:
        """Return the items by position, and add invalid ones to `errors`; `new_topic` makes missing topics.

        The shard is that of the slots of the `serial` topics; items of other serial topics are not made. Hidden names
        must be among these, or among the `fair` topics, which are those of fairness keys. Items of full
        topics are made only without `takes_room`; then the caller takes the room. The caller closes the room of the
        items, or holds it until they are stored. Raises FoqsError when the shard takes no items.
        """
        result = Made()
        try:
            self._fill(
                result, writer, shard, namespace, new_items, positions, new_topic, errors, serial, fair,
                takes_room=takes_room,
            )  # fmt: skip
        except FoqsError:
            if result.room is not None:
                result.room.close()
            raise
        if result.room is not None and not result.items:
            result.room.close()
        return result

    def _fill(
        self,
        result: Made,
        writer: ShardWriter,
        shard: ShardState,
        namespace: Namespace,
        new_items: Sequence[NewItem],
        positions: Sequence[int],
        new_topic: NewTopic,
        errors: PositionErrors,
        serial: Collection[str],
        fair: Collection[str],
        *,
        takes_room: bool,
    ) -> None:
        index, shard_id, number, settings = shard.index, shard.shard_id, namespace.number, namespace.settings
        topics, now_ms = index.topics, writer.now_ms()
        check_item, next_key, sort_key, phase = arguments.check_item, index.next_key, order.sort_key, Phase.INSERTING
        made, groups = result.items, self._settings.groups.get(number)
        if groups is not None and groups.copying:
            for one in groups.copying:
                shard.group_copies.begin(CopyKey(number, one.copy_job))
        serials, ages = self._settings.serials(number), self._settings.ages(number)
        if (depths := self._settings.depth_limits(number)) is not None:
            result.room = Room(self._depths, number, depths)
        room = result.room if takes_room else None
        # What is counted or remembered for each item needs it by itself.
        is_plain = groups is None and serials is None and depths is None and not ages and not serial and not fair
        bundles = is_plain and takes_room and not self._settings.has_event_log
        last: ShardItem | None = None
        """The item that was made last, if others can join it."""
        last_position = 0
        found: dict[str, ShardTopic | FoqsError] = {}
        """The topic of each name, or the error of the name, found once for all its items."""
        for position in positions:
            new = new_items[position]
            name = new.topic or ""
            topic = found.get(name)
            if topic is None:
                fault = self._fault_of(number, name, serial, fair)
                topic = fault or topics.get((number, name)) or (None if is_keyed(name) else arguments.topic_fault(name))
                if topic is not None:
                    found[name] = topic
            if isinstance(topic, FoqsError):
                errors[position] = topic
                continue
            try:
                content, due_at = check_item(new, settings, now_ms)
                copies = None if groups is None else groups.copies(name)
                if room is not None and (full := room.take([name] if copies is None else [one.name for one in copies])):
                    errors[position] = full
                    continue
                expires_from = due_at
                if serial and name in serial:
                    due_at = serial_due_at(new)
                if copies is not None:
                    items = _copied(
                        copies, new, content, (due_at, expires_from), shard, namespace, now_ms, found, new_topic
                    )
                    made[position] = items[0]
                    if len(items) > 1:
                        result.copies[items[0].key] = items[1:]
                    continue
                if topic is None:
                    topic = found[name] = new_topic(name)
            except FoqsError as error:
                errors[position] = error.with_traceback(None)
                continue
            key, priority, expires_at = next_key(), new.priority, expires_from + (new.ttl_ms or settings.ttl_ms_default)
            assert priority is not None, "it was checked"
            lease_ms, size_bytes = new.lease_ms or 0, sum(map(len, content))
            if (
                last is not None and last.key + last.count == key and last_position + 1 == position
                and last.topic is topic and last.priority == priority and last.due_at == due_at == now_ms
                and last.expires_at == expires_at and last.lease_ms == lease_ms and new.delivery != AT_MOST_ONCE
                and last.count < BUNDLE_ITEMS_MAX and size_bytes <= BUNDLE_ITEM_BYTES_MAX
                and last.size_bytes + size_bytes + last.count * limits.PACKED_ITEM_BYTES < BUNDLE_BYTES_MAX
            ):  # fmt: skip
                last.join(content, size_bytes)
                last_position = position
                continue
            made[position] = item = ShardItem(
                key, topic, priority, due_at, sort_key(priority, due_at, key, shard_id), phase, now_ms,
                expires_at, lease_ms, new.delivery == AT_MOST_ONCE, content, size_bytes,
            )  # fmt: skip
            if bundles and not item.at_most_once and size_bytes <= BUNDLE_ITEM_BYTES_MAX:
                last, last_position = item, position
        if serials is not None:
            _follow(self._settings, made.values(), result.copies)
        if ages:
            _set_places(self._settings, result.all(), shard_id)
        if made and index.namespace_names.get(number) != namespace.name:
            index.name_namespace(namespace)

    def _fault_of(self, number: int, name: str, serial: Collection[str], fair: Collection[str]) -> FoqsError | None:
        """Return the error of all items of a topic that takes none now."""
        if not name.isprintable() and is_hidden(name):  # The first test is quick, and hardly any name fails it.
            if name not in serial and name not in fair:
                return arguments.topic_fault(name)
            policy = self._settings.policy(number, name)
            fault: FoqsError | None = None if name in fair else bucket_fault(policy, name)
            if (fault := fault or aging_fault(policy, name)) is not None:
                return fault
        pauses, serials = self._settings.enqueue_pauses(number), self._settings.serials(number)
        if pauses is not None and (policy := pauses.of(name)).enqueue_paused:
            return _topic_paused(name, policy)
        return None if serials is None else serial_fault(serials, name, serial)


def _copied(
    copies: Sequence[Copy],
    new: NewItem,
    content: ItemContent,
    times: tuple[int, int],
    shard: ShardState,
    namespace: Namespace,
    now_ms: int,
    found: dict[str, ShardTopic | FoqsError],
    new_topic: NewTopic,
) -> list[ShardItem]:
    """Return the copies of a checked item, with keys in a row. Raises FoqsError, without any copy.

    `times` are the due time of a copy without a delay, and the time at which its TTL begins.
    """
    if not copies:
        shown = described(base_of(new.topic or ""))
        raise InvalidArgumentError(f"{shown} has no group that gets its items: create one first")
    index, number, settings = shard.index, namespace.number, namespace.settings
    topics: list[ShardTopic] = []
    for name, _, _ in copies:
        if is_keyed(name):
            check_length(name)
    for name, _, _ in copies:
        topic = found.get(name) or index.topics.get((number, name))
        if not isinstance(topic, ShardTopic):
            topic = new_topic(name)
        found[name] = topic
        topics.append(topic)
    items: list[ShardItem] = []
    priority, own_ttl_ms = new.priority or 0, new.ttl_ms or settings.ttl_ms_default
    for (_, ttl_ms, delay_ms), topic in zip(copies, topics, strict=True):
        key, due_at, expires_from = index.next_key(), times[0] + delay_ms, times[1] + delay_ms
        items.append(
            ShardItem(
                key,
                topic,
                priority,
                due_at,
                order.sort_key(priority, due_at, key, shard.shard_id),
                Phase.INSERTING,
                now_ms,
                expires_from + (min(ttl_ms, own_ttl_ms) if ttl_ms else own_ttl_ms),
                new.lease_ms or 0,
                new.delivery == AT_MOST_ONCE,
                content,
            )
        )
    return items


def _follow(settings: SettingsTable, items: Iterable[ShardItem], copies: Mapping[int, Sequence[ShardItem]]) -> None:
    """Let topics that have been empty follow the policy by which these items were made."""
    for topic in {one.topic for item in items for one in (item, *copies.get(item.key, ()))}:
        policy = settings.serial_policy(topic.namespace, topic.name)
        if topic.is_serial != (policy is not None):
            topic.follow(policy)


def _set_places(settings: SettingsTable, items: Iterable[ShardItem], shard_id: int) -> None:
    """Give the items of topics that age their places."""
    for topic, some in by_topic(items).items():
        aging_ms = settings.aging_ms(topic.namespace, topic.name)
        if aging_ms:
            topic.has_places = True
            for item in some:
                place = aging_place(item.due_at, item.priority, aging_ms)
                item.sort_key = order.sort_key(place, item.due_at, item.key, shard_id)


def _topic_paused(name: str, policy: TopicPolicy) -> PausedError:
    return PausedError(
        f"enqueues of {described(base_of(name))} are paused by an operator{arguments.why(policy.reason)}"
    )

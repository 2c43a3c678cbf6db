"""The items of an enqueue, made for one shard: one of each new item, or a copy for each consumer group of its topic."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from foqs.contract.requests import NewItem
from foqs.host import arguments
from foqs.host.admission.depths import Depths, Room
from foqs.host.verbs.made import Made, made_in_bundles
from foqs.host.verbs.serial_rules import aging_fault, bucket_fault, serial_due_at, serial_fault
from foqs.model import limits, order
from foqs.model.aging import aging_place
from foqs.model.calls import DeliveryPolicy, ItemContent, PositionErrors
from foqs.model.copy_steps import CopyKey
from foqs.model.errors import FoqsError, InvalidArgumentError, PausedError, TooLargeError
from foqs.model.groups import COPIES_PER_CALL_MAX, Copy, NamespaceGroups
from foqs.model.item import Phase, ShardItem, by_topic
from foqs.model.namespace import Namespace, SettingsTable
from foqs.model.policy import TopicPolicy
from foqs.model.topic import ShardTopic
from foqs.model.topic_name import base_of, check_length, described, is_hidden, is_keyed
from foqs.shard.state.engine import ShardState
from foqs.shard.writer.shard_writer import ShardWriter
from foqs.wire.item_batch import KIND_ITEMS_MIN

AT_MOST_ONCE = int(DeliveryPolicy.AT_MOST_ONCE)

NewTopic = Callable[[str], ShardTopic]
"""Makes the missing topic of a name."""


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

        made: Made | None = None
        if len(positions) >= KIND_ITEMS_MIN and not fair:
            made = self._in_bundles(writer, shard, namespace, new_items, positions, new_topic, errors)
        if made is None:
            made = self.make_items(writer, shard, namespace, new_items, positions, new_topic, errors, fair=fair)
        if made.items:
            for topic in topics.values():
                index.add_topic(topic)
        return made

    def _in_bundles(
        self,
        writer: ShardWriter,
        shard: ShardState,
        namespace: Namespace,
        new_items: Sequence[NewItem],
        positions: Sequence[int],
        new_topic: NewTopic,
        errors: PositionErrors,
    ) -> Made | None:
        """Return the items in bundles, or None if something counts or remembers each item of the call by itself."""
        settings, number = self._settings, namespace.number
        if settings.has_event_log or settings.groups.get(number) is not None or settings.serials(number) is not None:
            return None
        if settings.ages(number) or settings.depth_limits(number) is not None:
            return None
        topics = shard.index.topics

        def topic_of(name: str) -> ShardTopic | FoqsError | None:
            fault = self._fault_of(number, name, (), ())
            return fault or topics.get((number, name)) or (None if is_keyed(name) else arguments.topic_fault(name))

        return made_in_bundles(shard, namespace, writer.now_ms(), new_items, positions, topic_of, new_topic, errors)

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
            key, priority = next_key(), new.priority
            assert priority is not None, "it was checked"
            made[position] = ShardItem(
                key, topic, priority, due_at, sort_key(priority, due_at, key, shard_id), phase, now_ms,
                expires_from + (new.ttl_ms or settings.ttl_ms_default), new.lease_ms or 0,
                new.delivery == AT_MOST_ONCE, content,
            )  # fmt: skip
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

"""The items of serial topics in one enqueue: which they are, and those without dedup ids that one shard received."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from foqs.contract.requests import NewItem
from foqs.host.admission.depths import Room
from foqs.host.shards.shards import NO_SHARD_RETRY_MS
from foqs.host.shards.waiting import Answer
from foqs.host.verbs.made import Made
from foqs.model.calls import EnqueueResult, PositionErrors
from foqs.model.errors import FoqsError, NotWrittenError, UnavailableError
from foqs.model.item import ShardItem
from foqs.model.namespace import DedupScope, Namespace, SettingsTable
from foqs.model.seen import digests_of
from foqs.model.serial import serial_slot
from foqs.model.slots import slot_of
from foqs.model.topic_name import without_fairness_key
from foqs.shard.state.engine import ShardState
from foqs.wire.item_batch import samples

NO_NAMES: frozenset[str] = frozenset()
_size_bytes = attrgetter("size_bytes")


def serial_names(
    settings: SettingsTable, number: int, items: Sequence[NewItem], keyed: frozenset[str] = NO_NAMES
) -> frozenset[str]:
    """Return the serial ones among the topics of the items, and `keyed`, those of ordering keys."""
    serials = settings.serials(number)
    if serials is None:
        return keyed
    return keyed.union([name for name in {new.topic or "" for new in samples(items)} if serials.is_serial(name)])


def of_slot(error: FoqsError) -> FoqsError:
    """Return the error of an item for its caller, if the item cannot use another shard than that of its slot."""
    if isinstance(error, NotWrittenError):
        return UnavailableError(error.message, retry_after_ms=NO_SHARD_RETRY_MS, nothing_done=True)
    return error


def digests_for(
    namespace: Namespace, items: Sequence[NewItem], positions: Sequence[int], serial: frozenset[str]
) -> list[bytes]:
    """Return the digests of the dedup ids at these positions.

    An id of a serial topic has the slot of the topic, and is known in this topic alone.
    """
    name, number, key_spread = namespace.name, namespace.number, namespace.settings.key_spread
    is_by_topic = namespace.settings.dedup_scope is DedupScope.TOPIC
    ids = [items[at].dedup_id or "" for at in positions]
    # The topic of the call counts, and not the one of the first copy, nor the turns that the item takes.
    topics = [without_fairness_key(items[at].topic or "") for at in positions] if is_by_topic or serial else []
    if not serial:
        slots = [slot_of(name, "", 1)] if key_spread == 1 else [slot_of(name, text, key_spread) for text in ids]
        return digests_of(number, [topic.encode() for topic in topics] or [b""], slots, ids)
    slots = [
        serial_slot(name, topic) if topic in serial else slot_of(name, text, key_spread)
        for topic, text in zip(topics, ids, strict=True)
    ]
    scopes = [topic.encode() if is_by_topic or topic in serial else b"" for topic in topics]
    return digests_of(number, scopes, slots, ids)


class SerialPart:
    """The items of serial topics, without dedup ids, of one call that one shard received. One transaction has all."""

    __slots__ = ("_answer", "_made", "_shard_id", "positions")

    def __init__(self, made: Made, positions: Sequence[int], answer: Answer) -> None:
        """`made` are the items of the call; those at `positions` are of this part."""
        self._made = made
        self._answer = answer
        self._shard_id = -1
        self.positions = list(positions)

    def insert(self, shard: ShardState, errors: PositionErrors, refused: PositionErrors) -> None:
        """Pass the items to the shard.

        Items of topics at their depth_max are added to `errors`, and those for whose topics the shard has no room to
        `refused`. Raises OverloadedError if it has no room for any.
        """
        self._shard_id = shard.shard_id
        room = self._take_room(errors)
        is_inserted = False
        try:
            is_inserted = self._insert(shard, refused)
        finally:
            if room is not None and not is_inserted:
                room.close()

    def _take_room(self, errors: PositionErrors) -> Room | None:
        room = None if self._made.room is None else self._made.room.another()
        if room is not None:
            for position in self.positions:
                if (full := room.take([one.topic.name for one in self._copies(position)])) is not None:
                    errors[position] = full
            self.positions = [position for position in self.positions if position not in errors]
            room.hold_until(self._answer)
        return room

    def _insert(self, shard: ShardState, refused: PositionErrors) -> bool:
        if not self.positions:
            return False
        faults = shard.index.add_drafts(self._items())
        for position in self.positions if faults else ():
            fault = next((faults[one.topic] for one in self._copies(position) if one.topic in faults), None)
            if fault is not None:
                refused[position] = fault
        self.positions = [position for position in self.positions if position not in refused]
        items = self._items()
        if items:
            shard.insert(items, sum(map(_size_bytes, items)), self._answer)
        return bool(items)

    def _items(self) -> list[ShardItem]:
        return [one for position in self.positions for one in self._copies(position)]

    def _copies(self, position: int) -> list[ShardItem]:
        item = self._made.items[position]
        return [item, *self._made.copies.get(item.key, ())]

    async def enter_outcomes(self, result: EnqueueResult, refused: PositionErrors) -> int:
        """Wait for the transaction, and enter the outcome of each item. Returns the number of items that were made."""
        if not self.positions:
            return 0
        try:
            await self._answer.done
        except FoqsError as error:
            refused.update(dict.fromkeys(self.positions, of_slot(error.with_traceback(None))))
            return 0
        for position in self.positions:
            result.ids[position] = self._made.id_of(self._shard_id, self._made.items[position])
        return len(self._items())

"""The choice of shards for the items of an enqueue: shards of the namespace's tier, or the shards of dedup ids."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from foqs.contract.requests import NewItem
from foqs.host.dispatch.dispatcher import Dispatcher
from foqs.host.registry.known_slots import Slots
from foqs.host.shards.shards import NO_SHARD_RETRY_MS, Shards
from foqs.model import limits
from foqs.model.calls import PositionErrors
from foqs.model.cluster import ShardUse
from foqs.model.errors import NoShardError, ShardElsewhereError, UnavailableError
from foqs.model.namespace import DedupWhenAway, Namespace
from foqs.model.serial import serial_slot
from foqs.model.slots import slot_of
from foqs.model.topic_name import described
from foqs.shard.writer.shard_writer import ShardWriter


class Placement:
    """Chooses the shards for the items of a call. `Enqueues` asks it.

    It places items in runs, so that items that come together share a transaction, and leave together
    (docs/performance.md, Runs).
    """

    def __init__(self, shards: Shards, dispatcher: Dispatcher, slots: Slots) -> None:
        self._writers = shards.writers
        self._is_elsewhere = shards.is_elsewhere
        self._shards = shards
        self._slots = slots
        self._sick = dispatcher.queues.sick
        self._current: dict[str, tuple[ShardWriter, int]] = {}
        """The shard of each tier that takes items now, and the number of items until the turn of the next shard."""

    def place(self, namespace: Namespace, count: int, avoided: Collection[int] = ()) -> ShardWriter:
        """Return the shard for a call's items without dedup ids, one of the namespace's tier.

        It is the shard of the last call while it has room, else the healthy one with the shortest buffer. Raises
        NoShardError when every shard is unserved, sick, or in `avoided` (ids), and UnavailableError when this host has
        shards, but none of the tier.
        """
        tier = namespace.settings.tier
        writer, left_count = self._current.get(tier, (None, 0))
        if writer is None or left_count <= 0 or not self._has_room(writer, tier, avoided):
            writer = self._next(namespace, avoided)
            left_count = writer.scheduler.placement_run_items
        self._current[tier] = writer, left_count - count
        return writer

    def check_takes(self, namespace: Namespace) -> None:
        """Raise NoShardError when no shard of this host takes items at any load, and UnavailableError when this host
        has shards, but none of the namespace's tier.
        """
        tier, shards = namespace.settings.tier, self._shards
        current = self._current.get(tier)
        if current is not None and current[0].shard is not None and not (tier or shards.tiers or shards.draining):
            return
        owned = [shard.shard_id for _, shard in shards.owned()]
        of_tier = [shard_id for shard_id in owned if shards.tier_of(shard_id) == tier]
        if owned and not of_tier and not self._all_drain(tier):
            raise UnavailableError(
                f"this host has no shard of tier {tier!r}, which items of namespace {namespace.name!r} go to: nothing "
                "was enqueued, ask another host, or give the tier hosts and shards",
                retry_after_ms=NO_SHARD_RETRY_MS,
                nothing_done=True,
            )
        if shards.draining.issuperset(of_tier):
            raise self._no_shard(tier)

    @property
    def knows_slots(self) -> bool:
        return self._slots.table.version > 0

    def place_ids(
        self,
        namespace: Namespace,
        new_items: Sequence[NewItem],
        positions: Sequence[int],
        errors: PositionErrors,
        away: Collection[int] = (),
    ) -> tuple[dict[ShardWriter, list[int]], list[int]]:
        """Return the positions of items with dedup ids by the shard of their slots, and the positions for any shard.

        If the shard of a slot is unserved or sick, its items get `errors`, because no other shard knows if their ids
        were seen. But a namespace with DedupWhenAway.ACCEPT prefers a duplicate to a refusal, and any shard can take
        its items; `away` are ids of shards on other hosts that are known to be unreachable.
        """
        by_slot, name, key_spread = self._slots.table.shards, namespace.name, namespace.settings.key_spread
        groups: dict[int, Sequence[int]] = {}
        if key_spread == 1:
            groups[slot_of(name, "", 1)] = positions
        else:
            split: dict[int, list[int]] = {}
            for position in positions:
                split.setdefault(slot_of(name, new_items[position].dedup_id or "", key_spread), []).append(position)
            groups |= split
        placed: dict[ShardWriter, list[int]] = {}
        anywhere: list[int] = []
        for slot, some in groups.items():
            shard_id = by_slot[slot]
            writer = self._writers.get(shard_id)
            shard = writer.shard if writer is not None else None
            is_here = shard is not None and shard_id not in self._sick
            if (
                writer is not None
                and shard is not None
                and is_here
                and self._slots.keeps(shard)
                and self._slots.takes(shard, slot)
            ):
                placed.setdefault(writer, []).extend(some)
                continue
            is_moving = shard_id in self._shards.moving
            # A shard of this host takes ids as soon as its copy of the table is known and the slot has arrived.
            if namespace.settings.dedup_when_away is DedupWhenAway.ACCEPT and (
                shard_id in away
                or self._shards.uses.get(shard_id) is ShardUse.PARKED
                or not (is_here or is_moving or self._is_elsewhere(shard_id))
            ):
                anywhere += some
            else:
                is_sick = shard is not None and shard_id in self._sick and not is_moving
                errors.update(dict.fromkeys(some, _slot_away(shard_id, is_sick=is_sick)))
        for some in placed.values():
            some.sort()  # Items of one topic are delivered in the order of the call.
        return placed, anywhere

    def place_serial(
        self, namespace: Namespace, by_topic: Mapping[str, Sequence[int]], errors: PositionErrors
    ) -> dict[ShardWriter, list[int]]:
        """Return the positions of items of serial topics by the shard of the slot of each topic.

        If that shard is unserved or sick, or the slot moves, its items get `errors`: no other shard takes them.
        """
        placed: dict[ShardWriter, list[int]] = {}
        for topic, some in by_topic.items():
            slot = serial_slot(namespace.name, topic)
            shard_id = self._slots.table.shards[slot]
            writer = self._writers.get(shard_id)
            shard = writer.shard if writer is not None else None
            is_sick = shard_id in self._sick
            if writer is None or shard is None or is_sick or not self._slots.keeps(shard):
                here_sick = shard is not None and is_sick and shard_id not in self._shards.moving
                error: UnavailableError = _serial_away(shard_id, topic, is_sick=here_sick)
            elif slot in self._slots.closed or slot in shard.dedup.closed_slots:
                error = _serial_moves(topic, slot)
            elif not self._slots.takes(shard, slot):
                error = _serial_away(shard_id, topic, is_sick=False)
            else:
                placed.setdefault(writer, []).extend(some)
                continue
            errors.update(dict.fromkeys(some, error))
        return placed

    def _has_room(self, writer: ShardWriter, tier: str, avoided: Collection[int]) -> bool:
        """True if the shard takes items, and its buffer is shorter than a run and than its next two transactions."""
        shard, shard_id = writer.shard, writer.shard_id
        return (
            shard is not None
            and min(writer.scheduler.placement_run_items, 2 * limits.TRANSACTION_INSERTS_MAX) > shard.buffered_count
            and shard.buffered_bytes < 2 * limits.TRANSACTION_INSERT_BYTES_MAX
            and shard_id not in self._sick
            and shard_id not in avoided
            and shard_id not in self._shards.draining
            and self._shards.tiers.get(shard_id, "") == tier
        )

    def _next(self, namespace: Namespace, avoided: Collection[int]) -> ShardWriter:
        tier = namespace.settings.tier
        last_id = self._current[tier][0].shard_id if tier in self._current else -1
        self.check_takes(namespace)
        healthy = [
            # Among equal shards, the next one after the last has its turn.
            (writer.shard.buffered_count, shard_id <= last_id, shard_id)
            for shard_id, writer in self._writers.items()
            if writer.shard is not None
            and shard_id not in avoided
            and shard_id not in self._sick
            and shard_id not in self._shards.draining
            and self._shards.tier_of(shard_id) == tier
        ]
        if not healthy:
            raise self._no_shard(tier)
        return self._writers[min(healthy)[2]]

    def _all_drain(self, tier: str) -> list[int]:
        """Return the tier's shards on all hosts if it has some and all drain, else an empty list."""
        draining = self._shards.draining
        if not draining:
            return []
        of_tier = [shard_id for shard_id in self._shards.uses if self._shards.tier_of(shard_id) == tier]
        return sorted(of_tier) if draining.issuperset(of_tier) else []

    def _no_shard(self, tier: str) -> NoShardError:
        message = "no shard of this host takes items now: nothing was enqueued"
        if draining := self._all_drain(tier):
            message = (
                f"all shards of tier {tier!r} drain ({len(draining)}) and take no new items: nothing was enqueued; let "
                f"one take items again (foqs shard serve {draining[0]}), or add one (foqs shard add)"
            )
        return NoShardError(message, retry_after_ms=NO_SHARD_RETRY_MS)


def _serial_away(shard_id: int, topic: str, *, is_sick: bool) -> UnavailableError:
    return ShardElsewhereError(
        f"shard {shard_id}, which has all items of the serial {described(topic)}, takes no items here now: nothing was "
        "enqueued",
        shard_id=shard_id,
        is_sick=is_sick,
        retry_after_ms=limits.SICK_RETRY_MS if is_sick else NO_SHARD_RETRY_MS,
    )


def _serial_moves(topic: str, slot: int) -> UnavailableError:
    return UnavailableError(
        f"slot {slot} of the serial {described(topic)} moves to another shard: nothing was enqueued, try again",
        retry_after_ms=NO_SHARD_RETRY_MS,
        nothing_done=True,
    )


def _slot_away(shard_id: int, *, is_sick: bool) -> UnavailableError:
    return ShardElsewhereError(
        f"shard {shard_id}, which knows the dedup ids of these items, takes no items here now: nothing was enqueued",
        shard_id=shard_id,
        is_sick=is_sick,
        retry_after_ms=limits.SICK_RETRY_MS if is_sick else NO_SHARD_RETRY_MS,
    )

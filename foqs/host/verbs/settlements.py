"""Ack, nack and extendLease: the ends of leases, by receipt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from foqs.contract import requests as of
from foqs.host import arguments
from foqs.host.dispatch.consumers import Consumers
from foqs.host.registry.namespaces import Namespaces
from foqs.host.shards.shards import Shards
from foqs.host.shards.waiting import Answer, Waiting
from foqs.host.verbs.inspection import Inspection
from foqs.model import failures, ids, limits
from foqs.model.calls import PositionErrors
from foqs.model.errors import FoqsError, InvalidArgumentError, NotFoundError, StaleLeaseError
from foqs.model.item import ItemEvent, ShardItem, undivided
from foqs.model.namespace import Namespace, NamespaceSettings
from foqs.model.stocks import Topic
from foqs.shard.port import Rewrite
from foqs.shard.state.engine import ShardState
from foqs.shard.state.lease_table import stale_lease
from foqs.shard.writer.shard_writer import ShardWriter


class _OfShard(NamedTuple):
    """The leases of one call on one shard."""

    writer: ShardWriter
    shard: ShardState
    under_lease: dict[str, ShardItem]
    """All leased items of the shard, by receipt."""
    items: list[ShardItem]
    rewrites: list[Rewrite | None]
    """One for each item, or empty if all items are deleted."""
    places: list[int]
    """The position of each item in the call; of a bundle that of its first receipt, which the others follow."""


class Leases:
    """Ends and extends leases for callers: the verbs ack, nack and extendLease.

    It finds the item of each receipt, passes the change to the item's shard, and returns when the changes are durable,
    with the errors by position.
    """

    def __init__(
        self,
        namespaces: Namespaces,
        shards: Shards,
        inspection: Inspection,
        waiting: Waiting,
        count_event: Callable[[int, ItemEvent, int], None],
        undelivered: Callable[[Topic, int], None],
        consumers: Consumers,
    ) -> None:
        """`count_event` counts events by namespace; `undelivered` counts deliveries that no consumer received."""
        self._namespaces = namespaces
        self._shards = shards
        self._inspection = inspection
        self._waiting = waiting
        self._count_event = count_event
        self._undelivered = undelivered
        self._consumers = consumers

    async def ack(self, request: of.AckRequest) -> PositionErrors:
        """Delete the items; returns once that is durable.

        `repeated`: an earlier attempt possibly succeeded, so that a missing item counts as acked, for any receipt.
        """
        namespace, receipts = self._namespaces.serving(request.namespace_name), request.receipts
        if len(receipts) > limits.BATCH_ITEMS_MAX:
            raise arguments.too_many("receipts", len(receipts), limits.BATCH_ITEMS_MAX)
        errors: PositionErrors = {}
        unleased: list[tuple[int, int, int]] = []
        answer = self._end_leases(namespace, receipts, errors, None, unleased)
        if answer is not None:
            await answer.done
            errors.update(answer.errors)
        if unleased:
            errors.update(await self._inspection.delete_rows(namespace, unleased))
        if request.repeated and errors:
            await self._forgive_gone(namespace, receipts, errors)
        self._count_event(namespace.number, ItemEvent.ACKED, len(receipts) - len(errors))
        return errors

    async def _forgive_gone(self, namespace: Namespace, receipts: Sequence[str], errors: PositionErrors) -> None:
        """Remove STALE_LEASE errors of items that no longer exist. An existing item has another lease, or none."""
        stale = [position for position, error in errors.items() if isinstance(error, StaleLeaseError)]
        if stale:
            places = {position: ids.parse(receipts[position]) for position in stale}
            answers = await self._inspection.find_leases(namespace, places)
            errors.update(answers)
            for position, error in answers.items():
                if isinstance(error, NotFoundError):
                    del errors[position]

    async def nack(self, request: of.NackRequest) -> PositionErrors:
        """Return the items to the queue, and count a failed attempt for each that is not released."""
        namespace, nacks = self._namespaces.serving(request.namespace_name), request.nacks
        if len(nacks) > limits.BATCH_ITEMS_MAX:
            raise arguments.too_many("nacks", len(nacks), limits.BATCH_ITEMS_MAX)
        errors: PositionErrors = {}
        unseen = self._topics_unseen(nacks)
        answer = self._end_leases(namespace, [nack.receipt or "" for nack in nacks], errors, nacks, None)
        if answer is not None:
            await answer.done
            errors.update(answer.errors)
        counts = Counter(topic for position, topic in unseen.items() if position not in errors)
        for topic, count in counts.items():
            self._undelivered(topic, count)
        self._count_event(namespace.number, ItemEvent.NACKED, len(nacks) - len(errors))
        return errors

    def _topics_unseen(self, nacks: Sequence[of.Nack]) -> dict[int, Topic]:
        """Return the topics of items that no caller has seen, by position."""
        topics: dict[int, Topic] = {}
        for position, nack in enumerate(nacks):
            if nack.release and nack.unseen:
                group = self._shard_of((nack.receipt or "").partition("-")[0], {})
                item = group.under_lease.get(nack.receipt or "") if group is not None else None
                if item is not None:
                    topics[position] = item.topic.namespace, item.topic.name
        return topics

    async def extend_lease(self, request: of.ExtendRequest) -> PositionErrors:
        """Set the ends of the leases to `lease_ms` after now, and note that consumers work on the items of `begun`.

        Names their consumer, if the call does. The positions of errors of `begun` follow those of `receipts`.
        """
        namespace = self._namespaces.serving(request.namespace_name)
        receipts, begun = request.receipts, request.begun or ()
        arguments.check_batch("receipts", len(receipts) + len(begun), limits.BATCH_ITEMS_MAX)
        lease_ms = arguments.check_range(
            "lease_ms", request.lease_ms, limits.LEASE_MS_MIN, namespace.settings.lease_ms_max
        )
        consumer = arguments.check_consumer(request.consumer)
        errors: PositionErrors = {}
        by_shard: dict[str, _OfShard] = {}
        answer: Answer | None = None
        for position, receipt in enumerate(receipts):
            try:
                group, item = self._find_lease(namespace, receipt, by_shard)
                if consumer is not None:
                    item.holder = self._consumers.holds(namespace.number, consumer)  # Only of who has a lease.
                answer = answer or Answer(self._waiting)
                group.shard.extend(item, lease_ms, answer, position)
                group.writer.wake()
            except FoqsError as error:
                errors[position] = error.with_traceback(None)
        begun_errors = self._begin_work(namespace, begun, len(receipts), by_shard, consumer) if begun else {}
        if answer is not None and answer.open_count:
            await answer.done
            errors.update(answer.errors)
        self._count_event(namespace.number, ItemEvent.EXTENDED, len(receipts) - len(errors))
        errors.update(begun_errors)
        return errors

    def _begin_work(
        self,
        namespace: Namespace,
        begun: Sequence[str],
        first_position: int,
        by_shard: dict[str, _OfShard],
        consumer: str | None,
    ) -> PositionErrors:
        errors: PositionErrors = {}
        for position, receipt in enumerate(begun, first_position):
            try:
                group, item = self._find_lease(namespace, receipt, by_shard)
                group.shard.work_begins(item)
                if consumer is not None:
                    item.holder = self._consumers.holds(namespace.number, consumer)
            except FoqsError as error:
                errors[position] = error.with_traceback(None)
        return errors

    def _end_leases(
        self,
        namespace: Namespace,
        receipts: Sequence[str],
        errors: PositionErrors,
        nacks: Sequence[of.Nack] | None,
        unleased: list[tuple[int, int, int]] | None,
    ) -> Answer | None:
        """End leases by `nacks`, one for each receipt, or delete the items without `nacks`; pass the changes to shards.

        A bare id without a lease is added to `unleased`, if given, as (position, shard id, key). Returns the answer to
        wait for, or None if no change must be written.
        """
        number = namespace.number
        by_shard: dict[str, _OfShard] = {}
        group: _OfShard | None = None
        position = 0
        while position < len(receipts):
            receipt, count = receipts[position], 1
            try:
                # Items that were delivered together are mostly of one shard.
                item = group.under_lease.get(receipt) if group is not None else None
                if item is None:
                    shard_text = receipt.partition("-")[0]
                    group = by_shard.get(shard_text) or self._shard_of(shard_text, by_shard)
                    item = group.under_lease.get(receipt) if group is not None else None
                if item is not None and item.bundle is not None:
                    if nacks is None and receipts[position : position + item.count] == item.bundle.receipts:
                        count = item.count
                    else:
                        item = None  # Not all of it ends in the same way.
                if group is None or item is None or item.topic.namespace != number:
                    count = 1
                    group, item = self._find_lease(namespace, receipt, by_shard)
                if nacks is not None:
                    group.rewrites.append(_rewrite(nacks[position], namespace.settings, group, item))
                group.items.append(item)
                group.places.append(position)
            except StaleLeaseError as error:
                _note_stale(position, receipt, error, errors, unleased)
            except FoqsError as error:
                errors[position] = error.with_traceback(None)
            position += count
        answer: Answer | None = None
        for of_shard in by_shard.values():
            one, repeats = _without_repeats(of_shard)
            for position in repeats:
                _note_stale(position, receipts[position], stale_lease(), errors, unleased)
            if one.items:
                answer = answer or Answer(self._waiting)
                _settle(one, nacks, answer)
        return answer

    def _shard_of(self, shard_text: str, by_shard: dict[str, _OfShard]) -> _OfShard | None:
        """Return the served shard that a receipt begins with, or None; `_find_lease` then raises the reason."""
        try:
            writer = self._shards.writers.get(int(shard_text, 16))
        except ValueError:
            return None
        if writer is None or writer.shard is None:
            return None
        group = by_shard[shard_text] = _OfShard(writer, writer.shard, writer.shard.under_lease, [], [], [])
        return group

    def _find_lease(
        self, namespace: Namespace, receipt: str, by_shard: dict[str, _OfShard]
    ) -> tuple[_OfShard, ShardItem]:
        """Return the item of a receipt's lease. Raises StaleLeaseError, and UnavailableError for a shard elsewhere."""
        shard_id, key, delivery = ids.parse(receipt)
        shard_text = f"{shard_id:x}"
        if shard_text not in by_shard:
            writer = self._shards.writers.get(shard_id)
            if writer is None or writer.shard is None:
                raise self._shards.not_served(shard_id)
            shard = writer.shard
            by_shard[shard_text] = _OfShard(writer, shard, shard.under_lease, [], [], [])
        group = by_shard[shard_text]
        item = group.shard.lease_of(key, delivery)
        if item.topic.namespace != namespace.number:
            # The answer is that for an unknown lease, so that it reveals no lease of another namespace.
            raise stale_lease()
        return group, item


def _without_repeats(group: _OfShard) -> tuple[_OfShard, list[int]]:
    """Leave each lease to the first position that ends it. Returns the other positions as well."""
    is_divided = any(item.bundle is not None and item.bundle.parts for item in group.items)
    if not is_divided and len({item.key for item in group.items}) == len(group.items):
        return group, []
    # A repeat has divided the bundle that an earlier position ends.
    parts = [undivided([item]) for item in group.items]
    ends = [
        (one, place + one.key - some[0].key) for some, place in zip(parts, group.places, strict=True) for one in some
    ]
    first_at: dict[int, int] = {}
    for at, (item, _) in enumerate(ends):
        first_at.setdefault(item.key, at)
    kept = list(first_at.values())
    items, places = [ends[at][0] for at in kept], [ends[at][1] for at in kept]
    rewrites = [group.rewrites[at] for at in kept] if group.rewrites else []
    repeats = [ends[at] for at in sorted({*range(len(ends))}.difference(kept))]
    others = [place + at for item, place in repeats for at in range(item.count)]
    return group._replace(items=items, places=places, rewrites=rewrites), others


def _note_stale(
    position: int,
    receipt: str,
    error: StaleLeaseError,
    errors: PositionErrors,
    unleased: list[tuple[int, int, int]] | None,
) -> None:
    """Add a receipt without a lease to `errors`, or a bare id to `unleased`, if given."""
    shard_id, key, delivery = ids.parse(receipt)
    if delivery or unleased is None:
        errors[position] = error.with_traceback(None)
    else:
        unleased.append((position, shard_id, key))


def _settle(group: _OfShard, nacks: Sequence[of.Nack] | None, answer: Answer) -> None:
    """End leases on one shard, and pass their ends on to it."""
    shard = group.shard
    shard.end_leases(group.items)
    if shard.suspects:
        for item, place in zip(group.items, group.places, strict=True):
            if nacks is None or not nacks[place].release:
                shard.suspects.pop(item.key, None)  # Its consumer has outlived it. No suspect is in a bundle.
    positions: list[int] = []
    for item, place in zip(group.items, group.places, strict=True):
        positions += range(place, place + item.count)
    shard.settle(group.items, group.rewrites or None, answer, positions)
    group.writer.wake()


def _rewrite(nack: of.Nack, settings: NamespaceSettings, group: _OfShard, item: ShardItem) -> Rewrite | None:
    """Return the rewrite of a nacked item's row, or None to delete it."""
    delay_ms, metadata = nack.delay_ms, nack.metadata
    if not isinstance(delay_ms, int) or not 0 <= delay_ms <= settings.delay_ms_max:
        raise arguments.out_of_range("delay_ms", delay_ms, 0, settings.delay_ms_max)
    if nack.release and nack.dead_letter:
        raise InvalidArgumentError("release and dead_letter are both set: set one")
    if metadata is not None and len(metadata) > settings.metadata_bytes_max:
        raise arguments.too_much_metadata(metadata, settings)
    reason = failures.clean_reason(nack.reason) if nack.reason else ""
    return group.shard.failed_attempt(
        item,
        group.writer.now_ms(),
        delay_ms=delay_ms,
        cause="dead-lettered by its consumer" if nack.dead_letter else "released" if nack.release else "nacked",
        reason=reason,
        dead=bool(nack.dead_letter),
        release=bool(nack.release),
        unseen=bool(nack.release and nack.unseen),
        metadata=metadata,
        failure=reason,
    )

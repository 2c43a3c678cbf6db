"""Ack, nack and extendLease: the ends of leases, by receipt."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from foqs.host import arguments
from foqs.host.inspection import Inspection
from foqs.host.shards import Shards
from foqs.host.waiting import Answer, Waiting
from foqs.model import ids, limits
from foqs.model.calls import NackFields, PositionErrors
from foqs.model.errors import FoqsError, InvalidArgumentError, NotFoundError, StaleLeaseError
from foqs.model.item import ShardItem
from foqs.model.namespace import Namespace
from foqs.shard.port import Rewrite
from foqs.shard.state.engine import ShardState
from foqs.shard.state.leases import stale_lease

MakeRewrite = Callable[[int, ShardState, ShardItem], Rewrite | None]


class _Ended:
    """The leases of one call and shard."""

    def __init__(self, shard: ShardState) -> None:
        self.shard = shard
        self.under_lease = shard.under_lease
        self.items: list[ShardItem] = []
        self.rewrites: list[Rewrite | None] = []
        self.positions: list[int] = []


class Leases:
    """Ends and extends leases for callers: the verbs ack, nack and extendLease. `Queue` calls it.

    It finds the item under each receipt, hands what is to be written to the item's shard, and returns when that is
    durable, with the errors by position.
    """

    def __init__(self, shards: Shards, inspection: Inspection, waiting: Waiting) -> None:
        self._shards = shards
        self._waiting = waiting
        self._inspection = inspection

    async def ack(self, namespace: Namespace, receipts: Sequence[str], repeated: bool = False) -> PositionErrors:
        """Let the items go; returns once that is durable.

        `repeated`: an earlier attempt may have done it, so an item that is gone is done, whatever its receipt.
        """
        arguments.check_batch("receipts", len(receipts), limits.BATCH_ITEMS_MAX)
        errors: PositionErrors = {}
        unleased: list[tuple[int, int, int]] = []
        ended = self._end_leases(namespace, receipts, errors, None, unleased)
        await self._settle(ended, errors, rewriting=False)
        if unleased:
            errors.update(await self._inspection.delete_rows(namespace, unleased))
        if repeated:
            await self._forgive_gone(namespace, receipts, errors)
        return errors

    async def _forgive_gone(self, namespace: Namespace, receipts: Sequence[str], errors: PositionErrors) -> None:
        """Let STALE_LEASE stand only where the item is there: it then is somebody else's, or waits for them."""
        stale = [position for position, error in errors.items() if isinstance(error, StaleLeaseError)]
        if stale:
            places = {position: ids.parse(receipts[position]) for position in stale}
            answers = await self._inspection.find_leases(namespace, places)
            errors.update(answers)
            for position, error in answers.items():
                if isinstance(error, NotFoundError):
                    del errors[position]

    async def nack(self, namespace: Namespace, nacks: Sequence[NackFields]) -> PositionErrors:
        """Give the items back, count a failed attempt unless released."""
        settings = namespace.settings
        arguments.check_batch("nacks", len(nacks), limits.BATCH_ITEMS_MAX)

        def make_rewrite(position: int, shard: ShardState, item: ShardItem) -> Rewrite | None:
            nack = nacks[position]
            delay_ms = arguments.check_range("delay_ms", nack.delay_ms, 0, settings.delay_ms_max)
            if nack.release and nack.dead_letter:
                raise InvalidArgumentError("release and dead_letter are both set: set one")
            if nack.metadata is not None:
                arguments.check_metadata(nack.metadata, settings)
            return shard.failed_attempt(
                item,
                self._shards.now_ms(shard.shard_id),
                delay_ms=delay_ms,
                reason="dead-lettered by its consumer" if nack.dead_letter else "nacked",
                dead=bool(nack.dead_letter),
                release=bool(nack.release),
                metadata=nack.metadata,
            )

        errors: PositionErrors = {}
        ended = self._end_leases(namespace, [nack.receipt or "" for nack in nacks], errors, make_rewrite, None)
        await self._settle(ended, errors, rewriting=True)
        return errors

    async def extend(self, namespace: Namespace, receipts: Sequence[str], lease_ms: int) -> PositionErrors:
        """Let the leases end `lease_ms` after now."""
        arguments.check_batch("receipts", len(receipts), limits.BATCH_ITEMS_MAX)
        arguments.check_range("lease_ms", lease_ms, limits.LEASE_MS_MIN, namespace.settings.lease_ms_max)
        errors: PositionErrors = {}
        answer = Answer(self._waiting)
        for position, receipt in enumerate(receipts):
            try:
                shard_id, key, delivery = ids.parse(receipt)
                _, shard = self._shards.serving(shard_id)
                item = _lease_of(namespace, shard, key, delivery)
                shard.extend(item, lease_ms, answer.completion, position)
                self._shards.wake(shard.shard_id)
            except FoqsError as error:
                errors[position] = error.with_traceback(None)
        await answer.wait()
        errors.update(answer.completion.errors)
        return errors

    def _end_leases(
        self,
        namespace: Namespace,
        receipts: Sequence[str],
        errors: PositionErrors,
        make_rewrite: MakeRewrite | None,
        unleased: list[tuple[int, int, int]] | None,
    ) -> Iterable[_Ended]:
        """A bare id without a lease goes to `unleased` as (position, shard id, key) where that is given."""
        number = namespace.number
        by_shard: dict[str, _Ended] = {}
        for position, receipt in enumerate(receipts):
            try:
                group, item = by_shard.get(receipt.partition("-")[0]), None
                if group is not None:
                    item = group.under_lease.get(receipt)
                if group is None or item is None or item.topic.namespace != number:
                    group, item = self._find_lease(namespace, receipt, by_shard)
                if make_rewrite is not None:
                    group.rewrites.append(make_rewrite(position, group.shard, item))
                group.shard.end_lease(item)
                group.items.append(item)
                group.positions.append(position)
            except StaleLeaseError as error:
                shard_id, key, delivery = ids.parse(receipt)
                if delivery or unleased is None:
                    errors[position] = error.with_traceback(None)
                else:
                    unleased.append((position, shard_id, key))
            except FoqsError as error:
                errors[position] = error.with_traceback(None)
        return by_shard.values()

    def _find_lease(self, namespace: Namespace, receipt: str, by_shard: dict[str, _Ended]) -> tuple[_Ended, ShardItem]:
        shard_id, key, delivery = ids.parse(receipt)
        shard_text = f"{shard_id:x}"
        if shard_text not in by_shard:
            by_shard[shard_text] = _Ended(self._shards.serving(shard_id)[1])
        group = by_shard[shard_text]
        return group, _lease_of(namespace, group.shard, key, delivery)

    async def _settle(self, ended: Iterable[_Ended], errors: PositionErrors, *, rewriting: bool) -> None:
        answer = Answer(self._waiting)
        for group in ended:
            if group.items:
                rewrites = group.rewrites if rewriting else None
                group.shard.settle(group.items, rewrites, answer.completion, group.positions)
                self._shards.wake(group.shard.shard_id)
        await answer.wait()
        errors.update(answer.completion.errors)


def _lease_of(namespace: Namespace, shard: ShardState, key: int, delivery: int) -> ShardItem:
    item = shard.lease_of(key, delivery)
    if item.topic.namespace != namespace.number:
        # The same answer as for a lease that never was: nobody learns what others hold.
        raise stale_lease()
    return item

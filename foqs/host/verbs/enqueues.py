"""Enqueue: admission by quota, placement on a shard, and the wait for its commit."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from operator import attrgetter

from foqs.contract.requests import EnqueueRequest, NewItem
from foqs.host import arguments
from foqs.host.admission.account import Charge
from foqs.host.admission.depths import Depths
from foqs.host.admission.hosted_quota import RepeatLookUps
from foqs.host.admission.placement import Placement
from foqs.host.admission.quotas import Quotas
from foqs.host.registry.namespaces import Namespaces
from foqs.host.shards.shards import NO_SHARD_RETRY_MS
from foqs.host.shards.waiting import Answer, Waiting
from foqs.host.verbs.distant_holders import DistantHolders
from foqs.host.verbs.item_maker import Costs, ItemMaker, costs_of
from foqs.host.verbs.keyed_items import NO_KEYS, KeyedNames, with_keyed_topics
from foqs.host.verbs.made import Made
from foqs.host.verbs.once_part import OncePart
from foqs.host.verbs.serial_part import SerialPart, digests_for, serial_names
from foqs.model.calls import CallContext, DedupUntil, EnqueueResult, PositionErrors
from foqs.model.errors import (
    FoqsError,
    NotWrittenError,
    PausedError,
    RateLimitedError,
    UnavailableError,
)
from foqs.model.item import ItemEvent
from foqs.model.namespace import DedupScope, Namespace
from foqs.model.topic_name import without_fairness_key
from foqs.shard.state.engine import ShardState
from foqs.shard.writer.shard_writer import ShardWriter
from foqs.wire.item_batch import samples

_size_bytes = attrgetter("size_bytes")
_dedup_id = attrgetter("dedup_id")
_ordering_key = attrgetter("ordering_key")
_fairness_key = attrgetter("fairness_key")


def _by_id(namespace: Namespace, new_items: Sequence[NewItem], positions: Sequence[int]) -> list[list[int]]:
    """Group the positions of items by dedup id, in the order of the call."""
    is_by_topic = namespace.settings.dedup_scope is DedupScope.TOPIC
    groups: dict[tuple[str, str], list[int]] = {}
    for position in sorted(positions):
        new = new_items[position]
        groups.setdefault(
            (without_fairness_key(new.topic or "") if is_by_topic else "", new.dedup_id or ""), []
        ).append(position)
    return list(groups.values())


class Enqueues:
    """The verb enqueue, which admits items by the quota of their namespace, and returns when they are durable."""

    def __init__(
        self,
        namespaces: Namespaces,
        quotas: Quotas,
        placement: Placement,
        waiting: Waiting,
        count_event: Callable[[int, ItemEvent, int], None],
        make_slots: Callable[[], Awaitable[object]],
        look_ups: RepeatLookUps,
        depths: Depths,
        distant: DistantHolders,
    ) -> None:
        """`count_event` counts events of items by namespace; `make_slots` makes the slot table if it is missing.

        `look_ups` bounds the look-ups of dedup ids for calls over their quota. `depths` has the room of topics
        with a limit. `distant` asks other shards for holders.
        """
        self._namespaces = namespaces
        self._maker = ItemMaker(namespaces.settings, depths)
        self._quotas = quotas
        self._placement = placement
        self._waiting = waiting
        self._count_event = count_event
        self._make_slots = make_slots
        self._look_ups = look_ups
        self._distant = distant

    async def enqueue(self, context: CallContext, request: EnqueueRequest) -> EnqueueResult:
        """Write the valid items; the `errors` of the result have the others. Raises FoqsError if none was written."""
        namespace_name, items = request.namespace_name, request.items
        if not items:
            self._namespaces.serving(namespace_name)
            return EnqueueResult([])
        result = EnqueueResult([""] * len(items))
        keyed = NO_KEYS
        kinds = samples(items)
        if any(map(_ordering_key, kinds)) or any(map(_fairness_key, kinds)):
            items, keyed = with_keyed_topics(items, self._namespaces, namespace_name)
        has_ids = any(map(_dedup_id, kinds))
        try:
            namespace, charge, costs = await self._admit(namespace_name, items, is_bound=has_ids or bool(keyed.ordered))
        except RateLimitedError as error:
            namespace = self._namespaces.serving(namespace_name)
            if has_ids and self._placement.knows_slots and self._look_ups.admit(namespace, len(items)):
                await self._find_repeats(namespace, items, keyed, result, error.with_traceback(None), context.away)
                return result
            self._count_event(namespace.number, ItemEvent.RATE_LIMITED, len(items))
            raise
        serial = serial_names(self._namespaces.settings, namespace.number, items, keyed.ordered)
        if has_ids or serial:
            await self._enqueue_once(namespace, items, serial, result, charge, costs, context.away, keyed)
            return result
        try:
            await self._enqueue_anywhere(namespace, items, range(len(items)), result, keyed.fair)
        except FoqsError as error:
            charge.refund(costs.all if error.nothing_done else costs.of(result.errors))
            raise
        charge.refund(costs.of(result.errors))
        return result

    async def _enqueue_anywhere(
        self,
        namespace: Namespace,
        items: Sequence[NewItem],
        positions: Sequence[int],
        result: EnqueueResult,
        fair: Collection[str],
    ) -> None:
        """Write items without dedup ids, which any shard can take. Raises FoqsError when none was written."""
        writer, shard, made = self._place(namespace, items, positions, result.errors, fair)
        avoided: set[int] = set()
        while made.items:
            answer, new_items = Answer(self._waiting), made.all()
            if made.room is not None:
                made.room.hold_until(answer)
            try:
                shard.insert(new_items, sum(map(_size_bytes, new_items)), answer)
            except FoqsError:
                if made.room is not None:
                    made.room.close()
                raise
            writer.wake()
            try:
                await answer.done
                break
            except NotWrittenError:
                # The items were certainly not written, so another shard can take them without a duplicate.
                avoided.add(shard.shard_id)
                # The namespace was possibly closed meanwhile, and counted as empty there.
                self._namespaces.check_open(namespace.number)
                writer, shard, made = self._place(namespace, items, list(made.items), result.errors, fair, avoided)
        made.enter_ids(shard.shard_id, result.ids)
        self._count_event(namespace.number, ItemEvent.ENQUEUED, made.count())

    async def _enqueue_once(
        self,
        namespace: Namespace,
        items: Sequence[NewItem],
        serial: frozenset[str],
        result: EnqueueResult,
        charge: Charge,
        costs: Costs,
        away: Collection[int] = (),
        keyed: KeyedNames = NO_KEYS,
    ) -> None:
        """Write the items of a call with dedup ids, or with `serial` topics; `keyed` are the topics of keys.

        Raises FoqsError when all items failed for one reason.
        """
        refused: PositionErrors = {}
        if not self._placement.knows_slots:
            await self._ask_for_slots(namespace, costs.all, charge)
            serial = serial_names(self._namespaces.settings, namespace.number, items, keyed.ordered)
        plain = [at for at, new in enumerate(items) if new.dedup_id is None and new.topic not in serial]
        answer = Answer(self._waiting)
        bound = [at for at, new in enumerate(items) if new.dedup_id is not None or new.topic in serial]
        placed, anywhere = self._place_by_slots(namespace, items, bound, serial, refused, away)
        parts, serial_parts = self._start_once(
            namespace, items, serial, keyed.fair, placed, answer, result.errors, refused
        )
        if plain or anywhere:
            await self._enqueue_without_ids(namespace, items, plain, anywhere, result, refused, keyed.fair)
        parts = await self._end_once(namespace, items, serial, keyed.fair, parts, answer, result, refused)
        made_counts = [await one.enter_outcomes(result, refused) for one in serial_parts]
        made_count = sum([part.made_count() for part in parts]) + sum(made_counts)
        result.duplicates.sort()
        result.errors.update(refused)
        undone = [position for position, error in result.errors.items() if error.nothing_done]
        charge.refund(costs.of(undone) + costs.of(result.duplicates))
        self._count_event(namespace.number, ItemEvent.ENQUEUED, made_count)
        if len(refused) == len(items) and len(distinct := set(refused.values())) == 1:
            raise distinct.pop()

    async def _find_repeats(
        self,
        namespace: Namespace,
        items: Sequence[NewItem],
        keyed: KeyedNames,
        result: EnqueueResult,
        refusal: RateLimitedError,
        away: Collection[int],
    ) -> None:
        """Return the ids of the first items for the repeats of a call over the quota; refuse all other items.

        Raises the refusal when no item is a repeat. The owners of other shards check the ids of their slots.
        """
        plain = [position for position, new in enumerate(items) if new.dedup_id is None]
        refused: PositionErrors = {}
        answer = Answer(self._waiting)
        serial = serial_names(self._namespaces.settings, namespace.number, items, keyed.ordered)
        with_ids = [position for position, new in enumerate(items) if new.dedup_id is not None]
        placed, anywhere = self._place_by_slots(namespace, items, with_ids, serial, refused, away)
        refused.update(dict.fromkeys([*plain, *anywhere], refusal))
        parts, _ = self._start_once(
            namespace, items, serial, keyed.fair, placed, answer, result.errors, refused, refusal
        )
        await self._end_once(namespace, items, serial, keyed.fair, parts, answer, result, refused, refusal)
        result.duplicates.sort()
        result.errors.update(refused)
        limited_count = sum([error is refusal for error in refused.values()])
        self._count_event(namespace.number, ItemEvent.RATE_LIMITED, limited_count)
        if limited_count == len(items):
            raise refusal

    async def _enqueue_without_ids(
        self,
        namespace: Namespace,
        items: Sequence[NewItem],
        plain: Sequence[int],
        anywhere: Sequence[int],
        result: EnqueueResult,
        refused: PositionErrors,
        fair: Collection[str],
    ) -> None:
        """Write the items of a call that any shard can take; add the errors of items that no shard takes to `refused`.

        The items of `anywhere` have dedup ids that no shard checks. Of equal ones, the first valid item is written.
        """
        groups = _by_id(namespace, items, anywhere)
        some = sorted([*plain, *[group[0] for group in groups]])
        while some:
            try:
                await self._enqueue_anywhere(namespace, items, some, result, fair)
            except FoqsError as error:
                lost = {at for at in itertools.chain(some, *groups) if at not in result.errors}
                refused.update(dict.fromkeys(lost, error.with_traceback(None)))
                return
            left: list[list[int]] = []
            for first, *repeats in groups:
                if first in result.errors:
                    left.append(repeats)
                else:
                    for at in repeats:
                        result.ids[at] = result.ids[first]
                    result.duplicates += repeats
            groups = [group for group in left if group]
            some = sorted([group[0] for group in groups])

    async def _ask_for_slots(self, namespace: Namespace, count: int, charge: Charge) -> None:
        """Wait for the slot table, which the cluster's first dedup id makes. Raises FoqsError, with nothing written."""
        try:
            await self._make_slots()
        except FoqsError as error:
            charge.refund(count)
            raise UnavailableError(
                f"nothing was enqueued: {error.message}", retry_after_ms=NO_SHARD_RETRY_MS, nothing_done=True
            ) from error
        self._check_open_still(namespace, count, charge)

    def _place_by_slots(
        self,
        namespace: Namespace,
        items: Sequence[NewItem],
        positions: Sequence[int],
        serial: frozenset[str],
        refused: PositionErrors,
        away: Collection[int] = (),
    ) -> tuple[dict[ShardWriter, list[int]], list[int]]:
        """Return the positions of items with dedup ids or `serial` topics by shard, and the positions for any shard.

        Items that no shard here takes are added to `refused`.
        """
        with_ids = positions if not serial else [at for at in positions if items[at].topic not in serial]
        placed: dict[ShardWriter, list[int]] = {}
        anywhere: list[int] = []
        if with_ids:
            placed, anywhere = self._placement.place_ids(namespace, items, with_ids, refused, away)
        if len(with_ids) < len(positions):
            by_topic: dict[str, list[int]] = {}
            for at in positions:
                if (name := items[at].topic or "") in serial:
                    by_topic.setdefault(name, []).append(at)
            for writer, some in self._placement.place_serial(namespace, by_topic, refused).items():
                placed[writer] = sorted([*placed.get(writer, ()), *some])
        return placed, anywhere

    def _start_once(
        self,
        namespace: Namespace,
        items: Sequence[NewItem],
        serial: frozenset[str],
        fair: frozenset[str],
        placed: Mapping[ShardWriter, Sequence[int]],
        answer: Answer,
        errors: PositionErrors,
        refused: PositionErrors,
        refusal: FoqsError | None = None,
    ) -> tuple[list[OncePart], list[SerialPart]]:
        """Pass items with dedup ids, or with `serial` topics, to their shards.

        Invalid items are added to `errors`, items that no shard takes to `refused`. If `refusal` is given, no item is
        written, and it is the error of items that are no repeats.
        """
        parts: list[OncePart] = []
        serial_parts: list[SerialPart] = []
        answer.open_count += 1  # A shard can refuse items at once, before the next shard gets its own.
        for writer, some in placed.items():
            shard = writer.shard
            assert shard is not None, "it has just been chosen"
            try:
                draft_topic = partial(shard.index.draft_topic, namespace.number)
                made = self._maker.make_items(
                    writer, shard, namespace, items, some, draft_topic, errors, serial, fair=fair, takes_room=False
                )
                without_ids = [at for at in made.items if items[at].dedup_id is None] if serial else []
                if without_ids:
                    serial_part = SerialPart(made, without_ids, Answer(self._waiting))
                    serial_part.insert(shard, errors, refused)
                    serial_parts.append(serial_part)
                    made = made.without(without_ids)
                if made.items:
                    holding = [item.key for at, item in made.items.items() if items[at].dedup_until == DedupUntil.ACKED]
                    part = OncePart(writer, shard.shard_id, made, frozenset(holding), refusal)
                    if made.room is not None:
                        made.room.hold_until(answer)
                    digests = digests_for(namespace, items, list(made.items), serial)
                    new_items = list(made.items.values())
                    shard.insert_once(new_items, digests, sum(map(_size_bytes, made.all())), answer, part.outcome)
                    parts.append(part)
            except FoqsError as error:
                begun = {at for one in serial_parts for at in one.positions}
                lost = [at for at in some if at not in errors and at not in begun]
                refused.update(dict.fromkeys(lost, error.with_traceback(None)))
            writer.wake()
        answer.part_done()
        return parts, serial_parts

    async def _end_once(
        self,
        namespace: Namespace,
        items: Sequence[NewItem],
        serial: frozenset[str],
        fair: frozenset[str],
        parts: list[OncePart],
        answer: Answer,
        result: EnqueueResult,
        refused: PositionErrors,
        refusal: FoqsError | None = None,
    ) -> list[OncePart]:
        """Wait for parts, and enter their outcomes. Returns all parts.

        A repeat of an item on another shard that has ended since is enqueued again. Each round removes a holder of its
        id, and a new one is on the same shard as the id.
        """
        done: list[OncePart] = []
        while parts:
            unknown: FoqsError | None = None
            try:
                await answer.done
            except FoqsError as error:
                unknown = error.with_traceback(None)
            done += parts
            again: list[int] = []
            for part in parts:
                part.enter_outcomes(result, refused, unknown)
                if held := part.held_elsewhere():
                    again += await self._distant.free(namespace, part.writer, held, result, refused)
            if not again:
                break
            answer = Answer(self._waiting)
            placed = self._place_again(namespace, items, again, serial, refused)
            parts, _ = self._start_once(namespace, items, serial, fair, placed, answer, result.errors, refused, refusal)
        return done

    def _place_again(
        self,
        namespace: Namespace,
        items: Sequence[NewItem],
        positions: Sequence[int],
        serial: frozenset[str],
        refused: PositionErrors,
    ) -> Mapping[ShardWriter, Sequence[int]]:
        """Place items once more after a wait, in which their shards or their namespace can have become unavailable."""
        try:
            self._namespaces.check_open(namespace.number)
        except FoqsError as error:
            refused.update(dict.fromkeys(positions, error.with_traceback(None)))
            return {}
        errors: PositionErrors = {}
        placed, anywhere = self._place_by_slots(namespace, items, positions, serial, errors)
        refused.update(errors)
        if anywhere:
            away = UnavailableError(
                "the shard that knows these dedup ids has just gone away: nothing was enqueued, try again",
                retry_after_ms=NO_SHARD_RETRY_MS,
                nothing_done=True,
            )
            refused.update(dict.fromkeys(anywhere, away))
        return placed

    async def _admit(self, name: str, items: Sequence[NewItem], *, is_bound: bool) -> tuple[Namespace, Charge, Costs]:
        """Check a call and charge its quota before any work, so that a namespace over quota costs others nothing."""
        namespace = self._namespaces.serving(name)
        settings = namespace.settings
        if settings.enqueue_paused:
            why = arguments.why(settings.pause_reason)
            raise PausedError(f"enqueues of namespace {name!r} are paused by an operator{why}")
        if namespace.closing:
            self._namespaces.check_open(namespace.number)
        if len(items) > settings.batch_items_max:
            raise arguments.too_many("items", len(items), settings.batch_items_max)
        costs = costs_of(items, self._namespaces.settings.groups.get(namespace.number))
        count = costs.all
        if not is_bound and not serial_names(self._namespaces.settings, namespace.number, items):
            # Tokens for items without a shard would be missing on the hosts that have one.
            self._placement.check_takes(namespace)
        charge = self._quotas.admit(namespace, count)
        if charge is None:
            charge = await self._quotas.wait(namespace, count)
            self._check_open_still(namespace, count, charge)
        return namespace, charge, costs

    def _check_open_still(self, namespace: Namespace, count: int, charge: Charge) -> None:
        """Check after a wait that the namespace was not closed and counted as empty. Returns the charge if it was."""
        try:
            self._namespaces.check_open(namespace.number)
        except FoqsError:
            charge.refund(count)
            raise

    def _place(
        self,
        namespace: Namespace,
        new_items: Sequence[NewItem],
        positions: Sequence[int],
        errors: PositionErrors,
        fair: Collection[str],
        avoided: Collection[int] = (),
    ) -> tuple[ShardWriter, ShardState, Made]:
        """Choose a shard and make the items at `positions` for it. Returns its writer, its state, and the items."""
        writer = self._placement.place(namespace, len(positions), avoided)
        shard = writer.shard
        assert shard is not None, "it has just been chosen"
        return writer, shard, self._maker.make(writer, shard, namespace, new_items, positions, errors, fair)

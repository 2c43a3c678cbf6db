"""Enqueue: admission by quota, placement on a shard, and the wait for its commit."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from operator import attrgetter

from foqs.contract.requests import EnqueueRequest, NewItem
from foqs.host import arguments
from foqs.host.admission.account import Charge
from foqs.host.admission.hosted_quota import RepeatLookUps
from foqs.host.admission.placement import Placement
from foqs.host.admission.quotas import Quotas
from foqs.host.registry.namespaces import Namespaces
from foqs.host.shards.shards import NO_SHARD_RETRY_MS
from foqs.host.shards.waiting import Answer, Waiting
from foqs.model import ids, order
from foqs.model.calls import CallContext, DeliveryPolicy, EnqueueResult, PositionErrors
from foqs.model.errors import (
    FoqsError,
    NotWrittenError,
    PausedError,
    RateLimitedError,
    UnavailableError,
)
from foqs.model.item import ItemEvent, Phase, ShardItem
from foqs.model.namespace import DedupScope, Namespace
from foqs.model.policy import TopicPolicy
from foqs.model.seen import digests_of
from foqs.model.slots import slot_of
from foqs.model.topic import ShardTopic
from foqs.shard.state.engine import ShardState
from foqs.shard.state.events import OnceOutcome
from foqs.shard.writer.shard_writer import ShardWriter

AT_MOST_ONCE = int(DeliveryPolicy.AT_MOST_ONCE)
_size_bytes = attrgetter("size_bytes")
_dedup_id = attrgetter("dedup_id")


class _OncePart:
    """The items with dedup ids of one call that one shard received."""

    __slots__ = ("_made", "_shard_id", "outcome")

    def __init__(self, shard_id: int, made: dict[int, ShardItem], refusal: FoqsError | None) -> None:
        """`made` are the items by their positions in the call; `refusal` is the error of items that are no repeats."""
        self._shard_id = shard_id
        self._made = made
        self.outcome = OnceOutcome(refusal)

    def tell(self, result: EnqueueResult, refused: PositionErrors, unknown: FoqsError | None) -> None:
        """Enter the outcome of each item; `unknown` is the error of an item whose outcome is not known."""
        shard_id, outcome = self._shard_id, self.outcome
        firsts, errors = outcome.firsts, outcome.errors
        if len(outcome.made) == len(self._made):
            for position, item in self._made.items():
                result.ids[position] = ids.item_id(shard_id, item.key)
            return
        made = set(outcome.made)
        told: dict[FoqsError, FoqsError] = {}
        for position, item in self._made.items():
            key = item.key
            if key in made:
                result.ids[position] = ids.item_id(shard_id, key)
            elif key in firsts:
                result.ids[position] = ids.item_id(*firsts[key])
                result.duplicates.append(position)
            else:
                error = errors.get(key, unknown)
                assert error is not None, "it has ended"
                refused[position] = told.get(error) or told.setdefault(error, _of_slot(error))


def _of_slot(error: FoqsError) -> FoqsError:
    """Return the error of an item with a dedup id for its caller. Such an item cannot use another shard."""
    if isinstance(error, NotWrittenError):
        return UnavailableError(error.message, retry_after_ms=NO_SHARD_RETRY_MS, nothing_done=True)
    return error


def _topic_paused(name: str, policy: TopicPolicy) -> PausedError:
    return PausedError(f"enqueues of topic {name!r} are paused by an operator{arguments.why(policy.reason)}")


def _by_id(namespace: Namespace, news: Sequence[NewItem], positions: Sequence[int]) -> list[list[int]]:
    """Group the positions of items by dedup id, in the order of the call."""
    is_by_topic = namespace.settings.dedup_scope is DedupScope.TOPIC
    groups: dict[tuple[str, str], list[int]] = {}
    for position in sorted(positions):
        new = news[position]
        groups.setdefault((new.topic or "" if is_by_topic else "", new.dedup_id or ""), []).append(position)
    return list(groups.values())


def _slots_of(namespace: Namespace, dedup_ids: Sequence[str]) -> list[int]:
    """Return the slot of each id, or the single slot of all ids."""
    name, key_spread = namespace.name, namespace.settings.key_spread
    if key_spread == 1:
        return [slot_of(name, "", 1)]
    return [slot_of(name, dedup_id, key_spread) for dedup_id in dedup_ids]


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
    ) -> None:
        """`count_event` counts events of items by namespace; `make_slots` makes the slot table if it is missing.

        `look_ups` bounds the look-ups of dedup ids for calls over their quota.
        """
        self._namespaces = namespaces
        self._quotas = quotas
        self._placement = placement
        self._waiting = waiting
        self._count_event = count_event
        self._make_slots = make_slots
        self._look_ups = look_ups

    async def enqueue(self, context: CallContext, request: EnqueueRequest) -> EnqueueResult:
        """Write the valid items; the `errors` of the result have the others. Raises FoqsError if none was written."""
        namespace_name, items = request.namespace_name, request.items
        if not items:
            self._namespaces.serving(namespace_name)
            return EnqueueResult([])
        result = EnqueueResult([""] * len(items))
        has_ids = any(map(_dedup_id, items))
        try:
            namespace, charge = await self._admit(namespace_name, len(items), has_ids=has_ids)
        except RateLimitedError as error:
            namespace = self._namespaces.serving(namespace_name)
            if has_ids and self._placement.knows_slots and self._look_ups.admit(namespace, len(items)):
                await self._find_repeats(namespace, items, result, error.with_traceback(None), context.away)
                return result
            self._count_event(namespace.number, ItemEvent.RATE_LIMITED, len(items))
            raise
        if has_ids:
            await self._enqueue_once(namespace, items, result, charge, context.away)
            return result
        try:
            await self._enqueue_anywhere(namespace, items, range(len(items)), result)
        except FoqsError as error:
            charge.give_back(len(items) if error.nothing_done else len(result.errors))
            raise
        charge.give_back(len(result.errors))
        return result

    async def _enqueue_anywhere(
        self,
        namespace: Namespace,
        items: Sequence[NewItem],
        positions: Sequence[int],
        result: EnqueueResult,
    ) -> None:
        """Write items without dedup ids, which any shard can take. Raises FoqsError when none was written."""
        writer, shard, made = self._place(namespace, items, positions, result.errors)
        avoided: set[int] = set()
        while made:
            answer = Answer(self._waiting)
            shard.insert(list(made.values()), sum(map(_size_bytes, made.values())), answer)
            writer.wake()
            try:
                await answer.done
                break
            except NotWrittenError:
                # The items were certainly not written, so another shard can take them without a duplicate.
                avoided.add(shard.shard_id)
                # The namespace was possibly closed meanwhile, and counted as empty there.
                self._namespaces.check_open(namespace.number)
                writer, shard, made = self._place(namespace, items, list(made), result.errors, avoided)
        for position, item in made.items():
            result.ids[position] = ids.item_id(shard.shard_id, item.key)
        self._count_event(namespace.number, ItemEvent.ENQUEUED, len(made))

    async def _enqueue_once(
        self,
        namespace: Namespace,
        items: Sequence[NewItem],
        result: EnqueueResult,
        charge: Charge,
        away: Collection[int] = (),
    ) -> None:
        """Write the items of a call with dedup ids. Raises FoqsError when all items failed for one reason."""
        plain = [position for position, new in enumerate(items) if new.dedup_id is None]
        with_ids = [position for position, new in enumerate(items) if new.dedup_id is not None]
        refused: PositionErrors = {}
        if not self._placement.knows_slots:
            await self._ask_for_slots(namespace, len(items), charge)
        answer = Answer(self._waiting)
        placed, anywhere = self._placement.place_ids(namespace, items, with_ids, refused, away)
        parts = self._start_once(namespace, items, placed, answer, result.errors, refused)
        if plain or anywhere:
            await self._enqueue_without_ids(namespace, items, plain, anywhere, result, refused)
        unknown: FoqsError | None = None
        if parts:
            try:
                await answer.done
            except FoqsError as error:
                unknown = error.with_traceback(None)
        for part in parts:
            part.tell(result, refused, unknown)
        result.duplicates.sort()
        result.errors.update(refused)
        undone_count = sum([error.nothing_done for error in result.errors.values()])
        charge.give_back(undone_count + len(result.duplicates))
        self._count_event(namespace.number, ItemEvent.ENQUEUED, sum([len(part.outcome.made) for part in parts]))
        if len(refused) == len(items) and len(distinct := set(refused.values())) == 1:
            raise distinct.pop()

    async def _find_repeats(
        self,
        namespace: Namespace,
        items: Sequence[NewItem],
        result: EnqueueResult,
        refusal: RateLimitedError,
        away: Collection[int],
    ) -> None:
        """Return the ids of the first items for the repeats of a call over the quota; refuse all other items.

        Raises the refusal when no item is a repeat. The owners of other shards check the ids of their slots.
        """
        plain = [position for position, new in enumerate(items) if new.dedup_id is None]
        with_ids = [position for position, new in enumerate(items) if new.dedup_id is not None]
        refused: PositionErrors = {}
        answer = Answer(self._waiting)
        placed, anywhere = self._placement.place_ids(namespace, items, with_ids, refused, away)
        refused.update(dict.fromkeys([*plain, *anywhere], refusal))
        parts = self._start_once(namespace, items, placed, answer, result.errors, refused, refusal)
        unknown: FoqsError | None = None
        if parts:
            try:
                await answer.done
            except FoqsError as error:
                unknown = error.with_traceback(None)
        for part in parts:
            part.tell(result, refused, unknown)
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
    ) -> None:
        """Write the items of a call that any shard can take; add the errors of items that no shard takes to `refused`.

        The items of `anywhere` have dedup ids that no shard checks. Of equal ones, the first valid item is written.
        """
        groups = _by_id(namespace, items, anywhere)
        some = sorted([*plain, *[group[0] for group in groups]])
        while some:
            try:
                await self._enqueue_anywhere(namespace, items, some, result)
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
            charge.give_back(count)
            raise UnavailableError(
                f"nothing was enqueued: {error.message}", retry_after_ms=NO_SHARD_RETRY_MS, nothing_done=True
            ) from error
        self._check_open_still(namespace, count, charge)

    def _start_once(
        self,
        namespace: Namespace,
        items: Sequence[NewItem],
        placed: Mapping[ShardWriter, Sequence[int]],
        answer: Answer,
        errors: PositionErrors,
        refused: PositionErrors,
        refusal: FoqsError | None = None,
    ) -> list[_OncePart]:
        """Pass items with dedup ids to their shards. Invalid items are added to `errors`, items that no shard takes to
        `refused`. If `refusal` is given, no item is written, and it is the error of items that are no repeats.
        """
        parts: list[_OncePart] = []
        is_by_topic = namespace.settings.dedup_scope is DedupScope.TOPIC
        answer.open_count += 1  # A shard can refuse items at once, before the next shard gets its own.
        for writer, some in placed.items():
            shard = writer.shard
            assert shard is not None, "it has just been chosen"
            try:
                draft_topic = partial(shard.index.draft_topic, namespace.number)
                made = self._make_items(writer, shard, namespace, items, some, draft_topic, errors)
                if made:
                    part = _OncePart(shard.shard_id, made, refusal)
                    ids = [items[position].dedup_id or "" for position in made]
                    news = list(made.values())
                    scopes = [item.topic.name.encode() for item in news] if is_by_topic else [b""]
                    digests = digests_of(namespace.number, scopes, _slots_of(namespace, ids), ids)
                    shard.insert_once(news, digests, sum(map(_size_bytes, news)), answer, part.outcome)
                    parts.append(part)
            except FoqsError as error:
                lost = [at for at in some if at not in errors]
                refused.update(dict.fromkeys(lost, error.with_traceback(None)))
            writer.wake()
        answer.part_done()
        return parts

    async def _admit(self, name: str, count: int, *, has_ids: bool) -> tuple[Namespace, Charge]:
        """Check a call and charge its quota before any work, so that a namespace over quota costs others nothing."""
        namespace = self._namespaces.serving(name)
        settings = namespace.settings
        if settings.enqueue_paused:
            told = arguments.why(settings.pause_reason)
            raise PausedError(f"enqueues of namespace {name!r} are paused by an operator{told}")
        if namespace.closing:
            self._namespaces.check_open(namespace.number)
        if count > settings.batch_items_max:
            raise arguments.too_many("items", count, settings.batch_items_max)
        if not has_ids:
            # Tokens for items without a shard would be missing on the hosts that have one.
            self._placement.check_takes(namespace)
        charge = self._quotas.admit(namespace, count)
        if charge is None:
            charge = await self._quotas.wait(namespace, count)
            self._check_open_still(namespace, count, charge)
        return namespace, charge

    def _check_open_still(self, namespace: Namespace, count: int, charge: Charge) -> None:
        """Check after a wait that the namespace was not closed and counted as empty. Returns the charge if it was."""
        try:
            self._namespaces.check_open(namespace.number)
        except FoqsError:
            charge.give_back(count)
            raise

    def _place(
        self,
        namespace: Namespace,
        news: Sequence[NewItem],
        positions: Sequence[int],
        errors: PositionErrors,
        avoided: Collection[int] = (),
    ) -> tuple[ShardWriter, ShardState, dict[int, ShardItem]]:
        """Choose a shard and make the items at `positions` for it. Returns its writer, its state, and the items."""
        writer = self._placement.place(namespace, len(positions), avoided)
        shard = writer.shard
        assert shard is not None, "it has just been chosen"
        return writer, shard, self._make(writer, shard, namespace, news, positions, errors)

    def _make(
        self,
        writer: ShardWriter,
        shard: ShardState,
        namespace: Namespace,
        news: Sequence[NewItem],
        positions: Sequence[int],
        errors: PositionErrors,
    ) -> dict[int, ShardItem]:
        """Make items for a shard, and its missing topics. Raises FoqsError when the shard takes no items."""
        index, number, topics = shard.index, namespace.number, list[ShardTopic]()

        def new_topic(name: str) -> ShardTopic:
            topic = index.new_topic(number, name, len(topics))
            topics.append(topic)
            return topic

        made = self._make_items(writer, shard, namespace, news, positions, new_topic, errors)
        if made:
            for topic in topics:
                index.add_topic(topic)
        return made

    def _make_items(
        self,
        writer: ShardWriter,
        shard: ShardState,
        namespace: Namespace,
        news: Sequence[NewItem],
        positions: Sequence[int],
        new_topic: Callable[[str], ShardTopic],
        errors: PositionErrors,
    ) -> dict[int, ShardItem]:
        """Return the items by position, and add invalid ones to `errors`; `new_topic` makes missing topics.

        Raises FoqsError when the shard takes no items.
        """
        index, shard_id, number, settings = shard.index, shard.shard_id, namespace.number, namespace.settings
        topics, now_ms = index.topics, writer.now_ms()
        check_item, next_key, sort_key, phase = arguments.check_item, index.next_key, order.sort_key, Phase.INSERTING
        made: dict[int, ShardItem] = {}
        pauses = self._namespaces.settings.enqueue_pauses(number)
        found: dict[str, ShardTopic | FoqsError] = {}
        """The topic of each name, or the error of the name, found once for all its items."""
        for position in positions:
            new = news[position]
            name = new.topic or ""
            topic = found.get(name)
            if topic is None:
                if pauses is not None and (policy := pauses.of(name)).enqueue_paused:
                    topic = _topic_paused(name, policy)
                else:
                    topic = topics.get((number, name)) or arguments.topic_fault(name)
                if topic is not None:
                    found[name] = topic
            if isinstance(topic, FoqsError):
                errors[position] = topic
                continue
            try:
                content, due_at = check_item(new, settings, now_ms)
                if topic is None:
                    topic = found[name] = new_topic(name)
            except FoqsError as error:
                errors[position] = error.with_traceback(None)
                continue
            key, priority = next_key(), new.priority
            assert priority is not None, "it was checked"
            made[position] = ShardItem(
                key,
                topic,
                priority,
                due_at,
                sort_key(priority, due_at, key, shard_id),
                phase,
                now_ms,
                due_at + (new.ttl_ms or settings.ttl_ms_default),
                new.lease_ms or 0,
                new.delivery == AT_MOST_ONCE,
                content,
            )
        if made and index.namespace_names.get(number) != namespace.name:
            index.name_namespace(namespace)
        return made

"""The verbs of operators on single items: pages, look-ups, deletes, dead letters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from foqs.contract import requests as of
from foqs.host import arguments
from foqs.host.registry.kept_gates import SlotGates
from foqs.host.registry.namespaces import Namespaces
from foqs.host.shards.shards import Shards
from foqs.host.shards.ttl_scan import ask, in_parts
from foqs.host.shards.waiting import Answer, Waiting
from foqs.host.verbs.chosen_dead import choose, page_asked
from foqs.host.verbs.keyed_pages import LANES_PER_PAGE_MAX, Place, lanes, place_of
from foqs.host.verbs.page_reads import PageBudget, Slices, lost, merged, read_parts, stored_item
from foqs.model import ids, limits, order
from foqs.model.calls import CallContext, DeadLettersResult, PositionErrors, StoredItem, StoredItemPage
from foqs.model.errors import FoqsError, InvalidArgumentError, NotFoundError
from foqs.model.failures import FAILURES_SHOWN_MAX
from foqs.model.groups import COPIES_PER_CALL_MAX
from foqs.model.item import Outcome
from foqs.model.namespace import Namespace
from foqs.model.serial import slot_of_serial
from foqs.model.topic import ShardTopic
from foqs.model.topic_name import base_of, described, in_sequence, of_topic, parts, sequence_of
from foqs.shard.port import ItemRow
from foqs.shard.state.engine import ShardState
from foqs.shard.state.events import Completion, Events, LookUp
from foqs.shard.state.lease_table import stale_lease
from foqs.shard.state.ops.change import being_settled
from foqs.shard.writer.shard_writer import ShardWriter

ShardPage = tuple[list[tuple[Place, ItemRow]], bool]
"""Pairs (place, row) in order, and True if more rows can follow."""
Act = Callable[[ShardState, ItemRow, Completion, int], None]


class Inspection:
    """Shows and changes single items: the verbs of operators, and acks of items that are not under lease.

    It reads pages by the shards' readers. It makes changes by the shards' writers, on rows that are looked up in step
    with the shards' states.
    """

    def __init__(
        self,
        namespaces: Namespaces,
        shards: Shards,
        waiting: Waiting,
        on_events: Callable[[Events], None],
        slices: Slices,
        budget: PageBudget,
        gates: SlotGates,
    ) -> None:
        """`on_events` gets the events of deletions before any further delivery.

        `budget` bounds the memory for the pages of the host.
        """
        self._namespaces = namespaces
        self._on_events = on_events
        self._waiting = waiting
        self._shards = shards
        self._budget = budget
        self._slices = slices
        self._gates = gates

    async def peek_items(self, context: CallContext, request: of.PeekItemsRequest) -> StoredItemPage:
        """Ready items of a topic, those under lease included."""
        return await self._page(context.shards, request, dead=False)

    async def list_dead_letters(self, context: CallContext, request: of.ListDeadLettersRequest) -> StoredItemPage:
        return await self._page(context.shards, request, dead=True)

    async def _page(
        self,
        wanted: Collection[int] | None,
        request: of.PeekItemsRequest | of.ListDeadLettersRequest,
        *,
        dead: bool,
    ) -> StoredItemPage:
        """Return ready items (also leased ones) or dead letters of a topic, in order over all wanted shards."""
        namespace = self._namespaces.get(request.namespace_name)
        topic_name = self._topic_name(namespace, request)
        limit = arguments.check_range("limit", request.limit, 1, limits.PAGE_ITEMS_MAX)
        place = place_of(request.page_token)
        self._parts(namespace, topic_name, wanted)  # Who waits in vain need not wait.
        # Until they are merged, a page of rows and one of items in memory are held.
        async with self._budget.hold(2 * limits.PAGE_BYTES_MAX + len(self._shards.by_id) * limits.CONTENT_BYTES_MAX):
            parts = self._parts(namespace, topic_name, wanted)
            bytes_each = limits.PAGE_BYTES_MAX // max(1, len(parts))
            reads = {
                shard.shard_id: partial(self._read_page, shard, topic, place, limit, bytes_each, dead=dead)
                for shard, topic in parts
            }
            pages = await read_parts(self._shards, reads)
            chosen, token = merged(pages, limit, lambda row: row.size_bytes)
            return StoredItemPage(await self._slices.each(partial(self._stored_items, topic_name), chosen), token)

    def _topic_name(
        self,
        namespace: Namespace,
        request: of.PeekItemsRequest
        | of.ListDeadLettersRequest
        | of.RedriveDeadLettersRequest
        | of.PurgeDeadLettersRequest,
    ) -> str:
        """Return the hidden name of the topic, or of that of the key, which a request is about, after a check."""
        policy = self._namespaces.settings.policy(namespace.number, request.topic or "")
        return arguments.check_topic_of(
            request.topic, request.group, request.ordering_key, policy.key_buckets, request.fairness_key
        )

    def _parts(
        self, namespace: Namespace, topic_name: str, wanted: Collection[int] | None
    ) -> list[tuple[ShardState, ShardTopic]]:
        """Return the topic on each shard that has it. Raises UnavailableError if such a shard is sick or not owned."""
        found = [
            (shard, shard.index.topics.get((namespace.number, topic_name))) for _, shard in self._shards.asked(wanted)
        ]
        parts = [(shard, topic) for shard, topic in found if topic is not None]
        for shard, _ in parts:
            self._shards.check_healthy(shard.shard_id)
        return parts

    async def get_item(self, context: CallContext, request: of.GetItemRequest) -> StoredItem:
        """Return a stored item with its payload; of an item with copies, the first that is there.

        Raises NotFoundError.
        """
        namespace = self._namespaces.get(request.namespace_name)
        first_id, copies_count = ids.without_copies(request.id)
        shard_id, key, _ = ids.parse(first_id)
        places = [(at, shard_id, key + at) for at in range(copies_count + 1)]
        found: asyncio.Future[StoredItem] = asyncio.get_running_loop().create_future()

        def act(shard: ShardState, row: ItemRow, completion: Completion, position: int) -> None:
            if not found.done():
                found.set_result(self._stored_item(shard_id, row, shard.topic_of(row).name, FAILURES_SHOWN_MAX))

        errors = await self._on_rows(namespace, places, _on_one_item(act, lambda _: 0), with_payload=True)
        if not found.done():
            raise errors[0]
        return found.result()

    async def delete_items(self, context: CallContext, request: of.DeleteItemsRequest) -> PositionErrors:
        """Cancel items in any state, each with all its copies if its id names them."""
        namespace = self._namespaces.get(request.namespace_name)
        copies = {at: found for at, one in enumerate(request.ids) if (found := ids.without_copies(one))[1]}
        if not copies:
            return await self._on_ids(namespace, request.ids, _delete)
        count = len(request.ids) + sum([found for _, found in copies.values()])
        arguments.check_batch("copies", count, COPIES_PER_CALL_MAX)
        named = [str(copies[at][0]) if at in copies else one for at, one in enumerate(request.ids)]
        return await self._on_ids(namespace, named, _delete, {at: count for at, (_, count) in copies.items()})

    async def delete_keys(self, namespace: Namespace, shard_id: int, keys: Sequence[int]) -> PositionErrors:
        """Delete the items of a shard with these keys, in any state. Missing items count as deleted."""
        errors = await self._on_rows(namespace, [(at, shard_id, key) for at, key in enumerate(keys)], _delete)
        return {at: error for at, error in errors.items() if not isinstance(error, NotFoundError)}

    async def delete_rows(self, namespace: Namespace, places: list[tuple[int, int, int]]) -> PositionErrors:
        """Delete the acked items at (position, shard id, key), which are not under lease."""
        errors: PositionErrors = {}
        places = _named_once(places, errors)
        errors.update(await self._on_rows(namespace, places, _delete_acked))
        return errors

    async def find_rows(
        self, namespace: Namespace, shard_id: int, keys: Sequence[int], found: Callable[[ShardState, ItemRow], None]
    ) -> PositionErrors:
        """Call `found` with rows of a shard of this host, in step with its state. Return the errors of the others."""

        def act(shard: ShardState, row: ItemRow, completion: Completion, position: int) -> None:
            found(shard, row)

        places = [(at, shard_id, key) for at, key in enumerate(keys)]
        return await self._on_rows(namespace, places, act, with_payload=True)  # Else rows lack their failures.

    async def find_leases(self, namespace: Namespace, places: Mapping[int, tuple[int, int, int]]) -> PositionErrors:
        """Return the error, by position, of each receipt (shard id, key, delivery) that names no running lease.

        NotFoundError: the item does not exist. StaleLeaseError: it exists. UnavailableError: the end of this very
        lease is being written, and can still fail.
        """

        def act(shard: ShardState, row: ItemRow, completion: Completion, position: int) -> None:
            item = shard.index.leases.get(row.key)
            if item is not None and item.deliveries + 1 == places[position][2]:
                raise being_settled()  # Or the end failed, and the item is under its lease again.
            raise stale_lease()

        return await self._on_rows(namespace, [(at, shard_id, key) for at, (shard_id, key, _) in places.items()], act)

    async def redrive_dead_letters(
        self, context: CallContext, request: of.RedriveDeadLettersRequest
    ) -> DeadLettersResult:
        """Make dead letters ready again, with new TTLs."""
        namespace = self._namespaces.get(request.namespace_name)
        ttl_ms_max, writers = namespace.settings.ttl_ms_max, self._shards.writers

        def act(shard: ShardState, row: ItemRow, completion: Completion, position: int) -> None:
            shard.redrive(row, writers[shard.shard_id].now_ms(), ttl_ms_max, completion, position)

        return await self._on_dead(namespace, request, act, for_redrive=True)

    async def purge_dead_letters(self, context: CallContext, request: of.PurgeDeadLettersRequest) -> DeadLettersResult:
        """Delete dead letters; NotFoundError at the position of an item that is not dead."""

        def act(shard: ShardState, row: ItemRow, completion: Completion, position: int) -> None:
            if row.lane >= 0:
                raise NotFoundError("the item is not a dead letter")
            shard.delete(row, completion, position)

        namespace = self._namespaces.get(request.namespace_name)
        return await self._on_dead(namespace, request, act, for_redrive=False)

    async def on_rows(self, namespace: Namespace, shard_id: int, keys: Sequence[int], act: Act) -> PositionErrors:
        """Look up items of a shard, act on each row, and return the errors once all changes are durable or failed."""
        return await self._on_rows(namespace, [(at, shard_id, key) for at, key in enumerate(keys)], act)

    # ---- look-ups and pages ----

    async def _on_dead(
        self,
        namespace: Namespace,
        request: of.RedriveDeadLettersRequest | of.PurgeDeadLettersRequest,
        act: Act,
        *,
        for_redrive: bool,
    ) -> DeadLettersResult:
        """Dead letters by their ids; without them the oldest of the topic."""
        topic_name = self._topic_name(namespace, request)
        if request.ids is not None:
            return await self._on_dead_ids(namespace, topic_name, request.ids, act, for_redrive=for_redrive)
        asked = page_asked(request)
        found, next_token = await choose(
            lambda token: self._page(None, of.changed(asked, page_token=token), dead=True),
            request.page_token,
            for_redrive=for_redrive,
        )
        result = DeadLettersResult(0)
        if found:
            result = await self._on_dead_ids(namespace, topic_name, found, act, for_redrive=for_redrive)
        return replace(result, ids=found, next_page_token=next_token)

    async def _on_dead_ids(
        self, namespace: Namespace, topic_name: str, item_ids: Sequence[str], act: Act, *, for_redrive: bool
    ) -> DeadLettersResult:
        def act_in_topic(
            not_now: Mapping[int, FoqsError], shard: ShardState, row: ItemRow, completion: Completion, position: int
        ) -> None:
            topic = shard.topic_of(row)
            if topic_name not in (topic.name, topic.base_name):
                raise NotFoundError(f"the item is not one of {described(topic_name)}")
            if shard.shard_id in not_now:
                raise not_now[shard.shard_id]
            act(shard, row, completion, position)

        slot = slot_of_serial(self._namespaces.settings, namespace.number, topic_name) if for_redrive else None
        async with self._gates.turn(_shards_of(item_ids), slot) as not_now:
            errors = await self._on_ids(namespace, item_ids, partial(act_in_topic, not_now))
        return DeadLettersResult(len(item_ids) - len(errors), errors)

    async def _on_ids(
        self, namespace: Namespace, item_ids: Sequence[str], act: Act, copies: Mapping[int, int] | None = None
    ) -> PositionErrors:
        """Act on items; also on the `copies` behind those at some positions, of which one has to be there."""
        arguments.check_batch("ids", len(item_ids), limits.BATCH_ITEMS_MAX)
        errors: PositionErrors = {}
        places: list[tuple[int, int, int]] = []
        for position, item_id in enumerate(item_ids):
            try:
                shard_id, key, _ = ids.parse(item_id)
                places.append((position, shard_id, key))
            except InvalidArgumentError as error:
                errors[position] = error.with_traceback(None)
        places = _named_once(places, errors)
        if copies:
            errors.update(await self._on_copies(namespace, places, copies, act))
        else:
            errors.update(await self._on_rows(namespace, places, act))
        return errors

    async def _on_copies(
        self, namespace: Namespace, places: list[tuple[int, int, int]], copies: Mapping[int, int], act: Act
    ) -> PositionErrors:
        """Act on the copies of items. An item has an error if no copy is there, or if one has failed."""
        all_copies = [
            (position, shard_id, key + offset)
            for position, shard_id, key in places
            for offset in range(copies.get(position, 0) + 1)
        ]
        act = _on_one_item(act, lambda at: all_copies[at][0])
        found = await self._on_rows(namespace, [(at, *place[1:]) for at, place in enumerate(all_copies)], act)
        failed: dict[int, list[FoqsError]] = {}
        for at, error in found.items():
            failed.setdefault(all_copies[at][0], []).append(error)
        errors: PositionErrors = {}
        for position, some in failed.items():
            others = [error for error in some if not isinstance(error, NotFoundError)]
            if others or len(some) > copies.get(position, 0):
                errors[position] = (others or some)[0]
        return errors

    async def _on_rows(
        self, namespace: Namespace, places: list[tuple[int, int, int]], act: Act, *, with_payload: bool = False
    ) -> PositionErrors:
        """Read rows and act on each; return when all changes are durable or have failed."""
        errors: PositionErrors = {}
        by_shard: dict[int, list[tuple[int, int]]] = {}
        for position, shard_id, key in places:
            by_shard.setdefault(shard_id, []).append((position, key))
        answer = Answer(self._waiting)
        answer.open_count += 1  # A look-up can be refused at once, before the next one starts.
        for shard_id, positions in by_shard.items():
            try:
                writer, shard = self._shards.serving(shard_id)
            except FoqsError as error:
                errors.update(dict.fromkeys([position for position, _ in positions], error))
                continue
            for some in in_parts(positions):
                answer.open_count += 1
                self._look_up(namespace, writer, shard, some, act, answer, with_payload=with_payload)
            writer.wake()
        answer.part_done()
        await answer.done
        errors.update(answer.errors)
        return errors

    def _look_up(
        self,
        namespace: Namespace,
        writer: ShardWriter,
        shard: ShardState,
        positions: list[tuple[int, int]],
        act: Act,
        answer: Answer,
        *,
        with_payload: bool,
    ) -> None:
        def on_rows(rows: dict[int, ItemRow]) -> None:
            for position, key in positions:
                row = rows.get(key)
                try:
                    if row is None or shard.topic_of(row).namespace != namespace.number:
                        raise _not_there(namespace, shard.shard_id, key)
                    act(shard, row, answer, position)
                except FoqsError as error:
                    answer.errors[position] = error.with_traceback(None)
            writer.wake()
            events = shard.take_events()
            events.done(answer)
            self._on_events(events)

        def on_failed(error: FoqsError) -> None:
            answer.errors.update(dict.fromkeys([position for position, _ in positions], error))
            answer.part_done()

        ask(shard, LookUp([key for _, key in positions], on_rows, on_failed, with_payload=with_payload))

    async def _read_page(
        self, shard: ShardState, topic: ShardTopic, place: Place, limit: int, bytes_max: int, *, dead: bool
    ) -> ShardPage:
        found: list[tuple[Place, ItemRow]] = []
        lanes_count = 0
        async for one, edge in lanes(topic, place, dead=dead):
            lane = -one.number if dead else one.number
            rows, more = await self._read_lane(shard, lane, edge, limit - len(found), bytes_max)
            key, shard_id = sequence_of(one.name), shard.shard_id
            found += [(Place(key, order.sort_key(row.urgency, row.due_at, row.key, shard_id)), row) for row in rows]
            bytes_max -= sum([row.size_bytes for row in rows])
            lanes_count += 1
            if more or (found and (len(found) >= limit or bytes_max <= 0 or lanes_count >= LANES_PER_PAGE_MAX)):
                return found, True
        return found, False

    async def _read_lane(
        self, shard: ShardState, lane: int, edge: int, limit: int, bytes_max: int
    ) -> tuple[list[ItemRow], bool]:
        owned = self._shards.by_id.get(shard.shard_id)
        if owned is None or owned.writer.shard is not shard:
            raise lost(shard.shard_id)
        if edge != order.FIRST and shard.shard_id > order.shard_of(edge):
            edge -= 1 << 16  # The same key of a later shard is after the edge.
        return await owned.read(owned.reader.page(lane, edge, limit, bytes_max))

    def _stored_items(self, topic_name: str, rows: Sequence[tuple[Place, ItemRow]]) -> list[StoredItem]:
        return [
            self._stored_item(order.shard_of(place.sort_key), row, _name_at(topic_name, place)) for place, row in rows
        ]

    def _stored_item(self, shard_id: int, row: ItemRow, topic_name: str, failures_count_max: int = 1) -> StoredItem:
        writer, shard = self._shards.serving(shard_id)
        return stored_item(shard, row, topic_name, writer.now(), failures_count_max=failures_count_max)


def _shards_of(item_ids: Sequence[str]) -> set[int]:
    """Return the shards of the items whose ids are valid."""
    found: set[int] = set()
    for item_id in item_ids:
        with suppress(InvalidArgumentError):
            found.add(ids.parse(item_id)[0])
    return found


def _on_one_item(act: Act, item_at: Callable[[int], int]) -> Act:
    """Return an `act` that refuses rows which are no copies of their item; `item_at` returns the item of a position.

    The copies of an item are of one topic and one time, and their groups are in order. An id that was made up can name
    others.
    """
    before: dict[int, tuple[str, int, str]] = {}

    def act_on_copy(shard: ShardState, row: ItemRow, completion: Completion, position: int) -> None:
        name, item = shard.topic_of(row).name, item_at(position)
        found = of_topic(name), row.enqueued_at, parts(name)[1]
        known = before.setdefault(item, found)
        if known is not found and (known[:2] != found[:2] or known[2] >= found[2]):
            raise NotFoundError(f"item {ids.item_id(shard.shard_id, row.key)} is no copy of the item of this id")
        before[item] = found
        act(shard, row, completion, position)

    return act_on_copy


def _delete(shard: ShardState, row: ItemRow, completion: Completion, position: int) -> None:
    shard.delete(row, completion, position)


def _delete_acked(shard: ShardState, row: ItemRow, completion: Completion, position: int) -> None:
    shard.delete(row, completion, position, Outcome.ACKED)


def _not_there(namespace: Namespace, shard_id: int, key: int) -> NotFoundError:
    return NotFoundError(
        f"there is no item {ids.item_id(shard_id, key)} in namespace {namespace.name!r}: it was acked or deleted, has "
        "expired, or is of another namespace"
    )


def _named_once(places: list[tuple[int, int, int]], errors: PositionErrors) -> list[tuple[int, int, int]]:
    """Return the places, each once, and add the error of each repeat to `errors`."""
    first: dict[tuple[int, int], tuple[int, int, int]] = {}
    for place in places:
        if first.setdefault(place[1:], place) is not place:
            errors[place[0]] = NotFoundError(
                f"the item is named before, at position {first[place[1:]][0]} of this call"
            )
    return list(first.values())


def _name_at(topic_name: str, place: Place) -> str:
    return in_sequence(base_of(topic_name), place.sequence) if place.sequence else topic_name

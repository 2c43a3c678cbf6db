"""The copies of waiting items for new consumer groups, which hosts make in the background."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import structlog

from foqs.background.outage_log import OutageLog
from foqs.background.service import Service
from foqs.host.registry.namespaces import Namespaces
from foqs.host.shards.shards import Shards
from foqs.host.shards.waiting import Answer, Waiting
from foqs.host.verbs.copy_pace import CopyPace
from foqs.host.verbs.exports import Exports
from foqs.model import limits, order
from foqs.model.aging import aging_place
from foqs.model.copy_steps import CopyKey, CopyPlace, CopyStep
from foqs.model.errors import FoqsError
from foqs.model.groups import NO_GROUPS, TopicGroup
from foqs.model.item import Phase, ShardItem
from foqs.model.namespace import Namespace
from foqs.model.serial import SERIAL_DUE_AT, shown_due_at
from foqs.model.topic_name import in_group
from foqs.shard.port import ItemRow
from foqs.shard.state.engine import ShardState
from foqs.storage.meta.meta_group_copies import CopyView, ShardCopy

ROUND_PAUSE_MS = 500
"""The pause between two rounds over the copies that are under way."""
STEP_ITEMS_MAX = 100
"""The most items of one step, whose transaction interactive calls can have to wait for."""
STEP_BYTES_MAX = 64 * 1024
"""The most bytes of one step, unless one item alone has more."""
BUFFER_PARTS = 4
"""The ratio of the buffer of a shard's enqueued items to the part that a step takes at most."""
TURN_MS = 1 * limits.SECOND_MS
"""The time after which another shard or group has its turn."""
STEP_PAUSE_RATIO = 1.0
"""The pause after a step, as a multiple of the time of its transaction."""

_log = structlog.get_logger(__name__)


class _Work:
    """The copy of one group on one shard, as this host knows it. It ends with the shard's state."""

    def __init__(self, shard: ShardState) -> None:
        self.shard = shard
        self.place: CopyPlace | None = None
        """Its state, which was read or written here."""
        self.read_to = 0
        """The key up to which items are read and copied."""

    def report(self) -> ShardCopy:
        """Return the totals to report."""
        place = self.place
        return ShardCopy(0, False) if place is None else ShardCopy(place.copied_count, self.read_to >= place.up_to)


class GroupCopier(Service):
    """Copies the items that waited when a group was created, on the shards of this host, in small steps with pauses.

    The position of a step is committed with its copies. So a new owner of the shard continues behind the last copy.
    """

    def __init__(
        self,
        namespaces: Namespaces,
        shards: Shards,
        exports: Exports,
        waiting: Waiting,
        now_s: Callable[[], float],
    ) -> None:
        """`now_s` is monotonic."""
        super().__init__("group-copier")
        self._namespaces = namespaces
        self._shards = shards
        self._exports = exports
        self._waiting = waiting
        self._now_s = now_s
        self._works: dict[tuple[CopyKey, int], _Work] = {}
        """The copies under way, by copy and shard."""
        self._paces: dict[CopyKey, CopyPace] = {}

    async def _start(self) -> None:
        outage = OutageLog(self._now_s, "group_copy_waits", "group_copy_goes_on")
        self._tasks.repeat(lambda: asyncio.sleep(ROUND_PAUSE_MS / 1000), self._round, outage=outage)

    async def _round(self) -> None:
        """Give each copy on each shard of this host a turn. Raises the first error at the end."""
        active: dict[CopyKey, tuple[Namespace, TopicGroup]] = {}
        for number, groups in self._namespaces.settings.groups.items():
            namespace = self._namespaces.view.by_number.get(number) if groups.copying else None
            if namespace is not None:
                active |= {CopyKey(number, one.copy_job): (namespace, one) for one in groups.copying}
        if not active and not self._works:
            return
        self._forget_ended(active)
        failures: list[FoqsError] = []
        for copy, (namespace, group) in active.items():
            try:
                await self._copy(copy, namespace, group)
            except FoqsError as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def _forget_ended(self, active: Mapping[CopyKey, object]) -> None:
        for copy, shard_id in list(self._works):
            if copy not in active:
                work = self._works.pop((copy, shard_id))
                writer = self._shards.writers.get(shard_id)
                work.shard.group_copies.end(copy)
                if writer is not None and writer.shard is work.shard:
                    writer.wake()
        self._paces = {copy: pace for copy, pace in self._paces.items() if copy in active}

    async def _copy(self, copy: CopyKey, namespace: Namespace, group: TopicGroup) -> None:
        """Do a turn of one copy on each shard, and report the totals. A copy that its rate pauses has no turn now."""
        view = await self._report(copy, group, {})
        failures: list[FoqsError] = []
        owned = list(self._shards.owned())
        pace = self._paces.setdefault(copy, CopyPace())
        if view is not None:
            own_count = sum([shard.shard_id not in view.done for _, shard in owned])
            pace.set_share(view.items_per_second_max, own_count, view.open_count, self._now_s())
        for writer, shard in owned:
            work = self._works.get((copy, shard.shard_id))
            if work is None or work.shard is not shard:
                work = self._works[copy, shard.shard_id] = _Work(shard)
                shard.group_copies.begin(copy)
                writer.wake()
            if view is None or shard.shard_id in view.done or not pace.is_free(self._now_s()):
                continue
            try:
                await self._turn(copy, namespace, group, work, pace)
            except FoqsError as error:
                work.place = None  # It is read again: the outcome of a step can be unknown.
                failures.append(error)
            if work.place is not None:
                await self._report(copy, group, {shard.shard_id: work.report()})
        if failures:
            raise failures[0]

    async def _report(self, copy: CopyKey, group: TopicGroup, shards: Mapping[int, ShardCopy]) -> CopyView | None:
        return await self._namespaces.calls.run(lambda meta: meta.group_copies.report(copy.namespace, group, shards))

    async def _turn(self, copy: CopyKey, namespace: Namespace, group: TopicGroup, work: _Work, pace: CopyPace) -> None:
        """Copy items of one shard, until the rate pauses the copy, and for TURN_MS at most."""
        until_s = self._now_s() + TURN_MS / 1000
        if work.place is None:
            work.place = await self._exports.copy_place(work.shard.shard_id, copy)
            work.read_to = 0 if work.place is None else work.place.position
        # An item that was made before the group, and whose dedup id is being checked, can come later.
        if work.place is None or work.shard.waits_up_to(work.place.up_to):
            return
        while work.read_to < work.place.up_to and self._now_s() < until_s and pace.is_free(self._now_s()):
            items_max = pace.step_items_max(STEP_ITEMS_MAX)
            count = await self._step(copy, namespace, group, work, items_max)
            pace.charge(count, self._now_s())

    async def _step(self, copy: CopyKey, namespace: Namespace, group: TopicGroup, work: _Work, items_max: int) -> int:
        """Copy the next items, and return their number."""
        shard, place = work.shard, work.place
        assert place is not None, "it was read"
        # A part of the buffer of the shard, or a step would wait until nobody else enqueues.
        count_max = max(1, min(items_max, limits.ENQUEUE_BUFFER_ITEMS_MAX // BUFFER_PARTS))
        bytes_max = max(1, min(STEP_BYTES_MAX, limits.ENQUEUE_BUFFER_BYTES_MAX // BUFFER_PARTS))
        rows, up_to = await self._exports.rows_to_copy(
            shard, namespace, group.topic, work.read_to, place.up_to, count_max, bytes_max
        )
        # Checked behind the read: no copy is made once the group is deleted, or its job is over.
        if not self._is_copying(copy, group):
            return 0
        items = self._copies(shard, copy.namespace, group, rows)
        if items:
            began_s = self._now_s()
            answer = Answer(self._waiting)
            size_bytes = sum([item.size_bytes for item in items])
            shard.group_copies.insert(items, size_bytes, answer, CopyStep(copy, up_to, len(items)))
            self._shards.writers[shard.shard_id].wake()
            await answer.done
            work.place = place._replace(position=up_to, copied_count=place.copied_count + len(items))
            await asyncio.sleep(STEP_PAUSE_RATIO * (self._now_s() - began_s))
        work.read_to = up_to
        if up_to >= place.up_to:
            _log.info(
                "group_copied",
                topic=group.topic,
                group=group.group,
                shard=shard.shard_id,
                count=work.report().copied_count,
            )
        return len(items)

    def _is_copying(self, copy: CopyKey, group: TopicGroup) -> bool:
        known = self._namespaces.settings.groups.get(copy.namespace, NO_GROUPS).by_name.get(group.hidden_name)
        return known is not None and known.is_copying and known.copy_job == copy.job

    def _copies(self, shard: ShardState, number: int, group: TopicGroup, rows: list[ItemRow]) -> list[ShardItem]:
        """Return copies of rows, with the times and the contents of these. Raises OverloadedError for a new topic."""
        index, now_ms = shard.index, self._shards.writers[shard.shard_id].now_ms()
        items: list[ShardItem] = []
        for row in rows:
            source = index.by_number.get(row.topic)
            if source is None:
                continue  # Its topic has ended with its last item meanwhile.
            due_since = shown_due_at(row.due_at, row.enqueued_at)
            expires_at = min(row.expires_at, due_since + group.ttl_ms) if group.ttl_ms else row.expires_at
            if expires_at <= now_ms:
                continue
            name = in_group(source.name, group.hidden_name)
            if len(name.encode()) > limits.TOPIC_BYTES_MAX:
                _log.warning("item_not_copied", topic=group.topic, group=group.group, reason="its key is too long")
                continue
            topic = index.topic(number, name)
            due_at = SERIAL_DUE_AT if topic.is_serial else row.due_at
            key = index.next_key()
            aging_ms = self._namespaces.settings.aging_ms(number, name)
            urgency = aging_place(due_at, row.priority, aging_ms) if aging_ms else row.priority
            topic.has_places = topic.has_places or aging_ms > 0
            # One that is due counts as ready from the beginning, as items that were never delayed do.
            enqueued_at = max(row.enqueued_at, row.due_at) if row.due_at <= now_ms else row.enqueued_at
            items.append(
                ShardItem(
                    key,
                    topic,
                    row.priority,
                    due_at,
                    order.sort_key(urgency, due_at, key, shard.shard_id),
                    Phase.INSERTING,
                    enqueued_at,
                    expires_at,
                    row.lease_ms,
                    bool(row.at_most_once),
                    row.content,
                )
            )
        return items

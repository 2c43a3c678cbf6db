"""Defects of consumer groups."""

from __future__ import annotations

from typing import Any

from foqs.host.dispatch.tenant import ReadyRing, Tenant
from foqs.host.registry.group_calls import GroupCalls
from foqs.host.verbs.exports import Exports
from foqs.host.verbs.group_copier import GroupCopier
from foqs.host.verbs.item_maker import Made
from foqs.model.group_copy import CopyKey, CopyStep
from foqs.model.groups import Copy, NamespaceGroups, TopicGroup
from foqs.model.item import ShardItem
from foqs.shard.port import ItemRow
from foqs.shard.state.engine import ShardState
from foqs.shard.state.events import Completion
from foqs.shard.state.ops.group_copy import GroupCopies
from tests.sim.planting import in_place_of

_COPIES = NamespaceGroups.copies
_BEGIN = GroupCopies.begin
_ROWS = Exports.rows_to_copy
_MADE = GroupCopier._copies


@in_place_of(NamespaceGroups, "copies")
def forgets_the_last_group(self: NamespaceGroups, topic: str) -> tuple[Copy, ...] | None:
    copies = _COPIES(self, topic)
    return copies if copies is None or len(copies) < 2 else copies[:-1]


@in_place_of(GroupCalls, "create")
async def returns_before_hosts_follow(self: GroupCalls, namespace_name: str, wanted: TopicGroup) -> TopicGroup:
    change = await self._namespaces.calls.run(lambda meta: meta.groups.create(namespace_name, wanted))
    return change.group


@in_place_of(Made, "all")
def writes_the_first_copy_alone(self: Made) -> list[ShardItem]:
    return list(self.items.values())


@in_place_of(Tenant, "rings_of")
def takes_groups_for_topics(self: Tenant, name: str, group: str) -> list[ReadyRing]:
    return [self.ring, *[ring for (_, prefix), ring in self.rings.items() if name.startswith(prefix)]]


@in_place_of(GroupCopies, "insert")
def forgets_how_far_copies_are(
    self: GroupCopies, items: list[ShardItem], size_bytes: int, completion: Completion, step: CopyStep
) -> None:
    self._inserts.add(items, size_bytes, completion)


@in_place_of(GroupCopies, "begin")
def copies_what_has_copies(self: GroupCopies, copy: CopyKey) -> None:
    is_new = copy not in self.known
    _BEGIN(self, copy)
    if is_new:
        self.waiting[-1] = (copy, self._index.last_key + 1_000)


@in_place_of(Exports, "rows_to_copy")
async def copies_ready_items_alone(self: Exports, *arguments: Any) -> tuple[list[ItemRow], int]:
    rows, up_to = await _ROWS(self, *arguments)
    return [row for row in rows if row.lane > 0], up_to


@in_place_of(GroupCopier, "_copies")
def copies_the_first_item_of_a_step(
    self: GroupCopier, shard: ShardState, number: int, group: TopicGroup, rows: list[ItemRow]
) -> list[ShardItem]:
    return _MADE(self, shard, number, group, rows[:1])

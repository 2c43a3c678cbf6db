"""Defects of consumer groups."""

from __future__ import annotations

from functools import partial

from foqs.host.dispatch.tenant import ReadyRing, Tenant
from foqs.host.registry.group_calls import GroupCalls
from foqs.host.verbs.made import Made
from foqs.model.groups import Copy, NamespaceGroups, TopicGroup
from foqs.model.item import ShardItem
from tests.sim.planting import in_place_of, runs_with
from tests.sim.run import run_seed

runs_with(__name__, partial(run_seed, is_cluster=True, has_groups=True))
_COPIES = NamespaceGroups.copies


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

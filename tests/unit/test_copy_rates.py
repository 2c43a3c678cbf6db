"""The rate of a job that copies items for a new group holds for the cluster, and a paused copy delays no other one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from foqs.host.verbs.copy_pace import BURST_S, CopyPace
from foqs.host.verbs.group_copier import GroupCopier
from foqs.model.copy_steps import CopyKey, CopyPlace
from foqs.model.groups import TopicGroup
from foqs.storage.meta.meta_group_copies import CopyView

SHARDS_COUNT = 5
MANY = 1_000_000


class Clock:
    now_s = 100.0


class Copier(GroupCopier):
    """A copier of one shard, whose steps take no time and whose reports show the rates that are given."""

    def __init__(self, clock: Clock, shard_id: int, rates: dict[str, int]) -> None:
        shard = SimpleNamespace(
            shard_id=shard_id,
            group_copies=SimpleNamespace(begin=lambda copy: None),
            waits_up_to=lambda key: False,
        )
        shards = SimpleNamespace(owned=lambda: [(SimpleNamespace(wake=lambda: None), shard)])
        super().__init__(
            cast(Any, None), cast(Any, shards), cast(Any, self), cast(Any, None), now_s=lambda: clock.now_s
        )
        self.clock, self.rates = clock, rates
        self.done: frozenset[int] = frozenset()
        self.counts: dict[str, int] = {}

    async def copy_place(self, shard_id: int, copy: CopyKey) -> CopyPlace:
        return CopyPlace(up_to=MANY, position=0, copied_count=0)

    async def _report(self, copy: CopyKey, group: TopicGroup, shards: Any) -> CopyView:
        return CopyView(self.rates[copy.job], self.done, SHARDS_COUNT - len(self.done))

    async def _step(self, copy: CopyKey, namespace: Any, group: Any, work: Any, items_max: int) -> int:
        count = items_max
        self.counts[copy.job] = self.counts.get(copy.job, 0) + count
        work.read_to += count
        self.clock.now_s += 0.001
        return count

    async def round(self) -> None:
        for job in self.rates:
            await self._copy(CopyKey(1, job), cast(Any, None), TopicGroup("t", job))


async def test_the_hosts_of_a_cluster_copy_no_more_together_than_the_rate() -> None:
    clock, rates = Clock(), {"slow": 10}
    hosts = [Copier(clock, shard_id, rates) for shard_id in range(SHARDS_COUNT)]
    began_s = clock.now_s
    while clock.now_s < began_s + 60:
        for host in hosts:
            await host.round()
        clock.now_s += 0.5
    copied_count = sum(host.counts["slow"] for host in hosts)
    assert 0.9 * 600 <= copied_count <= 10 * (61 + BURST_S) + SHARDS_COUNT


async def test_the_last_shard_has_the_whole_rate() -> None:
    clock, rates = Clock(), {"slow": 10}
    host = Copier(clock, 0, rates)
    host.done = frozenset(range(1, SHARDS_COUNT))
    began_s = clock.now_s
    while clock.now_s < began_s + 60:
        await host.round()
        clock.now_s += 0.5
    assert 0.9 * 600 <= host.counts["slow"] <= 10 * (61 + BURST_S)


async def test_a_paused_copy_leaves_the_time_to_others() -> None:
    clock, rates = Clock(), {"slow": 1, "fast": 0}
    host = Copier(clock, 0, rates)
    for _ in range(3):
        await host.round()
    before, began_s = dict(host.counts), clock.now_s
    await host.round()
    assert host.counts["slow"] == before["slow"], "its next item comes in seconds"
    assert host.counts["fast"] > before["fast"]
    assert clock.now_s - began_s < 1.1, "one turn of the other copy, and no pause"


def test_a_rate_that_is_raised_ends_a_long_pause() -> None:
    pace = CopyPace()
    pace.set_share(1, 1, 100, 0.0)
    pace.charge(1, 0.0)
    pace.charge(1, 0.0)
    assert not pace.is_free(100.0)
    pace.set_share(1_000, 1, 100, 1.0)
    assert pace.is_free(1.3)
    pace.set_share(0, 1, 100, 2.0)
    assert pace.is_free(2.0)
    assert pace.step_items_max(100) == 100

"""A host of a cluster that says what is not true, or says again what was: others are well, and soon all is.

Somebody has its identity: what it says comes beside what the host itself says. It repeats and reorders what the host
has told, and makes up shards that it has opened, epochs, items, wishes, caps and pointers. What it does not own keeps
all promises meanwhile, which the checks of each run hold; here is looked at what hosts believe.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from collections.abc import Callable
from math import inf, nan
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from foqs.cluster.homes import directory
from foqs.cluster.ownership import owner_claims
from foqs.contract import requests as of
from foqs.model.calls import CallContext
from foqs.model.errors import FoqsError
from foqs.model.principal import EVERYBODY
from tests.sim.clients import TOPICS
from tests.sim.loop import ProcessState

if TYPE_CHECKING:
    from tests.sim.cluster import ClusterWorld
    from tests.sim.host import SimHost

_SHARE = 0.3
"""Of the clusters."""
_PAUSE_S = 0.03
_LOOK_S = 0.02
_HEALING_S_MAX = 10
_CLAIM_MS = 600
_READ_MS = 200
_TOPICS_OF_HOME = 60
_FLOOD = 150
_INSISTS_COUNT, _INSIST_PAUSE_S = 20, 0.1
_HEARD_MAX = 200
_ANSWER_S_MAX = 0.5
"""A host may be stopped just then."""
_HUGE = (1 << 63) - 1
LIMITS = [
    (owner_claims, "CLAIM_MS", _CLAIM_MS),
    (owner_claims, "READ_MS", _READ_MS),
    (directory, "TOPICS_OF_HOME_MAX", _TOPICS_OF_HOME),
]
"""So small that what is not true ends within a run."""


_Belief = tuple[str, int, int]
"""A host, the shard that it is wrong about, and the epoch of the shard in what the host has read."""


def _recorded(host: SimHost, shard_id: int) -> int:
    known = host.host.owners._known.get(shard_id)
    return 0 if known is None else known.epoch


class Liar:
    """What one run has of it. Its chance is its own, so that other runs stay what they are."""

    def __init__(self, world: ClusterWorld) -> None:
        self._world = world
        self._chance = random.Random(f"{world.seed}/liar")
        self.is_there = self._chance.random() < _SHARE
        self.host_id = ""
        """The host in whose name it speaks."""
        self._heard: deque[tuple[str, str, Any]] = deque(maxlen=_HEARD_MAX)
        self._believed_s: dict[_Belief, float] = {}
        """Since when each host believes of each shard what is not true."""
        self._looked_s: dict[_Belief, float] = {}
        """When each of them could first have read the truth."""
        self._count = 0
        self.counts: Counter[str] = world.counts

    def limits(self) -> list[Any]:
        """The patches for a run with it."""
        return [patch.object(module, name, value) for module, name, value in LIMITS] if self.is_there else []

    def heard(self, sender: str, receiver: str, verb: str, told: Any) -> None:
        """A host has told another one something, which may be said again later."""
        if self.is_there and sender == self.host_id:
            self._heard.append((receiver, verb, told))

    async def run(self, until_s: float) -> None:
        if not self.is_there:
            return
        looking = asyncio.create_task(self._look_on(), name="liar-look")
        try:
            while self._world.loop.time() < until_s:
                await asyncio.sleep(self._chance.expovariate(1 / _PAUSE_S))
                await self._lie()
            # The time after which nothing of it may be believed any more.
            await asyncio.sleep((_CLAIM_MS + _READ_MS) / 1000 + 1)
            # A meta database that hung until now has not told the truth before: `_look` knows from when on it has.
            for _ in range(round(_HEALING_S_MAX / _LOOK_S)):
                if not self._false():
                    break
                await asyncio.sleep(_LOOK_S)
            self._check_healed()
        finally:
            looking.cancel()

    async def _lie(self) -> None:
        ready = self._world.ready
        if len(ready) < 2:
            return
        names = [host.host.id for host in ready]
        if self.host_id not in names:
            self.host_id = self._chance.choice(names)
            self._heard.clear()
        told = self._chance.choice([host for host in ready if host.host.id != self.host_id])
        kinds: list[Callable[[SimHost], Any]] = [
            self._epoch, self._epoch, self._shard, self._nonsense, self._rates, self._pointers, self._replay,
            self._flood, self._insist,
        ]  # fmt: skip
        kind = self._chance.choice(kinds)
        self.counts[f"lies: {kind.__name__.strip('_')}"] += 1
        await kind(told)

    async def _say(self, to: SimHost, verb: str, told: Any, sender: str = "") -> None:
        """Whatever is said, the answer is one, or an error of the contract."""
        said = getattr(to.host._routing.door, verb)(
            CallContext("liar", peer=sender or self.host_id, principal=EVERYBODY), told
        )
        task = self._world.loop.create_task(said, context=to.process.context)
        # A host that is stopped may answer long after.
        task.add_done_callback(lambda task: self._judge(to, verb, task))
        await asyncio.wait([task], timeout=_ANSWER_S_MAX)

    def _judge(self, to: SimHost, verb: str, said: asyncio.Task[Any]) -> None:
        error = None if said.cancelled() else said.exception()
        if error is not None and not isinstance(error, FoqsError):
            self._world.complain(f"{verb} of a host that lies breaks {to.name}: {error!r}")

    async def _epoch(self, to: SimHost) -> None:
        """It has opened a shard of another one."""
        rows = self._world.meta.tables.cluster.shards
        others = [row for row in rows.values() if row.owner != self.host_id]
        if others:
            row = self._chance.choice(others)
            ahead = self._chance.choice([1, 2, 1_000, 1_001, 1 << 40])
            await self._say(to, "report", of.ReportRequest([], [of.OpenedShard(row.shard_id, row.epoch + ahead)]))

    async def _insist(self, to: SimHost) -> None:
        """It says the same again and again."""
        rows = self._world.meta.tables.cluster.shards
        if others := [row for row in rows.values() if row.owner != self.host_id]:
            row = self._chance.choice(others)
            for _ in range(_INSISTS_COUNT):
                await self._say(to, "report", of.ReportRequest([], [of.OpenedShard(row.shard_id, row.epoch + 1)]))
                await asyncio.sleep(_INSIST_PAUSE_S)

    async def _shard(self, to: SimHost) -> None:
        shard_id = self._chance.choice([77, -1, 1 << 20])
        await self._say(
            to, "report", of.ReportRequest([], [of.OpenedShard(shard_id, self._chance.choice([1, 5, _HUGE]))])
        )
        if shard_id in to.host.owners.owners:
            self._world.complain(f"{to.name} believes in shard {shard_id}, which there is not")

    async def _nonsense(self, to: SimHost) -> None:
        """Items that it does not have, as urgent and as old as can be."""
        topic, count = self._chance.choice(TOPICS), self._chance.choice([1, _HUGE, -1])
        oldest_ms = self._chance.choice([0, -_HUGE, _HUGE])
        stock = of.TopicStock(self._namespace(), topic, count, self._chance.choice([0, -5]), oldest_ms, True)
        await self._say(to, "report", of.ReportRequest([stock]))
        await self._say(to, "seek", of.SeekRequest([of.TopicWish(self._namespace(), topic, count)]))

    async def _rates(self, to: SimHost) -> None:
        chance = self._chance
        ask = of.CapAsk(
            self._namespace(), chance.choice(["", *TOPICS]), chance.choice([nan, inf, -inf, -1.0, 0.0, 1e308]),
            chance.choice([0, 1, -1, _HUGE]), chance.choice([0, -1, _HUGE]), chance.choice([0, -1, _HUGE]),
            chance.choice([0, -1, 1, 1 << 30]), chance.random() < 0.5,
        )  # fmt: skip
        await self._say(to, "seek", of.SeekRequest([], [ask]))

    async def _pointers(self, to: SimHost) -> None:
        """Hosts that are not there, or have nothing."""
        host_id = self._chance.choice(["nobody#1", "", to.host.id, self.host_id])
        pointer = of.TopicPointer(self._namespace(), self._chance.choice(TOPICS), host_id, _HUGE, 0, 0)
        await self._say(to, "hint", of.HintRequest([pointer]))

    async def _replay(self, to: SimHost) -> None:
        """What the host has said some time ago, to whom it was said or to another one, in any order."""
        for _, verb, told in self._chance.sample(list(self._heard), min(3, len(self._heard))):
            await self._say(to, verb, told)

    async def _flood(self, to: SimHost) -> None:
        """So many topics that the home has no place for them; another host has an item of one more."""
        for _ in range(_FLOOD):
            self._count += 1
            stock = of.TopicStock(9, f"flood-{self._count}", 1, 0, 0, False)
            await self._say(to, "report", of.ReportRequest([stock]))
        others = [host.host.id for host in self._world.ready if host.host.id not in (self.host_id, to.host.id)]
        for other in [one for one in others if one in to.host.owners.living][:1]:
            topic = (9, f"honest-{self._count}")
            await self._say(to, "report", of.ReportRequest([of.TopicStock(*topic, 1, 0, 0, False)]), sender=other)
            home = to.host._routing._topic_homes.directory
            if other not in [pointer.host_id for pointer in home.others("", topic, self._world.loop.time())]:
                self._world.complain(f"{to.name} has no place for what {other} tells, because {self.host_id} floods it")
            await self._say(to, "report", of.ReportRequest([of.TopicStock(*topic, 0, 0, 0, False)]), sender=other)

    def _namespace(self) -> int:
        numbers = [namespace.number for namespace in self._world.meta.tables.namespaces.values()]
        return self._chance.choice([*numbers, 9, -1])

    # ---- what is believed ----

    async def _look_on(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            self._look()

    def _look(self) -> None:
        """What is not true is believed no longer than a claim may be, once the truth could be read.

        A claim may be said again until then, so its time counts from the first look that came late enough: a meta
        database that is far or locked gives none for a while. All begins again with another record of the shard,
        after which a claim that was wrong can be right.
        """
        now_s = self._world.loop.time()
        false = {(host.host.id, shard_id, _recorded(host, shard_id)): host for host, shard_id in self._false()}
        self._believed_s = {who: self._believed_s.get(who, now_s) for who in false}
        self._looked_s = {who: looked_s for who, looked_s in self._looked_s.items() if who in false}
        for who, since_s in self._believed_s.items():
            host, shard_id = false[who], who[1]
            looked_s = host.host.owners.claims._read_s
            if looked_s > since_s + _READ_MS / 1000:
                self._looked_s.setdefault(who, looked_s)
            if now_s > self._looked_s.get(who, inf) + _CLAIM_MS / 1000 + 0.3:
                owner = host.host.owners.get(shard_id)
                self._world.complain(f"{host.name} believes since {since_s:.2f} s that {owner} has shard {shard_id}")

    def _false(self) -> list[tuple[SimHost, int]]:
        rows = self._world.meta.tables.cluster.shards
        return [
            (host, shard_id)
            for host in self._world.ready
            if host.process.state is ProcessState.RUNNING
            for shard_id, owner in host.host.owners.owners.items()
            if shard_id not in rows or owner.epoch > rows[shard_id].epoch
        ]

    def _check_healed(self) -> None:
        for host, shard_id in self._false():
            self._world.complain(f"all is well, and {host.name} still believes {host.host.owners.get(shard_id)}")

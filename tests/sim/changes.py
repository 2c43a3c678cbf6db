"""When all is well, a change of a cap or a quota holds on all hosts within two seconds of its answer.

The caps are held against what all hosts deliver, the quotas against what they let in. Hosts read the meta database as
often as in production meanwhile. In some clusters, at the end of the run, by a generator of its own.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from foqs.client.queue_items import NewItem
from foqs.cluster.members import host_watch
from foqs.model import limits
from foqs.model.calls import Delivery, EnqueueResult
from foqs.model.caps import shared_burst_of
from foqs.model.errors import FoqsError, OverloadedError, RateLimitedError
from foqs.model.namespace import NamespaceSettings
from tests.histories.history import make_payload
from tests.sim.tuned import tuned

if TYPE_CHECKING:
    from tests.sim.cluster import ClusterWorld
    from tests.sim.host import FakeDoor, SimHost

HOLDS_S_MAX = 2.0
_SHARE = 0.06
"""Of the clusters."""
_NAMESPACE, _TOPIC = "changes", "t"
_LIMITS = {
    "HEARTBEAT_MS": limits.HEARTBEAT_MS,
    "HOST_WATCH_GAP_MS_MAX": host_watch.HOST_WATCH_GAP_MS_MAX,
    "HOST_DEAD_MS": limits.HOST_DEAD_MS,
    "PREFETCH_BYTES_MAX": limits.PREFETCH_BYTES_MAX,
    "DEQUEUE_ANSWER_BYTES_MAX": limits.DEQUEUE_ANSWER_BYTES_MAX,
}
"""As in production: with an item a call nobody uses up a cap, and heartbeats have to be within the gaps of a watch."""
_RATES = (30.0, 4.0, 40.0)
"""A cap, one that is lower, and one that is higher."""
_LOOKED_AT_S = 3.0
_LEAST_USED = 0.8
_ITEMS = 450
_BATCH = 10
_QUOTA = 10
_PAUSE_S = 0.05
_USED_UP_S_MAX = 15.0
_PATIENCE_S = 20.0
_LEASE_MS = 60_000


class Changes:
    """The trials of one run, one after the other."""

    def __init__(self, world: ClusterWorld) -> None:
        self._world = world
        self._chance = random.Random(f"changes {world.seed}")
        self.is_there = self._chance.random() < _SHARE
        self._number = 0
        self._times_s: list[float] = []
        """When items were delivered, on whatever host."""

    async def run(self) -> None:
        if not self.is_there:
            return
        with tuned(_LIMITS):
            try:
                await self._caps(is_of_namespace=self._chance.random() < 0.5)
                if not self._world.profile.quota_items:  # There a minute is but a second.
                    await self._higher_quota()
                    await self._lower_quota()
            except FoqsError as error:
                self._world.complain(f"all is well, and a call fails: {error!r}")

    # ---- caps ----

    async def _caps(self, *, is_of_namespace: bool) -> None:
        await self._create(_NAMESPACE)
        for _ in range(_ITEMS // _BATCH):
            await self._enqueue(self._some_host(), _NAMESPACE, _BATCH)
        consumers: list[asyncio.Task[None]] = []
        for rate in _RATES:
            await self._cap(rate, is_of_namespace=is_of_namespace)
            await asyncio.sleep(HOLDS_S_MAX)
            from_s = self._world.loop.time()
            if not consumers:  # Not before: hosts that do not know the first cap yet would let all through.
                consumers = [asyncio.create_task(self._consume(host)) for host in self._world.ready]
            await asyncio.sleep(_LOOKED_AT_S)
            self._check(rate, from_s)
        await self._cap(0.0, is_of_namespace=is_of_namespace)
        await asyncio.gather(*consumers)
        self._world.counts["changes of caps that held on all hosts in time"] += len(_RATES)

    async def _cap(self, rate: float, *, is_of_namespace: bool) -> None:
        changes = SimpleNamespace(deliveries_per_second_max=rate)
        host = self._some_host()
        if is_of_namespace:
            await self._call(host, lambda door: door.admin.update_namespace(_NAMESPACE, changes))
        else:
            await self._call(
                host, lambda door: door.admin.set_topic_policy(_NAMESPACE, _TOPIC, deliveries_per_second_max=rate)
            )

    async def _consume(self, host: SimHost) -> None:
        """Take all that there is, until nothing is left for any."""
        demand: Any = SimpleNamespace(topic=_TOPIC, count=20, group=None)
        while len(self._times_s) < _ITEMS:
            items = await self._call(host, lambda door: door.queue.dequeue(_NAMESPACE, [demand], _LEASE_MS, 300))
            self._times_s += [self._world.loop.time()] * len(items)
            await self._ack(host, _NAMESPACE, items)

    def _check(self, rate: float, from_s: float) -> None:
        """From then on all hosts together deliver at the rate."""
        got = [at_s for at_s in self._times_s if from_s < at_s <= from_s + _LOOKED_AT_S]
        burst = shared_burst_of(rate, len(self._world.ready))
        least, most = rate * _LOOKED_AT_S * _LEAST_USED - burst, rate * _LOOKED_AT_S + burst
        if not least <= len(got) <= most:
            what = f"{HOLDS_S_MAX} s after a cap of {rate} a second was set, {len(got)} items came in {_LOOKED_AT_S} s"
            self._world.complain(f"P10: {what}, not {least} to {most}, {len(self._times_s)} in all")

    # ---- quotas ----

    async def _higher_quota(self) -> None:
        """Every host lets in what there is more."""
        name = await self._namespace_with(_QUOTA)
        before = await self._use_up(name, _QUOTA)
        await self._limit(name, 2 * _QUOTA)
        answered_s, let_in = self._world.loop.time(), 0
        waiting = list(self._world.ready)
        while waiting and self._world.loop.time() - answered_s <= HOLDS_S_MAX:
            for host in list(waiting):
                if await self._let_in(name, 1, host):
                    waiting.remove(host)
                    let_in += 1
            await asyncio.sleep(_PAUSE_S)
        if waiting:
            self._world.complain(f"{HOLDS_S_MAX} s after a higher quota was set {[at.name for at in waiting]} refuse")
        let_in += before + await self._use_up(name, 2 * _QUOTA - before - let_in)
        self._world.counts["changes of quotas that held on all hosts in time"] += 1
        await self._empty(name, let_in)

    async def _lower_quota(self) -> None:
        """No host lets in more than the quota is now, whatever it may have had in hand."""
        name = await self._namespace_with(100 * _QUOTA)
        for host in self._world.ready:
            await self._let_in(name, 1, host)
        count = len(self._world.ready)
        await self._limit(name, _QUOTA)
        await asyncio.sleep(HOLDS_S_MAX)
        if (let_in := count + await self._let_in(name, 3 * _QUOTA)) > _QUOTA:
            self._world.complain(f"{HOLDS_S_MAX} s after a quota of {_QUOTA} was set {let_in} items were let in")
        self._world.counts["changes of quotas that held on all hosts in time"] += 1
        await self._empty(name, let_in)

    async def _namespace_with(self, quota: int) -> str:
        """A new one that all hosts know."""
        self._number += 1
        name = f"changes-{self._number}"
        await self._create(name, enqueues_per_minute_max=quota)
        while not all(name in host.host._namespaces.view.by_name for host in self._world.ready):  # noqa: ASYNC110
            await asyncio.sleep(_PAUSE_S)
        return name

    async def _limit(self, name: str, quota: int) -> None:
        changes = SimpleNamespace(enqueues_per_minute_max=quota)
        await self._call(self._some_host(), lambda door: door.admin.update_namespace(name, changes))

    async def _let_in(self, name: str, count: int, host: SimHost | None = None) -> int:
        """How many single items are let in, of so many, by all hosts in turn or by one of them."""
        found = 0
        for at in range(count):
            try:
                await self._enqueue(host or self._world.ready[at % len(self._world.ready)], name, 1)
            except RateLimitedError:
                continue
            found += 1
        return found

    async def _use_up(self, name: str, left: int) -> int:
        """So many more are let in, and no more: how many that were.

        Tokens that other hosts have in hand come back after a while. Few are lost where a host had no room for an item
        that it had let in.
        """
        until_s, let_in = self._world.loop.time() + _USED_UP_S_MAX, 0
        while let_in < left and self._world.loop.time() < until_s:
            let_in += await self._let_in(name, len(self._world.ready))
            await asyncio.sleep(_PAUSE_S)
        let_in += await self._let_in(name, len(self._world.ready))
        if not left * _LEAST_USED <= let_in <= left:
            self._world.complain(f"{let_in} more items were let in by a quota that had room for {left}")
        return let_in

    async def _empty(self, name: str, count: int) -> None:
        """Consume what was let in: nothing is to be left at the end of a run."""
        demand: Any = SimpleNamespace(topic=_TOPIC, count=20, group=None)
        host, got = self._some_host(), 0
        until_s = self._world.loop.time() + _PATIENCE_S
        while got < count and self._world.loop.time() < until_s:
            items = await self._call(host, lambda door: door.queue.dequeue(name, [demand], _LEASE_MS, 300))
            got += len(items)
            await self._ack(host, name, items)
        if got != count:
            self._world.complain(f"{count} items were let in, and {got} can be consumed")

    # ---- calls ----

    def _some_host(self) -> SimHost:
        return self._chance.choice(self._world.ready)

    async def _create(self, name: str, **settings: Any) -> None:
        made = NamespaceSettings(**settings)
        await self._call(self._some_host(), lambda door: door.admin.create_namespace(name, made))

    async def _enqueue(self, host: SimHost, name: str, count: int) -> None:
        items = []
        for _ in range(count):
            self._number += 1
            items.append(NewItem(_TOPIC, make_payload(f"{name}:{self._number}", 40)))
        while True:  # Some runs have room for few items.
            try:
                result = await self._call(host, partial(_put, name, items))
            except OverloadedError:
                await asyncio.sleep(_PAUSE_S)
                continue
            items = [items[at] for at, error in result.errors.items() if isinstance(error, OverloadedError)]
            if not items:
                break
            await asyncio.sleep(_PAUSE_S)
        for error in result.errors.values():
            raise error

    async def _ack(self, host: SimHost, name: str, items: Sequence[Delivery]) -> None:
        if receipts := [item.receipt for item in items]:
            await self._call(host, lambda door: door.queue.ack(name, receipts))

    async def _call(self, host: SimHost, work: Callable[[FakeDoor], Awaitable[Any]]) -> Any:
        return await self._world.send(host, work, _PATIENCE_S)


async def _put(name: str, items: Sequence[NewItem], door: FakeDoor) -> EnqueueResult:
    result: EnqueueResult = await door.queue.enqueue(name, items, False)
    return result

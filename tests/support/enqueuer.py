"""Enqueues on shards that are run step by step."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from foqs import NewItem
from foqs.contract.requests import EnqueueRequest
from foqs.host.admission.depths import Depths
from foqs.host.admission.hosted_quota import RepeatLookUps
from foqs.host.admission.placement import Placement
from foqs.host.admission.quotas import Quotas
from foqs.host.registry.known_slots import Slots
from foqs.host.shards.waiting import Waiting
from foqs.host.verbs.enqueues import Enqueues
from foqs.model.calls import CallContext, EnqueueResult
from foqs.model.namespace import Namespace
from foqs.model.principal import EVERYBODY
from foqs.model.slots import first_table
from tests.support.shards import NamespacesOf, Shards

CALL = CallContext("test", principal=EVERYBODY)


class Enqueuer:
    """A host's enqueues, whose shards all keep a copy of the slot table."""

    def __init__(self, shards: Shards, *namespaces: Namespace) -> None:
        loop = asyncio.get_running_loop()
        quotas = Quotas(cast(Any, None), "host", loop.time, lambda: 1, lambda: 0.0)
        # A host that is alone lets in what the limit allows while the meta database is away.
        quotas._away_since_ms = 0
        self.slots = slots = Slots(cast(Any, shards))
        for shard in shards.states.values():
            slots.has_kept(shard, first_table(list(shards.states)))
        placement = Placement(cast(Any, shards), shards.dispatcher, slots)
        self._enqueues = Enqueues(
            cast(Any, NamespacesOf(*namespaces)),
            quotas,
            placement,
            Waiting(loop),
            lambda *_: None,
            lambda: asyncio.sleep(0),
            RepeatLookUps(loop.time),
            Depths(shards.settings, lambda: [(None, shard) for shard in shards.states.values()]),
            cast(Any, None),  # No slot has moved.
        )

    async def enqueue(self, namespace: Namespace, items: list[NewItem]) -> EnqueueResult:
        return await self._enqueues.enqueue(CALL, EnqueueRequest(namespace.name, items))


async def enqueue_at_once(
    shards: Shards, namespace: Namespace, items: list[NewItem], enqueues: Enqueuer | None = None
) -> EnqueueResult:
    """A call, and the transactions that it needs."""
    call = asyncio.create_task((enqueues or Enqueuer(shards, namespace)).enqueue(namespace, items))
    for _ in range(5):  # What may be a repeat waits for a look into the log.
        await asyncio.sleep(0)
        for number in shards.states:
            shards.run(number)
    return await call


def with_ids(topics: str, *dedup_ids: str) -> list[NewItem]:
    """An item for each topic, whose name is a letter."""
    return [NewItem(topic, b"", dedup_id=dedup_id) for topic, dedup_id in zip(topics, dedup_ids, strict=True)]

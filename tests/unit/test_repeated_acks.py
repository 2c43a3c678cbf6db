"""An ack that is repeated because its answer was lost is told the truth, also while the first attempt is on its way."""

from __future__ import annotations

import asyncio
from typing import Any, cast
from unittest.mock import patch

from foqs.contract.requests import AckRequest
from foqs.host.shards.waiting import Waiting
from foqs.host.verbs.inspection import Inspection
from foqs.host.verbs.settlements import Leases
from foqs.model import limits
from foqs.model.errors import StaleLeaseError, UnavailableError
from foqs.model.namespace import Namespace, NamespaceSettings
from tests.support.shards import NAMESPACE, NamespacesOf, Shards

JOBS = Namespace(NAMESPACE, "jobs", NamespaceSettings(), 0)


class World:
    """Items under lease on one shard, and those who settle them."""

    def __init__(self, count: int) -> None:
        self.shards = Shards(1)
        waiting = Waiting(asyncio.get_running_loop())
        on_events = self.shards.dispatcher.on_events
        namespaces, nothing = cast(Any, NamespacesOf(JOBS)), cast(Any, None)
        inspection = Inspection(namespaces, cast(Any, self.shards), waiting, on_events, nothing, nothing, nothing)
        self.leases = Leases(
            namespaces, cast(Any, self.shards), inspection, waiting, lambda *_: None, lambda *_: None, nothing
        )
        call = self.shards.dequeue({"a": count})
        self.shards.enqueue(0, "a", count=count)
        self.shards.run(0)
        self.shards.dispatcher.tick()
        self.receipts = [item.receipt for item in call.items or ()]
        assert len(self.receipts) == count

    async def ack(self, receipts: list[str], *, repeated: bool = False) -> asyncio.Task[Any]:
        """Under way, as far as it comes without a transaction."""
        task = asyncio.create_task(self.leases.ack(AckRequest(JOBS.name, receipts, repeated)))
        for _ in range(3):
            await asyncio.sleep(0)
        return task

    async def finish(self, task: asyncio.Task[Any]) -> Any:
        for _ in range(5):
            if not task.done():
                self.shards.run(0)
                await asyncio.sleep(0)
        return task.result()


def test_it_is_done_where_the_first_attempt_did_it_and_stale_where_the_lease_was_lost() -> None:
    async def scenario() -> None:
        world = World(2)
        done, lost = world.receipts
        assert await world.finish(await world.ack([done])) == {}
        item = world.shards.states[0].under_lease[lost]
        world.shards.states[0].unclaim(item)
        errors = await world.finish(await world.ack([done, lost], repeated=True))
        assert {position: type(error) for position, error in errors.items()} == {1: StaleLeaseError}
        errors = await world.finish(await world.ack([done]))
        assert isinstance(errors[0], StaleLeaseError)

    asyncio.run(scenario())


def test_nothing_is_said_while_the_first_attempt_waits_for_its_transaction() -> None:
    async def scenario() -> None:
        world = World(2)
        before, receipt = world.receipts
        with patch.object(limits, "TRANSACTION_CHANGES_MAX", 1):
            earlier, first = await world.ack([before]), await world.ack([receipt])
            again = await world.ack([receipt], repeated=True)
            world.shards.begin(0)  # With the ack before it, and the look-up.
            world.shards.end(0)
            await asyncio.sleep(0)
            assert await world.finish(earlier) == {}
            assert not first.done()
        (error,) = (await again).values()
        assert isinstance(error, UnavailableError)
        assert error.nothing_done
        assert await world.finish(first) == {}
        assert await world.finish(await world.ack([receipt], repeated=True)) == {}

    asyncio.run(scenario())


def test_an_attempt_that_failed_meanwhile_leaves_a_lease_that_may_be_acked() -> None:
    async def scenario() -> None:
        world = World(1)
        first = await world.ack(world.receipts)
        world.shards.begin(0)
        again = await world.ack(world.receipts, repeated=True)
        world.shards.end(0, well=False)
        errors = await world.finish(again)
        assert isinstance(errors[0], UnavailableError)
        assert (await first)[0].nothing_done
        assert await world.finish(await world.ack(world.receipts, repeated=True)) == {}

    asyncio.run(scenario())

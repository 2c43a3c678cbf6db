"""Items that a host delivered for a caller who left: they are released, or the log has them."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from foqs.cluster.routing.pulls import Pulls
from foqs.contract import requests as of
from foqs.model.calls import CallContext, Delivery, PositionErrors
from foqs.model.errors import UnavailableError
from foqs.model.principal import EVERYBODY
from tests.support.waiting import PATIENCE_S
from tests.unit.test_pulls import EagerNews, delivered


class Parting:
    """A host that delivers at the moment at which its caller leaves."""

    def __init__(self) -> None:
        self.calls_count = 0
        self.waits = asyncio.Event()

    async def call(self, *call: Any) -> list[Delivery]:
        self.calls_count += 1
        if self.calls_count == 1:
            return []
        self.waits.set()
        try:
            await asyncio.Future()
        except asyncio.CancelledError:
            return delivered([0, 1])
        raise AssertionError("nothing ends the wait but a caller that leaves")


@pytest.mark.parametrize("is_raised", [False, True])
async def test_items_of_this_host_that_cannot_be_released_for_a_caller_who_left_are_in_the_log(
    *, is_raised: bool
) -> None:
    here, asked = Parting(), asyncio.Event()
    error = UnavailableError("its shard is away")

    async def nack(context: CallContext, request: of.NackRequest) -> PositionErrors:
        asked.set()
        if is_raised:
            raise error
        return {1: error}

    pulls = Pulls(here.call, cast(Any, EagerNews()), lambda _: None, lambda _: 1, lambda: True, nack)
    request = of.DequeueRequest("jobs", [of.TopicDemand("mail", 3)], None, 20_000)
    with capture_logs() as logs:
        call = asyncio.create_task(pulls.dequeue(CallContext("", principal=EVERYBODY), request))
        async with asyncio.timeout(PATIENCE_S):
            await here.waits.wait()
            call.cancel()
            await asked.wait()
            await pulls.stop()
    assert [(entry["event"], entry["peer"], entry["count"], entry["error"]) for entry in logs] == [
        ("pull_not_given_back", None, 2 if is_raised else 1, "its shard is away")
    ]

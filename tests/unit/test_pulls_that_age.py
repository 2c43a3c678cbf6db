"""Pulls of a topic that ages: for how long another host is asked first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from foqs.cluster.homes.directory import OLDER_MS_MIN
from foqs.cluster.routing.pulls import Pulls
from foqs.contract import requests as of
from foqs.model.aging import FIRST_DAY_MS, PLACE_UNIT_MS, aging_place
from foqs.model.calls import CallContext, Delivery
from foqs.model.principal import EVERYBODY
from foqs.model.stocks import Pointer, Stock
from tests.unit.test_pulls import MAIL, News, Queue, delivered, nothing_given_back

_AGING_MS = 1_000


class AgedQueue:
    """A host whose next items have these priorities, and became due together."""

    def __init__(self, priorities: list[int]) -> None:
        self.priorities = priorities

    async def call(self, *call: Any) -> list[Delivery]:
        return [replace(item, deliver_after_ms=FIRST_DAY_MS) for item in delivered(self.priorities)]


@pytest.mark.parametrize(
    ("last", "aging_ms", "is_believed"),
    [
        pytest.param(40, _AGING_MS, True, id="its place is within the age that counts"),
        pytest.param(41, _AGING_MS, False, id="its place is behind"),
        pytest.param(40, 0, False, id="this host does not know that the topic ages"),
    ],
)
async def test_the_place_of_the_last_item_that_came_counts_and_not_its_priority(
    last: int, aging_ms: int, is_believed: bool
) -> None:
    first = aging_place(FIRST_DAY_MS, 40, _AGING_MS) - OLDER_MS_MIN // PLACE_UNIT_MS
    pointer = Pointer(MAIL, "host-1", Stock(3, 0, 0, first))
    news: Any = News(pointer)
    here: Any = Queue([7])
    there: Any = AgedQueue([50, last])
    pulls = Pulls(here.call, news, lambda _: there, lambda _: 1, lambda: True, nothing_given_back, lambda _: aging_ms)
    request = of.DequeueRequest("jobs", [of.TopicDemand("mail", 3)], None, 0)
    await pulls.dequeue(CallContext("", principal=EVERYBODY), request)
    assert news.pointer == (pointer if is_believed else None)

"""Which hosts share caps, and which of them are homes of caps."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from unittest.mock import Mock

import pytest

from foqs.cluster import cap_news
from foqs.cluster.cap_ledger import CapLedger
from foqs.cluster.cap_news import CapCalls, CapNews, LocalCaps
from foqs.model import shared_caps
from foqs.model.shared_caps import CapAsk, CapGrant, SharedCap
from tests.support.waiting import until

KEYS = [(1, f"t{number}") for number in range(50)]


def test_a_host_that_leaves_is_the_home_of_no_cap_and_has_a_part_in_caps_until_it_is_gone() -> None:
    news = CapNews("a", Mock(spec=CapCalls), Mock(spec=LocalCaps), lambda: 0.0)
    news.members(["a", "b"], ["a", "b"])
    version = news.version
    assert {news.home_of(key) for key in KEYS} == {"a", "b"}
    news.members(["a", "b"], ["b"])
    assert news.version > version
    assert {news.home_of(key) for key in KEYS} == {"b"}
    assert news.hosts_count == 2


def test_hosts_that_all_leave_are_homes_until_they_are_gone() -> None:
    news = CapNews("a", Mock(spec=CapCalls), Mock(spec=LocalCaps), lambda: 0.0)
    news.members(["a", "b"], [])
    assert {news.home_of(key) for key in KEYS} == {"a", "b"}


class SlowHome:
    """A home that answers when it is told to, by a ledger of its own."""

    def __init__(self) -> None:
        self.ledger = CapLedger()
        self.ledger.keep(frozenset("ab"))
        self.answers = asyncio.Event()
        self.asks: list[CapAsk] = []

    async def ask(self, host_id: str, asks: Sequence[CapAsk]) -> Sequence[CapGrant]:
        self.asks += asks
        found = [self.ledger.ask("a", ask, ask.rate, asyncio.get_running_loop().time()) for ask in asks]
        await self.answers.wait()
        return [grant for grant in found if grant is not None]


async def test_tokens_that_come_too_late_go_back_with_the_next_question_and_no_low_cap_waits_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cap_news, "ASK_MS_MAX", 1)
    monkeypatch.setattr(shared_caps, "RETRY_MS", 1)
    now_s, home = asyncio.get_running_loop().time, SlowHome()
    news = CapNews("a", home, Mock(spec=LocalCaps), now_s)
    await news.start()
    news.members(["a", "b"], ["b"])
    cap = SharedCap((1, "t"), 0.0001, now_s(), news)
    assert cap.take(1, now_s()) == 0
    await until(lambda: len(home.asks) >= 3)
    monkeypatch.setattr(cap_news, "ASK_MS_MAX", 1_000)
    home.answers.set()
    await until(lambda: cap.take(1, now_s()) == 1)
    assert any(ask.unused_count for ask in home.asks)
    await news.stop()

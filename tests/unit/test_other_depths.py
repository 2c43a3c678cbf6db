"""The depths of topics on other hosts: when they are asked for, and what an enqueue waits for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

from foqs.cluster.homes import other_depths
from foqs.cluster.homes.other_depths import OtherDepths
from foqs.model.calls import CallContext
from foqs.model.errors import UnavailableError
from foqs.model.principal import EVERYBODY
from foqs.model.stocks import Topic

TOPIC = (1, "t")
CALL = CallContext("test", principal=EVERYBODY)


class Hosts:
    """Other hosts with counts of their own, and enqueues of this one that record the counts which they found."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.by_host = {"a": 3, "b": 4}
        self.away: set[str] = set()
        self.asked: list[tuple[str, int]] = []
        self.gate: asyncio.Event | None = None
        self.limited: Sequence[Topic] = [TOPIC]
        local: Any = SimpleNamespace(
            depth=lambda topic: 7, limited_topics=lambda request: self.limited, follow_depths=lambda elsewhere: None
        )
        self.depths = OtherDepths("me", self._peer, local, lambda: self.now_s)
        self.depths.members(["me", "a", "b"])
        self.enqueue = self.depths.around(self._enqueue)

    def _peer(self, host_id: str) -> Any:
        async def depths(topics: Sequence[Topic]) -> dict[Topic, int]:
            self.asked.append((host_id, len(topics)))
            if self.gate is not None:
                await self.gate.wait()
            if host_id in self.away:
                raise UnavailableError("it is away")
            return dict.fromkeys(topics, self.by_host[host_id])

        return SimpleNamespace(depths=depths)

    async def _enqueue(self, context: CallContext, request: Any) -> int:
        return self.depths.count(TOPIC)

    async def found(self) -> int:
        """The count that an enqueue finds now."""
        return int(await self.enqueue(CALL, None))


@asynccontextmanager
async def running() -> AsyncIterator[Hosts]:
    hosts = Hosts()
    await hosts.depths.start()
    try:
        yield hosts
    finally:
        if hosts.gate is not None:
            hosts.gate.set()
        await hosts.depths.stop()


async def test_the_first_enqueue_waits_for_the_counts_of_all_hosts_and_the_next_ones_use_them() -> None:
    async with running() as hosts:
        assert await hosts.found() == 7
        hosts.by_host["a"] = 30
        hosts.now_s += 0.4
        assert await hosts.found() == 7
        assert sorted(hosts.asked) == [("a", 1), ("b", 1)]


async def test_counts_that_are_not_fresh_are_asked_for_beside_the_enqueue_and_old_ones_before_it() -> None:
    async with running() as hosts:
        await hosts.found()
        hosts.by_host["a"], hosts.gate = 30, asyncio.Event()
        hosts.now_s += 0.6
        assert await hosts.found() == 7
        hosts.now_s += 0.6
        waiting = asyncio.create_task(hosts.found())
        while len(hosts.asked) < 4:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert not waiting.done()
        hosts.gate.set()
        assert await waiting == 34


async def test_a_host_that_does_not_answer_keeps_its_last_count_and_one_that_is_gone_has_none() -> None:
    async with running() as hosts:
        await hosts.found()
        hosts.away, hosts.by_host["a"] = {"b"}, 5
        hosts.now_s += 2
        assert await hosts.found() == 9
        hosts.depths.members(["me", "a"])
        assert await hosts.found() == 5


async def test_an_enqueue_waits_for_a_silent_host_no_longer_than_the_bound(monkeypatch: Any) -> None:
    monkeypatch.setattr(other_depths, "WAIT_MS_MAX", 1)
    async with running() as hosts:
        hosts.gate = asyncio.Event()
        assert await hosts.found() == 0


async def test_many_topics_share_messages_and_the_oldest_are_forgotten(monkeypatch: Any) -> None:
    monkeypatch.setattr(other_depths, "TOPICS_KNOWN_MAX", 300)
    async with running() as hosts:
        hosts.limited = [(1, str(number)) for number in range(400)]
        await hosts.found()
        assert sorted(hosts.asked) == [("a", 150), ("a", 250), ("b", 150), ("b", 250)]
        assert len(hosts.depths._known) == 300


async def test_nothing_is_asked_without_a_limit_or_another_host() -> None:
    async with running() as hosts:
        hosts.limited = ()
        await hosts.found()
        hosts.limited = [TOPIC]
        hosts.depths.members(["me"])
        await hosts.found()
        assert hosts.asked == []
        assert hosts.depths.answers([TOPIC]) == [(TOPIC, 7)]

"""Hosts that tell each other of topics, over a network without delays."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from foqs.cluster.homes.topic_homes import TopicHomes
from foqs.model.errors import UnavailableError
from foqs.model.stocks import NO_STOCK, Pointer, Reported, Stock, Topic
from foqs.testing.manual_loop import ManualLoop

TOPIC = (1, "mail")
STEP_MS = 20
NAMES = ["a", "b", "c"]


class Net:
    """Hosts that reach each other, those that are not cut off."""

    def __init__(self) -> None:
        self.news: dict[str, TopicHomes] = {}
        self.stocks: dict[str, dict[Topic, Stock]] = {name: {} for name in NAMES}
        self.cut_off: set[str] = set()
        self.frozen: dict[str, asyncio.Event] = {}
        """Hosts that do nothing until their events are set."""
        self.reports_count = 0
        self.seeks: list[tuple[float, str, Mapping[Topic, int]]] = []
        """When each host asked for which topics."""
        self.probes: list[tuple[float, str, Mapping[Topic, int]]] = []
        """When each host asked another one that need not be their home for which topics."""

        self.hints: list[tuple[str, str, Sequence[Pointer]]] = []
        """The hints that were sent, from a host to another one."""

    async def _at(self, host_id: str, sender: str = "") -> TopicHomes:
        while (thawed := self.frozen.get(host_id)) is not None:
            await thawed.wait()
        if host_id in self.cut_off:
            raise UnavailableError(f"{host_id} is away", nothing_done=True)
        return self.news[host_id]


class Link:
    """A host of the net as another one sees it."""

    def __init__(self, net: Net, me: str, host_id: str) -> None:
        self._net = net
        self._me = me
        self.host_id = host_id

    async def report(self, stocks: Mapping[Topic, Reported]) -> Sequence[Pointer]:
        self._net.reports_count += len(stocks)
        return (await self._at()).reported(self._me, stocks)

    async def seek(self, interests: Mapping[Topic, int]) -> Sequence[Pointer]:
        asked = self._net.seeks if all(interests.values()) else self._net.probes
        asked.append((asyncio.get_running_loop().time(), self._me, interests))
        return (await self._at()).find(self._me, interests)

    async def hint(self, pointers: Sequence[Pointer]) -> None:
        self._net.hints.append((self._me, self.host_id, pointers))
        (await self._at()).notified(pointers)

    def _at(self) -> Awaitable[TopicHomes]:
        return self._net._at(self.host_id, self._me)


def links(net: Net, me: str) -> Callable[[str], Any]:
    """The other hosts as one of them sees these."""
    return lambda host_id: Link(net, me, host_id)


class Local:
    def __init__(self, net: Net, me: str) -> None:
        self._net = net
        self._me = me

    def stock(self, topic: Topic) -> Stock:
        return self._net.stocks[self._me].get(topic, NO_STOCK)

    def is_waited_for(self, topic: Topic) -> bool:
        return False

    def weight(self, topic: Topic) -> int:
        return 1


class TimedNet(Net):
    """Three hosts on a loop whose time the test moves."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = ManualLoop()
        for name in NAMES:
            self.news[name] = self.loop.call(self._make, name)
        for news in self.news.values():
            self.loop.call(self.loop.create_task, news.start())
            self.loop.turn()
            self.loop.call(news.members, NAMES, NAMES)
        self.loop.turn()

    def _make(self, name: str) -> TopicHomes:
        return TopicHomes(name, links(self, name), Local(self, name), lambda count: 0, self.loop.time)

    def put(self, host: str, stock: Stock, topic: Topic) -> None:
        self.loop.call(put, self, host, stock, topic)
        self.loop.turn()

    def freeze(self, host: str) -> None:
        self.frozen[host] = asyncio.Event()

    def thaw(self, host: str) -> None:
        self.loop.call(self.frozen.pop(host).set)
        self.loop.turn()

    def pass_ms(self, time_ms: float) -> None:
        self.loop.turn()
        until_s = self.loop.time() + time_ms / 1000
        while self.loop.time() < until_s:
            self.loop.move_to(self.loop.time() + STEP_MS / 1000)

    def homes(self, host: str) -> Sequence[str]:
        """Those that this host takes for homes."""
        return self.news[host]._home.hosts

    def close(self) -> None:
        for news in self.news.values():
            self.loop.call(self.loop.create_task, news.stop())
        self.loop.turn()
        self.loop.close()


class CutNet(TimedNet):
    """Links between hosts may be cut, each direction by itself. What goes wrong may be any exception."""

    def __init__(self) -> None:
        self.links_cut: set[tuple[str, str]] = set()
        self.raised: dict[str, Exception] = {}
        """What calls to a host raise."""
        super().__init__()

    def cut(self, sender: str, receiver: str) -> None:
        self.links_cut.add((sender, receiver))

    async def _at(self, host_id: str, sender: str = "") -> TopicHomes:
        if host_id in self.raised:
            raise self.raised[host_id]
        if (sender, host_id) in self.links_cut or (host_id, sender) in self.links_cut:
            raise UnavailableError(f"{host_id} is not reached by {sender}", nothing_done=True)
        return await super()._at(host_id, sender)


def put(net: Net, host: str, stock: Stock, topic: Topic = TOPIC) -> None:
    net.stocks[host][topic] = stock
    net.news[host].changed(topic)

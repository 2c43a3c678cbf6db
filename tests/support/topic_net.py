"""Hosts that tell each other of topics, over a network without delays."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from foqs.cluster.homes.home_table import Reported
from foqs.cluster.homes.topic_news import TopicNews
from foqs.model.errors import UnavailableError
from foqs.model.stocks import NO_STOCK, Pointer, Stock, Topic
from foqs.testing.manual_loop import ManualLoop

TOPIC = (1, "mail")
STEP_MS = 20
NAMES = ["a", "b", "c"]


class Net:
    """Hosts that reach each other, those that are not cut off."""

    def __init__(self) -> None:
        self.news: dict[str, TopicNews] = {}
        self.stocks: dict[str, dict[Topic, Stock]] = {name: {} for name in NAMES}
        self.cut_off: set[str] = set()
        self.frozen: dict[str, asyncio.Event] = {}
        """Hosts that do nothing until their events are set."""
        self.host_ids: Sequence[str] = NAMES
        self.reports_count = 0
        self.seeks: list[tuple[float, str, Mapping[Topic, int]]] = []
        """When each host sought which topics."""
        self.probes: list[tuple[float, str, Mapping[Topic, int]]] = []
        """When each host asked another one that need not be their home for which topics."""

    async def _at(self, host_id: str, sender: str = "") -> TopicNews:
        while (thawed := self.frozen.get(host_id)) is not None:
            await thawed.wait()
        if host_id in self.cut_off:
            raise UnavailableError(f"{host_id} is away", nothing_done=True)
        return self.news[host_id]


class Homes:
    """The net as one host sees it."""

    def __init__(self, net: Net, me: str) -> None:
        self._net = net
        self._me = me

    @property
    def host_ids(self) -> Sequence[str]:
        return self._net.host_ids

    async def report(self, host_id: str, stocks: Mapping[Topic, Reported]) -> Sequence[Pointer]:
        self._net.reports_count += len(stocks)
        return (await self._net._at(host_id, self._me)).reported(self._me, stocks)

    async def seek(self, host_id: str, wishes: Mapping[Topic, int]) -> Sequence[Pointer]:
        asked = self._net.seeks if all(wishes.values()) else self._net.probes
        asked.append((asyncio.get_running_loop().time(), self._me, wishes))
        return (await self._net._at(host_id, self._me)).sought(self._me, wishes)

    async def hint(self, host_id: str, pointers: Sequence[Pointer]) -> None:
        (await self._net._at(host_id, self._me)).hinted(pointers)


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

    def _make(self, name: str) -> TopicNews:
        return TopicNews(name, Homes(self, name), Local(self, name), lambda count: 0, self.loop.time)

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

    async def _at(self, host_id: str, sender: str = "") -> TopicNews:
        if host_id in self.raised:
            raise self.raised[host_id]
        if (sender, host_id) in self.links_cut or (host_id, sender) in self.links_cut:
            raise UnavailableError(f"{host_id} is not reached by {sender}", nothing_done=True)
        return await super()._at(host_id, sender)


def put(net: Net, host: str, stock: Stock, topic: Topic = TOPIC) -> None:
    net.stocks[host][topic] = stock
    net.news[host].changed(topic)

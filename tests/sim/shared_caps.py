"""Caps over all hosts of the world: what they deliver together, and how homes part their tokens."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from foqs.cluster.homes.cap_ledger import SHORT_MS, CapLedger
from foqs.cluster.homes.home_table import home_of
from foqs.model.caps import shared_burst_of
from foqs.model.item import ShardItem
from foqs.model.shared_caps import AHEAD_MS, CapAsk, CapGrant, CapKey
from tests.sim.clients import TOPICS, SimClient

if TYPE_CHECKING:
    from tests.sim.host import SimHost
    from tests.sim.world import World

_RUSH_PAUSE_S = 0.03
HOME_MS = 2_500
"""Each home that some host had within this time may let the whole cap through."""
_ALMOST = 1e-6


class SharedCapCheck:
    """What all hosts deliver together, against the caps that they know: P10.

    `look` is called often, and `delivered` with the items of each answer of each host.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._rates: dict[CapKey, set[float]] = {}
        """What living hosts know of each cap; 0 where one knows none."""
        self._levels: dict[CapKey, tuple[float, float]] = {}
        """How much of its burst was used, and when."""
        self._homes: dict[CapKey, dict[str, float]] = {}
        """The homes that hosts had for it lately, by when."""
        self._hosts: dict[str, float] = {}
        """The hosts that were there lately."""

    def look(self) -> None:
        """Notice what hosts know now."""
        now_s, hosts = self._world.loop.time(), self._living()
        rates: dict[CapKey, set[float]] = {}
        known = {host.host.id: _caps_of(host) for host in hosts}
        for caps in known.values():
            for key, rate in caps.items():
                rates.setdefault(key, set()).add(rate)
        for host_id, caps in known.items():
            for key, found in rates.items():
                found.add(caps.get(key, 0.0))
            self._hosts[host_id] = now_s
        self._levels = {key: level for key, level in self._levels.items() if rates.get(key) == self._rates.get(key)}
        self._rates = rates
        members = [sorted(host.host._routing._guarded.addresses) or [host.host.id] for host in hosts] if rates else []
        for key in rates:
            homes = self._homes.setdefault(key, {})
            for some in members:
                homes[home_of(key, some)] = now_s
        for seen in [self._hosts, *self._homes.values()]:
            for name in [name for name, at_s in seen.items() if now_s - at_s > HOME_MS / 1000]:
                del seen[name]

    def delivered(self, items: list[ShardItem]) -> Iterator[str]:
        self.look()
        now_s = self._world.loop.time()
        for item in items:
            for key in ((item.topic.namespace, item.topic.name), (item.topic.namespace, "")):
                rates = self._rates.get(key, {0.0})
                if 0.0 in rates:
                    self._levels.pop(key, None)
                    continue
                rate, homes_count = max(rates), max(1, len(self._homes[key]))
                bound = shared_burst_of(rate, len(self._hosts)) * homes_count
                level, at_s = self._levels.get(key, (0.0, now_s))
                level = min(max(0.0, level - homes_count * rate * (now_s - at_s)), bound) + 1
                self._levels[key] = (level, now_s)
                self._world.counts["deliveries against caps that hosts share"] += len(self._hosts) > 1
                if level > bound + 1 - _ALMOST:
                    yield (
                        f"P10: hosts delivered {key} faster than {rate} a second, with {homes_count} homes: {level:.3f}"
                    )

    def _living(self) -> list[SimHost]:
        return [host for host in self._world.hosts if host.ready and not host.ended]


def _caps_of(host: SimHost) -> dict[CapKey, float]:
    settings = host.host._dispatcher.settings
    caps: dict[CapKey, float] = {(number, ""): rate for number, rate in settings.caps.items()}
    for number in settings.policies.keys() | settings.prefix_policies.keys():
        names = {*settings.policies.get(number, {}), *TOPICS}
        rates = {name: settings.policy(number, name).deliveries_per_second_max for name in names}
        caps |= {(number, name): rate for name, rate in rates.items() if rate}
    return caps


async def rush(world: World, clients: Iterable[SimClient], until_s: float) -> None:
    """Enqueue and take all that there is, on all hosts, so that caps hold it back; in some runs."""

    async def run(client: SimClient) -> None:
        while world.loop.time() < until_s:
            await (client.enqueue() if chance.random() < 0.3 else client.work_off(chance.choice([TOPICS, TOPICS[:1]])))
            await asyncio.sleep(_RUSH_PAUSE_S)

    chance = random.Random(f"rush {world.seed}")
    if world.cap_keeper.is_steady:
        await asyncio.gather(*[run(client) for client in clients])


def checked_ledger(world_of: Callable[[], World]) -> type[CapLedger]:
    """The ledger of a home, whose hosts get parts by the weights of what waits there, and none of them nothing."""

    class CheckedLedger(CapLedger):
        def __init__(self) -> None:
            super().__init__()
            self._short: dict[CapKey, dict[str, tuple[int, float]]] = {}
            """The weights of hosts in which items wait, and until when that counts."""

        def ask(self, host_id: str, ask: CapAsk, rate: float, now_s: float) -> CapGrant | None:
            known = self._short.get(ask.key, {})
            short = self._short[ask.key] = {name: one for name, one in known.items() if name in self._members}
            if ask.is_short:
                short[host_id] = max(1, ask.weight), now_s + SHORT_MS / 1000
            elif host_id in short:
                short[host_id] = max(1, ask.weight), short[host_id][1]
            if ask.wanted_count <= 0 and not ask.held_count:
                short.pop(host_id, None)
            grant = super().ask(host_id, ask, rate, now_s)
            if grant is not None:
                others = sum([weight for name, (weight, until_s) in short.items()
                              if until_s > now_s and name != host_id])  # fmt: skip
                weight = max(1, ask.weight)
                part = max(1, int(rate * AHEAD_MS / 1000 * weight / (weight + others))) + 1
                if grant.granted_count and ask.held_count + grant.granted_count > part:
                    world_of().complain(
                        f"{host_id} has {ask.held_count} tokens of {ask.key}, gets {grant.granted_count}, "
                        f"and its part is {part}"
                    )
                # What hosts had in hand that are gone, or was lost on its way, is made up for by those that are there.
                entry = self._entries[ask.key]
                left = entry.tokens + rate * AHEAD_MS / 1000 + 2 * len(entry.parts)
                if ask.wanted_count > 0 and not ask.held_count and not grant.granted_count and left >= 1:
                    world_of().complain(f"{host_id} has no token of {ask.key} and gets none")
                world_of().counts["questions for tokens of a cap"] += 1
            return grant

    return CheckedLedger

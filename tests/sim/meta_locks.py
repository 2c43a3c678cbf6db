"""Row locks in the meta database: hosts hang and die between two statements, and others must not feel it for long."""

from __future__ import annotations

import math
import random
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from foqs.model import meta_bounds
from tests.sim.loop import ProcessState

if TYPE_CHECKING:
    from tests.sim.host import SimHost
    from tests.sim.world import World

_SHARE = 0.6
"""Of the clusters with a quota and hosts that fail: in these some fail between two statements."""
_STRUCK_MAX = 3
_EVERY = 12
"""One in so many asks."""
_BETWEEN_S = (0.0, 0.001, 0.02)
"""What lies between two statements."""
_LOOSE_S = 0.3
"""Locks are looked at so often, or somewhat less."""
_KNOWN_S = 1.5
"""Within so long a host that knows of a death has ended the sessions of the dead."""
_THERE_S = 1.5
"""An ask that fails once the meta database is there for so long has failed for some other reason."""


class MetaLocks:
    """The nemesis of hosts in the middle of a transaction there, and what all-knowing eyes see of the locks."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._chance = random.Random(f"{world.seed}/meta locks")
        profile = world.profile
        self._strikes = bool(
            profile.is_cluster and profile.quota_items and profile.host_fault_rate and self._chance.random() < _SHARE
        )
        self._struck_count = 0
        self._known_s: dict[tuple[str, str], float] = {}
        """Since when each host knows that another one is dead that holds locks."""
        self._failed_counts: dict[str, int] = {}
        """The asks of each host that had failed when that became so."""
        self._there_s: dict[str, float] = {}
        """Since when each host reaches the meta database."""

    def asking(self, host_name: str, ask: Generator[float | None, None, Any]) -> Generator[float | None, None, Any]:
        """An ask, in the middle of which its host may hang or die."""
        while True:
            try:
                wait_s = next(ask)
            except StopIteration as end:
                return end.value
            if wait_s is not None:
                yield wait_s
                continue
            if self._strikes and not self._world.delays.calm:
                self._strike(host_name)
            yield self._chance.choice(_BETWEEN_S) if self._strikes else 0.0

    def _strike(self, host_name: str) -> None:
        world, chance = self._world, self._chance
        host = next((host for host in world.hosts if host.name == host_name and host.ready), None)
        others = [other for other in world.hosts if other is not host and other.ready and not other.ended]
        if host is None or host.ended or not others or self._struck_count >= _STRUCK_MAX or chance.randrange(_EVERY):
            return
        self._struck_count += 1
        world.counts["hosts that failed between two statements"] += 1
        if chance.random() < 0.5:
            world.trace(host.name, "hangs between two statements")
            host.process.stop()
            world.loop.call_later(chance.choice([0.3, 1.0, 3.0]), self._go_on, host, context=world.context)
        else:
            world.loop.call_soon(self._kill, host, context=world.context)

    def _go_on(self, host: SimHost) -> None:
        if host in self._world.hosts and host.process.state is ProcessState.STOPPED:
            host.process.resume()

    def _kill(self, host: SimHost) -> None:
        """As if its machine had lost its network: nobody closes its session."""
        world = self._world
        if host in world.hosts and not host.ended:
            world.kill_host(host, sockets_closed=False)
            world.start_host(host.name)

    def look(self) -> None:
        """Complain of locks that outlive their hosts, and of hosts that take the database for away because of one."""
        now_s = self._world.loop.time()
        for row, session in list(self._world.meta.sessions._by_row.items()):
            silent_s = (self._world.now_ms() - session.spoke_ms) / 1000
            if silent_s > meta_bounds.META_SILENT_MS_MAX / 1000 + _LOOSE_S:
                self._world.complain(f"{session.process_id} has locked {row} and was silent for {silent_s:.1f} s")
        for host in self._world.hosts:
            if host.ready and not host.ended:
                self._look_at(host, now_s)

    def _look_at(self, host: SimHost, now_s: float) -> None:
        meta, profile = self._world.meta, self._world.profile
        is_there = not meta.away_count and meta.cut_off.get(host.name, -math.inf) <= now_s
        is_well = is_there and host.process.state is ProcessState.RUNNING
        if not is_well or (profile.slow_share and not self._world.delays.calm):
            self._there_s[host.host.id] = now_s
            self._known_s = {key: at_s for key, at_s in self._known_s.items() if key[0] != host.host.id}
            return
        there_s = self._there_s.setdefault(host.host.id, now_s)
        failed_count = host.host._quotas.asks_failed_total
        if now_s - there_s <= _THERE_S:
            self._failed_counts[host.host.id] = failed_count
        elif failed_count > self._failed_counts.get(host.host.id, failed_count):
            self._world.complain(f"an ask of {host.name} fails, and the meta database is there")
        watch = host.host._membership._watch
        dead = {one.process_id for _, one in meta.sessions.holders() if watch.is_dead(one.process_id, -1.0, now_s)}
        self._known_s = {key: at_s for key, at_s in self._known_s.items() if key[0] != host.host.id or key[1] in dead}
        for process_id in dead:
            if now_s - self._known_s.setdefault((host.host.id, process_id), now_s) > _KNOWN_S:
                self._world.complain(
                    f"{host.name} knows that {process_id} is dead, and leaves its locks where they are"
                )

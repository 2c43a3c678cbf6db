"""Caps that hosts share: this host asks their homes for tokens ahead, and is itself the home of some caps.

The home of a cap is found by the same hash as the homes of topics, over all living hosts, even unreachable ones,
because another home in its place would grant the same tokens again.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from heapq import heappop, heappush
from itertools import count, islice
from typing import Protocol

import structlog

from foqs.background.outage_log import OutageLog
from foqs.background.service import Service
from foqs.background.tasks import log_defect
from foqs.cluster.homes.cap_ledger import CapLedger
from foqs.cluster.homes.home_table import home_of
from foqs.cluster.peers.courier import Courier, CourierBounds
from foqs.cluster.peers.guarded_peers import GuardedPeer
from foqs.model.outage import Outage
from foqs.model.shared_caps import RETRY_MS, CapAsk, CapGrant, CapKey, SharedCap

FLUSH_MS = 5
"""Asks within this time are sent to their homes together."""
ASK_MS_MAX = 500
"""Timeout of an ask; the home then counts as unreachable."""
CHECKS_MAX = 250
"""Caps that one turn of the event loop checks, and that one message asks for."""
HOMES_KNOWN_MAX = 50_000
LEFT_BOUNDS = CourierBounds(kept_max=50_000, message_max=CHECKS_MAX, answer_ms_max=ASK_MS_MAX, retry_ms=250)
"""The bounds of the notices to a former home that this host has no part in caps any more."""
SWEEP_MS = 250
SWEEP_CAPS = 100
"""Caps that a sweep checks: 200,000 take eight minutes. Until then unused caps keep their places."""

_log = structlog.get_logger(__name__)


class LocalCaps(Protocol):
    """The caps of topics and namespaces on this host; foqs.host.verbs.host_stocks.Stocks is the real one."""

    def cap_rate(self, key: CapKey) -> float:
        """Return the cap as far as this host knows, in items a second; 0 for none."""

    def cap_fed(self, key: CapKey) -> None:
        """Note that the cap can have new tokens, or a known time of the next ones."""


class CapHomes(Service):
    """Implements foqs.model.shared_caps.HomesOfCaps for the caps of this host, and is the home of others.

    It owns the pending asks, and the ledger of the caps whose home this host is.
    """

    def __init__(
        self, me: str, peer: Callable[[str], GuardedPeer], local: LocalCaps, now_s: Callable[[], float]
    ) -> None:
        """`peer` returns a living host by its id, and raises UnavailableError for any other one.

        `now_s` is the time of the event loop.
        """
        super().__init__("cap-homes")
        self._me = me
        self._peer = peer
        self._local = local
        self._now_s = now_s
        self.ledger = CapLedger()
        self.version = 0
        self._hosts: tuple[str, ...] = (me,)
        """The living hosts."""
        self._home_ids: tuple[str, ...] = (me,)
        """The ids of the living hosts that are homes."""
        self._home_of: dict[CapKey, str] = {}
        self._wanted: OrderedDict[SharedCap, None] = OrderedDict()
        self._leaves = Courier(
            self._tasks,
            self._leave,
            LEFT_BOUNDS,
            lambda: OutageLog(now_s, "cap_home_not_reached"),
            _returned_by_both,
            _left_to_return,
        )
        """The asks that end this host's part in caps at their former homes; otherwise they reserve it forever."""
        self._watched: list[tuple[float, int, SharedCap]] = []
        """Caps by the time of their next check."""
        self._numbers = count()
        self._rung = asyncio.Event()
        self._outage = Outage(now_s)

    # ---- foqs.model.shared_caps.HomesOfCaps ----

    @property
    def hosts_count(self) -> int:
        return len(self._hosts)

    def home_of(self, key: CapKey) -> str:
        home = self._home_of.get(key)
        if home is None:
            if len(self._home_of) >= HOMES_KNOWN_MAX:
                self._home_of.clear()
            home = self._home_of[key] = home_of(key, self._home_ids)
        return home

    def wants(self, cap: SharedCap) -> None:
        if not self._wanted:
            asyncio.get_running_loop().call_later(FLUSH_MS / 1000, self._rung.set)
        self._wanted[cap] = None

    def left(self, home: str, ask: CapAsk) -> None:
        if home == self._me:
            self.asked(home, [ask])
        elif home in self._hosts:
            self._leaves.put(home, ask.key, ask)

    # ---- calls of other hosts ----

    def members(self, host_ids: Sequence[str], homes: Sequence[str]) -> None:
        """Set the living hosts, and the homes among them (all, if none is given)."""
        hosts = tuple(host_ids) or (self._me,)
        living = (hosts, tuple(homes) or hosts)
        if living != (self._hosts, self._home_ids):
            self._hosts, self._home_ids = living
            self.version += 1
            self._home_of.clear()
            self.ledger.keep(frozenset(hosts))
            self._leaves.keep(frozenset(hosts))
            self._rung.set()

    def asked(self, host_id: str, asks: Sequence[CapAsk]) -> list[CapGrant]:
        """Grant tokens to a host that asks this one, the home of these caps."""
        now_s, found = self._now_s(), []
        for ask in asks:
            rate = self._local.cap_rate(ask.key) or ask.rate
            if rate > 0 and (grant := self.ledger.ask(host_id, ask, rate, now_s)) is not None:
                found.append(grant)
        return found

    # ---- asking ----

    async def _start(self) -> None:
        self._tasks.spawn(self._run())
        self._tasks.every(SWEEP_MS, lambda: self.ledger.sweep(SWEEP_CAPS, self._now_s()))

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle | None = None
        while True:
            await self._rung.wait()
            self._rung.clear()
            try:
                self._check_due()
                self._ask_all()
            except Exception:  # A defect of one cap's must not stop all others.
                log_defect(self.name)
                await asyncio.sleep(RETRY_MS / 1000)
            if self._wanted:
                self._rung.set()
                await asyncio.sleep(0)
            elif self._watched:
                if timer is not None:
                    timer.cancel()
                timer = loop.call_at(max(self._watched[0][0], self._now_s() + FLUSH_MS / 1000), self._rung.set)

    async def _leave(self, home: str, asks: Mapping[CapKey, CapAsk]) -> None:
        await self._peer(home).ask(list(asks.values()))

    def _check_due(self) -> None:
        """Check the caps that are due."""
        now_s = self._now_s()
        for _ in range(CHECKS_MAX):
            if not self._watched or self._watched[0][0] > now_s:
                return
            at_s, _, cap = heappop(self._watched)
            if at_s != cap.watched_s:
                continue  # It must be checked sooner, and is in the heap twice.
            cap.watched_s = float("inf")
            if cap.is_over or cap.is_asking:
                continue
            if cap.lapse(now_s):
                cap.is_asking = True
                self._wanted[cap] = None
            else:
                self._watch(cap)
            self._local.cap_fed(cap.key)  # It can be making its own tokens by now.

    def _watch(self, cap: SharedCap) -> None:
        """Schedule the next check of a cap, if it needs one."""
        now_s = self._now_s()
        at_s = cap.check_s(now_s)
        if at_s <= now_s and cap.is_to_ask:
            at_s = now_s + RETRY_MS / 1000  # The answer came after its tokens had ended.
        if now_s < at_s < cap.watched_s:
            cap.watched_s = at_s
            heappush(self._watched, (at_s, next(self._numbers), cap))
            if self._watched[0][2] is cap:
                self._rung.set()  # It is the first one, so the next check must be sooner.

    def _ask_all(self) -> None:
        """Ask all homes for the wanted tokens, up to LOOKS_MAX caps in one turn of the loop."""
        by_home: dict[str, list[SharedCap]] = {}
        for cap in list(islice(self._wanted, CHECKS_MAX)):
            del self._wanted[cap]
            if cap.is_over:
                continue
            if self.hosts_count < 2:
                cap.is_asking = False
                self._local.cap_fed(cap.key)
            else:
                by_home.setdefault(self.home_of(cap.key), []).append(cap)
        for home, caps in by_home.items():
            if home == self._me:
                now_s = self._now_s()
                self._apply(home, caps, self.asked(home, [cap.ask() for cap in caps]), now_s)
                continue
            self._tasks.spawn(self._ask(home, caps))

    async def _ask(self, home: str, caps: Sequence[SharedCap]) -> None:
        """Apply the grants of a home. Tokens that come too late return to it with the next ask."""
        sent_s = self._now_s()
        asking = self._tasks.lend(self._ask_peer(home, [cap.ask() for cap in caps]))
        try:
            async with asyncio.timeout(ASK_MS_MAX / 1000):
                grants = await asyncio.shield(asking)
        except Exception as error:
            if self._outage.is_to_be_logged(str(error)):
                _log.warning("cap_home_not_reached", peer=home, error=str(error) or "no response in time")
            self._apply(home, caps, (), sent_s)
            await self._return_late(home, caps, asking)
        else:
            self._apply(home, caps, grants, sent_s)
        finally:
            asking.cancel()

    async def _ask_peer(self, home: str, asks: Sequence[CapAsk]) -> Sequence[CapGrant] | None:
        return await self._peer(home).ask(asks)

    async def _return_late(
        self, home: str, caps: Sequence[SharedCap], asking: asyncio.Future[Sequence[CapGrant] | None]
    ) -> None:
        """Return late tokens to a slow home, because it counts these as used; a low cap would have none for long.

        It waits for as long as a call to a host can take, and as many wait as can be in flight to that host.
        """
        try:
            grants = await asking
        except Exception:
            return  # The failure was logged when the answer was due.
        by_key = {grant.key: grant for grant in grants or ()}
        for cap in caps:
            if cap.key in by_key and self.home_of(cap.key) == home:
                self._came_late(cap, by_key[cap.key])

    def _came_late(self, cap: SharedCap, grant: CapGrant) -> None:
        """Return late tokens to the home, through the cap that has replaced this one, if any."""
        while cap.heir is not None:
            cap = cap.heir
        cap.came_late(grant, self._now_s())
        if not cap.is_over:
            self._go_on(cap)

    def _apply(self, home: str, caps: Sequence[SharedCap], grants: Sequence[CapGrant] | None, sent_s: float) -> None:
        now_s = self._now_s()
        by_key: Mapping[CapKey, CapGrant] = {grant.key: grant for grant in grants or ()}
        for cap in caps:
            grant = by_key.get(cap.key)
            if cap.is_over:
                if grant is not None and self.home_of(cap.key) == home:
                    self._came_late(cap, grant)
                continue
            if self.hosts_count < 2 or self.home_of(cap.key) != home:
                cap.missed(now_s)  # The answer is useless: the cap has another home now, or needs none.
                self._go_on(cap)
                continue
            # It can be home again, and must not learn then that this host has no part in the cap.
            self._leaves.recall(home, cap.key, partial(self._not_left, cap))
            if grant is not None:
                cap.granted(grant, sent_s, now_s)
            elif grants is None:
                cap.unaided(now_s)
            else:
                cap.missed(now_s)
            self._go_on(cap)

    def _go_on(self, cap: SharedCap) -> None:
        self._watch(cap)
        self._local.cap_fed(cap.key)  # Its next tokens can be sooner.

    def _not_left(self, cap: SharedCap, leave: CapAsk) -> None:
        """Return the tokens of a leave that has not reached the home, through the cap that is in use again."""
        if leave.unused_count:
            self._came_late(cap, CapGrant(cap.key, leave.unused_count, 0.0, 0.0, 0.0))


def _returned_by_both(older: CapAsk, newer: CapAsk) -> CapAsk:
    return newer._replace(unused_count=older.unused_count + newer.unused_count)


def _left_to_return(ask: CapAsk, nothing_done: bool) -> CapAsk:
    """Return no token twice: a home can have taken tokens back whose ask it has not answered."""
    return ask if nothing_done else ask._replace(unused_count=0)

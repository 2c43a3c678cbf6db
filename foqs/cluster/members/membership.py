"""The membership of the cluster: this host's heartbeats, and the watch of all others'."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from typing import NamedTuple, TypeVar

import structlog

from foqs.background.lane import Lane
from foqs.background.outage_log import OutageLog
from foqs.background.service import Service
from foqs.cluster.members.dead_hosts import DeadHosts
from foqs.cluster.members.host_watch import HostSign, HostWatch
from foqs.cluster.members.neighbours import Neighbours
from foqs.cluster.members.view import ClusterView, MembershipBackend
from foqs.cluster.members.watch_report import WatchReport
from foqs.model import limits
from foqs.model.cluster import HostRow, ShardRow, ShardUse
from foqs.model.errors import FoqsError
from foqs.storage.meta.meta_store import MetaStore

SETTLED_MS = 3 * limits.SECOND_MS
"""Shards move between living hosts only after no host has joined or left for this long."""
OWNER_ASKED_MS = limits.MINUTE_MS
"""A question about an owner is forgotten this long after its last repetition; waiting callers repeat it every few
seconds.
"""
BUSY_BEAT_MS = 250
"""The pause between two rounds of a host that waits for a shard to move."""

JITTER_PART = 5
"""Jitter: each pause between two rounds is shortened randomly by up to a fifth (one part in this many)."""

_log = structlog.get_logger(__name__)
T = TypeVar("T")


async def _ignore(view: ClusterView) -> None:
    return None


class Follower(NamedTuple):
    """The actions that follow from rounds; the owner of the membership passes them on."""

    on_view: Callable[[ClusterView], Awaitable[None]] = _ignore
    """Called after each round that was answered."""
    on_death: Callable[[], None] = lambda: None
    """Called when a host is dead that was not a moment ago."""
    is_busy: Callable[[], bool] = lambda: False
    """True if rounds should come faster, because a shard is to move."""
    place_problem: Callable[[int, str], str] = lambda shard_id, place: ""
    """Returns the reason that a shard is not at a place, as the database there says. It blocks."""
    read_secrets: Callable[[MetaStore], object] = lambda meta: None
    """Reads the secrets of the cluster. It blocks."""
    secret_ids: Callable[[], tuple[str, ...]] = lambda: ()
    """Returns the ids of the secrets that this host knows."""


class Membership(Service):
    """Sends a heartbeat every limits.HEARTBEAT_MS and reads all hosts, and then all shards from the meta database.

    It has threads and sessions of its own, so that an operator's calls cannot delay a heartbeat, and a separate thread
    for heartbeats: with another backend than the meta database they continue while the meta database hangs. While
    either cannot be read, no host is found dead and no shard moves, because only answered rounds have consequences.
    """

    def __init__(
        self,
        backend: MembershipBackend,
        meta: MetaStore,
        me: HostRow,
        places: Mapping[int, str],
        now_s: Callable[[], float],
        choose: Callable[[int], int],
        follower: Follower | None = None,
    ) -> None:
        """`backend` and `meta` are closed with it. `places` are the places of shards in this host's configuration.

        `now_s` is a monotonic clock that any thread can read. `choose` draws a number from 0 to below its argument.
        """
        super().__init__("membership")
        self._follower = follower or Follower()
        self.refused: dict[int, str] = {}
        """The reasons why configured shards were not adopted, until the host is restarted."""
        self._backend = backend
        self._meta = meta
        self._me = me
        self.hosts_count = 1
        """The number of living hosts as far as this one knows, itself included."""
        self._places = dict(places)
        """The places of all shards that this process has ever known, except removed ones."""
        self._now_s = now_s
        self._choose = choose
        self._watch = HostWatch()
        self.report = WatchReport(self._watch, now_s)
        self._dead = DeadHosts(meta.hosts, lambda host_id: self._watch.is_dead(host_id, -math.inf, now_s()), now_s)
        self._neighbours = Neighbours(now_s)
        self._is_listening = False
        """True if the address is final, even if this host does not know one."""
        self._asked: dict[tuple[str, int], tuple[float, float]] = {}
        """When each owner, a process and its epoch, was asked about first and last; long ago is forgotten."""
        self._beat_outage = OutageLog(now_s, "heartbeat_missed")
        self._read_outage = OutageLog(now_s, "shards_not_read")
        self._beats = Lane(f"{self.name}-beats")
        self._reads = Lane(self.name)
        self._hosts: list[HostRow] = []
        """The hosts at the last heartbeat."""
        self._found = asyncio.Event()
        """Set by each heartbeat, and cleared when the shards are read."""
        self._knows_shards = False
        """The last time that shards were to be read, they were."""
        self._has_joined = False
        """True once this host is to leave at its end."""
        self._hurry = asyncio.Event()
        self._living: frozenset[str] = frozenset()
        self._changed_s = now_s()
        """The time at which a host last joined or left."""
        self._strange: set[int] = set()
        """Shards whose configured places differ from the recorded ones, as logged."""

    @property
    def me(self) -> HostRow:
        return self._me

    def is_dead(self, host_id: str, epoch: int) -> bool:
        """True if the owner of that epoch is certainly dead. Any thread can ask, and nothing blocks.

        A host that has just started, or could not reach the meta database lately, considers no host dead, because it
        could not take a dead one's place. The first question about an owner returns False; the caller repeats it after
        the next round.
        """
        now_s = self._now_s()
        since_s, _ = self._asked.get((host_id, epoch), (now_s, now_s))
        self._asked[host_id, epoch] = since_s, now_s
        return self._knows_shards and self._watch.is_dead(host_id, since_s, now_s)

    def use_url(self, url: str) -> None:
        """Open new sessions by this URL, which leads to the same database."""
        self._backend.use_url(url)
        self._meta.use_url(url)

    def advertise(self, address: str, peer_address: str = "") -> None:
        """Set the address at which clients and peers reach this host; empty if it does not know one.

        With a `peer_address` peers use that one instead.
        """
        self._me = self._me._replace(address=address, peer_address=peer_address, is_starting=False)
        self._is_listening = True
        self._hurry.set()

    def leave(self) -> None:
        """Announce that this host wants to hand over its shards."""
        self._me = self._me._replace(is_leaving=True)
        self._hurry.set()

    async def ask_for_shards(self, by_owner: Mapping[int, str]) -> None:
        """Announce to the owners of these shards that this host is ready for them. Raises UnavailableError."""
        await self.run_in_lane(lambda: self._meta.shards.ask_for(by_owner, self._me.id))

    async def decline_shards(self, by_heir: Mapping[int, str]) -> None:
        """Cancel the moves of these shards of this host to the hosts that asked for them.

        Raises UnavailableError.
        """
        await self.run_in_lane(lambda: self._meta.shards.decline(by_heir, self._me.id))

    async def leave_servers(self, left: Mapping[int, tuple[int, int]]) -> list[int]:
        """Let other hosts take these shards of this host on other servers: `MetaShards.leave_servers`.

        Raises UnavailableError.
        """
        return await self.run_in_lane(lambda: self._meta.shards.leave_servers(self._me.id, left))

    async def note_numbers(self, numbers: Mapping[int, tuple[int, int]]) -> list[int]:
        """Record the last transactions of this host's shards: `MetaShards.note_numbers`. Raises UnavailableError."""
        return await self.run_in_lane(lambda: self._meta.shards.note_numbers(self._me.id, numbers))

    async def _start(self) -> None:
        await self._beats.run(lambda: self._backend.join(self._me))
        await self._beat()
        await self._refresh()
        self._has_joined = True
        self._tasks.repeat(self._pause, self._beat, "heartbeat", self._beat_outage)
        self._tasks.repeat(self._found.wait, self._refresh, "reading shards", self._read_outage)

    async def _stop(self) -> None:
        if self._has_joined:
            try:
                await self._beats.run(lambda: self._backend.leave(self._me))
            except FoqsError as error:
                _log.warning("host_row_left_behind", error=str(error))
        await self._beats.run(self._backend.close)
        self._beats.join()
        # A read can wait for a database that hangs.
        await self._reads.stop()
        self._meta.close()

    async def _pause(self) -> None:
        """Wait until the next round is due: no two hosts stay in step, and a death is known as soon as it can be."""
        pause_ms = min(BUSY_BEAT_MS, limits.HEARTBEAT_MS) if self._follower.is_busy() else limits.HEARTBEAT_MS
        pause_s = (pause_ms - self._choose(pause_ms // JITTER_PART + 1)) / 1000
        if (death_s := self._watch.next_death_s()) is not None:
            # A timer can fire slightly early.
            pause_s = min(pause_s, max(0.0, death_s - self._now_s()) + 0.001)
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._hurry.wait()
        self._hurry.clear()

    async def _beat(self) -> None:
        asked_s = self._now_s()
        secret_ids = self._follower.secret_ids()
        self._me = me = self._me._replace(beat_number=self._me.beat_number + 1, secret_ids=secret_ids)
        try:
            hosts = await self._beats.run(lambda: self._backend.beat(me))
        except BaseException:
            self._watch.missed(asked_s, self._now_s())
            self.report.round_ended()
            raise
        answered_s = self._now_s()
        signs = {row.id: HostSign(row.started_at_ms, row.beat_number) for row in hosts}
        has_death = self._watch.saw(asked_s, answered_s, signs)
        self._dead.found(self._watch.new_dead - {me.id})
        self.report.round_ended()
        self.hosts_count = 1 + self._watch.others_count(self._me.id)
        self._forget_asked(answered_s - OWNER_ASKED_MS / 1000)
        self._neighbours.saw(
            self._me,
            hosts,
            lambda host_id: self._watch.is_dead(host_id, -math.inf, answered_s),
            is_listening=self._is_listening,
        )
        self._hosts = hosts
        self._found.set()
        if has_death:
            self._follower.on_death()

    def _forget_asked(self, before_s: float) -> None:
        for owner, (_, last_s) in list(self._asked.items()):
            if last_s < before_s:
                self._asked.pop(owner, None)

    async def _refresh(self) -> None:
        """Read the shards, after the hosts, and pass the view on."""
        self._found.clear()
        hosts, me = self._hosts, self._me
        try:
            shards = await self.run_in_lane(lambda: self._read_shards(me))
        except BaseException:
            self._knows_shards = False
            raise
        self._knows_shards = True
        self._note_places(shards)
        await self._follower.on_view(self._view_of(hosts, shards, self._now_s()))

    def _read_shards(self, me: HostRow) -> list[ShardRow]:
        self._dead.tidy()  # First, because others wait for the locks of dead hosts.
        self._backend.announce(me)
        self._follower.read_secrets(self._meta)
        shards = self._meta.shards.read_all()
        known = {row.shard_id for row in shards if row.place or row.use is ShardUse.REMOVED}
        unknown = {shard_id: place for shard_id, place in self._places.items() if shard_id not in known}
        if unknown:
            # The database is new, or was restored from an older state.
            self._adopt(unknown, me.tier)
            shards = self._meta.shards.read_all()
        return shards

    def _adopt(self, places: Mapping[int, str], tier: str) -> None:
        """Add these shards to the meta database, except those whose databases belong to others."""
        problems = {shard_id: self._follower.place_problem(shard_id, place) for shard_id, place in places.items()}
        taken = self._meta.shards.adopt({at: place for at, place in places.items() if not problems[at]}, tier)
        for shard_id, other in taken.items():
            problems[shard_id] = f"shard {other} is at its place, and two shards need two databases"
        for shard_id, problem in problems.items():
            if problem:
                place = self._places.pop(shard_id)
                self.refused[shard_id] = f"{problem}; correct the configuration and start this host again"
                _log.error("shard_refused", shard=shard_id, place=place, error=problem)

    def _view_of(self, hosts: Collection[HostRow], shards: Collection[ShardRow], now_s: float) -> ClusterView:
        living = {row.id: row for row in hosts if not self._watch.is_dead(row.id, -math.inf, now_s)}
        living[self._me.id] = self._me
        members = frozenset([host.id for host in living.values() if not host.is_leaving])
        if members != self._living:
            self._living, self._changed_s = members, now_s
        is_settled = now_s - self._changed_s >= SETTLED_MS / 1000
        # Until it has adopted these shards, the database does not know their places in this host's configuration.
        known = {row.shard_id: row._replace(place=row.place or self._places.get(row.shard_id, "")) for row in shards}
        return ClusterView(self._me.id, living, known, is_settled)

    def _note_places(self, shards: Collection[ShardRow]) -> None:
        for row in shards:
            mine = self._places.get(row.shard_id, row.place)
            if row.use is ShardUse.REMOVED:
                if self._places.pop(row.shard_id, None) is not None:
                    _log.warning("shard_removed", shard=row.shard_id)
            elif row.place:
                self._places.setdefault(row.shard_id, row.place)
                if row.is_relocated:
                    self._places[row.shard_id] = row.place  # For a meta database that has lost it.
                if mine != row.place and row.shard_id not in self._strange:
                    self._strange.add(row.shard_id)
                    _log.warning("shard_place_differs", shard=row.shard_id, configured=mine, place=row.place)

    async def run_in_lane(self, work: Callable[[], T]) -> T:
        """Run `work`, which must be short, between two reads of the shards."""
        return await self._reads.run(work)

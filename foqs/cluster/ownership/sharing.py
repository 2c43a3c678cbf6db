"""Reconciles this host's shards with the plan: opens shards, and hands them over."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

import structlog

from foqs.background.outage_log import OutageLog
from foqs.background.service import Service, ServiceState
from foqs.cluster.members.membership import Membership
from foqs.cluster.members.view import ClusterView
from foqs.cluster.ownership.decision import NOTHING_PLANNED, Decision, Planner, decide, shards_in_use
from foqs.cluster.ownership.owner_map import OwnerMap
from foqs.model import limits
from foqs.model.cluster import ShardRow, ShardUse, host_name_of
from foqs.model.errors import FoqsError

NEGLECTED_MS = 5 * limits.SECOND_MS
"""A shard without an owner for this long is taken by its heir, even if the planned host has not taken it."""
RELEASE_MS_MAX = 2 * limits.SECOND_MS
"""A host that has released a shard takes it again if no next owner is known within this time."""
DECLINE_MS = 2 * limits.SECOND_MS
"""An owner declines a host that asks for a shard after the plan has been against that host for this long."""
LEAVE_MS_MAX = 8 * limits.SECOND_MS
"""Time that a leaving host waits for others to take its shards one by one; then it just releases all."""

_log = structlog.get_logger(__name__)


class LocalShards(Protocol):
    """The shards of this host, as sharing opens and releases them; foqs.bootstrap.Host is the real one."""

    @property
    def shards_run(self) -> Collection[int]:
        """The ids of the shards that it has or tries to get."""

    @property
    def shards_owned(self) -> Collection[int]:
        """The ids of the shards that it serves now."""

    @property
    def shards_awaited(self) -> Collection[int]:
        """The ids of the shards whose locks it has requested from their living owners; it can open these."""

    def knows_shards(self, rows: Collection[ShardRow], moving: Collection[int]) -> None:
        """Set the existing shards of the cluster, owned or not; `moving` are about to move to other hosts."""

    def place_of(self, shard_id: int) -> str:
        """Return the place of a shard that this host runs, as it was when the host began with it."""

    def knows_epochs(self, epochs: Mapping[int, int]) -> None:
        """Set the last epoch of each shard that the meta database has given to any host."""

    def expect_shards(self, shard_ids: Collection[int]) -> None:
        """Note that the living owners of these shards are asked to hand them to this host."""

    def retry_now(self, shard_ids: Collection[int]) -> None:
        """Try again to open these shards at once, because their owners are dead."""

    async def gain_shard(self, shard_id: int, place: str) -> None:
        """Try to own one more shard from now on."""

    async def lose_shard(self, shard_id: int) -> None:
        """Hand a shard over, or stop trying to own it."""


class Sharing(Service):
    """Decides on the actions after each round of `Membership`, and performs them one after the other for each shard.

    The host starts it after its membership, and lets it `leave` before it drains. It owns the tasks that open shards
    and hand them over.
    """

    def __init__(
        self,
        local: LocalShards,
        owners: OwnerMap,
        membership: Membership,
        now_s: Callable[[], float],
    ) -> None:
        """`now_s` is a monotonic clock."""
        super().__init__("sharing")
        self._local = local
        self._owners = owners
        self._membership = membership
        self._now_s = now_s
        self._planner = Planner()
        self._view: ClusterView | None = None
        self._intent = NOTHING_PLANNED
        self._works: dict[int, asyncio.Task[None]] = {}
        self._asking: asyncio.Task[None] | None = None
        self._ask_outage = OutageLog(now_s, "shards_not_asked_for")
        self._expected: Collection[int] = ()
        """Shards that this host wants from living owners."""
        self._released: dict[int, asyncio.TimerHandle | None] = {}
        """Shards handed over without a next owner, each with the timer that takes it again, or None before its release.
        """
        self._not_taken: dict[int, str] = {}
        """The hosts that asked for shards of this one and then did not take them; they have to ask again."""
        self._refused: set[int] = set()
        """The shards among these whose moves were cancelled in the meta database since the last round."""
        self._orphan_since: dict[int, tuple[int, float]] = {}
        """The last epoch of shards without an owner, and the time since which this host has seen that."""
        self._declined_since: dict[int, tuple[str, float]] = {}
        """The host that asks for each shard of this host against the plan, and the time since which it does."""
        self._declining: asyncio.Task[None] | None = None
        self.is_moving = False
        """True if a shard is about to move, here or from here."""
        self._is_leaving = False
        """True if this host is ending: it hands its shards over, and gains no more."""
        self._has_left = False
        """True if this host has handed over all it could, and drains."""
        self._changed = asyncio.Event()
        """Set after another round, or after some work was done."""

    def tiers_of(self, host_name: str) -> set[str]:
        """Return the tiers of the living processes of that name: usually one, or none if it is unknown."""
        hosts = self._view.hosts.values() if self._view is not None else ()
        return {host.tier for host in hosts if host_name_of(host.id) == host_name}

    async def refresh(self, view: ClusterView) -> bool:
        """Decide anew, after a round of the membership. Returns True if the host acts on it, as one that runs does."""
        for shard_id in self._refused:  # The round was asked later, so the recorded host has asked anew.
            self._not_taken.pop(shard_id, None)
        self._refused.clear()
        self._intent = await self._membership.run_in_lane(lambda: self._planner.plan(view))
        self._view = view
        self._changed.set()
        self._owners.refresh(view)
        rows = [row for row in view.shards.values() if row.use is not ShardUse.REMOVED]
        self._local.knows_shards(rows, {row.shard_id for row in rows if row.moving_to in view.hosts})
        self._local.knows_epochs({row.shard_id: row.epoch for row in rows})
        is_running = self.state is ServiceState.RUNNING
        if is_running:
            self._act(view)
        return is_running

    def owner_died(self) -> None:
        """Note that a host is dead. Each shard that waits for a lock of its session ends that session."""
        owners = [
            owner for shard_id in self._local.shards_run if (owner := self._owners.on_record(shard_id)) is not None
        ]
        self._local.retry_now(
            {owner.shard_id for owner in owners if self._membership.is_dead(owner.host_id, owner.epoch)}
        )

    async def leave(self) -> None:
        """Hand over all shards to hosts that ask for them; the membership shows other hosts that this one leaves.

        It does so even without a shard, so that nothing is planned for this host and it is the home of no topic.
        Returns when all is handed over, when no other host can ask, or after LEAVE_MS_MAX.
        """
        until_s = self._now_s() + LEAVE_MS_MAX / 1000
        self._is_leaving = True
        if self._view is not None:
            self._announce_end(self._view)
        if self._is_to_hand_over():
            self.is_moving = True
        while self._is_to_hand_over() and self._now_s() < until_s:
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(until_s - self._now_s()):
                    await self._changed.wait()
        self._has_left = True
        while self._works:
            await asyncio.wait(list(self._works.values()))

    def _announce_end(self, view: ClusterView) -> None:
        """Announce the end to the other hosts once, if any exist: a single host ends without one more heartbeat."""
        if len(view.hosts) > 1 and not view.is_leaving(view.me):
            self._membership.leave()

    def _is_to_hand_over(self) -> bool:
        """True if a shard of this host has no later owner, or is on its way here, and another host can take it."""
        view = self._view
        if view is None:
            return False
        run, owned = self._local.shards_run, self._local.shards_owned
        tiers = {
            row.tier
            for row in shards_in_use(view).values()
            if row.owner == view.me or row.shard_id in owned or (row.shard_id in self._expected and row.shard_id in run)
        }
        return any(member.id != view.me and member.tier in tiers for member in view.members)

    async def _start(self) -> None:
        """Return when this host has the shards that it can have at once."""
        assert self._view is not None, "the membership was started before"
        self._act(self._view)
        if self._works:
            await asyncio.wait(list(self._works.values()))

    async def _stop(self) -> None:
        """Cancel pending work: the host stops all of its shards."""
        for timer in self._released.values():
            if timer is not None:
                timer.cancel()

    def _act(self, view: ClusterView) -> None:
        decision = self._decide(view)
        self._forget_released(view)
        run = set(self._local.shards_run)
        if self._is_leaving:
            # Other hosts can have joined meanwhile, and the plan for this host is from a slightly older view.
            self._announce_end(view)
            decision = decision.without_gains(run)
        for shard_id in decision.wanted - run - self._released.keys():
            self._begin(shard_id, self._local.gain_shard(shard_id, view.shards[shard_id].place))
        for shard_id in (run - decision.wanted) | self._misplaced(view, run):
            self._begin(shard_id, self._local.lose_shard(shard_id))
        released = [shard_id for shard_id in decision.released if shard_id not in self._not_taken]
        self._release(view, released)
        self._expected = decision.asked.keys()
        self._local.expect_shards(self._expected)
        self._ask_for(view, decision)
        self._decline(decision)
        is_coming = any(shard_id in decision.asked for shard_id in self._local.shards_awaited)
        self.is_moving = is_coming or bool(released) or view.is_leaving(view.me)

    def _misplaced(self, view: ClusterView, run: Collection[int]) -> set[int]:
        """Return the shards that this host has, or tries to have, in their former databases."""
        relocated = [row for row in view.shards.values() if row.is_relocated and row.shard_id in run]
        return {row.shard_id for row in relocated if self._local.place_of(row.shard_id) != row.place}

    def _decide(self, view: ClusterView) -> Decision:
        return decide(view, self._intent, self._local.shards_owned, self._neglected(view))

    def _neglected(self, view: ClusterView) -> set[int]:
        now_s, before = self._now_s(), self._orphan_since
        self._orphan_since = {}
        for row in view.shards.values():
            if row.owner not in view.hosts:
                epoch, since_s = before.get(row.shard_id, (row.epoch, now_s))
                self._orphan_since[row.shard_id] = (row.epoch, since_s if epoch == row.epoch else now_s)
        return {at for at, (_, since_s) in self._orphan_since.items() if now_s - since_s >= NEGLECTED_MS / 1000}

    def _forget_released(self, view: ClusterView) -> None:
        """Forget shards with a next owner, and the hosts that did not take a shard whose move is cancelled."""
        mine = {row.shard_id: row.moving_to for row in view.shards.values() if row.owner == view.me}
        for shard_id in self._released.keys() - mine:
            if (timer := self._released.pop(shard_id)) is not None:
                timer.cancel()
        self._not_taken = {at: heir for at, heir in self._not_taken.items() if mine.get(at) == heir}

    def _release(self, view: ClusterView, shard_ids: Collection[int]) -> None:
        """Release shards, one at a time unless this host leaves, because items on their way are held up briefly."""
        for shard_id in shard_ids:
            if self._released and not view.is_leaving(view.me):
                return
            if shard_id not in self._works:
                _log.info("shard_released", shard=shard_id, to=view.shards[shard_id].moving_to)
                self._released[shard_id] = None
                self._begin(shard_id, self._hand_over(view.shards[shard_id]))

    async def _hand_over(self, row: ShardRow) -> None:
        """Release the shard, and take it again if no other host does.

        A timer decides that and not a round: rounds can stay unanswered from now on, and then the next owner has no
        epoch either, while this host continues under its former one.
        """
        try:
            await self._local.lose_shard(row.shard_id)
        finally:
            if row.shard_id in self._released and self.state is ServiceState.RUNNING:
                delay_s = RELEASE_MS_MAX / 1000
                self._released[row.shard_id] = asyncio.get_running_loop().call_later(delay_s, self._take_again, row)

    def _take_again(self, row: ShardRow) -> None:
        del self._released[row.shard_id]
        owner = self._owners.get(row.shard_id)
        is_taken = owner is not None and owner.host_id != row.owner
        if is_taken or self._has_left or row.shard_id in self._local.shards_run:
            return
        latest = self._view.shards.get(row.shard_id) if self._view is not None else None
        if latest is None or not latest.use.is_served:
            return
        _log.warning("shard_not_taken", shard=row.shard_id, by=row.moving_to)
        self._not_taken[row.shard_id] = row.moving_to
        self._begin(row.shard_id, self._local.gain_shard(row.shard_id, latest.place))

    def _ask_for(self, view: ClusterView, decision: Decision) -> None:
        """Ask for one shard at a time, and for all shards of hosts that leave.

        A shard that this host cannot open stays in place, because its owner would release it again and again.
        """
        awaited = self._local.shards_awaited
        ready = {shard_id: owner for shard_id, owner in decision.asked.items() if shard_id in awaited}
        coming = {shard_id for shard_id in ready if view.shards[shard_id].moving_to == view.me}
        staying = {shard_id for shard_id, owner in ready.items() if not view.is_leaving(owner)}
        asked = {
            shard_id: owner
            for shard_id, owner in ready.items()
            if (view.is_leaving(owner) or shard_id == min(staying & coming or staying))
            and shard_id not in self._works
            and shard_id not in coming
        }
        if asked and (self._asking is None or self._asking.done()):
            self._asking = self._tasks.spawn(self._send(asked, self._membership.ask_for_shards), "sharing-ask")

    def _decline(self, decision: Decision) -> None:
        """Cancel moves that hosts asked for before the plan changed, because a shard that stays is not on its way.

        This happens only after DECLINE_MS, because the asking host can already know of a new or dead host that this
        host sees only in its next round. A host that did not take a requested shard must ask again as well, to show
        that it reaches the meta database again.
        """
        now_s, before = self._now_s(), self._declined_since
        self._declined_since = {}
        for shard_id, heir in decision.declined.items():
            known, since_s = before.get(shard_id, (heir, now_s))
            self._declined_since[shard_id] = heir, since_s if known == heir else now_s
        due = {
            shard_id: heir
            for shard_id, (heir, since_s) in self._declined_since.items()
            if now_s - since_s >= DECLINE_MS / 1000 and shard_id not in self._works
        }
        due |= {shard_id: heir for shard_id, heir in self._not_taken.items() if shard_id not in self._refused}
        if due and (self._declining is None or self._declining.done()):
            self._declining = self._tasks.spawn(self._send(due, self._refuse), "sharing-decline")

    async def _refuse(self, by_heir: Mapping[int, str]) -> None:
        await self._membership.decline_shards(by_heir)
        self._refused.update(by_heir)

    async def _send(self, hosts: Mapping[int, str], send: Callable[[Mapping[int, str]], Awaitable[None]]) -> None:
        """Write this to the meta database for other hosts; the next round repeats it if the database is unavailable."""
        try:
            await send(hosts)
            self._ask_outage.worked()
        except FoqsError as error:
            self._ask_outage.failed(error, shards=sorted(hosts))

    def _begin(self, shard_id: int, work: Coroutine[Any, Any, None]) -> None:
        if shard_id in self._works:
            work.close()
            return
        task = self._works[shard_id] = self._tasks.spawn(work, f"sharing-{shard_id}")
        task.add_done_callback(partial(self._ended, shard_id))

    def _ended(self, shard_id: int, _: object) -> None:
        del self._works[shard_id]
        self._changed.set()

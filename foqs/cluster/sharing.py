"""Brings together what the plan says of this host's shards and what the host does: opens them, and hands them on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from contextlib import suppress
from typing import Any, Protocol

import structlog

from foqs.cluster.decision import NOTHING_PLANNED, Decision, Planner, decide, shards_in_use
from foqs.cluster.membership import Membership
from foqs.cluster.owner_map import OwnerMap
from foqs.cluster.view import ClusterView
from foqs.model import limits
from foqs.model.cluster import ShardRow, ShardUse, host_name_of
from foqs.model.errors import FoqsError
from foqs.model.outage import Outage
from foqs.model.service import Service, ServiceState

NEGLECTED_MS = 5 * limits.SECOND_MS
"""A shard that nobody has for so long is taken by its heir, whatever keeps the host that it is planned for."""
RELEASE_MS_MAX = 2 * limits.SECOND_MS
"""A host that has let go of a shard, and does not hear of its next owner for so long, takes the shard again."""
DECLINE_MS = 2 * limits.SECOND_MS
"""An owner lets a host that asks for a shard know that it does not get it, if the plan says so for so long."""
LEAVE_MS_MAX = 8 * limits.SECOND_MS
"""A host that ends waits so long for others to take its shards one by one; then it just lets go of them."""

_log = structlog.get_logger(__name__)


class LocalShards(Protocol):
    """The shards of this host, as sharing opens and leaves them; foqs.bootstrap.Host is the real one."""

    @property
    def shards_run(self) -> Collection[int]:
        """Shards that it has or tries to have."""

    @property
    def shards_owned(self) -> Collection[int]:
        """The ids of the shards that it serves now."""

    @property
    def shards_awaited(self) -> Collection[int]:
        """The ids of the shards whose locks it has asked for from their living owners: it can open them."""

    def knows_shards(self, uses: Mapping[int, ShardUse], tiers: Mapping[int, str], moving: Collection[int]) -> None:
        """These shards there are in the cluster, whoever has them; `moving` are about to go to other hosts."""

    def knows_epochs(self, epochs: Mapping[int, int]) -> None:
        """The last epoch of each shard that the meta database has given to anybody."""

    def expect_shards(self, shard_ids: Collection[int]) -> None:
        """The living owners of these shards are asked to hand them to this host."""

    def look_again(self, shard_ids: Collection[int]) -> None:
        """The owners of these shards are dead: who waits for one of them need not wait any longer."""

    async def gain_shard(self, shard_id: int, place: str) -> None:
        """Try to own one more shard from now on."""

    async def lose_shard(self, shard_id: int) -> None:
        """Hand a shard on, or stop trying to own it."""


class Sharing(Service):
    """Decides after each round of `Membership` what to do, and does it: for each shard one thing after the other.

    The host starts it after its membership, and lets it `leave` before it drains. It owns the tasks that open shards
    and hand them on.
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
        membership.on_view = self._look
        membership.on_death = self._look_again
        membership.is_busy = lambda: self._is_moving
        self._now_s = now_s
        self.on_looked: Callable[[ClusterView], None] = lambda view: None
        """Called after each round that was acted upon."""
        self._planner = Planner()
        self._view: ClusterView | None = None
        self._intent = NOTHING_PLANNED
        self._works: dict[int, asyncio.Task[None]] = {}
        self._asking: asyncio.Task[None] | None = None
        self._ask_outage = Outage(now_s)
        self._expected: Collection[int] = ()
        """Shards that this host wants of living owners."""
        self._released: dict[int, asyncio.TimerHandle | None] = {}
        """Shards handed on that have no next owner yet, with what takes them again; None until they are let go of."""
        self._not_taken: dict[int, str] = {}
        """The hosts that asked for shards of this one and then did not take them: they have to ask anew."""
        self._refused: set[int] = set()
        """Ids of such shards of which the meta database says since the last round that they do not move."""
        self._orphan_since: dict[int, tuple[int, float]] = {}
        """The last epoch of shards that nobody has, and since when that is seen here."""
        self._declined_since: dict[int, tuple[str, float]] = {}
        """The host that asks for each shard of this host but is not to get it by the plan, and since when."""
        self._declining: asyncio.Task[None] | None = None
        self._is_moving = False
        """A shard is about to move, here or from here."""
        self._is_leaving = False
        """The host ends: it hands on what it has, and gains nothing more."""
        self._has_left = False
        """Whether this host has handed on what it could, and drains."""
        self._changed = asyncio.Event()
        """Set when there was another round, or something was done."""

    def tiers_of(self, host_name: str) -> set[str]:
        """The tiers of the processes of that name that live: of one as a rule, and none where it is not known."""
        hosts = self._view.hosts.values() if self._view is not None else ()
        return {host.tier for host in hosts if host_name_of(host.id) == host_name}

    async def _look(self, view: ClusterView) -> None:
        """Decide anew, after a round of the membership."""
        for shard_id in self._refused:  # The round was asked later: whoever stands there now has asked anew.
            self._not_taken.pop(shard_id, None)
        self._refused.clear()
        self._intent = await self._membership.on_thread(lambda: self._planner.plan(view))
        self._view = view
        self._changed.set()
        self._owners.look(view)
        rows = [row for row in view.shards.values() if row.use is not ShardUse.REMOVED]
        self._local.knows_shards(
            {row.shard_id: row.use for row in rows},
            {row.shard_id: row.tier for row in rows if row.tier},
            {row.shard_id for row in view.shards.values() if row.moving_to in view.hosts},
        )
        self._local.knows_epochs({row.shard_id: row.epoch for row in rows})
        if self.state is ServiceState.RUNNING:
            self._act(view)
            self.on_looked(view)

    def _look_again(self) -> None:
        """A host is dead: whoever waits for a lock that its session may hold ends that session."""
        owners = [
            owner for shard_id in self._local.shards_run if (owner := self._owners.on_record(shard_id)) is not None
        ]
        self._local.look_again(
            {owner.shard_id for owner in owners if self._membership.is_dead(owner.host_id, owner.epoch)}
        )

    async def leave(self) -> None:
        """Hand on all shards to hosts that ask for them; the others know by the membership that this one leaves.

        They do so as well if it has no shard: nothing is planned for it then, and it is the home of no topic. Returns
        when all is handed on, when nobody is there to ask, or after LEAVE_MS_MAX.
        """
        until_s = self._now_s() + LEAVE_MS_MAX / 1000
        self._is_leaving = True
        if self._view is not None:
            self._announce_end(self._view)
        if self._is_to_hand_on():
            self._is_moving = True
        while self._is_to_hand_on() and self._now_s() < until_s:
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(until_s - self._now_s()):
                    await self._changed.wait()
        self._has_left = True
        while self._works:
            await asyncio.wait(list(self._works.values()))

    def _announce_end(self, view: ClusterView) -> None:
        """Let the others know, once and if there are any: who is alone ends without one more heartbeat."""
        if len(view.hosts) > 1 and not view.is_leaving(view.me):
            self._membership.leave()

    def _is_to_hand_on(self) -> bool:
        """A shard has no later owner than this host, or is on its way to it, and there is another host for it."""
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
        """Give up what is under way: the host stops all of its shards."""
        for timer in self._released.values():
            if timer is not None:
                timer.cancel()
        tasks = [*self._works.values(), *[task for task in (self._asking, self._declining) if task is not None]]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _act(self, view: ClusterView) -> None:
        decision = self._decide(view)
        self._forget_released(view)
        run = set(self._local.shards_run)
        if self._is_leaving:
            # Others may have come meanwhile; and what is planned for this host is so by a view of a moment ago.
            self._announce_end(view)
            decision = decision.without_gains(run)
        for shard_id in decision.wanted - run - self._released.keys():
            self._begin(shard_id, self._local.gain_shard(shard_id, view.shards[shard_id].place))
        for shard_id in run - decision.wanted:
            self._begin(shard_id, self._local.lose_shard(shard_id))
        released = [shard_id for shard_id in decision.released if shard_id not in self._not_taken]
        self._release(view, released)
        self._expected = decision.asked.keys()
        self._local.expect_shards(self._expected)
        self._ask_for(view, decision)
        self._decline(decision)
        is_coming = any(shard_id in decision.asked for shard_id in self._local.shards_awaited)
        self._is_moving = is_coming or bool(released) or view.is_leaving(view.me)

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
        """Forget what has a next owner, and those that did not take a shard once that is on its way no more."""
        mine = {row.shard_id: row.moving_to for row in view.shards.values() if row.owner == view.me}
        for shard_id in self._released.keys() - mine:
            if (timer := self._released.pop(shard_id)) is not None:
                timer.cancel()
        self._not_taken = {at: heir for at, heir in self._not_taken.items() if mine.get(at) == heir}

    def _release(self, view: ClusterView, shard_ids: Collection[int]) -> None:
        """Release shards, one at a time unless this host leaves: items on their way are held up for a moment."""
        for shard_id in shard_ids:
            if self._released and not view.is_leaving(view.me):
                return
            if shard_id not in self._works:
                _log.info("shard_released", shard=shard_id, to=view.shards[shard_id].moving_to)
                self._released[shard_id] = None
                self._begin(shard_id, self._hand_on(view.shards[shard_id]))

    async def _hand_on(self, row: ShardRow) -> None:
        """Let go of the shard, and take it again if nobody else does.

        That is up to a timer and to no round: rounds may not be answered from now on, and then the next owner has no
        epoch either, while this host goes on under the one that it had.
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
        _log.warning("shard_not_taken", shard=row.shard_id, by=row.moving_to)
        self._not_taken[row.shard_id] = row.moving_to
        self._begin(row.shard_id, self._local.gain_shard(row.shard_id, row.place))

    def _ask_for(self, view: ClusterView, decision: Decision) -> None:
        """Ask for one shard at a time, and for all of hosts that leave.

        A shard that this host cannot open stays where it is: its owner would let go of it again and again.
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
            self._asking = asyncio.create_task(self._tell(asked, self._membership.ask_for_shards), name="sharing-ask")

    def _decline(self, decision: Decision) -> None:
        """Take back what hosts have asked for before the plan changed: a shard that stays is not on its way.

        Who did not take what it had asked for has to show that it reaches the meta database again, by asking anew. Not
        at once: who asks may know of a host, or of its end, that this one hears of in its next round.
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
            self._declining = asyncio.create_task(self._tell(due, self._refuse), name="sharing-decline")

    async def _refuse(self, by_heir: Mapping[int, str]) -> None:
        await self._membership.decline_shards(by_heir)
        self._refused.update(by_heir)

    async def _tell(self, hosts: Mapping[int, str], tell: Callable[[Mapping[int, str]], Awaitable[None]]) -> None:
        """Tell it to the others by the meta database; the next round does so again where that is away."""
        try:
            await tell(hosts)
            self._ask_outage.has_ended()
        except FoqsError as error:
            if self._ask_outage.is_to_be_told(str(error)):
                _log.warning("shards_not_asked_for", shards=sorted(hosts), error=str(error))
        except Exception:
            _log.error("host_defect", work="sharing", exc_info=True)

    def _begin(self, shard_id: int, work: Coroutine[Any, Any, None]) -> None:
        if shard_id in self._works:
            work.close()
            return
        self._works[shard_id] = asyncio.create_task(self._do(shard_id, work), name=f"sharing-{shard_id}")

    async def _do(self, shard_id: int, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception:  # A defect of one shard's must not keep the others from moving.
            _log.error("host_defect", work="sharing", shard=shard_id, exc_info=True)
        finally:
            del self._works[shard_id]
            self._changed.set()

"""The ownership of a shard by this process: its opening, its reopening after a lost session, and its end."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

import structlog

from foqs.background.lane import Lane
from foqs.background.tasks import Tasks
from foqs.model import ids, limits
from foqs.model.errors import FoqsError
from foqs.model.outage import Outage
from foqs.model.shard_place import Tenure
from foqs.shard.port import (
    BeingTakenError,
    ElsewhereError,
    LaneCounts,
    OwnedError,
    OwnershipLostError,
    SessionLostError,
    ShardImage,
    Store,
)
from foqs.shard.state.engine import ShardState
from foqs.shard.state.lease_table import LeaseTable
from foqs.shard.writer.announcing import Announcing
from foqs.shard.writer.keeper import Keeper
from foqs.shard.writer.leased_runs import skip_leased
from foqs.shard.writer.place import ShardPlace
from foqs.shard.writer.seen_loading import SeenLoading
from foqs.shard.writer.shard_listener import ShardListener, TransactionMeter

BEING_TAKEN_MS_MAX = 10 * limits.SECOND_MS
"""A process that takes a shard reports it within this time; after that, its lock is reported as held."""
REOPEN_PAUSE_MS = 500
"""The pause between two tries to open a shard, or to get a new session for it."""
REOPEN_TRIES_MAX = 120
"""The tries to get a new session. Then the shard's state is given up, and its callers get unknown outcomes."""
OWNER_RETURN_MS = 100
"""Head start of an owner whose session was ended, before others take its shard; it notices within TICK_MS."""
KEYS_LEFT_TO_RENEW = 1 << 39
"""An owner with fewer of the 2^40 keys of its epoch left takes a new epoch."""
KEYS_LEFT_MIN = 1 << 24
"""A shard with fewer keys left, and without a new epoch, is not served: a key must not be one of the next epoch."""
EPOCH_RETRY_MS = 10 * limits.SECOND_MS
"""The pause after a failed renewal of the epoch."""
EPOCH_OVER_RETRY_MS = 500
"""The same pause if another process was given a later epoch, because it might serve a copy."""
OWNED = "owned"
"""The detail of an owned shard without problems."""

assert 2 * (limits.ENQUEUE_BUFFER_ITEMS_MAX + limits.OPEN_LEASES_MAX) < KEYS_LEFT_MIN < KEYS_LEFT_TO_RENEW, (
    "one transaction must fit"
)

_log = structlog.get_logger(__name__)


def log_defect(shard_id: int) -> None:
    """Log the current exception. A bug costs a takeover, which reads everything anew, but not the shard."""
    _log.error("shard_defect", shard=shard_id, exc_info=True)


class Ownership:
    """The ownership of one shard: how it is won and kept, and this process's memory of it in between.

    The loop of `ShardWriter` calls `open`, then `reopen` and `keep_epoch` between transactions, and `lost` once one of
    these has raised an error; other parts read `shard`. It owns the shard's state, the count of its rows, and the data
    with which the shard can be reopened as it was left, without the meta database.
    """

    def __init__(
        self,
        shard_id: int,
        store: Store,
        keeper: Keeper,
        lane: Lane,
        listener: ShardListener,
        opened: Callable[[ShardState], None],
        changed: Callable[[ShardState | None], None],
        wake: Callable[[], None],
        meter: TransactionMeter,
        tenure: Tenure | None = None,
    ) -> None:
        """`opened` gets the shard after its opening, before it serves any call; `wake` wakes the loop.

        `tenure` is this process's memory of the shard, if it had it before and has given it up for good.

        `changed` gets the shard when it becomes owned, and None when it is no longer owned.
        """
        self.shard: ShardState | None = None
        """None while it is not owned."""
        self.detail = "not opened yet"
        """The state of the ownership, in words for operators."""
        self.counted = asyncio.Event()
        """Set once the counts of the topics are exact."""
        self.is_given_up = False
        """True if the shard must be taken over anew, after the transaction under way."""
        self.is_epoch_due = False
        """True if `keep_epoch` has work."""
        self.given_epoch = 0
        """The last epoch that the meta database has given to any process, as far as it is known."""
        self.is_expected = False
        """True if the living owner was asked to hand the shard to this host, which takes it as soon as the lock is
        free.
        """
        self.is_standing_by = False
        """True if the last try to open the shard found a living owner."""
        self._taken_since_s: float | None = None
        """The time since which another process has been taking the shard, if one is."""
        self._hurry = asyncio.Event()
        """Set if the awaited owner is dead."""
        self.committed_number = 0
        """The number of the last transaction that this process saw committed."""
        self._shard_id = shard_id
        self._store = store
        self._keeper = keeper
        self._lane = lane
        self._count_lane = Lane(f"shard-{shard_id}-count")
        self._tasks = Tasks(f"shard-{shard_id}")
        """The count of the rows, and the reading of the dedup ids."""
        self._listener = listener
        self._announcing = Announcing(shard_id, listener, lambda: self.shard)
        self._opened = opened
        self._changed = changed
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self.place = ShardPlace(shard_id, meter, self._loop.time)
        self._ticked_s = self._loop.time()
        self._has_ticked = self._has_stood_still = False
        self._is_doubtful = False
        """True if the meta database must be asked if the shard is still this process's."""
        self._renewed_epoch = 0
        """The epoch that the shard takes up between two transactions; 0 for none."""
        self._outage = Outage(self._loop.time)
        self._losses = Outage(self._loop.time)
        """The sessions that are lost while the breaker is open."""
        self._epoch_due_s = 0.0
        self.tenure = tenure
        """The tenure of the last opening or of the last ownership; None before, and if too few keys are left."""
        self._left: ShardState | None = None
        """The state of a lost shard, until it is opened again."""
        self._unseen: frozenset[int] = frozenset()
        """Its items that were claimed and that no consumer got, which only this process knows."""
        self._tries: LeaseTable | None = None
        """Its leases, which show the items whose consumers had begun to work."""

    # ---- taking it ----

    async def open(self) -> ShardState:
        """Take the shard over and announce its topics. Raises the errors of Store.open."""
        if self._left is not None:
            self._tries = self._left.leases
            self._unseen, self._left = await self._lane.run(self._left.unseen_keys), None
        began_s, tenure = self._loop.time(), self.tenure
        self.place.opening()
        try:
            image = await self._lane.run(partial(self._store.open, tenure))
        except ElsewhereError as error:
            self._taken(error)
            raise
        if tenure is None or image.epoch != tenure.epoch:
            self._unseen, self._tries = frozenset(), None  # Other owners might have delivered them since.
        self._renewed_epoch = 0
        self.place.opened(image, self.committed_number)
        self.committed_number = image.transaction_number
        self.tenure = Tenure(image.epoch, image.transaction_number, image.last_key, self._store.server)
        try:
            await self._come_back(image.transaction_number, self._store.server)
            shard = await self._state_of(image, began_s)
        except Exception:
            # Close the sessions: otherwise the lock would stay, and a snapshot that keeps the server from purging rows.
            await self._lane.run(self._store.close)
            raise
        if self._tries is not None:
            shard.leases.know_tries(self._tries)
        self._hold(shard)
        self._unseen, self._tries = frozenset(), None
        self.detail = self._owned
        self._outage.has_ended()
        self.is_given_up = False
        self.counted.clear()
        counting = self._count_lane.run(image.count)
        self._tasks.spawn(self._count(shard, counting), f"shard-{self._shard_id}-count")
        self._opened(shard)
        if image.seen_log is not None:
            load = partial(SeenLoading(self._shard_id, shard, image.seen_log, self._wake).run, image.seen)
            self._tasks.spawn(self._supervised(shard, load), f"shard-{self._shard_id}-seen")
        await self._announcing.opened(shard)
        _log.info("shard_opened", shard=self._shard_id, epoch=image.epoch, open_leases=len(shard.index.leases))
        return shard

    @property
    def _owned(self) -> str:
        lost = self.place.lost_count
        return f"{OWNED}; {lost} committed transactions were lost, see shard_went_back" if lost else OWNED

    async def _state_of(self, image: ShardImage, began_s: float) -> ShardState:
        """Return the state of a shard that was opened just now. Raises SessionLostError."""
        self._keeper.begin(began_s, image)
        # Many leases can take a second, in which the other shards must be served.
        shard = await self._lane.run(partial(ShardState, self._shard_id, image, self._listener.settings, self._unseen))
        await self._lane.run(partial(skip_leased, shard.index, self._store.sort_key_after))
        await self._keeper.settle()
        return shard

    def _hold(self, shard: ShardState | None) -> None:
        self.shard = shard
        self._changed(shard)

    async def wait_for_next_try(self, error: BaseException) -> None:
        """Wait after `error`, which ended an ownership or kept the shard from being opened."""
        pause_ms = REOPEN_PAUSE_MS
        self.is_standing_by = isinstance(error, OwnedError)
        if self.is_standing_by:
            try:
                has_lock = await self._lane.run(partial(self._store.wait_for_owner, stay=self.is_expected))
                pause_ms = 0 if has_lock else OWNER_RETURN_MS
            except (SessionLostError, OwnershipLostError):
                self.is_standing_by = False  # Its release cannot be observed.
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_ms / 1000):
                await self._hurry.wait()
        self._hurry.clear()

    def retry_now(self) -> None:
        """Let `wait_for_next_try` return, because the owner is dead and this process does not have the shard."""
        if self.shard is None:
            self._hurry.set()
            self._store.retry_now()

    async def _supervised(self, shard: ShardState, load: Callable[[], Awaitable[None]]) -> None:
        """Run `load`, which makes its coroutine here: it would not be awaited if the task is cancelled before its first
        step.
        """
        try:
            await load()
        except SessionLostError as error:
            if self.shard is shard:
                self.give_up(f"its dedup ids could not be read: {error}")
        except Exception:
            log_defect(self._shard_id)
            if self.shard is shard:
                self.give_up("its dedup ids could not be read, see shard_defect")

    async def _count(self, shard: ShardState, counting: Awaitable[LaneCounts]) -> None:
        try:
            counts = await counting
        except SessionLostError as error:
            # The counts at the take-over are lost, so take over once more.
            if self.shard is shard:
                self.give_up(f"its rows could not be counted: {error}")
            return
        except Exception:
            log_defect(self._shard_id)
            if self.shard is shard:
                self.give_up("its rows could not be counted, see shard_defect")
            return
        if self.shard is shard:
            for _ in shard.add_counts(counts):
                await asyncio.sleep(0)
                if self.shard is not shard:
                    return
            self.counted.set()

    # ---- keeping it ----

    async def reopen(self, reason: str) -> None:
        """Get a new session for the shard, as the same owner. The store then knows which transaction was the last.

        Waits while the server is unreachable. A server that gives a new session at once is not sick; its old session
        was ended. Raises OwnershipLostError if the shard had another owner, or the server is unreachable for too long,
        and ElsewhereError if another process has the shard on another server.
        """
        self.place.has_no_session()
        self.detail = f"its session is lost ({reason}); reconnecting"
        if self._keeper.health.healthy or self._losses.is_to_be_logged(reason):
            _log.warning("session_lost", shard=self._shard_id, error=reason)
        for _ in range(REOPEN_TRIES_MAX):
            try:
                with self._keeper.question():
                    number = await self._lane.run(self._store.reopen)
            except SessionLostError as error:
                self.detail = str(error)
                self._keeper.trip("its session is lost")
                await asyncio.sleep(REOPEN_PAUSE_MS / 1000)
                continue
            if number < self.committed_number:
                # The state is ahead of the database, after a fail-over to a replica that was behind.
                raise OwnershipLostError(f"its server has lost transactions {number + 1} to {self.committed_number}")
            try:
                await self._come_back(number, self.place.server)
            except (FoqsError, SessionLostError) as error:
                self.detail = f"it may be served on another server: {error}"
                await self._lane.run(self._store.close)
                await asyncio.sleep(REOPEN_PAUSE_MS / 1000)
                continue
            self.detail = self._owned
            self._keeper.ask_soon()
            return
        raise OwnershipLostError(self.detail)

    async def _come_back(self, number: int, known_server: str) -> None:
        """Resume with a session, under a new epoch if its server differs, or might differ, from the published one.

        The published state can change during the renewal, which is then repeated. Raises the errors of `_renew`.
        """
        server = self._store.server
        while self.place.is_left or server != known_server:
            self.place.is_left, known_server = False, server
            await self._renew(number)
        self.place.has_session(server)

    async def _renew(self, number: int) -> None:
        """Get a new epoch for the shard's present server. The state takes it up between two transactions.

        Raises ElsewhereError, FoqsError, SessionLostError.
        """
        try:
            epoch = self._renewed_epoch = await self._lane.run(self._store.renew_epoch)
        except ElsewhereError as error:
            self._taken(error)
            raise
        self.place.renewed(epoch, number)
        self.tenure = self._tenure_of_renewal(epoch, number)
        self.is_epoch_due = True

    def _tenure_of_renewal(self, epoch: int, number: int) -> Tenure:
        """Return the tenure of an epoch that only the database has yet: the state has assigned no keys of it."""
        return Tenure(epoch, number, epoch << ids.SEQUENCE_BITS, self._store.server)

    def tick(self, shard: ShardState) -> None:
        """Notice work for `keep_epoch`. Few of the remaining keys are used between two ticks.

        If a host was given an epoch and then lost the shard before it wrote the epoch there, all hosts take it for the
        owner, and no census is answered for the shard. The owner then needs a later epoch.
        """
        self._check_clock()
        self._has_ticked = True
        is_over = self._is_doubtful or shard.epoch < self.given_epoch
        is_wanted = is_over or shard.index.keys_left_count < KEYS_LEFT_TO_RENEW
        self.is_epoch_due = bool(self._renewed_epoch) or (is_wanted and self._ticked_s >= self._epoch_due_s)

    def doubt(self) -> None:
        """Ask for a new epoch soon, because others might not know where the shard is served, or took it elsewhere."""
        self._is_doubtful = True

    def is_to_ask_first(self) -> bool:
        """Return True if `keep_epoch` must run before the next transaction, because this process stood still.

        After such a time others might take it for dead, and serve a copy.
        """
        self._check_clock()
        return self._has_stood_still

    def _check_clock(self) -> None:
        """Check for a stall, which counts only once this process ticks."""
        before_s, self._ticked_s = self._ticked_s, self._loop.time()
        if self._has_ticked and self._ticked_s - before_s > (limits.HOST_DEAD_MS - limits.HEARTBEAT_MS) / 1000:
            self._has_stood_still = self._is_doubtful = True
            self._epoch_due_s = 0.0
        self.is_epoch_due = self.is_epoch_due or self._has_stood_still

    async def keep_epoch(self, shard: ShardState) -> None:
        """Take up a new epoch when it is due, long before the keys of this one are used up.

        Raises OwnershipLostError if no new epoch is available and too few keys are left, ElsewhereError if another
        process has the shard on another server, and SessionLostError.
        """
        if not self.is_epoch_due:
            return
        self.is_epoch_due, now_s = False, self._loop.time()
        self._has_stood_still = False
        if not self._renewed_epoch:
            is_over, self._is_doubtful = self._is_doubtful or shard.epoch < self.given_epoch, False
            try:
                await self._renew(self.committed_number)
            except FoqsError as error:
                self._epoch_due_s = now_s + (EPOCH_OVER_RETRY_MS if is_over else EPOCH_RETRY_MS) / 1000
                keys_left = shard.index.keys_left_count
                _log.warning("epoch_not_renewed", shard=self._shard_id, keys_left=keys_left, error=str(error))
                if keys_left < KEYS_LEFT_MIN:
                    raise OwnershipLostError(f"its epoch has only {keys_left} keys left, and {error}") from error
                return
        epoch, self._renewed_epoch, self.is_epoch_due = self._renewed_epoch, 0, False
        shard.begin_epoch(epoch)
        _log.info("epoch_renewed", shard=self._shard_id, epoch=epoch)

    def health_changed(self, healthy: bool, reason: str) -> None:
        """Report that the breaker of the shard has opened or closed."""
        if healthy:
            self._losses.has_ended()
        _log.warning("breaker_closed" if healthy else "breaker_opened", shard=self._shard_id, reason=reason)
        shard = self.shard
        if shard is not None:
            self._announcing.health_changed(shard, healthy=healthy)
            if not healthy:
                self._listener.on_events(shard.evict(reason))

    # ---- losing it ----

    def give_up(self, reason: str) -> None:
        """Let the shard be taken over anew, after the transaction under way."""
        self.detail = reason
        self.is_given_up = True
        self._wake()

    def _is_being_taken(self, error: BaseException) -> bool:
        """True while another process takes the shard, as when several start at once; it will soon report it."""
        now_s = self._loop.time()
        if not isinstance(error, BeingTakenError):
            self._taken_since_s = None
            return False
        since_s = self._taken_since_s = now_s if self._taken_since_s is None else self._taken_since_s
        return now_s - since_s < BEING_TAKEN_MS_MAX / 1000

    async def lost(self, error: BaseException) -> None:
        """End the ownership, or a failed opening, and notify all waiting callers."""
        self.detail = reason = str(error)
        self.place.has_no_session()
        if not self._is_being_taken(error) and self._outage.is_to_be_logged(reason):
            if isinstance(error, ElsewhereError):
                _log.error("shard_on_another_server", shard=self._shard_id, error=reason)
            elif isinstance(error, OwnedError) and self.shard is None:
                _log.info("shard_awaited", shard=self._shard_id, reason=reason)
            else:
                _log.warning("shard_lost", shard=self._shard_id, error=reason)
        self._tasks.cancel()
        shard = self.shard
        self._hold(None)
        if shard is None:
            return
        self._left = shard
        self._remember(shard)
        first, *others = self._announcing.lost(shard)
        self._try(first)
        self._try(lambda: self._listener.on_events(shard.abandon(reason)))
        left = deque(others)
        try:
            while left:
                await asyncio.sleep(0)
                self._try(left.popleft())
        finally:  # If the writer is stopped during this, no lost topic must be left unannounced.
            while left:
                self._try(left.popleft())

    def _remember(self, shard: ShardState) -> None:
        """Keep the data with which the shard can be opened again without the meta database."""
        if self.place.is_left:
            self.tenure = None
        elif self._renewed_epoch:
            self.tenure = self._tenure_of_renewal(self._renewed_epoch, self.committed_number)
        elif shard.index.keys_left_count < KEYS_LEFT_MIN:
            self.tenure = None
        else:
            self.tenure = Tenure(shard.epoch, self.committed_number, shard.index.last_key, self.place.server)

    def _taken(self, error: ElsewhereError) -> None:
        """Note that another process has, or had, the shard under a later epoch, which ends this process's epoch."""
        self.tenure = None
        self.place.taken(error.row, self.committed_number)

    def leave_server(self) -> int:
        """Prepare for other hosts to take the shard on another server. Returns the number of the last transaction to
        report.

        From now on it is not opened again without the meta database.
        """
        self.tenure = None
        self.place.leave()
        return self.committed_number

    def _try(self, work: Callable[[], None]) -> None:
        """Do the work, and log its defect, so that the following steps run in any case."""
        try:
            work()
        except Exception:
            log_defect(self._shard_id)

    async def stop(self) -> None:
        """Give the shard up for good. No other call of it must be under way."""
        await self._tasks.stop()
        await self._announcing.stop()
        shard = self.shard
        if shard is not None:
            self._remember(shard)
            # The session has to end in any case, and the lock with it.
            self._try(lambda: self._listener.on_events(shard.abandon("it was handed on, or the host stops")))
            self._hold(None)
        await self._lane.run(self._store.close)
        for lane in (self._lane, self._count_lane):
            lane.join()

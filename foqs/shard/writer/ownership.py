"""A shard in the hands of this process: how it is opened, opened again when its session is lost, and given up."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

import structlog

from foqs.model import limits
from foqs.model.errors import FoqsError
from foqs.model.outage import Outage
from foqs.shard.port import (
    BeingTakenError,
    ElsewhereError,
    LaneCounts,
    OwnedError,
    OwnershipLostError,
    SessionLostError,
    ShardImage,
    Store,
    Tenure,
)
from foqs.shard.state.engine import ShardState
from foqs.shard.state.leases import LeaseTable
from foqs.shard.writer.announcing import Announcing
from foqs.shard.writer.keeper import Keeper
from foqs.shard.writer.leased_runs import skip_leased
from foqs.shard.writer.listener import ShardListener, TransactionMeter
from foqs.shard.writer.place import ShardPlace
from foqs.shard.writer.seen_loading import SeenLoading
from foqs.shard.writer.worker_thread import WorkerThread

BEING_TAKEN_MS_MAX = 10 * limits.SECOND_MS
"""A process that takes a shard says so by then; else it is told that somebody has its lock."""
REOPEN_PAUSE_MS = 500
"""The pause between two tries to open a shard, or to get a new session for it."""
REOPEN_TRIES_MAX = 120
"""The tries to get a new session. Then the shard's state is given up, and its callers get unknown outcomes."""
OWNER_RETURN_MS = 100
"""An owner whose session was ended may have its shard back before others take it; it notices within TICK_MS."""
KEYS_LEFT_TO_RENEW = 1 << 39
"""An owner with fewer of the 2^40 keys of its epoch left takes a new epoch and goes on."""
KEYS_LEFT_MIN = 1 << 24
"""A shard with fewer left, and without a new epoch, is not served: a key must not be one of the next epoch."""
EPOCH_RETRY_MS = 10 * limits.SECOND_MS
"""Before an epoch that could not be renewed is tried to be renewed again."""
EPOCH_OVER_RETRY_MS = 500
"""The same if somebody else was given a later one, who may serve a copy."""
OWNED = "owned"
"""The detail of a shard that is owned, and of which there is nothing else to say."""

assert 2 * (limits.ENQUEUE_BUFFER_ITEMS_MAX + limits.OPEN_LEASES_MAX) < KEYS_LEFT_MIN < KEYS_LEFT_TO_RENEW, (
    "one transaction must fit"
)

_log = structlog.get_logger(__name__)


def log_defect(shard_id: int) -> None:
    """Log the current exception. A bug costs a takeover, which reads everything anew, and not the shard."""
    _log.error("shard_defect", shard=shard_id, exc_info=True)


class Ownership:
    """The ownership of one shard: how it is won and kept, and what this process remembers of it in between.

    The loop of `ShardWriter` calls `open`, then `reopen` and `keep_epoch` between transactions, and `lost` when one of
    them has raised an error; others read `shard`. It owns the shard's state, the count of its rows, and what lets the
    shard be opened again as it was left, without the meta database.
    """

    def __init__(
        self,
        shard_id: int,
        store: Store,
        keeper: Keeper,
        thread: WorkerThread,
        listener: ShardListener,
        opened: Callable[[ShardState], None],
        changed: Callable[[ShardState | None], None],
        wake: Callable[[], None],
        meter: TransactionMeter,
        tenure: Tenure | None = None,
    ) -> None:
        """`opened` is told of the shard when it was opened, before it serves anybody; `wake` wakes the loop.

        `tenure` is what this process remembers of the shard, if it had it before and has given it up for good.

        `changed` is told of the shard when it is owned from now on, and of None when it is owned no more.
        """
        self.shard: ShardState | None = None
        """None while it is not owned."""
        self.detail = "not opened yet"
        """The state of the ownership, in words for operators."""
        self.counted = asyncio.Event()
        """The counts of the topics are exact."""
        self.is_given_up = False
        """Whether the shard is to be taken over anew, after the transaction that is under way."""
        self.is_epoch_due = False
        """`keep_epoch` has something to do."""
        self.given_epoch = 0
        """The last epoch that the meta database has given to anybody, as far as it is known."""
        self.is_expected = False
        """The living owner was asked to hand the shard to this host, which takes it as soon as the lock is free."""
        self.is_standing_by = False
        """The last try to open the shard found that a living owner has it."""
        self._taken_since_s: float | None = None
        """The time since which another process has been taking the shard, if one is."""
        self._hurry = asyncio.Event()
        """The owner that is waited for is dead."""
        self.committed_number = 0
        """The number of the last transaction that this process saw committed."""
        self._shard_id = shard_id
        self._store = store
        self._keeper = keeper
        self._thread = thread
        self._counter = WorkerThread(f"shard-{shard_id}-count")
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
        """Whether the meta database is to be asked if the shard is still this process's."""
        self._renewed_epoch = 0
        """The epoch that the shard is to go on under, between two transactions; 0 for none."""
        self._outage = Outage(self._loop.time)
        self._losses = Outage(self._loop.time)
        """The sessions that are lost while the breaker is open."""
        self._count_task: asyncio.Task[None] | None = None
        self._seen_task: asyncio.Task[None] | None = None
        """While the dedup ids are not all read."""
        self._epoch_due_s = 0.0
        self.tenure = tenure
        """The tenure of the last opening or of the last ownership; None before, and without keys to go on with."""
        self._left: ShardState | None = None
        """The state of a lost shard, until it is opened again."""
        self._unseen: frozenset[int] = frozenset()
        """Items of it that were claimed and that no consumer got: nobody but this process can know."""
        self._tries: LeaseTable | None = None
        """Its leases, from which it is known which items somebody worked on."""

    # ---- to have it ----

    async def open(self) -> ShardState:
        """Take the shard over and announce its topics. Raises what Store.open does."""
        if self._left is not None:
            self._tries = self._left.leases
            self._unseen, self._left = await self._thread.run(self._left.unseen_keys), None
        began_s, tenure = self._loop.time(), self.tenure
        self.place.opening()
        try:
            image = await self._thread.run(partial(self._store.open, tenure))
        except ElsewhereError as error:
            self._taken(error)
            raise
        if tenure is None or image.epoch != tenure.epoch:
            self._unseen, self._tries = frozenset(), None  # Others may have delivered them since.
        self._renewed_epoch = 0
        self.place.opened(image, self.committed_number)
        self.committed_number = image.transaction_number
        self.tenure = Tenure(image.epoch, image.transaction_number, image.last_key, self._store.server)
        try:
            await self._come_back(image.transaction_number, self._store.server)
            shard = await self._state_of(image, began_s)
        except Exception:
            # The sessions of the shard: the lock would stay, and a snapshot that keeps the server from purging rows.
            await self._thread.run(self._store.close)
            raise
        if self._tries is not None:
            shard.leases.know_tries(self._tries)
        self._hold(shard)
        self._unseen, self._tries = frozenset(), None
        self.detail = self._owned
        self._outage.has_ended()
        self.is_given_up = False
        self.counted.clear()
        counting = self._counter.run(image.count)
        self._count_task = asyncio.create_task(self._count(shard, counting), name=f"shard-{self._shard_id}-count")
        self._opened(shard)
        if image.seen_log is not None:
            load = partial(SeenLoading(self._shard_id, shard, image.seen_log, self._wake).run, image.seen)
            self._seen_task = asyncio.create_task(self._supervised(shard, load), name=f"shard-{self._shard_id}-seen")
        await self._announcing.opened(shard)
        _log.info("shard_opened", shard=self._shard_id, epoch=image.epoch, open_leases=len(shard.index.leases))
        return shard

    @property
    def _owned(self) -> str:
        lost = self.place.lost_count
        return f"{OWNED}; {lost} committed transactions were lost, see shard_went_back" if lost else OWNED

    async def _state_of(self, image: ShardImage, began_s: float) -> ShardState:
        """The state of a shard that was opened just now. Raises SessionLostError."""
        self._keeper.begin(began_s, image)
        # It may take a second for many leases, and the others' shards are served meanwhile.
        shard = await self._thread.run(
            partial(ShardState, self._shard_id, image, self._listener.settings, self._unseen)
        )
        await self._thread.run(partial(skip_leased, shard.index, self._store.sort_key_after))
        await self._keeper.settle()
        return shard

    def _hold(self, shard: ShardState | None) -> None:
        self.shard = shard
        self._changed(shard)

    async def wait_for_next_try(self, error: BaseException) -> None:
        """After `error` ended an ownership, or kept the shard from being opened."""
        pause_ms = REOPEN_PAUSE_MS
        self.is_standing_by = isinstance(error, OwnedError)
        if self.is_standing_by:
            try:
                has_lock = await self._thread.run(partial(self._store.wait_for_owner, stay=self.is_expected))
                pause_ms = 0 if has_lock else OWNER_RETURN_MS
            except (SessionLostError, OwnershipLostError):
                self.is_standing_by = False  # Nobody can tell when it is free.
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_ms / 1000):
                await self._hurry.wait()
        self._hurry.clear()

    def look_again(self) -> None:
        """The owner is dead: let `wait_for_next_try` return, if this process does not have the shard."""
        if self.shard is None:
            self._hurry.set()
            self._store.look_again()

    async def _supervised(self, shard: ShardState, load: Callable[[], Awaitable[None]]) -> None:
        """`load` makes its coroutine here: nobody would await it where the task is cancelled before its first step."""
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
            # How many there were at the take-over cannot be known any more: take over once more.
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

    # ---- to keep it ----

    async def reopen(self, reason: str) -> None:
        """Get a new session for the shard, as the same owner; the store knows then which transaction was the last.

        Waits while the server is away. A server that gives a new session at once is not sick: somebody ended the old
        one. Raises OwnershipLostError when there was another owner, or the server is away for too long, and
        ElsewhereError when somebody else has the shard on another server.
        """
        self.place.has_no_session()
        self.detail = f"its session is lost ({reason}); reconnecting"
        if self._keeper.health.healthy or self._losses.is_to_be_told(reason):
            _log.warning("session_lost", shard=self._shard_id, error=reason)
        for _ in range(REOPEN_TRIES_MAX):
            try:
                with self._keeper.question():
                    number = await self._thread.run(self._store.reopen)
            except SessionLostError as error:
                self.detail = str(error)
                self._keeper.trip("its session is lost")
                await asyncio.sleep(REOPEN_PAUSE_MS / 1000)
                continue
            if number < self.committed_number:
                # What is known of the shard is not what is there: a fail-over to a replica that was behind.
                raise OwnershipLostError(f"its server has lost transactions {number + 1} to {self.committed_number}")
            try:
                await self._come_back(number, self.place.server)
            except (FoqsError, SessionLostError) as error:
                self.detail = f"it may be served on another server: {error}"
                await self._thread.run(self._store.close)
                await asyncio.sleep(REOPEN_PAUSE_MS / 1000)
                continue
            self.detail = self._owned
            self._keeper.ask_soon()
            return
        raise OwnershipLostError(self.detail)

    async def _come_back(self, number: int, known_server: str) -> None:
        """There is a session again: with a new epoch if it is another server's than the others know, or may know.

        They may be told so while they are asked, and then are asked once more. Raises what `_renew` does.
        """
        server = self._store.server
        while self.place.is_left or server != known_server:
            self.place.is_left, known_server = False, server
            await self._renew(number)
        self.place.has_session(server)

    async def _renew(self, number: int) -> None:
        """Get a new epoch, for the server on which the shard is now, which its state takes up between two transactions.

        Raises ElsewhereError, FoqsError, SessionLostError.
        """
        try:
            epoch = self._renewed_epoch = await self._thread.run(self._store.renew_epoch)
        except ElsewhereError as error:
            self._taken(error)
            raise
        self.place.renewed(epoch, number)
        self.is_epoch_due = True

    def tick(self, shard: ShardState) -> None:
        """Notice that `keep_epoch` has something to do. Between two ticks few of the keys that are left are used.

        An epoch that was given to a host which then lost the shard, before it could say so there, makes all hosts take
        that one for the owner, and no census is answered for it: the owner needs a later one.
        """
        self._look_at_clock()
        self._has_ticked, now_s = True, self._loop.time()
        is_over = self._is_doubtful or shard.epoch < self.given_epoch
        is_wanted = is_over or shard.index.keys_left_count < KEYS_LEFT_TO_RENEW
        self.is_epoch_due = bool(self._renewed_epoch) or (is_wanted and now_s >= self._epoch_due_s)

    def doubt(self) -> None:
        """Ask for a new epoch soon: others may not know where the shard is served, or have taken it elsewhere."""
        self._is_doubtful = True

    def is_to_ask_first(self) -> bool:
        """Whether `keep_epoch` comes before the next transaction, since this process stood still.

        The others may take it for dead after so long, and serve a copy.
        """
        self._look_at_clock()
        return self._has_stood_still

    def _look_at_clock(self) -> None:
        """A process that does not tick yet has stood still for nobody."""
        before_s, self._ticked_s = self._ticked_s, self._loop.time()
        if self._has_ticked and self._ticked_s - before_s > (limits.HOST_DEAD_MS - limits.HEARTBEAT_MS) / 1000:
            self._has_stood_still = self._is_doubtful = True
            self._epoch_due_s = 0.0
        self.is_epoch_due = self.is_epoch_due or self._has_stood_still

    async def keep_epoch(self, shard: ShardState) -> None:
        """Go on under a new epoch when it is due, long before the keys of this one are used up.

        Raises OwnershipLostError when there is none to be had and too few keys are left, ElsewhereError when somebody
        else has the shard on another server, SessionLostError.
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
        """The breaker of the shard has opened or closed."""
        if healthy:
            self._losses.has_ended()
        _log.warning("breaker_closed" if healthy else "breaker_opened", shard=self._shard_id, reason=reason)
        shard = self.shard
        if shard is not None:
            self._announcing.health_changed(shard, healthy=healthy)
            if not healthy:
                self._listener.on_events(shard.evict(reason))

    # ---- to lose it ----

    def give_up(self, reason: str) -> None:
        """Let the shard be taken over anew, after the transaction that is under way."""
        self.detail = reason
        self.is_given_up = True
        self._wake()

    def _is_being_taken(self, error: BaseException) -> bool:
        """Whether another process takes the shard just now, as when several start at once: it will soon say so."""
        now_s = self._loop.time()
        if not isinstance(error, BeingTakenError):
            self._taken_since_s = None
            return False
        since_s = self._taken_since_s = now_s if self._taken_since_s is None else self._taken_since_s
        return now_s - since_s < BEING_TAKEN_MS_MAX / 1000

    async def lost(self, error: BaseException) -> None:
        """The shard is not ours any more, or could not be opened: tell everybody who waits."""
        self.detail = reason = str(error)
        self.place.has_no_session()
        if not self._is_being_taken(error) and self._outage.is_to_be_told(reason):
            if isinstance(error, ElsewhereError):
                _log.error("shard_on_another_server", shard=self._shard_id, error=reason)
            elif isinstance(error, OwnedError) and self.shard is None:
                _log.info("shard_awaited", shard=self._shard_id, reason=reason)
            else:
                _log.warning("shard_lost", shard=self._shard_id, error=reason)
        for task in (self._count_task, self._seen_task):
            if task is not None:
                task.cancel()
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
        finally:  # Who stops the shard meanwhile must not leave topics behind of which nobody knows that they are gone.
            while left:
                self._try(left.popleft())

    def _remember(self, shard: ShardState) -> None:
        """Remember what is needed to open the shard again without the meta database."""
        if shard.index.keys_left_count < KEYS_LEFT_MIN or self.place.is_left:
            self.tenure = None
        else:
            self.tenure = Tenure(shard.epoch, self.committed_number, shard.index.last_key, self.place.server)

    def _taken(self, error: ElsewhereError) -> None:
        """Another one has, or had, the shard under a later epoch: with that of this process nobody goes on."""
        self.tenure = None
        self.place.taken(error.row, self.committed_number)

    def leave_server(self) -> int:
        """Before the others are told that they may take the shard elsewhere. Returns the number to tell them.

        From now on it is not opened again without the meta database.
        """
        self.tenure = None
        self.place.leave()
        return self.committed_number

    def _try(self, work: Callable[[], None]) -> None:
        """Do the work, and log its defect: what comes after it has to, whatever it meets."""
        try:
            work()
        except Exception:
            log_defect(self._shard_id)

    async def stop(self) -> None:
        """Give the shard up for good. Nothing else of it may be under way."""
        for task in (self._count_task, self._seen_task):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        await self._announcing.stop()
        shard = self.shard
        if shard is not None:
            self._remember(shard)
            # Whatever this meets, the session has to end, and the lock with it.
            self._try(lambda: self._listener.on_events(shard.abandon("it was handed on, or the host stops")))
            self._hold(None)
        await self._thread.run(self._store.close)
        for thread in (self._thread, self._counter):
            thread.end()

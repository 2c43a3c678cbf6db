"""The writer of one shard: the service that owns it and runs its transactions, one after the other.

The next transaction collects work while one commits, and for a moment after it. A busier shard thus gets larger
batches, without a timer to tune.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from foqs.background.lane import Lane
from foqs.background.service import Service, ServiceState
from foqs.model import limits
from foqs.model.clock import Now
from foqs.model.errors import FoqsError
from foqs.model.outage import Outage
from foqs.model.shard_place import Tenure
from foqs.shard import mysql_server
from foqs.shard.mysql_server import MysqlServer
from foqs.shard.port import (
    DeadlockError,
    NewSessionError,
    NoWritesError,
    OwnershipLostError,
    SessionLostError,
    Store,
    Transaction,
    TransactionFailedError,
    TransactionResult,
)
from foqs.shard.state.engine import ShardState
from foqs.shard.writer.keeper import Keeper
from foqs.shard.writer.ownership import Ownership, log_defect
from foqs.shard.writer.shard_listener import ShardListener, TransactionMeter

SHARD_OPEN_WAIT_MS_MAX = 2 * limits.SECOND_MS
"""A host that starts waits this long for a shard before it serves without it."""
DEADLOCK_TRIES_MAX = 5
"""Tries of a transaction after deadlocks; each waits only for the other transaction that it met."""

_log = structlog.get_logger(__name__)


class ShardWriter(Service):
    """Owns one shard of this host while it can, and writes to it.

    The host makes one for each shard and ticks it; a caller that has put work into `shard` calls `wake`. It has a task,
    the loop of transactions, and two threads for blocking calls. `Ownership` opens the shard and loses it, `Keeper`
    watches its server, and the server's scheduler decides when a transaction begins. Transactions run on the event loop
    (docs/decisions/0008).
    """

    def __init__(
        self,
        shard_id: int,
        store: Store,
        server: MysqlServer,
        listener: ShardListener,
        meter: TransactionMeter,
        opened: Callable[[ShardState], None] = lambda _: None,
        tenure: Tenure | None = None,
    ) -> None:
        """`opened` is called after each opening of the shard, before it serves any call.

        `tenure` is that of this host's earlier writer for the shard, if it had one.
        """
        super().__init__(f"shard-{shard_id}")
        self.shard_id = shard_id
        self.shard: ShardState | None = None
        """The state of the shard while it takes new work; None while it is not owned, and once it is drained."""
        self.scheduler = server.scheduler
        self._permit = server.scheduler.join()
        self._store = store
        self._listener = listener
        self._meter = meter
        self._loop = asyncio.get_running_loop()
        self._refusals = Outage(self._loop.time)
        """Transactions that fail while the breaker is open."""
        lane = Lane(self.name)
        self._keeper = Keeper(shard_id, store, server, lane, self._health_changed)
        self._ownership = Ownership(
            shard_id, store, self._keeper, lane, listener, opened, self._shard_changed, self.wake, meter, tenure
        )  # fmt: skip
        self.clock, self.health = self._keeper.clock, self._keeper.health
        self.counted = self._ownership.counted
        """Set once the counts of the topics are exact."""
        self._store_is_due = False
        """True if the store had work of its own at the last tick, which any transaction can carry."""
        self._work = asyncio.Event()
        self._idle = asyncio.Event()
        """Set while the store has nothing to do."""
        self._tried = asyncio.Event()
        """Set after the first opening of the shard, or its failure."""

    # ---- queries ----

    @property
    def detail(self) -> str:
        """The state of the shard, in words for operators."""
        return self._ownership.detail

    @property
    def tenure(self) -> Tenure | None:
        """The tenure of the shard as this host has left it; read it once the writer has stopped."""
        return self._ownership.tenure

    def expect(self, *, is_expected: bool) -> None:
        """Note if the living owner of the shard was asked to hand it to this host."""
        self._ownership.is_expected = is_expected

    def knows_epoch(self, epoch: int) -> None:
        """Note that the meta database has given this epoch of the shard to some process, and no later one."""
        self._ownership.given_epoch = epoch

    @property
    def served_on(self) -> str:
        """The server on which the shard is served, or was last served, by its own name."""
        return self._ownership.place.server

    @property
    def is_to_leave_server(self) -> bool:
        """True if its session has been missing for long enough to let others take the shard on another server."""
        return self._ownership.place.is_to_leave

    def leave_server(self) -> int:
        """Prepare for other hosts to take the shard on another server. Returns the number of the last transaction to
        report.
        """
        return self._ownership.leave_server()

    def number_to_report(self) -> int | None:
        """Return the number of the last transaction, or None if it is already reported."""
        number = self._ownership.committed_number
        return number if number > self._ownership.place.reported_number else None

    def number_reported(self, number: int) -> None:
        """Note that the transactions up to this one are reported."""
        self._ownership.place.reported(number)

    def doubt_epoch(self) -> None:
        """Get an epoch for the shard soon, because others might not know on which server it is served."""
        self._ownership.doubt()

    def retry_now(self) -> None:
        """Try to open the shard now, because its owner is dead."""
        self._ownership.retry_now()

    @property
    def is_expected(self) -> bool:
        """True if the shard will soon come from its living owner."""
        return self._ownership.is_expected and self.shard is None

    @property
    def is_standing_by(self) -> bool:
        """True if this process has reached the shard, and found that its living owner has it."""
        return self._ownership.is_standing_by and self.held is None

    @property
    def held(self) -> ShardState | None:
        """The state of the shard while it is owned, even while it only writes accepted work."""
        return self._ownership.shard

    @property
    def is_idle(self) -> bool:
        """True while the writer waits for work."""
        return self._idle.is_set()

    def now(self) -> Now:
        return self.clock.at(self._loop.time())

    def now_ms(self) -> int:
        """Return the time of the shard server's clock."""
        return self.now().server_ms

    def wake(self) -> None:
        """Wake the writer, because the next transaction has work."""
        self._work.set()
        shard = self.shard
        if shard is None or not self._permit.is_coalescing:
            return
        if shard.index.waiting_calls_count >= mysql_server.COALESCE_CALLS:
            self._permit.stop_coalescing()

    def tick(self) -> None:
        """Notice due work, and a server that hangs; call it every limits.TICK_MS."""
        ownership, shard = self._ownership, self._ownership.shard
        is_served = shard is not None and not ownership.is_given_up
        is_due = self._keeper.tick(is_owned=shard is not None, is_idle=is_served and self._idle.is_set())
        if shard is None or not is_served:
            return
        if not self.health.healthy and self._keeper.hangs:
            self._refuse_undone(shard)
        now = self.clock.at(self._loop.time())
        try:
            is_work = shard.tick(now)
            self._listener.on_events(shard.take_events())
        except Exception:
            log_defect(self.shard_id)
            ownership.give_up("its state met a defect, see shard_defect")
            return
        self._store_is_due = self._store_wants_transaction(now)
        ownership.tick(shard)
        if is_work or is_due or self._store_is_due or ownership.is_epoch_due:
            self.wake()

    def _store_wants_transaction(self, now: Now) -> bool:
        """Return True if the store has work of its own, which can wait until the server is well."""
        return self.health.healthy and self._store.wants_transaction(now.steady_ms)

    # ---- service ----

    async def _start(self) -> None:
        """Return when the shard was opened, or its opening failed; a server that hangs does not delay other shards."""
        self._tasks.spawn(self._run())
        try:
            async with asyncio.timeout(SHARD_OPEN_WAIT_MS_MAX / 1000):
                await self._tried.wait()
        except TimeoutError:
            self._ownership.detail = "its server does not answer"
            _log.warning("shard_lost", shard=self.shard_id, error=self.detail)

    async def _drain(self) -> None:
        """Write all accepted work, and reduce the journal to the open leases.

        No new work is taken from now on: a call is refused before anything is done, even while a transaction is under
        way. A shard that is sick by now is given up at once, because its calls would most likely wait for the server in
        vain.
        """
        shard, self.shard = self.shard, None
        if shard is None:
            return
        if not self.health.healthy:
            self._refuse_undone(shard)
            _log.warning("sick_shard_given_up", shard=self.shard_id, reason=self.health.reason)
            return
        shard.make_exact()
        self._idle.clear()
        self.wake()
        try:
            async with asyncio.timeout(limits.DRAIN_MS_MAX / 1000):
                await self._idle.wait()
        except TimeoutError:
            _log.warning("drain_bound_reached", shard=self.shard_id)

    async def _stop(self) -> None:
        self._store.interrupt()
        await self._ownership.stop()
        self.scheduler.leave()

    async def _run(self) -> None:
        """Own the shard and serve it, over and over. Any error costs an ownership, and no more than that."""
        while True:
            loss: Exception
            try:
                await self._own()
            except (OwnershipLostError, SessionLostError, FoqsError, OSError) as error:
                loss = error
            except Exception as error:
                log_defect(self.shard_id)
                loss = error
            self._tried.set()
            await self._ownership.lost(loss)
            await self._ownership.wait_for_next_try(loss)
            del loss  # Its traceback holds the lost state, which can be most of the memory of a host.

    async def _own(self) -> None:
        """Open the shard, and serve it until it is lost, which raises an error."""
        shard = await self._ownership.open()
        self._tried.set()
        await self._serve(shard)

    # ---- transactions ----

    async def _serve(self, shard: ShardState) -> None:
        """Run transactions until the shard is lost, which raises an error."""
        permit, keeper, store, listener = self._permit, self._keeper, self._store, self._listener
        last_rows_count: int | None = None
        """Rows of the last transaction; None after an idle while."""
        while not self._ownership.is_given_up:
            if keeper.is_due or self._ownership.is_epoch_due:
                await self._keep(shard)
            granted = permit.ask(last_rows_count, is_sick=not self.health.healthy)
            if permit.is_coalescing and shard.index.waiting_calls_count >= mysql_server.COALESCE_CALLS:
                permit.stop_coalescing()
            try:
                await granted
                if self._ownership.is_given_up:
                    break
                if self._ownership.is_to_ask_first():
                    continue
                self._work.clear()
                if keeper.hangs:
                    # Only a probe is sent, because the outcome of other work would be unknown.
                    self._refuse_undone(shard)
                now = self.clock.at(self._loop.time())
                is_probe = (self._store_is_due or not self.health.healthy) and self._wants_probe(now)
                # Demand is not kept, because it changes with every call, and a transaction needs that of few topics.
                demand = listener.demand(shard.topics_arriving()) if shard.inserts.waiting else {}
                transaction = shard.take(now, demand, probe=is_probe)
                if shard.has_events:
                    listener.on_events(shard.take_events())
                last_rows_count = None
                if transaction is not None:
                    last_rows_count = store.rows_count(transaction)
                    if last_rows_count >= mysql_server.HEAVY_TRANSACTION_ROWS:
                        permit.leave_slot()
                    began_s = self._loop.time()
                    keeper.began()
                    result: TransactionResult | None
                    try:
                        result = await self._commit(shard, transaction)
                    except (TransactionFailedError, SessionLostError) as error:
                        result = await self._recover(shard, transaction, error, began_s)
                        now = self.clock.at(self._loop.time())
                    else:
                        keeper.ended("committed")
                        now = self.clock.at(self._loop.time())
                        self._meter.ended(self.shard_id, self._loop.time() - began_s, "committed")
                    self._meter.waited(self.shard_id, permit.waited_s)
                    if result is not None:
                        self._ownership.committed_number = transaction.number
                        self._meter.committed(self.shard_id, transaction, result)
                        listener.on_events(shard.committed(result, now))
            finally:
                permit.end()
            if transaction is None:
                self._idle.set()
                await self._work.wait()
                self._idle.clear()
            elif not self.health.healthy and self._ownership.committed_number < transaction.number:
                # It failed. Work without a caller waits for the next transaction already, which might fail as fast.
                await asyncio.sleep(self.health.retry_pause_s)
        raise OwnershipLostError(self.detail)

    def _wants_probe(self, now: Now) -> bool:
        """Return True if an empty transaction is to be run, to show that the server is well again, or for the store.

        Another transaction might have carried the store's work since the last tick.
        """
        store_is_due, self._store_is_due = self._store_is_due, False
        return self._keeper.wants_probe or (store_is_due and self._store_wants_transaction(now))

    async def _keep(self, shard: ShardState) -> None:
        """Do the work that is due between transactions."""
        try:
            await self._keeper.keep(shard)
            await self._ownership.keep_epoch(shard)
        except SessionLostError as error:
            await self._ownership.reopen(str(error))

    async def _commit(self, shard: ShardState, transaction: Transaction) -> TransactionResult:
        """Run a transaction. If the shard is another owner's, its callers are notified that it failed."""
        try:
            return await self._store.run(transaction)
        except OwnershipLostError as error:
            self._not_done(shard, error)
            raise

    async def _recover(
        self,
        shard: ShardState,
        transaction: Transaction,
        error: TransactionFailedError | SessionLostError,
        began_s: float,
        *,
        again: bool = True,
    ) -> TransactionResult | None:
        """Handle `error` of a transaction that began at `began_s`.

        A deadlock does not depend on the transaction, which is run again. It is run once more, if `again`, when its
        session was lost and it certainly has not happened. Returns its reads if it has happened, or None if it has not;
        its callers are then notified.
        """
        for _ in range(DEADLOCK_TRIES_MAX - 1):
            if not isinstance(error, DeadlockError):
                break
            _log.warning("transaction_deadlocked", shard=self.shard_id, error=str(error))
            try:
                result = await self._commit(shard, transaction)
            except (TransactionFailedError, SessionLostError) as next_error:
                error = next_error
            else:
                self._ended(began_s, "committed")
                return result
        if isinstance(error, SessionLostError):
            self._ended(began_s, "unknown")
            try:
                await self._ownership.reopen(str(error))
            except OwnershipLostError:
                # The actions of another owner since then prove nothing about this transaction.
                if error.nothing_done:
                    self._not_done(shard, error)
                raise
            outcome = self._store.outcome(transaction)
            if outcome is not None:
                return outcome
            if again:
                return await self._run_again(shard, transaction)
        else:
            self._ended(began_s, "failed")
            if self.health.healthy or self._refusals.is_to_be_logged(str(error)):
                _log.warning("transaction_failed", shard=self.shard_id, error=str(error))
            if isinstance(error, NoWritesError):
                self._keeper.trip(str(error))
        self._not_done(shard, error)
        if isinstance(error, NewSessionError):
            await self._ownership.reopen(str(error))
        return None

    async def _run_again(self, shard: ShardState, transaction: Transaction) -> TransactionResult | None:
        """Run the transaction on a new session, for the last time."""
        began_s = self._loop.time()
        self._keeper.began()
        try:
            result = await self._commit(shard, transaction)
        except (TransactionFailedError, SessionLostError) as error:
            return await self._recover(shard, transaction, error, began_s, again=False)
        self._ended(began_s, "committed")
        return result

    def _refuse_undone(self, shard: ShardState) -> None:
        """Refuse waiting calls, except those that a transaction has taken, because the server hangs."""
        self._listener.on_events(shard.refuse_undone(self.health.reason))

    def _not_done(self, shard: ShardState, error: Exception) -> None:
        """Notify the callers of the transaction that certainly nothing happened."""
        self._listener.on_events(shard.failed(str(error)))

    def _ended(self, began_s: float, outcome: str) -> None:
        self._keeper.ended(outcome)
        self._meter.ended(self.shard_id, self._loop.time() - began_s, outcome)

    def _health_changed(self, healthy: bool, reason: str) -> None:
        if healthy:
            self._refusals.has_ended()
        self._ownership.health_changed(healthy, reason)

    def _shard_changed(self, shard: ShardState | None) -> None:
        self.shard = shard if self.state is not ServiceState.DRAINING else None

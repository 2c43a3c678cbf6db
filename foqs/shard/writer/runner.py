"""The writer of one shard: opens it, runs its transactions one after the other, opens it again when it is lost.

While one transaction commits, the next one collects, and for a moment after it: the busier the shard, the bigger the
batch, and there is no timer to tune.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from typing import TypeVar

import structlog

from foqs.model import limits
from foqs.model.clock import Now
from foqs.model.errors import FoqsError
from foqs.model.service import Service
from foqs.server.slots import ServerSlots
from foqs.shard.port import (
    LaneCounts,
    NoWritesError,
    OwnedError,
    OwnershipLostError,
    ReadOnlyError,
    SessionLostError,
    Tenure,
    Transaction,
    TransactionFailedError,
)
from foqs.shard.state.engine import ShardState
from foqs.shard.state.parts import ShardListener
from foqs.shard.writer.announcing import Announcing
from foqs.shard.writer.clock import ShardClock
from foqs.shard.writer.health import Health
from foqs.shard.writer.leased_runs import skip_leased
from foqs.shard.writer.store import Store, TransactionMeter, run_past_deadlocks

_log = structlog.get_logger(__name__)

T = TypeVar("T")


class ShardRunner(Service):
    """`shard` is None while it is not owned. Transactions run on the event loop, what is rare on a thread."""

    def __init__(
        self,
        shard_id: int,
        store: Store,
        slots: ServerSlots,
        listener: ShardListener,
        meter: TransactionMeter,
        opened: Callable[[ShardState], None] = lambda _: None,
    ) -> None:
        """`opened` is told whenever the shard has been opened, before it serves anybody."""
        super().__init__(f"shard-{shard_id}")
        self.shard_id = shard_id
        self.shard: ShardState | None = None
        self.detail = "not opened yet"
        self.counted = asyncio.Event()
        """The counts of the topics are exact."""
        self.health = Health(self.name, self._health_changed)
        self.clock = ShardClock()
        self.breaker_opened_count = 0
        """Since this runner was made, over all take-overs."""
        self._store = store
        self._slots = slots
        slots.join()
        self._announcing = Announcing(shard_id, listener, lambda: self.shard)
        self._listener = listener
        self._meter = meter
        self._opened = opened
        self._loop = asyncio.get_running_loop()
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix=self.name)
        self._counter = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"{self.name}-count")
        self._work = asyncio.Event()
        self._idle = asyncio.Event()
        """There is nothing for the store to do."""
        self._tried = asyncio.Event()
        """The shard has been opened, or could not be."""
        self._task: asyncio.Task[None] | None = None
        self._count_task: asyncio.Task[None] | None = None
        self._health_task: asyncio.Task[None] | None = None
        """While not all topics are told yet that the breaker has opened or closed."""
        self._clock_probed_s = 0.0
        self._heard_s = 0.0
        """When the last transaction or question ended, in turning time."""
        self._slot_asked_s: float | None = None
        """While the shard waits for a slot, and has it; in turning time."""
        self._checked_s = 0.0
        self._is_given_up = False
        self._loss_logged, self._loss_logged_s = "", 0.0
        self._committed_number = 0
        self._tenure: Tenure | None = None
        """Of the last opening, and of the last ownership that ended; None before, and without keys to go on with."""
        self._left: ShardState | None = None
        """The state of a lost shard, until it is opened again."""
        self._unseen: frozenset[int] = frozenset()
        """Items of it that were claimed and that no consumer got: nobody but this process can know."""
        self._epoch_due_s = 0.0

    def now(self) -> Now:
        return self.clock.at(self._loop.time())

    def now_ms(self) -> int:
        """The shard server's clock."""
        return self.now().server_ms

    @property
    def placement_run_items(self) -> int:
        """How many enqueued items in a row the shard takes, when it is its turn.

        So that as many shards of a server take items at a time as may write them: what is enqueued together is handed
        out and acked together, and a transaction of few items costs each of them more.
        """
        return min(limits.PLACEMENT_RUN_ITEMS * self._slots.shards_per_slot, limits.PLACEMENT_RUN_ITEMS_MAX)

    def wake(self) -> None:
        """There is something for the next transaction."""
        self._work.set()

    def tick(self) -> None:
        """To be called every limits.TICK_MS: notices what is due, and a transaction that hangs."""
        now_s = self._loop.time()
        waiting_s = self._slot_asked_s
        # Neighbours that are slow are waited for, but not those that hang as well.
        turned_s = self._slots.turning.tick(now_s)
        self.health.watch(turned_s, None if waiting_s is None else max(waiting_s, self._slots.heard_s))
        if self.shard is None or self._is_given_up:
            return
        try:
            is_work = self.shard.tick(self.now())
        except Exception:
            self._defect()
            self._give_up("its state met a defect, see shard_defect")
            return
        if self._idle.is_set() and self._store.is_session_lost():
            self._clock_probed_s = 0.0  # The probe meets the loss and reopens, before a transaction has to.
        if is_work or self._is_check_due(now_s):
            self.wake()

    # ---- service ----

    async def _start(self) -> None:
        """Return when the shard was opened, or could not be; a server that hangs does not hold the others up."""
        self._task = asyncio.create_task(self._run(), name=self.name)
        try:
            async with asyncio.timeout(limits.SHARD_OPEN_WAIT_MS_MAX / 1000):
                await self._tried.wait()
        except TimeoutError:
            self.detail = "its server does not answer"
            _log.warning("shard_lost", shard=self.shard_id, error=self.detail)

    async def _drain(self) -> None:
        """Write all that was accepted, and leave a journal that says no more than what is leased."""
        if self.shard is None:
            return
        self.shard.journal.make_exact()
        self._idle.clear()
        self.wake()
        try:
            async with asyncio.timeout(limits.DRAIN_MS_MAX / 1000):
                await self._idle.wait()
        except TimeoutError:
            _log.warning("drain_bound_reached", shard=self.shard_id)

    async def _stop(self) -> None:
        self._store.interrupt()
        tasks = [task for task in (self._task, self._count_task, self._health_task) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self.shard is not None:
            self.shard.abandon("the host stops")
            self.shard = None
        await self._on_thread(self._store.close)
        for thread in (self._writer, self._counter):
            thread.shutdown(wait=True)

    # ---- ownership ----

    async def _run(self) -> None:
        while True:
            try:
                if self.shard is None:
                    await self._open()
                await self._serve()
            except (OwnershipLostError, SessionLostError, FoqsError, OSError) as error:
                await self._lost(error)
                if isinstance(error, OwnedError) and await self._await_owner():
                    continue
            except Exception as error:
                self._defect()
                await self._lost(error)
            await asyncio.sleep(limits.REOPEN_PAUSE_MS / 1000)

    async def _await_owner(self) -> bool:
        try:
            await self._on_thread(self._store.wait_for_owner)
        except SessionLostError:
            return False
        await asyncio.sleep(limits.OWNER_RETURN_MS / 1000)
        return True

    def _defect(self) -> None:
        """In an `except`: a defect costs a take-over, which reads everything anew, and not the shard."""
        _log.error("shard_defect", shard=self.shard_id, exc_info=True)

    def _try(self, work: Callable[[], None]) -> None:
        """What comes after it has to, whatever this meets."""
        try:
            work()
        except Exception:
            self._defect()

    async def _open(self) -> None:
        if self._left is not None:
            self._unseen, self._left = await self._on_thread(self._left.unseen_keys), None
        began_s, tenure = self._loop.time(), self._tenure
        image = await self._on_thread(partial(self._store.open, tenure))
        if tenure is None or image.epoch != tenure.epoch:
            self._unseen = frozenset()  # Others may have delivered them since.
        self._tenure = Tenure(image.epoch, image.transaction_number, image.last_key)
        self.clock.start(began_s, image.now_ms, image.steady_ms, self._loop.time())
        # It may take a second for many leases, and the others' shards are served meanwhile.
        shard = await self._on_thread(partial(ShardState, self.shard_id, image, self._listener, self._unseen))
        await self._on_thread(partial(skip_leased, shard.index, self._store.sort_key_after))
        # All that was read after that time makes the server's an old one by now.
        until_s = self._loop.time() + limits.CLOCK_TRY_MS_MAX / 1000
        while await self._probe_clock() > limits.CLOCK_DOUBT_MS_MAX and self._loop.time() < until_s:
            pass
        self._checked_s = self._loop.time()
        self.health = Health(self.name, self._health_changed)
        self.shard, self._unseen = shard, frozenset()
        self._committed_number = image.transaction_number
        self.detail, self._loss_logged = "owned", ""
        self.counted.clear()
        self._is_given_up = False
        counting = self._loop.run_in_executor(self._counter, image.count)
        self._count_task = asyncio.create_task(self._count(shard, counting), name=f"{self.name}-count")
        self._opened(shard)
        await self._announcing.opened(shard)
        self._tried.set()
        self.wake()
        _log.info("shard_opened", shard=self.shard_id, epoch=image.epoch, open_leases=len(shard.index.leases))

    async def _lost(self, error: BaseException) -> None:
        self._tried.set()
        self._slot_asked_s = None
        self.detail = reason = str(error)
        now_s = self._loop.time()
        if reason != self._loss_logged or now_s - self._loss_logged_s > limits.LOSS_LOG_MS / 1000:
            self._loss_logged, self._loss_logged_s = reason, now_s
            _log.warning("shard_lost", shard=self.shard_id, error=reason)
        if self._count_task is not None:
            self._count_task.cancel()
        shard, self.shard = self.shard, None
        if shard is None:
            return
        self._left = shard
        self._remember(shard)
        first, *others = self._announcing.lost(shard)
        self._try(first)
        self._try(lambda: shard.abandon(reason))
        for tell in others:
            await asyncio.sleep(0)
            self._try(tell)

    def _remember(self, shard: ShardState) -> None:
        """What it takes to open the shard again without the meta database."""
        if shard.index.keys_left_count < limits.KEYS_LEFT_MIN:
            self._tenure = None
        else:
            self._tenure = Tenure(shard.epoch, self._committed_number, shard.index.last_key)

    async def _count(self, shard: ShardState, counting: Awaitable[LaneCounts]) -> None:
        try:
            counts = await counting
        except SessionLostError as error:
            # How many there were at the take-over cannot be known any more: take over once more.
            if self.shard is shard:
                self._give_up(f"its rows could not be counted: {error}")
            return
        except Exception:
            self._defect()
            if self.shard is shard:
                self._give_up("its rows could not be counted, see shard_defect")
            return
        if self.shard is shard:
            for _ in shard.add_counts(counts):
                await asyncio.sleep(0)
                if self.shard is not shard:
                    return
            self.counted.set()

    def _give_up(self, reason: str) -> None:
        """Take the shard over anew, after the transaction that is under way."""
        self.detail = reason
        self._is_given_up = True
        self.wake()

    # ---- transactions ----

    async def _serve(self) -> None:
        """Run transactions until the shard is lost."""
        shard = self.shard
        assert shard is not None
        transaction: Transaction | None = None
        while not self._is_given_up:
            await self._keep_clock()
            await self._keep_durable()
            await self._keep_epoch(shard)
            self._slot_asked_s, asked_s = self._slots.turned_s(), self._loop.time()
            # A sick shard tries in vain, again and again: its neighbours on a well server shall not wait for that.
            async with self._slots.slot() if self.health.healthy else nullcontext() as slot:
                wait_s = self._loop.time() - asked_s
                if transaction is not None:
                    await self._coalesce(shard)
                if self._is_given_up:
                    break
                self._work.clear()
                transaction = shard.take(self.now(), probe=self.health.wants_probe(self._slots.turned_s()))
                if transaction is not None:
                    self._meter.waited(self.shard_id, wait_s)
                    if slot is not None and transaction.rows_count >= limits.HEAVY_TRANSACTION_ROWS:
                        slot.release_slot_early()
                    await self._execute(shard, transaction)
            self._slot_asked_s = None
            if transaction is None:
                self._idle.set()
                await self._work.wait()
                self._idle.clear()
            elif self._committed_number < transaction.number and not self.health.healthy:
                # It failed: what has no caller waits for the next one already, which might fail as fast.
                await asyncio.sleep(limits.BREAKER_PROBE_MS / 1000)
            elif transaction.rows_count >= limits.HEAVY_TRANSACTION_ROWS:
                await asyncio.sleep(0)  # To end a large one and to begin the next are long enough each.
        raise OwnershipLostError(self.detail)

    async def _coalesce(self, shard: ShardState) -> None:
        """After a transaction, let those whom it answered come back, so that fewer transactions do as much.

        What they want next comes within some turns of the event loop; where enough waits already nobody need be
        waited for (as PostgreSQL's commit_delay does, which counts the others that are active).
        """
        until_s = self._loop.time() + limits.COALESCE_MS_MAX / 1000
        for _ in range(limits.COALESCE_TURNS_MAX):
            if shard.waiting_calls_count >= limits.COALESCE_CALLS or self._loop.time() >= until_s:
                return
            await asyncio.sleep(0)

    async def _execute(self, shard: ShardState, transaction: Transaction, *, again: bool = True) -> None:
        """Run it; `again` once more when its session was lost and it certainly has not happened."""
        began_s = self._loop.time()
        self.health.began(self._slots.turned_s())
        try:
            result = await run_past_deadlocks(self._store, transaction, self.shard_id)
        except TransactionFailedError as error:
            self._ended(transaction, began_s, "failed")
            _log.warning("transaction_failed", shard=self.shard_id, error=str(error))
            if isinstance(error, NoWritesError):
                self.health.trip(self._slots.turned_s(), str(error))
            shard.failed(str(error))
            if isinstance(error, ReadOnlyError):
                await self._reopen(str(error))
            return
        except SessionLostError as error:
            self._ended(transaction, began_s, "unknown")
            last_number = await self._reopen(str(error))
            if last_number < transaction.number:
                if again:
                    await self._execute(shard, transaction, again=False)
                else:
                    shard.failed(str(error))
                return
            result = error.result
        else:
            self._ended(transaction, began_s, "committed")
        self._committed_number = transaction.number
        shard.committed(result, self.now())

    def _ended(self, transaction: Transaction, began_s: float, outcome: str) -> None:
        self._heard_s = turned_s = self._slots.turned_s()
        if outcome != "unknown":
            self._slots.heard_s = turned_s
        self.health.ended(turned_s, failed=outcome != "committed")
        self._meter.ended(self.shard_id, transaction, self._loop.time() - began_s, outcome)

    async def _reopen(self, reason: str) -> int:
        """The number of the last transaction that happened; waits while the server is away.

        A server that takes a new session at once is not sick: somebody ended the old one.
        """
        self.detail = f"its session is lost ({reason}); reconnecting"
        _log.warning("session_lost", shard=self.shard_id, error=reason)
        for _ in range(limits.REOPEN_TRIES_MAX):
            try:
                with self.health.watched(self._slots.turned_s()):
                    number = await self._on_thread(self._store.reopen)
            except SessionLostError as error:
                self.detail = str(error)
                self.health.trip(self._slots.turned_s(), "its session is lost")
                await asyncio.sleep(limits.REOPEN_PAUSE_MS / 1000)
                continue
            if number < self._committed_number:
                # What is known of the shard is not what is there: a fail-over to a replica that was behind.
                raise OwnershipLostError(f"its server has lost transactions {number + 1} to {self._committed_number}")
            self.detail = "owned"
            self._clock_probed_s = 0.0
            return number
        raise OwnershipLostError(self.detail)

    def _health_changed(self, healthy: bool, reason: str) -> None:
        self.breaker_opened_count += not healthy
        _log.warning("breaker_closed" if healthy else "breaker_opened", shard=self.shard_id, reason=reason)
        shard = self.shard
        if shard is not None:
            others = self._announcing.health_changed(shard, healthy=healthy)
            if self._health_task is not None:
                self._health_task.cancel()
            self._health_task = asyncio.create_task(self._announcing.others(shard, others), name=f"{self.name}-health")
            if not healthy:
                shard.inserts.evict(reason)

    async def _keep_clock(self) -> None:
        if self._is_clock_due(self._loop.time()):
            try:
                with self.health.watched(self._slots.turned_s()):
                    await self._probe_clock()
            except SessionLostError as error:
                await self._reopen(str(error))

    async def _probe_clock(self) -> float:
        """Returns by how many ms it may be wrong; one that may be far off is soon followed by another."""
        before_s = self._loop.time()
        now_ms = await self._store.now_ms()
        after_s = self._loop.time()
        self._heard_s = self._slots.heard_s = self._slots.turned_s()
        doubt_ms = (after_s - before_s) * 1000
        is_good = doubt_ms <= limits.CLOCK_DOUBT_MS_MAX
        self._clock_probed_s = after_s if is_good else after_s - (limits.CLOCK_PROBE_MS - limits.CLOCK_RETRY_MS) / 1000
        step_ms = self.clock.probed(before_s, now_ms, after_s)
        if step_ms:
            direction = "forward" if step_ms > 0 else "backward"
            _log.warning("server_clock_stepped", shard=self.shard_id, step_ms=step_ms, direction=direction)
            if self.shard is not None:
                self.shard.index.expires_first_ms = 0  # What it says may be long after what expires first now.
        return doubt_ms

    async def _keep_durable(self) -> None:
        """Give the shard up when somebody made its server one that can lose answered commits."""
        if self._is_durability_due(self._loop.time()):
            self._checked_s = self._loop.time()
            try:
                with self.health.watched(self._slots.turned_s()):
                    problems = await self._on_thread(self._store.check)
            except SessionLostError as error:
                await self._reopen(str(error))
                return
            if problems:
                await self._on_thread(self._store.close)
                raise OwnershipLostError("; ".join(problems))

    async def _keep_epoch(self, shard: ShardState) -> None:
        """Go on under a new epoch long before the keys of this one are used up."""
        now_s = self._loop.time()
        if shard.index.keys_left_count >= limits.KEYS_LEFT_TO_RENEW or now_s < self._epoch_due_s:
            return
        try:
            epoch = await self._on_thread(self._store.renew_epoch)
        except SessionLostError as error:
            await self._reopen(str(error))
        except FoqsError as error:
            self._epoch_due_s = now_s + limits.EPOCH_RETRY_MS / 1000
            keys_left = shard.index.keys_left_count
            _log.warning("epoch_not_renewed", shard=self.shard_id, keys_left=keys_left, error=str(error))
            if keys_left < limits.KEYS_LEFT_MIN:
                raise OwnershipLostError(f"its epoch has only {keys_left} keys left, and {error}") from error
        else:
            shard.begin_epoch(epoch)
            _log.info("epoch_renewed", shard=self.shard_id, epoch=epoch)

    def _is_check_due(self, now_s: float) -> bool:
        wants_probe = self.health.wants_probe(self._slots.turned_s())
        return wants_probe or self._is_clock_due(now_s) or self._is_durability_due(now_s)

    def _is_clock_due(self, now_s: float) -> bool:
        """Also when the server has not been heard for a while: a shard with nothing to do learns that it is away."""
        is_silent = self.health.healthy and self._slots.turned_s() - self._heard_s > limits.PULSE_MS / 1000
        return is_silent or now_s - self._clock_probed_s > limits.CLOCK_PROBE_MS / 1000

    def _is_durability_due(self, now_s: float) -> bool:
        return now_s - self._checked_s > limits.DURABILITY_CHECK_MS / 1000

    def _on_thread(self, work: Callable[[], T]) -> Awaitable[T]:
        return self._loop.run_in_executor(self._writer, work)

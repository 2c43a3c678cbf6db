"""A shard in MySQL: one session that holds the shard's named lock does every write.

The lock ends with the session, so an owner that lost it cannot commit. Every transaction writes its number into the
`writer` row; after a lost answer that number proves the outcome of the transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pymysql
import structlog
from pymysql.constants import CR

from foqs.model import ids, limits, order
from foqs.model.cluster import ShardIdentity
from foqs.model.errors import UnavailableError
from foqs.model.shard_place import EpochAsk, EpochGiven, Tenure
from foqs.shard.port import (
    BeingTakenError,
    ItemRow,
    LaneCounts,
    OwnedError,
    OwnershipLostError,
    SessionLostError,
    ShardImage,
    Transaction,
    TransactionResult,
)
from foqs.storage.schema import statements as sql
from foqs.storage.schema.migrations import MigrationError, SchemaKind, check_current
from foqs.storage.schema.read_only import warn_of_read_only
from foqs.storage.sessions.durability import check_durable
from foqs.storage.sessions.exchange import Rows, in_slices, run_script
from foqs.storage.sessions.session import connect, has_ended, interrupt, is_lost
from foqs.storage.sessions.whole_reads import ShortReadError, complete, only_row
from foqs.storage.shard.counting import count_lanes, open_snapshot
from foqs.storage.shard.identity import ClusterId, check_identity, confirm_identity, read_identity
from foqs.storage.shard.packs.pack import PackPlan
from foqs.storage.shard.packs.pack_index import PackIndex, add_looked_up, add_packed
from foqs.storage.shard.prepared import PreparedInserts, prepare_inserts
from foqs.storage.shard.refusals import READ_ONLY_CODES, roll_back
from foqs.storage.shard.script import (
    Writes,
    edge_arguments,
    read_statements,
    rewrite_statements,
    seen_statements,
    stored_row_literal,
    take_look_ups,
    take_reads,
    take_seen,
    write_script,
)
from foqs.storage.shard.server_name import read_server
from foqs.storage.shard.take_over import (
    KillCheck,
    WriterRow,
    kill_owner,
    promote_all,
    read_image,
    read_writer,
)

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardAccess:
    shard_id: int
    url: str
    lock_name: str
    owner: str
    cluster: ClusterId
    allow_undurable: bool = False


class ShardStore:
    """Not thread-safe: its only user is the shard's writer, with one call at a time. All but async methods block."""

    def __init__(
        self,
        access: ShardAccess,
        take_epoch: Callable[[EpochAsk], EpochGiven],
        owner_is_dead: Callable[[str, int], bool],
        packs: PackIndex,
    ) -> None:
        """`take_epoch` gets a new epoch from the meta database; `owner_is_dead(owner, epoch)` allows a KILL.

        This store and the shard's other readers share `packs`.
        """
        self._access = access
        self._take_epoch = take_epoch
        self._owner_is_dead = owner_is_dead
        self._session: Any = None
        self._inserts: PreparedInserts | None = None
        self._snapshot: Any = None
        """The session that counts the rows."""
        self._is_counting = False
        """True if the session counts rows, or has done so, and closes itself."""
        self._owning_session_id = 0
        """The last session that held the lock."""
        self._kill_check = KillCheck(access.shard_id, access.lock_name)
        self._is_prepared = False
        """True if the session holds the lock for the next `open`."""
        self._is_waiting = self._is_hurried = False
        """`_is_waiting` is True while the store waits for the owner, `_is_hurried` once it need not wait any longer."""
        self.packs = packs
        self._plan: PackPlan | None = None
        """The plan of the last transaction."""
        self._result = TransactionResult()
        """The rows that the last transaction has read so far."""
        self._reopened_number = 0
        """The number of the shard's last transaction when it was opened again."""
        self.epoch = 0
        self.server = ""

    def use_url(self, url: str) -> None:
        """Open future sessions with this URL, which must lead to the same database. Safe to call from any thread."""
        self._access = replace(self._access, url=url)

    def open(self, tenure: Tenure | None = None) -> ShardImage:
        """Take the shard over: lock, epoch, name, then read the state left by the last owner.

        An unbroken `tenure` keeps its epoch, without asking the meta database. Raises OwnedError if a living owner has
        the shard, OwnershipLostError if another host is taking it, its server is not durable or its database is
        another shard's, ElsewhereError if it is possibly a copy, SessionLostError if it is unreachable, and
        UnavailableError if no new epoch is available.
        """
        self.packs.clear()
        is_prepared, self._is_prepared, own = self._is_prepared, False, self._access.owner
        if not is_prepared:
            try:
                check_current(self._access.url, SchemaKind.SHARD)
            except (MigrationError, UnavailableError) as error:
                raise OwnershipLostError(str(error)) from error
            self._connect()
        with self._closing_on_error():
            self._take_lock(lambda writer: writer.owner == own or self._owner_is_dead(writer.owner, writer.epoch))
            written = read_writer(self._rows)
            # A read-only server fails here, before the epoch: each try would use one up, and only 2^24 exist.
            self._rows(sql.NOTE_SESSION, written.epoch)
            self._session.rollback()
            confirm_identity(self._rows, self._access.shard_id, self._access.cluster, written.epoch)
            self._session.commit()
            found, given = written.found(self.server), None
            if tenure is not None and tenure.goes_on(found):
                self.epoch, last_key = tenure.epoch, tenure.last_key
            else:
                # The shard can be a replica that lagged, and the meta database a restored one.
                given = self._take_epoch(EpochAsk(found, max(written.epoch, self.epoch)))
                self.epoch, last_key = given.epoch, given.epoch << ids.SEQUENCE_BITS
            self._put_name()
            self._promote_all()
            warn_of_read_only(self._rows, self._access.shard_id)
            self._session.commit()
            return replace(self._read_image(last_key), given=given, found=found)

    def wait_for_owner(self, *, stay: bool = False) -> bool:
        """After OwnedError: return when the shard's lock is free, or limits.OWNER_WAIT_MS_MAX later.

        It takes nothing, unless the owner is about to hand the shard to this host: with `stay` the lock is kept for the
        next call, which must be `open`, and True is returned. After `retry_now` it returns at once. Raises
        SessionLostError, and with `stay` the errors of `open` for a server.
        """
        self.close()
        self._is_waiting = True
        try:
            with self._losing_session():
                if stay:
                    self._connect()
                else:
                    self._session = connect(self._access.url)
                wait_s = 0 if self._is_hurried else limits.OWNER_WAIT_MS_MAX // 1000
                self._is_prepared = self._lock(wait_s) and stay
        except SessionLostError:
            if not self._is_hurried:
                raise
        finally:
            self._is_waiting = self._is_hurried = False
        if not self._is_prepared:
            self.close()  # The lock ends with the session.
        return self._is_prepared

    def retry_now(self) -> None:
        """Make this or the next `wait_for_owner` return, because the owner is dead. Any thread may call it."""
        self._is_hurried = True
        if self._is_waiting:
            interrupt(self._session)

    def sort_key_after(self, lane: int, edge: int, count: int) -> int | None:
        """Return the sort key of the `count`-th row of the lane after `edge`; None if the lane has fewer rows.

        Raises SessionLostError. The server counts in the index, which takes less than a microsecond per row.
        """
        self._require_session()
        with self._losing_session():
            found = self._rows(sql.READ_SORT_KEY, lane, *edge_arguments(edge), count - 1)
            self._session.commit()
        if not found:
            return None
        ((urgency, due_at, key),) = found
        return order.sort_key(urgency, due_at, key, self._access.shard_id)

    def reopen(self) -> int:
        """Take the lock again after SessionLostError, as the same owner. Returns the last transaction's number.

        Raises OwnershipLostError if another owner took it since, SessionLostError if it is worth another try.
        """
        self._connect()
        with self._closing_on_error():
            self._own_writer()
            try:
                self._take_lock(lambda writer: writer.epoch == self.epoch)
            except OwnershipLostError as error:
                raise SessionLostError(str(error)) from error
            # Only now is the lost session's last transaction certainly over.
            number = self._reopened_number = self._own_writer().transaction_number
            self._note_session()
            return number

    def outcome(self, transaction: Transaction) -> TransactionResult | None:
        """Return the result of a transaction whose session was lost, or None if it certainly had no effect.

        Call it once, on the event loop, after `reopen`.
        """
        plan = self._plan_of(transaction)
        if self._reopened_number < transaction.number:
            self.packs.fail(plan)
            return None
        self.packs.commit(plan)
        return self._result

    def renew_epoch(self) -> int:
        """Change to a new epoch, between two transactions, and return it.

        Raises UnavailableError if none is available, and ElsewhereError if another owner has an epoch for another
        server; nothing has then changed. After a SessionLostError whose change was committed, `reopen` takes the shard
        for another owner's, so it has to be opened anew.
        """
        self._require_session()
        with self._losing_session():
            # A host that has lost the shard must not register as its owner in the meta database.
            written = self._own_writer()
            epoch = self._take_epoch(EpochAsk(written.found(self.server), self.epoch, is_renewal=True)).epoch
            with self._session.cursor() as cursor:
                renewed = cursor.execute(sql.RENEW_EPOCH, (epoch, self.epoch))
            self._session.commit()
        if not renewed:
            raise OwnershipLostError(f"shard {self._access.shard_id} has another epoch than {self.epoch}")
        self.epoch = epoch
        return epoch

    def _put_name(self) -> None:
        """Write the owner's name and epoch, and commit them before any long work.

        From now on, other hosts that want the shard see the name of a living host. If this process dies before the next
        commit, the next owner finds the packs unchanged.
        """
        with self._session.cursor() as cursor:
            taken = cursor.execute(sql.TAKE_WRITER, (self.epoch, self._access.owner, self.epoch))
        self._session.commit()
        if not taken:
            epoch = read_writer(self._rows).epoch
            raise OwnershipLostError(f"shard {self._access.shard_id} was taken by epoch {epoch} meanwhile")

    def _note_session(self) -> None:
        try:
            self._rows(sql.NOTE_SESSION, self.epoch)
            self._session.commit()
        except pymysql.err.Error as error:
            if error.args[0] not in READ_ONLY_CODES:
                raise
            # Its name is stored, and its next transaction will meet the same error.
            self._session.rollback()

    def _own_writer(self) -> WriterRow:
        """Read the writer row. Raises OwnershipLostError if the shard has another owner."""
        written = read_writer(self._rows)
        self._session.commit()
        if written.epoch != self.epoch:
            raise OwnershipLostError(
                f"shard {self._access.shard_id} has epoch {written.epoch} of {written.owner!r}, "
                f"not {self.epoch} any more"
            )
        return written

    def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session._force_close()
        if self._snapshot is not None and not self._is_counting:
            self._snapshot._force_close()
            self._snapshot = None

    def interrupt(self) -> None:
        """Make a running statement fail. This is the only method that another thread may call."""
        for session in (self._session, self._snapshot):
            interrupt(session)

    def is_session_lost(self) -> bool:
        """True if the server has ended the session. Ask only when no call is under way. Does not block."""
        return has_ended(self._session)

    def check(self) -> list[str]:
        """Return the reasons why the server could lose acknowledged items; empty if none. Raises SessionLostError."""
        if self._access.allow_undurable:
            return []
        self._require_session()
        with self._losing_session():
            problems = check_durable(self._session)
            self._session.commit()
            return problems

    async def now_ms(self) -> int:
        """Return the shard server's clock, read on the event loop. Raises SessionLostError."""
        self._require_session()
        with self._losing_session():
            (rows,) = await run_script(self._session, [sql.NOW_MS])
            return int(only_row(rows, "the time")[0])

    def wants_transaction(self, steady_ms: int) -> bool:
        """True if the store has work of its own to add to any transaction, even an empty one."""
        return self.packs.is_due(steady_ms)

    def rows_count(self, transaction: Transaction) -> int:
        """Return the number of item rows that the transaction reads or writes at most."""
        self._plan = self.packs.plan(transaction)
        return self._plan.rows_count

    async def run(self, transaction: Transaction) -> TransactionResult:
        """Run one transaction and commit it, on the event loop.

        Raises TransactionFailedError (nothing happened; its subclasses DeadlockError and NoWritesError have the reason)
        or SessionLostError (`outcome` returns the result, if it happened).
        """
        self._require_session()
        plan = self._plan_of(transaction)
        result = self._result = TransactionResult(packed_count=plan.packed_count, promoted_count=len(plan.promoted))
        writes: Writes | None = None
        answers: list[Rows] = []
        try:
            if transaction.refills or transaction.fetches or transaction.seen_reads or transaction.held is not None:
                await self._read(transaction, plan, result)
            promoted = await in_slices(map(stored_row_literal, plan.promoted)) if plan.promoted else ()
            rewrites = await in_slices(rewrite_statements(plan.rewrites)) if plan.rewrites else ()
            writes = write_script(
                transaction, plan, result, self.epoch, self._access.shard_id, self._inserts, promoted, rewrites
            )
            await run_script(self._session, writes.statements, answers, writes.ahead)
        except (pymysql.err.Error, OSError) as error:
            # The last statement is COMMIT: an error in answer to it leaves the outcome open.
            commit_failed = writes is not None and len(answers) >= len(writes.statements) - 1
            if is_lost(error) or commit_failed:
                nothing_done = writes is None or error.args[:1] == (CR.CR_SERVER_GONE_ERROR,)
                raise SessionLostError(str(error), nothing_done=nothing_done) from error
            refusal = await roll_back(self._session, error, self._access.shard_id, self.epoch)
            self.packs.fail(plan)
            raise refusal from error
        looked_up: dict[int, ItemRow] = {}
        if transaction.look_ups:
            try:
                looked_up = take_look_ups(writes.look_up_count, answers)
            except ShortReadError as error:
                # All the rest has happened, as a new session will find.
                raise SessionLostError(error.args[1]) from error
        self.packs.commit(plan)
        result.looked_up = looked_up
        if transaction.look_ups:
            add_looked_up(self.packs, transaction, result)
        return result

    async def _read(self, transaction: Transaction, plan: PackPlan, result: TransactionResult) -> None:
        """Do the refills and fetches, from rows and from packs."""
        reads, seen = read_statements(transaction, plan), seen_statements(transaction)
        if reads or seen:
            rows = await run_script(self._session, [*reads, *seen])
            if reads:
                take_reads(transaction, plan, rows[: len(reads)], result)
            take_seen(transaction, rows[len(reads) :], result, self._access.shard_id)
        add_packed(self.packs, transaction, result)

    def _plan_of(self, transaction: Transaction) -> PackPlan:
        """Return the plan from the count of the transaction's rows, or make one."""
        plan = self._plan
        if plan is None or plan.transaction is not transaction:
            plan = self._plan = self.packs.plan(transaction)
        return plan

    def _rows(self, statement: str, *arguments: object) -> Any:
        with self._session.cursor() as cursor:
            cursor.execute(statement, arguments)
            return complete(statement, cursor.fetchall())

    def _connect(self) -> None:
        """Open a session to the shard's own database, on a durable server."""
        self.close()
        with self._losing_session():
            self._session = connect(self._access.url)
            self._rows(sql.LIMIT_SILENCE, limits.OWNER_SILENT_MS_MAX // 1000)
            self.server = read_server(self._rows)
            self._inserts = prepare_inserts(self._session)
        if self._inserts is None:
            _log.warning("inserts_not_prepared", shard=self._access.shard_id)
        with self._closing_on_error():
            problems = self.check()
            if problems:
                raise OwnershipLostError(
                    f"shard {self._access.shard_id}: its server can lose acknowledged items: {'; '.join(problems)}"
                )
            # Before the lock, because another shard's owner has another lock; and no other cluster's session is ended.
            check_identity(read_identity(self._rows), ShardIdentity(self._access.cluster.known, self._access.shard_id))
            self._session.commit()

    def _take_lock(self, may_put_out: Callable[[WriterRow], bool]) -> None:
        """Take the lock. Raises OwnershipLostError if another session keeps it.

        The session of an owner is killed if `may_put_out` allows that. No other session is, because a faster contender
        holds the lock before its name is in the writer row.
        """
        if self._lock(0):
            return
        (holder,) = only_row(self._rows(sql.LOCK_HOLDER, self._access.lock_name), "the holder of a lock")
        writer = read_writer(self._rows)
        if holder is not None:
            is_owner = holder == writer.session_id or (
                holder == self._owning_session_id and writer.epoch == self.epoch
            )  # fmt: skip
            if not is_owner:
                raise BeingTakenError(
                    f"shard {self._access.shard_id} is being taken over: another session than that of "
                    f"{writer.owner!r} has its lock"
                )
            if not may_put_out(writer):
                self._kill_check.check(self._rows, int(holder), writer.owner)
                raise OwnedError(f"shard {self._access.shard_id} is owned by {writer.owner!r}")
            self._kill(int(holder), writer.owner)
        if not self._lock(limits.LOCK_WAIT_MS_MAX / 1000):
            raise OwnershipLostError(
                f"shard {self._access.shard_id}: its lock was not free within {limits.LOCK_WAIT_MS_MAX} ms, "
                f"though session {holder} of {writer.owner!r} was ended: "
                "another host was faster, or it still rolls back"
            )

    def _lock(self, wait_s: float) -> bool:
        (taken,) = only_row(self._rows(sql.LOCK_SHARD, self._access.lock_name, wait_s), "the answer to a lock")
        if taken:
            self._owning_session_id = self._session.thread_id()
        return bool(taken)

    def _kill(self, session_id: int, owner: str) -> None:
        kill_owner(self._rows, self._access.shard_id, session_id, owner)

    def _require_session(self) -> None:
        if self._session is None:
            raise SessionLostError(f"shard {self._access.shard_id} has no session", nothing_done=True)

    @contextmanager
    def _losing_session(self) -> Iterator[None]:
        try:
            yield
        except (pymysql.err.Error, OSError) as error:
            self.close()
            raise SessionLostError(f"shard {self._access.shard_id}: {error}") from error

    @contextmanager
    def _closing_on_error(self) -> Iterator[None]:
        try:
            with self._losing_session():
                yield
        except BaseException:
            self.close()
            raise

    def _read_image(self, last_key: int) -> ShardImage:
        self._open_snapshot()
        access, count = self._access, partial(self._count, self._snapshot)
        image = read_image(self._rows, access.shard_id, self.epoch, last_key, count, lambda: self._access.url)
        self._session.commit()
        return image

    def _count(self, snapshot: Any) -> LaneCounts:
        """Count in parallel to all other work; the loss of the shard's session does not end the count."""
        if snapshot is self._snapshot:
            self._is_counting = True
        return count_lanes(snapshot)

    def _promote_all(self) -> None:
        promote_all(self._rows, self._access.shard_id)

    def _open_snapshot(self) -> None:
        """Open a session with a snapshot of the rows between the last owner's transactions and ours."""
        interrupt(self._snapshot)  # Nobody waits for the count of an earlier take-over.
        self._is_counting = False
        self._snapshot = open_snapshot(self._access.url)

"""A shard in MySQL: one session that holds the shard's named lock does every write.

The lock goes with the session, so an owner that lost it cannot commit. Every transaction writes its number
into the `writer` row: after a lost answer that number tells whether the transaction happened.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pymysql
import structlog
from pymysql.constants import ER

from foqs.core import limits
from foqs.core.errors import UnavailableError
from foqs.storage import statements as sql
from foqs.storage.durability import check_durable
from foqs.storage.literals import chunks_by_bytes, key_conditions, unpacked_row
from foqs.storage.migrations import MigrationError, SchemaKind, check_current
from foqs.storage.packing import unpack_items, unpack_keys
from foqs.storage.prepared import PreparedInserts, prepare_inserts
from foqs.storage.replies import Rows
from foqs.storage.script import Writes, read_statements, take_look_ups, take_reads, unpack_entries, write_script
from foqs.storage.session import connect, is_lost, run_script
from foqs.storage.transaction import (
    DeadlockError,
    DiskFullError,
    ItemRow,
    LaneCounts,
    OwnershipLostError,
    ReadOnlyError,
    SessionLostError,
    ShardImage,
    Transaction,
    TransactionFailedError,
    TransactionResult,
)

_READ_ONLY_CODES = frozenset({1290, 1792, 1836})
"""By an option of the server, in a transaction, by the mode of the server."""
_DISK_FULL_CODES = frozenset({ER.DISK_FULL, ER.RECORD_FILE_FULL})

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardAccess:
    shard_id: int
    url: str
    lock_name: str
    owner: str
    allow_undurable: bool = False


class ShardStore:
    """Not thread-safe: the shard's runner is its only user, with one call at a time. What is not async blocks."""

    def __init__(self, access: ShardAccess, take_epoch: Callable[[int], int], owner_is_dead: Callable[[str], bool]):
        """`take_epoch(at_least)` gives a new epoch from the meta database; `owner_is_dead(owner)` allows the KILL."""
        self._access = access
        self._take_epoch = take_epoch
        self._owner_is_dead = owner_is_dead
        self._session: Any = None
        self._inserts: PreparedInserts | None = None
        self._snapshot: Any = None
        self._owning_session_id = 0
        """The session that holds the lock, or held it last."""
        self.epoch = 0

    def use_url(self, url: str) -> None:
        """The next sessions are opened by this one, which leads to the same database; any thread may call it."""
        self._access = replace(self._access, url=url)

    def open(self) -> ShardImage:
        """Take the shard over: lock, new epoch, then read what the last owner left.

        Raises OwnershipLostError when a living owner has it, or the server is not durable, and SessionLostError
        when it cannot be reached.
        """
        try:
            check_current(self._access.url, SchemaKind.SHARD)
        except (MigrationError, UnavailableError) as error:
            raise OwnershipLostError(str(error)) from error
        self._connect()
        with self._closing_on_error():
            if not self._take_lock(lambda _, owner: owner == self._access.owner or self._owner_is_dead(owner)):
                owner = self._rows(sql.READ_WRITER)[0][1].decode()
                raise OwnershipLostError(f"shard {self._access.shard_id} is owned by {owner!r}")
            written = self._rows(sql.READ_WRITER)[0]
            self.epoch = self._take_epoch(written[0])
            with self._session.cursor() as cursor:
                taken = cursor.execute(sql.TAKE_WRITER, (self.epoch, self._access.owner, self.epoch))
            if taken:
                self._unpack_all()
            self._session.commit()
            if not taken:
                raise OwnershipLostError(f"shard {self._access.shard_id} was taken by epoch {written[0]} meanwhile")
            return self._read_image()

    def reopen(self) -> int:
        """Take the lock again after SessionLostError, as the same owner. Returns the last transaction's number.

        Raises OwnershipLostError when there was another owner since, SessionLostError when it is worth another try.
        """
        self._connect()
        with self._closing_on_error():
            self._last_number()
            if not self._take_lock(lambda session_id, _: session_id == self._owning_session_id):
                raise SessionLostError(f"shard {self._access.shard_id}: the lost session still holds the lock")
            # Only now is the lost session's last transaction over for certain.
            return self._last_number()

    def _last_number(self) -> int:
        """The number of the shard's last transaction. Raises OwnershipLostError when it has another owner."""
        epoch, owner, number, *_ = self._rows(sql.READ_WRITER)[0]
        self._session.commit()
        if epoch != self.epoch:
            raise OwnershipLostError(
                f"shard {self._access.shard_id} has epoch {epoch} of {owner.decode()!r}, not {self.epoch} any more"
            )
        return int(number)

    def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session._force_close()

    def interrupt(self) -> None:
        """Make a statement that is under way fail; the one method that another thread may call."""
        for session in (self._session, self._snapshot):
            _interrupt(session)

    def is_session_lost(self) -> bool:
        """Whether the server has ended the session; to be asked when no call is under way. Does not block."""
        if self._session is None or self._session._sock is None:
            return True
        poll = select.poll()
        poll.register(self._session._sock, select.POLLIN)
        # It says nothing unasked, but that it goes.
        return bool(poll.poll(0))

    def check(self) -> list[str]:
        """Why the server could lose acknowledged items now; empty when it cannot. Raises SessionLostError."""
        if self._access.allow_undurable:
            return []
        self._require_session()
        with self._losing_session():
            problems = check_durable(self._session)
            self._session.commit()
            return problems

    async def now_ms(self) -> int:
        """The shard server's clock, asked on the event loop. Raises SessionLostError."""
        self._require_session()
        with self._losing_session():
            (((now_ms,),),) = await run_script(self._session, [sql.NOW_MS])
            return int(now_ms)

    async def run(self, transaction: Transaction) -> TransactionResult:
        """Run one transaction and commit it, on the event loop.

        Raises TransactionFailedError (nothing happened; DeadlockError and NoWritesError say why) or
        SessionLostError with the result so far as `result` (whether it happened is unknown).
        """
        self._require_session()
        result = TransactionResult()
        writes: Writes | None = None
        answers: list[Rows] = []
        try:
            reads = read_statements(transaction, self._mogrify)
            if reads:
                take_reads(transaction, await run_script(self._session, reads), result)
            writes = write_script(transaction, result, self.epoch, self._mogrify, self._inserts)
            await run_script(self._session, writes.statements, answers, writes.ahead)
            take_look_ups(writes.look_up_count, answers, result)
        except (pymysql.err.Error, OSError) as error:
            # The last one is COMMIT: an error in answer to it does not say how far it came.
            commit_failed = writes is not None and len(answers) >= len(writes.statements) - 1
            if is_lost(error) or commit_failed:
                raise SessionLostError(str(error), result) from error
            await self._rollback(error, result)
            raise self._refusal(error) from error
        return result

    def _refusal(self, error: Exception) -> TransactionFailedError | OwnershipLostError:
        """What an error of the server means for a transaction that is rolled back."""
        code = error.args[0]
        if code == ER.BAD_NULL_ERROR:
            return OwnershipLostError(f"shard {self._access.shard_id} has another epoch than {self.epoch}")
        if code == ER.LOCK_DEADLOCK:
            return DeadlockError(str(error))
        if code in _READ_ONLY_CODES:
            return ReadOnlyError(str(error))
        if code in _DISK_FULL_CODES:
            return DiskFullError(str(error))
        return TransactionFailedError(str(error))

    async def _rollback(self, cause: Exception, result: TransactionResult) -> None:
        """All of it: the server itself undoes but one statement when a lock wait times out."""
        try:
            await run_script(self._session, [sql.ROLLBACK])
        except (pymysql.err.Error, OSError):
            raise SessionLostError(str(cause), result) from cause

    def _mogrify(self, statement: str, arguments: tuple[object, ...]) -> str:
        with self._session.cursor() as cursor:
            text: str = cursor.mogrify(statement, arguments)
            return text

    def _rows(self, statement: str, *arguments: object) -> Any:
        with self._session.cursor() as cursor:
            cursor.execute(statement, arguments)
            return cursor.fetchall()

    def _connect(self) -> None:
        """A new session, on a server that is durable."""
        self.close()
        with self._losing_session():
            self._session = connect(self._access.url)
            self._inserts = prepare_inserts(self._session)
        if self._inserts is None:
            _log.warning("inserts_not_prepared", shard=self._access.shard_id)
        with self._closing_on_error():
            problems = self.check()
            if problems:
                raise OwnershipLostError(
                    f"shard {self._access.shard_id}: its server can lose acknowledged items: {'; '.join(problems)}"
                )

    def _take_lock(self, may_kill: Callable[[int, str], bool]) -> bool:
        """Whether this session holds the lock now.

        A holder that `may_kill` (its session id, its host) gives free is killed, so that the next try gets it.
        """
        if self._rows(sql.LOCK_SHARD, self._access.lock_name)[0][0]:
            self._owning_session_id = self._session.thread_id()
            return True
        holder = self._rows(sql.LOCK_HOLDER, self._access.lock_name)[0][0]
        owner = self._rows(sql.READ_WRITER)[0][1].decode()
        if holder is not None and may_kill(int(holder), owner):
            self._rows(sql.KILL_SESSION.format(int(holder)))
        return False

    def _require_session(self) -> None:
        if self._session is None:
            raise SessionLostError(f"shard {self._access.shard_id} has no session")

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

    def _read_image(self) -> ShardImage:
        self._open_snapshot()
        writer = self._rows(sql.READ_WRITER)[0]
        claims = []
        for claim_id, due_at, packed in self._rows(sql.READ_CLAIMS, writer[4]):
            claims.append((claim_id, due_at, unpack_entries(packed)))
        claimed: dict[int, ItemRow] = {}
        for text, _ in key_conditions("id", {key for _, _, entries in claims for key, _ in entries}):
            claimed.update((row[0], ItemRow(*row)) for row in self._rows(sql.READ_HEADS.format(text)))
        image = ShardImage(
            epoch=self.epoch,
            transaction_number=writer[2],
            delay_checkpoint=writer[3],
            topic_number_last=writer[5],
            now_ms=int(self._rows(sql.NOW_MS)[0][0]),
            topics=list(self._rows(sql.READ_TOPICS)),
            count=partial(_count, self._snapshot),
            claims=claims,
            claimed_rows=claimed,
        )
        self._session.commit()
        return image

    def _unpack_all(self) -> None:
        """Give rows to all that is left in packs, with the take-over: only who put them together knows them."""
        removals = self._rows(sql.READ_REMOVALS)
        gone = {key for _, packed in removals for key in unpack_keys(packed)}
        while found := self._rows(sql.READ_FIRST_PACK):
            ((pack_id, packed),) = found
            rows = [unpacked_row(row) for row in unpack_items(packed) if row.key not in gone]
            for values in chunks_by_bytes(rows):
                self._rows(sql.INSERT_ITEMS.format(values))
            self._rows(sql.DELETE_PACKS.format(f"id = {pack_id:d}", 1))
        for condition, count in key_conditions("id", [removal_id for removal_id, _ in removals]):
            self._rows(sql.DELETE_REMOVALS.format(condition, count))

    def _open_snapshot(self) -> None:
        """A session that sees the rows as they are now, between the last owner's transactions and ours."""
        _interrupt(self._snapshot)  # Nobody waits for the count of an earlier take-over.
        self._snapshot = connect(self._access.url, limits.COUNT_MS_MAX)
        with self._snapshot.cursor() as cursor:
            cursor.execute(sql.REPEATABLE)
            cursor.execute(sql.SNAPSHOT)


def _interrupt(session: Any) -> None:
    """Make a statement of the session that is under way fail."""
    if session is not None and session._sock is not None:
        with suppress(OSError):  # It has failed by itself meanwhile.
            session._sock.shutdown(socket.SHUT_RDWR)


def _count(snapshot: Any) -> LaneCounts:
    """Count what the snapshot sees, and close it."""
    try:
        with snapshot.cursor() as cursor:
            cursor.execute(sql.COUNT_LANES)
            lanes = list(cursor.fetchall())
            cursor.execute(sql.COUNT_DELAYED)
            return LaneCounts(lanes, list(cursor.fetchall()))
    except (pymysql.err.Error, OSError) as error:
        raise SessionLostError(str(error)) from error
    finally:
        snapshot._force_close()

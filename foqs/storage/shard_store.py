"""A shard in MySQL: one session that holds the shard's named lock does every write.

The lock goes with the session, so an owner that lost it cannot commit. Every transaction writes its number
into the `writer` row: after a lost answer that number tells whether the transaction happened.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import pymysql
from sqlalchemy.engine import make_url

from foqs.core import limits, order
from foqs.core.errors import UnavailableError
from foqs.storage import statements as sql
from foqs.storage.durability import check_durable
from foqs.storage.literals import chunks_by_bytes, id_chunks, item_row
from foqs.storage.migrations import MigrationError, SchemaKind, check_current
from foqs.storage.transaction import (
    TIMER_LANE,
    ClaimEntries,
    ItemRow,
    LaneCounts,
    OwnershipLostError,
    Refill,
    SessionLostError,
    ShardImage,
    Transaction,
    TransactionFailedError,
    TransactionResult,
)

_ENTRY = struct.Struct(">QI")
_LOST_SESSION_CODES = frozenset(
    {0, 1053, 1077, 1078, 1079, 1080, 1152, 1158, 1159, 1160, 1161, 1927, 2003, 2006, 2013, 2014, 2055}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardAccess:
    shard_id: int
    url: str
    lock_name: str
    owner: str
    allow_undurable: bool = False


def connect(url: str, statement_ms_max: int = limits.STATEMENT_MS_MAX) -> Any:
    """A pymysql session with bounded waits, READ COMMITTED, no autocommit."""
    parsed = make_url(url)
    query = dict(parsed.query)
    session = pymysql.connect(
        host=parsed.host or "localhost",
        port=parsed.port or 3306,
        user=parsed.username or "root",
        password=parsed.password or "",
        database=parsed.database,
        unix_socket=str(query["unix_socket"]) if "unix_socket" in query else None,
        charset="utf8mb4",
        connect_timeout=limits.CONNECT_MS_MAX // 1000,
        read_timeout=statement_ms_max // 1000,
        write_timeout=statement_ms_max // 1000,
        client_flag=pymysql.constants.CLIENT.FOUND_ROWS,
        max_allowed_packet=64 * limits.MIB,
        autocommit=False,
    )
    with session.cursor() as cursor:
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        cursor.execute("SET SESSION innodb_lock_wait_timeout = 5, lock_wait_timeout = 5, wait_timeout = 86400")
    session.commit()
    return session


class ShardStore:
    """Not thread-safe: the shard's writer thread is its only user."""

    def __init__(self, access: ShardAccess, take_epoch: Callable[[int], int], owner_is_dead: Callable[[str], bool]):
        """`take_epoch(at_least)` gives a new epoch from the meta database; `owner_is_dead(owner)` allows the KILL."""
        self._access = access
        self._take_epoch = take_epoch
        self._owner_is_dead = owner_is_dead
        self._session: Any = None
        self._snapshot: Any = None
        self.epoch = 0

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
            if not self._take_lock():
                owner = self._rows(sql.READ_WRITER)[0][1].decode()
                raise OwnershipLostError(f"shard {self._access.shard_id} is owned by {owner!r}")
            written = self._rows(sql.READ_WRITER)[0]
            self.epoch = self._take_epoch(written[0])
            with self._session.cursor() as cursor:
                taken = cursor.execute(sql.TAKE_WRITER, (self.epoch, self._access.owner, self.epoch))
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
            locked = self._take_lock()
            written = self._rows(sql.READ_WRITER)[0]
            self._session.commit()
            if written[0] != self.epoch:
                raise OwnershipLostError(
                    f"shard {self._access.shard_id} has epoch {written[0]} of {written[1].decode()!r}, "
                    f"not {self.epoch} any more"
                )
            if not locked:
                raise SessionLostError(f"shard {self._access.shard_id}: the lost session still holds the lock")
            return int(written[2])

    def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session._force_close()

    def interrupt(self) -> None:
        """Make a statement that is under way fail; the one method that another thread may call."""
        for session in (self._session, self._snapshot):
            if session is not None and session._sock is not None:
                with suppress(OSError):  # It has failed by itself meanwhile.
                    session._sock.shutdown(socket.SHUT_RDWR)

    def now_ms(self) -> int:
        """The shard server's clock. Raises SessionLostError."""
        with self._losing_session():
            now = int(self._rows(sql.NOW_MS)[0][0])
            self._session.commit()
            return now

    def check(self) -> list[str]:
        """Why the server could lose acknowledged items now; empty when it cannot. Raises SessionLostError."""
        if self._access.allow_undurable:
            return []
        with self._losing_session():
            problems = check_durable(self._session)
            self._session.commit()
            return problems

    def run(self, transaction: Transaction) -> TransactionResult:
        """Run one transaction and commit it.

        Raises TransactionFailedError (nothing happened) or SessionLostError with the result so far as
        `result` (whether it happened is unknown).
        """
        result = TransactionResult()
        try:
            with self._session.cursor() as cursor:
                self._read(cursor, transaction, result)
                self._write(cursor, transaction, result)
            self._session.commit()
        except pymysql.err.Error as error:
            code = error.args[0] if error.args else 0
            if code in _LOST_SESSION_CODES or isinstance(error, pymysql.err.InterfaceError):
                raise SessionLostError(str(error), result) from error
            self._rollback(error, result)
            raise TransactionFailedError(str(error)) from error
        except OSError as error:
            raise SessionLostError(str(error), result) from error
        return result

    def _rollback(self, cause: Exception, result: TransactionResult) -> None:
        try:
            self._session.rollback()
        except (pymysql.err.Error, OSError):
            raise SessionLostError(str(cause), result) from cause

    def _read(self, cursor: Any, transaction: Transaction, result: TransactionResult) -> None:
        for refill in transaction.refills:
            cursor.execute(*_refill_statement(refill))
            result.refilled.append(cursor.fetchall())
        for text, _ in id_chunks([item.key for item in transaction.fetches]):
            cursor.execute(sql.READ_ITEMS.format(text))
            result.fetched.update((row[0], ItemRow(*row)) for row in cursor.fetchall())

    def _write(self, cursor: Any, transaction: Transaction, result: TransactionResult) -> None:
        for text, count in id_chunks(transaction.topics_gone):
            cursor.execute(sql.DELETE_TOPICS.format(text, count))
        for topic in transaction.topics_new:
            cursor.execute(sql.INSERT_TOPICS, (topic.number, topic.namespace, topic.name.encode()))
        if transaction.inserts:
            rows = [item_row(item, delayed=item.due_at > item.enqueued_at) for item in transaction.inserts]
            for values in chunks_by_bytes(rows):
                cursor.execute(sql.INSERT_ITEMS.format(values))
        for claim in transaction.claims:
            cursor.execute(sql.INSERT_CLAIM, (claim.id, claim.due_at, _entries(claim, result)))
        for claim in transaction.claims_rewritten:
            cursor.execute(sql.REWRITE_CLAIM, (_entries(claim, result), claim.id))
        for change in sorted(transaction.rewrites, key=lambda rewrite: rewrite.key):
            cursor.execute(
                sql.REWRITE_ITEM,
                (
                    change.lane,
                    change.urgency,
                    change.due_at,
                    change.deliveries,
                    change.failed_attempts,
                    change.metadata,
                    change.death_reason,
                    change.key,
                ),
            )
        for statement, keys in (
            (sql.WAKE_ITEMS, transaction.wakes),
            (sql.DELETE_ITEMS, transaction.deletes),
            (sql.DELETE_CLAIMS, transaction.claims_gone),
        ):
            for text, count in id_chunks(keys):
                cursor.execute(statement.format(text, count))
        for text, _ in id_chunks(transaction.look_ups):
            cursor.execute(sql.READ_ITEMS.format(text))
            result.looked_up.update((row[0], ItemRow(*row)) for row in cursor.fetchall())
        marked = cursor.execute(
            sql.MARK_TRANSACTION,
            (
                transaction.number,
                transaction.delay_checkpoint,
                transaction.claim_checkpoint,
                transaction.topic_number_last,
                self.epoch,
            ),
        )
        if not marked:
            raise OwnershipLostError(f"shard {self._access.shard_id} has another epoch than {self.epoch}")

    def _rows(self, statement: str, *arguments: object) -> Any:
        with self._session.cursor() as cursor:
            cursor.execute(statement, arguments)
            return cursor.fetchall()

    def _connect(self) -> None:
        """A new session, on a server that is durable."""
        self.close()
        with self._losing_session():
            self._session = connect(self._access.url)
        with self._closing_on_error():
            problems = self.check()
            if problems:
                raise OwnershipLostError(
                    f"shard {self._access.shard_id}: its server can lose acknowledged items: {'; '.join(problems)}"
                )

    def _take_lock(self) -> bool:
        """Whether this session holds the lock; one that a dead owner still holds is freed for the next try."""
        if self._rows(sql.LOCK_SHARD, self._access.lock_name)[0][0]:
            return True
        holder = self._rows(sql.LOCK_HOLDER, self._access.lock_name)[0][0]
        owner = self._rows(sql.READ_WRITER)[0][1].decode()
        if holder is not None and (owner == self._access.owner or self._owner_is_dead(owner)):
            self._rows(sql.KILL_SESSION.format(int(holder)))
        return False

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
            claims.append((claim_id, due_at, [(key, number) for key, number in _ENTRY.iter_unpack(packed)]))
        claimed: dict[int, ItemRow] = {}
        for text, _ in id_chunks(list({key for _, _, entries in claims for key, _ in entries})):
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

    def _open_snapshot(self) -> None:
        """A session that sees the rows as they are now, between the last owner's transactions and ours."""
        self._snapshot = connect(self._access.url, limits.COUNT_MS_MAX)
        with self._snapshot.cursor() as cursor:
            cursor.execute(sql.REPEATABLE)
            cursor.execute(sql.SNAPSHOT)


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


def _entries(claim: ClaimEntries, result: TransactionResult) -> bytes:
    fetched: dict[int, ItemRow] = result.fetched
    return b"".join([_ENTRY.pack(item.key, (fetched.get(item.key) or item).deliveries + 1) for item in claim.items])


def _refill_statement(refill: Refill) -> tuple[str, tuple[int, ...]]:
    urgency, _, due_at, _, key = edge_arguments(refill.edge)
    if refill.lane == TIMER_LANE:
        return sql.REFILL_TIMERS, (due_at, due_at, key, refill.limit)
    return sql.REFILL, (refill.lane, urgency, urgency, due_at, due_at, key, refill.limit)


def edge_arguments(edge: int) -> tuple[int, int, int, int, int]:
    """The arguments (urgency, urgency, due_at, due_at, key) of a scan of what stands after `edge`."""
    if edge == order.FIRST:
        return -(1 << 31) - 1, -(1 << 31) - 1, -1, -1, 0
    urgency, due_at = order.urgency_of(edge), order.due_at_of(edge)
    return urgency, urgency, due_at, due_at, order.key_of(edge)

"""The work of a new owner on a shard's tables before it serves: it gives packed items rows and reads the rest.

`rows` runs a statement with its arguments in the owner's session and returns the rows found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

import pymysql
import structlog
from pymysql.constants import ER

from foqs.model import limits
from foqs.model.shard_place import FoundShard
from foqs.shard.port import ClaimedRow, ItemRow, LaneCounts, OwnershipLostError, ShardImage, StoredClaim
from foqs.storage.schema import statements as sql
from foqs.storage.sessions.whole_reads import only_row
from foqs.storage.shard.formats import UnknownFormatError, unpack_entries, unpack_items, unpack_keys
from foqs.storage.shard.script import chunks_by_bytes, key_conditions, stored_row_literal
from foqs.storage.shard.seen_log import SeenLogReader, read_seen_extents, read_seen_images

PACKS_AT_ONCE = 16
"""Packs that a new owner reads at once, a little more than a mebibyte at most."""
RunStatement = Callable[..., Any]
T = TypeVar("T")
_log = structlog.get_logger(__name__)
_KILL_GRANTS = ("CONNECTION ADMIN", "CONNECTION_ADMIN", "SUPER", "ALL PRIVILEGES ON *.*")
"""Each of these grants lets a user KILL other users' sessions; they belong to MariaDB, MySQL, or both."""
KILL_REMEDY = "let all hosts use one user, or grant it CONNECTION ADMIN (MySQL: CONNECTION_ADMIN)"
KILL_DENIED_CODES = frozenset({ER.KILL_DENIED_ERROR, ER.SPECIFIC_ACCESS_DENIED_ERROR})


class WriterRow(NamedTuple):
    """The writer row, with the columns of READ_WRITER."""

    epoch: int
    owner: str
    transaction_number: int
    delay_checkpoint: int
    claim_checkpoint: int
    topic_number_last: int
    session_id: int
    steady_ms: int

    def found(self, server: str) -> FoundShard:
        """Return the description of the shard on this server, for the meta database."""
        return FoundShard(server, self.epoch, self.owner, self.transaction_number)


def read_writer(rows: RunStatement) -> WriterRow:
    epoch, owner, *rest = only_row(rows(sql.READ_WRITER), "its table writer")
    return WriterRow(epoch, owner.decode(), *rest)


def kill_owner(rows: RunStatement, shard_id: int, session_id: int, owner: str) -> None:
    """End the session of a dead owner. Raises OwnershipLostError if this user is not allowed to."""
    try:
        rows(sql.KILL_SESSION.format(session_id))
    except pymysql.err.Error as error:
        if error.args[0] == ER.NO_SUCH_THREAD:
            return  # It has already ended.
        if error.args[0] not in KILL_DENIED_CODES:
            raise
        raise OwnershipLostError(
            f"shard {shard_id}: its user must not KILL session {session_id} of {owner!r}: {KILL_REMEDY}; "
            f"the server ends that session after {limits.OWNER_SILENT_MS_MAX} ms without a word from it"
        ) from error


class KillCheck:
    """Warns the operator, while a shard's owner lives, if this host could not end its session after its death."""

    def __init__(self, shard_id: int, lock_name: str) -> None:
        self._shard_id = shard_id
        self._lock_name = lock_name
        self._checked_session_id = 0

    def check(self, rows: RunStatement, session_id: int, owner: str) -> None:
        """Check once for each session that holds the lock."""
        if session_id == self._checked_session_id:
            return
        self._checked_session_id = session_id
        if not self._may_kill(rows, session_id):
            _log.warning(
                "owner_not_to_be_ended",
                shard=self._shard_id,
                owner=owner,
                error=f"this host's user must not KILL session {session_id}, which is another user's: {KILL_REMEDY}. "
                f"If the owner hangs, its shard is free only {limits.OWNER_SILENT_MS_MAX} ms later",
            )

    def _may_kill(self, rows: RunStatement, session_id: int) -> bool:
        found = rows(sql.READ_SESSION_USER, session_id)
        if found and found[0][0] == found[0][1]:
            return True
        if not found and only_row(rows(sql.LOCK_HOLDER, self._lock_name), "a lock")[0] != session_id:
            return True  # It has ended. Few users can see sessions of others.
        grants = [grant for (grant,) in rows(sql.READ_GRANTS)]
        return any(name in grant for grant in grants for name in _KILL_GRANTS)


def promote_all(rows: RunStatement, shard_id: int) -> None:
    """Give rows to all packed items, because only the owner that packed them knows them. Raises OwnershipLostError."""
    tombstones = rows(sql.READ_TOMBSTONES)
    gone: set[int] = set()
    for tombstone_id, packed in tombstones:
        gone.update(_decoded(shard_id, "tombstone", tombstone_id, unpack_keys, packed))
    while found := rows(sql.READ_FIRST_PACKS, PACKS_AT_ONCE):
        items: list[ItemRow] = []
        for pack_id, packed in found:
            items += _decoded(shard_id, "pack", pack_id, unpack_items, packed)
        items.sort(key=attrgetter("key"))  # Keys in order cost the server less.
        for values in chunks_by_bytes([stored_row_literal(row) for row in items if row.key not in gone]):
            rows(sql.INSERT_STORED_ITEMS.format(values))
        for condition, count in key_conditions("id", [pack_id for pack_id, _ in found]):
            rows(sql.DELETE_PACKS.format(condition, count))
    for condition, count in key_conditions("id", [tombstone_id for tombstone_id, _ in tombstones]):
        rows(sql.DELETE_TOMBSTONES.format(condition, count))


def read_image(
    rows: RunStatement,
    shard_id: int,
    epoch: int,
    last_key: int,
    count: Callable[[], LaneCounts],
    url: Callable[[], str],
) -> ShardImage:
    """Read the state of a shard, as the last owner left it. Raises OwnershipLostError.

    `url` returns the shard's current URL, and `count` counts its rows.
    """
    writer = read_writer(rows)
    claims = read_claims(rows, shard_id, writer.claim_checkpoint)
    claimed = read_claimed(rows, claims)
    topics = list(rows(sql.READ_TOPICS))
    seen, images = read_seen_extents(rows), read_seen_images(rows)
    forget_moved(rows, {extent.namespace for extent in seen})
    named = {namespace for _, namespace, _ in topics} | {extent.namespace for extent in seen}
    return ShardImage(
        epoch=epoch,
        last_key=last_key,
        transaction_number=writer.transaction_number,
        delay_checkpoint=writer.delay_checkpoint,
        topic_number_last=writer.topic_number_last,
        now_ms=int(only_row(rows(sql.NOW_MS), "the time")[0]),
        steady_ms=writer.steady_ms,
        topics=topics,
        namespaces=read_namespaces(rows, named),
        count=count,
        claims=claims,
        claimed_rows=claimed,
        seen=seen,
        seen_images=images,
        seen_log=SeenLogReader(url, shard_id) if seen else None,
        holding=[namespace for (namespace,) in rows(sql.READ_HOLDING)],
    )


def read_claims(rows: RunStatement, shard_id: int, checkpoint: int) -> list[StoredClaim]:
    """Read the claim journal from the claim checkpoint on. Raises OwnershipLostError."""
    return [
        StoredClaim(claim_id, due_at, bool(ahead), _decoded(shard_id, "claim", claim_id, unpack_entries, packed))
        for claim_id, due_at, ahead, packed in rows(sql.READ_CLAIMS, checkpoint)
    ]


def read_claimed(rows: RunStatement, claims: Iterable[StoredClaim]) -> dict[int, ClaimedRow]:
    """Return, by key, the remaining rows of the items that the claims name."""
    claimed: dict[int, ClaimedRow] = {}
    for text, _ in key_conditions("id", {key for claim in claims for key, _ in claim.entries}):
        found = [ClaimedRow._make(map(int, integers.split())) for (integers,) in rows(sql.READ_CLAIMED.format(text))]
        claimed.update([(row.key, row) for row in found])
    return claimed


def read_namespaces(rows: RunStatement, used: set[int]) -> list[tuple[int, bytes]]:
    """Return number and name of the used namespaces and of the one with the greatest number; delete the others."""
    found = list(rows(sql.READ_NAMESPACES))
    gone = {number for number, _ in found[:-1]} - used
    for condition, count in key_conditions("number", gone):
        rows(sql.DELETE_NAMESPACES.format(condition, count))
    return [(number, name) for number, name in found if number not in gone]


def forget_moved(rows: RunStatement, used: set[int]) -> None:
    """Delete the records of ids that came with slots, for namespaces that no longer have a log."""
    for namespace, *_ in rows(sql.READ_ARRIVED):
        if namespace not in used:
            rows(sql.FORGET_ARRIVED, namespace)


def _decoded(shard_id: int, table: str, row_id: int, decode: Callable[[bytes], T], packed: bytes) -> T:
    """Decode a row. Raises OwnershipLostError, because an owner must be able to read all of its shard."""
    try:
        return decode(packed)
    except UnknownFormatError as error:
        raise OwnershipLostError(f"shard {shard_id}: row {row_id} of table {table} {error}") from error

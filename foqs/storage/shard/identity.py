"""The identity of a database: its cluster and its shard, so that no other cluster or shard uses it.

The place of a shard is a text, and two texts can lead to one database. docs/decisions/0038-whose-database.md.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pymysql
import structlog
from pymysql.constants import ER

from foqs.model.cluster import ShardIdentity, identity_problem, lost_database_problem
from foqs.model.errors import UnavailableError
from foqs.model.shard_place import FoundShard
from foqs.shard.port import OwnershipLostError
from foqs.storage.schema import statements as sql
from foqs.storage.sessions.session import connect
from foqs.storage.sessions.whole_reads import only_row, without_end

_MISSING_CODES = frozenset({ER.BAD_DB_ERROR, ER.NO_SUCH_TABLE})

RunStatement = Callable[..., Any]
_log = structlog.get_logger(__name__)


class ClusterId:
    """The cluster's id in this process, read from the meta database and constant once known.

    The host reads it at its start. Stores confirm it on their threads during a take-over, which makes an id if none
    exists, or restores the id of the shards. `Namespaces` writes it back to a meta database that has lost it.
    """

    def __init__(
        self,
        record: Callable[[bytes], bytes],
        make: Callable[[], bytes],
        read_in_shards: Callable[[], bytes],
        epoch_of: Callable[[int], int] = lambda _: 0,
    ) -> None:
        """Set the functions that read and make the id, all of which block.

        `record(found)` returns the id in the meta database, storing `found` if it had none. `make` makes an id there.
        Both raise UnavailableError. `read_in_shards` returns the id in the databases of other shards, or nothing.
        `epoch_of(shard_id)` returns the last epoch in the meta database of a shard, or 0, and raises UnavailableError.
        """
        self.known = b""
        """Empty until the id is known."""
        self._record = record
        self._make = make
        self._read_in_shards = read_in_shards
        self.epoch_of = epoch_of
        self._lock = threading.Lock()

    def read(self) -> bytes:
        """Read the id from the meta database, if it has one. Raises UnavailableError."""
        with self._lock:
            self.known = self.known or self._record(b"")
            return self.known

    def confirm(self, found: bytes) -> bytes:
        """Return the id for the take-over of a shard whose database has `found`, or nothing. Raises UnavailableError.

        Other shards are asked before an id is made, because a shard with another id could not be served.
        """
        with self._lock:
            self.known = self.known or self._record(found) or self._find()
            return self.known

    def _find(self) -> bytes:
        """Find or make an id if neither the meta database nor the shard has one."""
        return self._record(self._read_in_shards()) or self._make()

    def restore(self) -> None:
        """Write the known id to a meta database that is new, or was restored. Raises UnavailableError."""
        known = self.known
        if known and (recorded := self._record(known)) != known:
            _log.error("cluster_ids_differ", known=known.hex(), meta=recorded.hex())


def read_identity(rows: RunStatement) -> ShardIdentity | None:
    """Read the identity of the database; None before its first take-over."""
    found = [ShardIdentity(cluster, shard_id) for cluster, shard_id in rows(sql.READ_IDENTITY)]
    return found[0] if found else None


def check_identity(found: ShardIdentity | None, mine: ShardIdentity) -> None:
    """Raise OwnershipLostError unless this shard can be served from the database."""
    if problem := identity_problem(found, mine):
        raise OwnershipLostError(f"shard {mine.shard_id} is not taken: {problem}")


def confirm_identity(rows: RunStatement, shard_id: int, cluster: ClusterId, epoch: int) -> None:
    """Write the shard's identity to the database, in a transaction that the caller commits before it takes an epoch.

    So every shard with an epoch in the meta database has an identity, or, from an earlier version, the epoch of an
    owner. `epoch` is the epoch in the database. The caller holds the shard's lock. Raises OwnershipLostError if the
    database belongs to another shard, even one that was faster just now, because two shards have two locks. Raises it
    also if hosts have served the shard but this database is empty. Raises UnavailableError if the id of the cluster, or
    the epoch in the meta database, cannot be read.
    """
    found = read_identity(rows)
    if found is None and not epoch and (given := cluster.epoch_of(shard_id)):
        raise OwnershipLostError(f"shard {shard_id} is not taken: {lost_database_problem(shard_id, given)}")
    mine = ShardIdentity(cluster.confirm(found.cluster if found is not None else b""), shard_id)
    if found is None:
        rows(sql.KEEP_IDENTITY, *mine)
        found = read_identity(rows)
    check_identity(found, mine)


def identity_at(shard_id: int, url: str) -> ShardIdentity | None:
    """Read the identity of the database at a shard's URL; None if it has none.

    Raises UnavailableError if it cannot be read.
    """
    try:
        with closing(connect(url)) as session, session.cursor() as cursor:
            cursor.execute(sql.READ_IDENTITY)
            found = without_end(cursor.fetchall())
    except (pymysql.err.Error, OSError) as error:
        if error.args and error.args[0] in _MISSING_CODES:
            return None
        raise UnavailableError(f"the database of shard {shard_id} cannot be read: {error}") from error
    return ShardIdentity(*found[0]) if found else None


def found_at(shard_id: int, url: str) -> FoundShard:
    """Read the state of the database at a shard's URL, without the server. Raises UnavailableError."""
    try:
        with closing(connect(url)) as session, session.cursor() as cursor:
            cursor.execute(sql.READ_WRITER)
            epoch, owner, number, *_ = only_row(cursor.fetchall(), "its table writer")
    except (pymysql.err.Error, OSError) as error:
        raise UnavailableError(f"the database of shard {shard_id} cannot be read: {error}") from error
    return FoundShard("", epoch, owner.decode(), number)


def keep_identity_at(url: str, identity: ShardIdentity) -> None:
    """Write this identity to a database that has none.

    Raises UnavailableError if it cannot be written, or if the database belongs to another shard.
    """
    try:
        with closing(connect(url)) as session, session.cursor() as cursor:
            cursor.execute(sql.KEEP_IDENTITY, identity)
            session.commit()
    except (pymysql.err.Error, OSError) as error:
        raise UnavailableError(f"the database of shard {identity.shard_id} cannot be written: {error}") from error
    found = identity_at(identity.shard_id, url)
    if problem := identity_problem(found, identity):
        raise UnavailableError(f"shard {identity.shard_id} is not made anew: {problem}")

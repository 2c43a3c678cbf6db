"""The identity of a database: it says of which cluster and of which shard it is, and others leave it alone.

The place of a shard is a text, and two texts may lead to one database. docs/decisions/0038-whose-database.md.
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
from foqs.shard.port import OwnershipLostError
from foqs.storage import statements as sql
from foqs.storage.session import connect
from foqs.storage.whole_reads import without_end

_MISSING_CODES = frozenset({ER.BAD_DB_ERROR, ER.NO_SUCH_TABLE})

RunStatement = Callable[..., Any]
_log = structlog.get_logger(__name__)


class ClusterId:
    """The id of the cluster, as this process knows it: what the meta database has, and once known it stays so.

    The host reads it at its start. Stores confirm it on their threads when they take a shard over: that makes one where
    there is none, or brings back the one that the shards have. `Namespaces` gives it back to a meta database that has
    lost it.
    """

    def __init__(
        self,
        tell: Callable[[bytes], bytes],
        make: Callable[[], bytes],
        told_by_shards: Callable[[], bytes],
        epoch_of: Callable[[int], int] = lambda _: 0,
    ) -> None:
        """`tell(found)` returns the id in the meta database, which is `found` from now on where it had none.

        `make` has it make one. Both raise UnavailableError. `told_by_shards` returns the id that databases of other
        shards have, or nothing. `epoch_of(shard_id)` returns the last epoch that the meta database has given for a
        shard, or 0, and raises UnavailableError. All of them block.
        """
        self.known = b""
        """Empty until it is known."""
        self._tell = tell
        self._make = make
        self._told_by_shards = told_by_shards
        self.epoch_of = epoch_of
        self._lock = threading.Lock()

    def learn(self) -> bytes:
        """Read what the meta database has, if anything. Raises UnavailableError."""
        with self._lock:
            self.known = self.known or self._tell(b"")
            return self.known

    def confirm(self, found: bytes) -> bytes:
        """The id, now that a shard is taken over whose database has `found`, or nothing. Raises UnavailableError.

        Other shards are asked before an id is made: with another id than theirs they could not be served.
        """
        with self._lock:
            self.known = self.known or self._tell(found) or self._find()
            return self.known

    def _find(self) -> bytes:
        """An id where neither the meta database nor the shard that is taken over has one."""
        return self._tell(self._told_by_shards()) or self._make()

    def give_back(self) -> None:
        """Tell a meta database that is new, or was restored, which id the cluster has. Raises UnavailableError."""
        known = self.known
        if known and (told := self._tell(known)) != known:
            _log.error("cluster_ids_differ", known=known.hex(), meta=told.hex())


def read_identity(rows: RunStatement) -> ShardIdentity | None:
    """The identity of the database; None before a shard in it was ever taken over."""
    found = [ShardIdentity(cluster, shard_id) for cluster, shard_id in rows(sql.READ_IDENTITY)]
    return found[0] if found else None


def check_identity(found: ShardIdentity | None, mine: ShardIdentity) -> None:
    """Raise OwnershipLostError unless this shard can be served from the database."""
    if problem := identity_problem(found, mine):
        raise OwnershipLostError(f"shard {mine.shard_id} is not taken: {problem}")


def confirm_identity(rows: RunStatement, shard_id: int, cluster: ClusterId, epoch: int) -> None:
    """Have the database say whose it is, in a transaction that the caller commits before it asks for an epoch.

    So every shard for which the meta database has given an epoch has an identity, or, if it is of a version before
    that, the epoch of an owner. `epoch` is the one that the database has.
    Whoever calls it has the shard's lock. Raises OwnershipLostError when it is another's, also when that one is faster:
    two shards have two locks; and when hosts have served the shard, of which this database knows nothing. Raises
    UnavailableError when the id of the cluster, or the epoch in the meta database, cannot be had.
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
    """The identity of the database at the URL, by which a shard is to be served; None where it has none.

    Raises UnavailableError when it cannot be read.
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


def keep_identity_at(url: str, identity: ShardIdentity) -> None:
    """Have a database without an identity say that it is this shard's.

    Raises UnavailableError when it cannot be written, or when it is another shard's.
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

"""The name and the id of the cluster, which all its hosts read from the meta database."""

from __future__ import annotations

import secrets

from sqlalchemy import Connection, select, update
from sqlalchemy.dialects.mysql import insert

from foqs.model.errors import InvalidArgumentError
from foqs.storage.meta.meta_hosts import BEATING_MS
from foqs.storage.meta.meta_sessions import MetaSessions, in_transaction
from foqs.storage.meta.meta_tables import CLUSTER_ID, CLUSTER_NAME, HOST, SERVER_NOW_MS

_CLUSTER_ID_BYTES = 16


class MetaCluster:
    """The tables of one row each."""

    def __init__(self, sessions: MetaSessions) -> None:
        self._sessions = sessions

    @in_transaction
    def agree_on_name(self, connection: Connection, cluster: str) -> None:
        """Agree with all hosts on the name of the cluster. Raises InvalidArgumentError for another name.

        A new name replaces the one in the database only if no host runs or ran a moment ago. Hosts of two names would
        use two locks for each shard, and take all shards from each other repeatedly.
        """
        values = {"name": cluster.encode(), "taken_at": SERVER_NOW_MS}
        connection.execute(insert(CLUSTER_NAME).prefix_with("IGNORE").values(one=1, **values))
        # The row stays locked to the end, so the second of two starting hosts sees the first one's name.
        is_fresh = CLUSTER_NAME.c.taken_at > SERVER_NOW_MS - BEATING_MS
        statement = select(CLUSTER_NAME.c.name, is_fresh.label("is_fresh")).with_for_update()
        found = connection.execute(statement).one()
        if found.name != cluster.encode():
            is_beating = HOST.c.heartbeat_at > SERVER_NOW_MS - BEATING_MS
            running = connection.execute(select(HOST.c.name).where(is_beating).order_by(HOST.c.name).limit(1)).scalar()
            if running is not None or found.is_fresh:
                raise _another_cluster(cluster, found.name.decode(), running)
        connection.execute(update(CLUSTER_NAME).values(**values))

    @in_transaction
    def id(self, connection: Connection, found: bytes) -> bytes:
        """Return the id of the cluster, storing `found` if this database has none; empty if both are empty."""
        if found:
            connection.execute(insert(CLUSTER_ID).prefix_with("IGNORE").values(one=1, id=found))
        kept: bytes = connection.execute(select(CLUSTER_ID.c.id)).scalar() or b""
        return kept

    def make_id(self) -> bytes:
        """Return the id of the cluster, making a new one if it has none."""
        return self.id(secrets.token_bytes(_CLUSTER_ID_BYTES))


def _another_cluster(mine: str, other: str, running: bytes | None) -> InvalidArgumentError:
    who = "a host that started a moment ago" if running is None else f"host {running.decode()}"
    return InvalidArgumentError(
        f"cluster is {mine!r} here, and {other!r} on {who}, with the same meta database: all hosts of one need the "
        "same name, so correct cluster or meta_url here; or, to change the name, stop those hosts and start this one "
        "10 s later"
    )

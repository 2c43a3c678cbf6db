"""The secret of the cluster in the meta database, and how it is replaced: docs/decisions/0059-rotation.md.

Hosts make the first one and read it. Only a login that can change the row, which that of hosts need not, replaces it.
"""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import Connection, select, update
from sqlalchemy.dialects.mysql import insert

from foqs.model import limits
from foqs.model.cluster_secret import ClusterSecret, HostSecrets, not_ready, unpacked_ids
from foqs.model.errors import AlreadyExistsError, NotFoundError, UnavailableError
from foqs.model.meta_bounds import HOST_ROW_READ_MS
from foqs.model.secret import Secret
from foqs.storage.meta import meta_statements as sql
from foqs.storage.meta.meta_sessions import MetaSessions, in_transaction
from foqs.storage.meta.meta_tables import CLUSTER_SECRET, SERVER_NOW_MS

_SECRET = CLUSTER_SECRET.c
LOCK_SECRET = select(_SECRET.secret, _SECRET.next, _SECRET.began_at).where(_SECRET.one == 1).with_for_update()
_CHANGE = update(CLUSTER_SECRET).where(_SECRET.one == 1)
_SHOWN_MAX = 5


class Rotation(NamedTuple):
    """The secret, and the secrets that the hosts of the last minute know."""

    secret: ClusterSecret
    hosts: list[HostSecrets]


class MetaSecrets:
    """The table of one row, next to that of the hosts."""

    def __init__(self, sessions: MetaSessions) -> None:
        self._sessions = sessions

    @in_transaction
    def keep(self, connection: Connection, proposed: Secret) -> None:
        """Make `proposed` the secret of a cluster that has none."""
        # Values of the statement itself would stay in SQLAlchemy's cache of statements.
        connection.execute(insert(CLUSTER_SECRET).prefix_with("IGNORE"), {"one": 1, "secret": proposed.reveal()})

    def read(self) -> ClusterSecret | None:
        """Return the secret, in one round trip and without a lock; None before the first host has started."""
        (rows,) = self._sessions.script(lambda run: run((sql.READ_SECRETS, ())))
        return _secret_of(*rows[0]) if rows else None

    @in_transaction
    def rotation(self, connection: Connection) -> Rotation:
        """Return the knowledge of each host. Raises NotFoundError before the first host has started."""
        found = connection.execute(select(_SECRET.secret, _SECRET.next, _SECRET.began_at)).one_or_none()
        if found is None:
            raise _no_secret()
        return Rotation(_secret_of(*found), _hosts(connection))

    @in_transaction
    def begin(self, connection: Connection, proposed: Secret) -> ClusterSecret:
        """Propose the next secret. Raises AlreadyExistsError while one is proposed, and NotFoundError."""
        before = _locked(connection)
        if before.next is not None:
            raise AlreadyExistsError(
                f"a new secret, {before.ids[-1]}, is already on its way: see foqs peers show, and end that rotation "
                "with foqs peers new-secret --finish, or --cancel to go back to the old secret"
            )
        connection.execute(_CHANGE.values(began_at=SERVER_NOW_MS), {"next": proposed.reveal()})
        return _locked(connection)

    @in_transaction
    def finish(self, connection: Connection) -> ClusterSecret:
        """Make the next secret the only one. Raises UnavailableError while a host does not know it, and NotFoundError.

        A host counts for HOST_ROW_READ_MS after its last heartbeat, because until then it can return as it was.
        """
        before = _locked(connection)
        if before.next is None:
            raise NotFoundError(_NONE_PROPOSED)
        if waiting := not_ready(_hosts(connection), before):
            raise UnavailableError(_cannot_finish(waiting, before), nothing_done=True)
        connection.execute(_CHANGE, {"secret": before.next.reveal(), "next": b""})
        return _locked(connection)

    @in_transaction
    def cancel(self, connection: Connection) -> ClusterSecret:
        """Drop the next secret. Raises NotFoundError if none is proposed."""
        if _locked(connection).next is None:
            raise NotFoundError(_NONE_PROPOSED)
        connection.execute(_CHANGE, {"next": b""})
        return _locked(connection)


_NONE_PROPOSED = "no new secret is on its way: begin with foqs peers new-secret"


def _locked(connection: Connection) -> ClusterSecret:
    """Return the row, which stays locked to the end, so that of two operators one comes first."""
    found = connection.execute(LOCK_SECRET).one_or_none()
    if found is None:
        raise _no_secret()
    return _secret_of(*found)


def _hosts(connection: Connection) -> list[HostSecrets]:
    values = (HOST_ROW_READ_MS, HOST_ROW_READ_MS, limits.HOSTS_MAX + 1)
    rows = connection.exec_driver_sql(sql.READ_SECRETS_OF_HOSTS, values).all()
    if len(rows) > limits.HOSTS_MAX:
        raise UnavailableError(
            f"more than {limits.HOSTS_MAX} hosts have beaten within a minute, which is the limit: stop some",
            nothing_done=True,
        )
    return [HostSecrets(name.decode(), age_ms, unpacked_ids(packed)) for name, age_ms, packed in rows]


def _secret_of(current: bytes, proposed: bytes, began_at_ms: int) -> ClusterSecret:
    return ClusterSecret(Secret(current), Secret(proposed) if proposed else None, began_at_ms)


def _no_secret() -> NotFoundError:
    return NotFoundError("the cluster has no secret yet: start a host, which makes it")


def _cannot_finish(waiting: list[HostSecrets], secret: ClusterSecret) -> str:
    named = [
        f"{host.host_id} ({host.state(secret).value}, last heartbeat {host.seen_ms} ms ago)"
        for host in waiting[:_SHOWN_MAX]
    ]
    more = f" and {len(waiting) - _SHOWN_MAX} others" if len(waiting) > _SHOWN_MAX else ""
    return (
        f"not all hosts know the new secret {secret.ids[-1]}: {', '.join(named)}{more}; try again, upgrade the hosts "
        f"of an older build, and wait until dead ones have not beaten for {HOST_ROW_READ_MS // 1000} s"
    )

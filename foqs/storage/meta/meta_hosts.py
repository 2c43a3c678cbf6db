"""The hosts in the meta database: their heartbeats, and their sessions once they are dead."""

from __future__ import annotations

from typing import NamedTuple

import pymysql
from pymysql.constants import ER
from sqlalchemy import Connection, delete, select

from foqs.model import limits
from foqs.model.cluster import PROCESS_MARK, HostRow
from foqs.model.cluster_secret import packed_ids, unpacked_ids
from foqs.model.errors import UnavailableError
from foqs.model.meta_bounds import HOST_ROW_MS, HOST_ROW_READ_MS, HOSTS_SWEPT_MAX
from foqs.storage.meta import meta_statements as sql
from foqs.storage.meta.meta_scripts import RunScript
from foqs.storage.meta.meta_sessions import MetaSessions, in_transaction, marks_of
from foqs.storage.meta.meta_tables import HOST, SERVER_NOW_MS
from foqs.storage.shard.take_over import KILL_DENIED_CODES

BEATING_MS = 10 * limits.SECOND_MS
"""A host with a heartbeat in this time counts as running when another host starts with another membership."""
NAMESAKE_ROW_MS = limits.MINUTE_MS
"""A starting host deletes the rows of earlier processes of its name that are older than this."""

_ELSEWHERE = 2
"""The state of a host with another membership than this database. Hosts that beat here count it as having no shards."""


class EndedSessions(NamedTuple):
    """The numbers of a dead host's sessions that were ended, and that could not be ended."""

    ended_count: int
    denied_count: int
    """Sessions of another database user, which this host's user is not allowed to KILL."""


class MetaHosts:
    """The table of hosts."""

    def __init__(self, sessions: MetaSessions) -> None:
        self._sessions = sessions

    def beat(self, host: HostRow) -> list[HostRow]:
        """Record that this host is alive, with a new `beat_number`. Returns all rows of the last minute.

        It takes one round trip, and waits for no lock but one on its own row. Hosts ignore a row without new
        heartbeats. Raises UnavailableError, after the heartbeat is written, if the cluster has more than
        limits.HOSTS_MAX hosts.

        Hosts of earlier versions do not count their beats, so the time of the last one serves as their `beat_number`.
        """
        beat = (sql.BEAT, _host_values(host, int(host.is_leaving)))
        read = (sql.READ_HOSTS, (HOST_ROW_READ_MS, HOST_ROW_READ_MS, limits.HOSTS_MAX + 1))
        _, rows = self._sessions.script(lambda run: run(beat, read))
        if len(rows) > limits.HOSTS_MAX:
            # The hosts left out of the result would look dead.
            raise UnavailableError(
                f"more than {limits.HOSTS_MAX} hosts have beaten in the meta database within a minute, which is the "
                "limit: stop those that are not needed"
            )
        return [
            HostRow(
                name.decode(),
                address.decode(),
                started,
                number or at_ms,
                bool(state),
                tier.decode(),
                proof,
                bool(starts),
                unpacked_ids(secret_ids),
                None if for_peers is None else for_peers.decode(),
            )
            for name, address, started, at_ms, number, state, tier, proof, starts, secret_ids, for_peers in rows
        ]

    @in_transaction
    def beating(self, connection: Connection, *, elsewhere: bool) -> list[str]:
        """Return the hosts with a recent heartbeat that find others by this table, or not by it if `elsewhere`."""
        is_fresh = HOST.c.heartbeat_at > SERVER_NOW_MS - BEATING_MS
        is_of_kind = HOST.c.state == _ELSEWHERE if elsewhere else HOST.c.state != _ELSEWHERE
        rows = connection.execute(select(HOST.c.name).where(is_fresh, is_of_kind).order_by(HOST.c.name)).all()
        return [row.name.decode() for row in rows]

    def note_elsewhere(self, host: HostRow) -> None:
        """Record a host that does not use this table, so that hosts which read it here can notice that."""
        self._sessions.script(lambda run: run((sql.BEAT, _host_values(host, _ELSEWHERE))))

    def forget(self, name: str) -> None:
        """Delete the rows of earlier processes of a starting host, which otherwise stay for long after a crash.

        A live process whose row looked old after a clock step writes it again with its next heartbeat.
        """
        first = (name + PROCESS_MARK).encode()
        found = (sql.FIND_NAMESAKES, (first, first + b"\xff", NAMESAKE_ROW_MS, HOSTS_SWEPT_MAX))
        self._sessions.script(lambda run: _delete_hosts(run, found, NAMESAKE_ROW_MS))

    def sweep(self) -> int:
        """Delete up to HOSTS_SWEPT_MAX rows without a heartbeat for HOST_ROW_MS, and return their number."""
        found = (sql.FIND_OLD_HOSTS, (HOST_ROW_MS, HOST_ROW_MS, HOSTS_SWEPT_MAX))
        return self._sessions.script(lambda run: _delete_hosts(run, found, HOST_ROW_MS))

    @in_transaction
    def remove(self, connection: Connection, host_id: str) -> None:
        """Delete the row of a host that ended in order. Does nothing if the row does not exist."""
        connection.execute(delete(HOST).where(HOST.c.name == host_id.encode()))

    def end_sessions(self, process_id: str) -> EndedSessions:
        """End the sessions of a dead process, which frees its row locks."""

        def end(run: RunScript) -> EndedSessions:
            marks = marks_of(self._sessions.database, process_id)
            held = run(*[(sql.LOCK_HOLDER, (mark,)) for mark in marks])
            ended = [_kill(run, rows[0][0]) for rows in held if rows[0][0] is not None]
            return EndedSessions(sum(ended), len(ended) - sum(ended))

        return self._sessions.script(end)


def _host_values(host: HostRow, state: int) -> tuple[object, ...]:
    """Return the arguments of sql.BEAT."""
    return (
        host.id.encode(), host.address.encode(), host.started_at_ms, host.beat_number, state,
        host.tier.encode(), host.proof, int(host.is_starting),
        packed_ids(host.secret_ids), None if host.peer_address is None else host.peer_address.encode(),
    )  # fmt: skip


def _delete_hosts(run: RunScript, found: tuple[str, tuple[object, ...]], age_ms: int) -> int:
    (rows,) = run(found)
    if rows:
        run(*[(sql.DELETE_OLD_HOST, (name, age_ms, age_ms)) for (name,) in rows])
    return len(rows)


def _kill(run: RunScript, session_id: int) -> bool:
    try:
        run((sql.KILL_SESSION.format(session_id), ()))
    except pymysql.err.Error as error:
        if error.args[0] == ER.NO_SUCH_THREAD:
            return True  # It has already ended.
        if error.args[0] in KILL_DENIED_CODES:
            return False
        raise
    return True

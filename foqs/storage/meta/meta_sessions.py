"""The marks of a host's sessions with the meta database, by which other hosts end them once the host is dead.

A mark is a named lock of the server. It ends with its session, so it never points at another session. A host that hangs
in the middle of a transaction holds row locks, and other hosts wait for them until its session ends.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from hashlib import sha256
from typing import Any, NamedTuple, TypeVar

import pymysql
from pymysql.constants import ER

from foqs.model.meta_bounds import META_SESSIONS_MARKED_MAX
from foqs.storage.meta import meta_statements as sql
from foqs.storage.meta.meta_scripts import RunScript
from foqs.storage.shard.take_over import KILL_DENIED_CODES

T = TypeVar("T")


class EndedSessions(NamedTuple):
    """The numbers of a dead host's sessions that were ended, and that could not be ended."""

    ended_count: int
    denied_count: int
    """Sessions of another database user, which this host's user is not allowed to KILL."""


class MetaSessions(ABC):
    """A part of foqs.storage.meta.meta_store.MetaStore, which documents the common errors of these methods."""

    @abstractmethod
    def _run_scripts(self, work: Callable[[RunScript], T]) -> T: ...

    @property
    @abstractmethod
    def _database(self) -> str: ...

    def end_sessions(self, process_id: str) -> EndedSessions:
        """End the sessions of a dead process, which frees its row locks."""

        def end(run: RunScript) -> EndedSessions:
            marks = marks_of(self._database, process_id)
            held = run(*[(sql.LOCK_HOLDER, (mark,)) for mark in marks])
            ended = [_kill(run, rows[0][0]) for rows in held if rows[0][0] is not None]
            return EndedSessions(sum(ended), len(ended) - sum(ended))

        return self._run_scripts(end)


def marks_of(database: str, process_id: str) -> list[str]:
    """Return the lock names for the sessions of a process, one name per session."""
    of_process = sha256(f"{database} {process_id}".encode()).hexdigest()[:32]
    return [f"foqs.meta.{of_process}.{number}" for number in range(META_SESSIONS_MARKED_MAX)]


def mark(session: Any, database: str, process_id: str) -> None:
    """Mark a new session with the first free lock name of the process.

    A session beyond META_SESSIONS_MARKED_MAX has no mark; the server ends it after a long silence.
    """
    if process_id:
        tries = " OR ".join([f"GET_LOCK('{name}', 0)" for name in marks_of(database, process_id)])
        session.query(f"SET @foqs_mark = ({tries})")


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

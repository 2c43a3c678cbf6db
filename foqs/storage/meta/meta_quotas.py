"""The books of quotas in the meta database (foqs.model.grants): one row per namespace, used by one host at a time."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping

import pymysql
from pymysql.constants import ER
from sqlalchemy import Connection, delete

from foqs.model.errors import UnavailableError
from foqs.model.grants import Ask, Grant, GrantBook
from foqs.storage.meta import meta_statements as sql
from foqs.storage.meta.meta_scripts import RunScript, Statement
from foqs.storage.meta.meta_sessions import MetaSessions
from foqs.storage.meta.meta_tables import QUOTA

Answer = Grant | UnavailableError

_ERA_MAX = (1 << 32) - 1


class MetaQuotas:
    """The table of books."""

    def __init__(self, sessions: MetaSessions) -> None:
        self._sessions = sessions

    def ask(self, host_name: str, asks: Mapping[int, Ask], *, waits: bool = False) -> dict[int, Answer]:
        """Ask the books of namespaces, by number, for one host. A deleted namespace is not in the result.

        All answers are from one moment, because the time is read once all books are locked. It takes two round trips,
        and one more if a book is new. A book that another session holds, or whose format this version does not know,
        gets an error for an answer and certainly stays unchanged; it does not delay the other books. With `waits` the
        call waits for the locks, for up to two seconds; after that every answer is this error.
        """
        host, lock = number_of(host_name), sql.WAIT_FOR_BOOKS if waits else sql.LOCK_BOOKS

        def ask_all(run: RunScript) -> dict[int, Answer]:
            answers, missing = _ask_books(run, asks, host, lock)
            if missing:
                run((sql.MAKE_BOOKS.format(_listed(missing)), ()))
                answers |= _ask_books(run, {number: asks[number] for number in missing}, host, lock)[0]
            return answers

        try:
            return self._sessions.script(ask_all)
        except UnavailableError as error:
            if not _is_lock_timeout(error.__cause__):
                raise
            return {number: locked_elsewhere() for number in asks}


def _ask_books(run: RunScript, asks: Mapping[int, Ask], host: int, lock: str) -> tuple[dict[int, Answer], list[int]]:
    """Return the answers of the existing books, and the namespaces that have no book yet."""
    listed = _listed(asks)
    _, there, books, limit_rows, ((now_ms,),) = run(
        (sql.BEGIN, ()),
        (sql.FIND_BOOKS.format(listed), ()),
        (lock.format(listed), ()),
        (sql.READ_LIMITS.format(listed), ()),
        (sql.READ_NOW, ()),
    )
    limits: dict[int, int] = dict(limit_rows)
    packed: dict[int, bytes] = dict(books)
    answers: dict[int, Answer] = {}
    written: list[Statement] = []
    for number in sorted(limits):
        if number not in packed:
            answers[number] = locked_elsewhere()
            continue
        try:
            answers[number], book = settle(packed[number], host, asks[number], limits[number], now_ms)
        except UnavailableError as error:
            answers[number] = error
        else:
            written.append((sql.WRITE_BOOK, (book, number)))
    run(*written, (sql.COMMIT, ()))
    known = {number for (number,) in there} | packed.keys()
    return answers, sorted(limits.keys() - known)


def locked_elsewhere() -> UnavailableError:
    """Return the answer for a book that another session has locked."""
    return UnavailableError("the book of the quota is another session's at the moment")


def _is_lock_timeout(error: BaseException | None) -> bool:
    return isinstance(error, pymysql.err.OperationalError) and error.args[0] == ER.LOCK_WAIT_TIMEOUT


def _listed(numbers: Collection[int]) -> str:
    return ", ".join([f"{number:d}" for number in sorted(numbers)])


def settle(packed: bytes, host: int, ask: Ask, limit: int, now_ms: int) -> tuple[Grant, bytes]:
    """Ask a packed book, or begin one if it is empty. Returns the answer and the new packed book."""
    try:
        book = GrantBook.unpack(packed) if packed else GrantBook(now_ms % _ERA_MAX + 1)
    except ValueError as error:
        raise UnavailableError(f"the quotas in the meta database are of another version of foqs: {error}") from error
    answer = book.ask(host, ask, limit, now_ms)
    return answer, book.pack()


def number_of(host_name: str) -> int:
    """Return a host's number in the book. Two hosts with one number count as one when tokens are scarce."""
    return zlib.crc32(host_name.encode())


def delete_quota_of(connection: Connection, namespace: int) -> None:
    """Delete the book of a namespace that is being deleted."""
    connection.execute(delete(QUOTA).where(QUOTA.c.namespace == namespace))

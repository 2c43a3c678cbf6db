"""The books of quotas in the meta database (foqs.model.grants): one row a namespace, asked by one host at a time."""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from sqlalchemy import Connection, bindparam, delete, select, update
from sqlalchemy.dialects.mysql import insert

from foqs.model.errors import UnavailableError
from foqs.model.grants import Ask, Grant, GrantBook
from foqs.storage.meta_tables import NAMESPACE, QUOTA, SERVER_NOW_MS

T = TypeVar("T")

_ERA_MAX = (1 << 32) - 1
_LIMITS = select(NAMESPACE.c.number, NAMESPACE.c.enqueues_per_minute_max)
_BOOKS = select(QUOTA.c.namespace, QUOTA.c.book).order_by(QUOTA.c.namespace).with_for_update()
_NOW = select(SERVER_NOW_MS)
_WRITE = update(QUOTA).where(QUOTA.c.namespace == bindparam("of")).values(book=bindparam("packed"))


class MetaQuotas(ABC):
    """A part of foqs.storage.meta.MetaStore, which says what its methods raise besides."""

    @abstractmethod
    def _retry_deadlocks(self, work: Callable[[Connection], T]) -> T: ...

    def ask_quotas(self, host_name: str, asks: Mapping[int, Ask]) -> dict[int, Grant]:
        """Ask the books of namespaces, by number, for one host. A namespace that is gone is not in the result.

        All answers are of one moment: the time is read once all books are locked. Raises UnavailableError for a book of
        a format that this version does not know.
        """
        numbers = sorted(asks)
        host = number_of(host_name)

        def ask(connection: Connection) -> dict[int, Grant]:
            books = _lock_books(connection, numbers)
            rows = connection.execute(_LIMITS.where(NAMESPACE.c.number.in_(numbers))).all()
            limit_by_number = {row.number: row.enqueues_per_minute_max for row in rows}
            now_ms: int = connection.execute(_NOW).scalar_one()
            answers, written = {}, []
            for number, limit in limit_by_number.items():
                if number in books:
                    answers[number], packed = settle(books[number], host, asks[number], limit, now_ms)
                    written.append({"of": number, "packed": packed})
            if written:
                connection.execute(_WRITE, written)
            return answers

        return self._retry_deadlocks(ask)


def settle(packed: bytes, host: int, ask: Ask, limit: int, now_ms: int) -> tuple[Grant, bytes]:
    """Ask a packed book; an empty one begins. Returns its answer, and the book to be written."""
    try:
        book = GrantBook.unpack(packed) if packed else GrantBook(now_ms % _ERA_MAX + 1)
    except ValueError as error:
        raise UnavailableError(f"the quotas in the meta database are of another version of foqs: {error}") from error
    answer = book.ask(host, ask, limit, now_ms)
    return answer, book.pack()


def number_of(host_name: str) -> int:
    """The number by which the book knows a host. Two hosts of one number count as one when tokens are scarce."""
    return zlib.crc32(host_name.encode())


def delete_quota_of(connection: Connection, namespace: int) -> None:
    """Delete the book of a namespace that is deleted itself."""
    connection.execute(delete(QUOTA).where(QUOTA.c.namespace == namespace))


def _lock_books(connection: Connection, numbers: Collection[int]) -> dict[int, bytes]:
    """The packed books; an empty one for a namespace that has none yet, and none for a namespace that is gone."""
    mine = _BOOKS.where(QUOTA.c.namespace.in_(numbers))
    books: dict[int, bytes] = {row.namespace: row.book for row in connection.execute(mine)}
    missing = [number for number in numbers if number not in books]
    if missing:
        # The lock lets no deletion come in between, which would leave the book behind.
        there = select(NAMESPACE.c.number).where(NAMESPACE.c.number.in_(missing)).with_for_update(read=True)
        made = [{"namespace": number, "book": b""} for number in connection.execute(there).scalars()]
        if made:
            statement = insert(QUOTA).values(made)
            connection.execute(statement.on_duplicate_key_update(namespace=statement.inserted.namespace))
            books = {row.namespace: row.book for row in connection.execute(mine)}
    return books

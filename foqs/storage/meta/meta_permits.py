"""The books of topics with a limit of items in flight (foqs.model.permit_book): one row per topic, used by one host at
a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

from sqlalchemy import Connection, text

from foqs.model.permit_book import PermitAnswer, PermitAsk, PermitBook, PermitFacts
from foqs.model.stocks import Topic
from foqs.storage.meta import meta_statements as sql
from foqs.storage.meta.meta_scripts import RunScript, Statement
from foqs.storage.meta.meta_sessions import MetaSessions

WAITED_MAX = 1_000
"""Books that one read returns."""
_NUMBER_BYTES = 4


class MetaPermits:
    """The table of books."""

    def __init__(self, sessions: MetaSessions) -> None:
        self._sessions = sessions

    def ask(self, asks: Mapping[Topic, PermitAsk]) -> dict[Topic, PermitAnswer]:
        """Ask the books of topics, in one transaction. It takes two round trips, and three more if a book is new.

        A book that another session holds, or whose format this version does not know, is not in the result, and is
        unchanged. If this raises UnavailableError, any book can have been changed or not.
        """

        def ask_all(run: RunScript) -> dict[Topic, PermitAnswer]:
            answers, missing = _ask_books(run, asks)
            if missing:
                rows = ", ".join(["(%s, '', 0)"] * len(missing))
                run((sql.MAKE_PERMITS.format(rows), tuple(map(key_of, missing))))
                answers |= _ask_books(run, {topic: asks[topic] for topic in missing})[0]
            return answers

        return self._sessions.script(ask_all)

    def waited(self) -> tuple[dict[Topic, PermitBook], int]:
        """Return books in which shards wait for permits, WAITED_MAX at most, and the time of the database's server."""

        def read(run: RunScript) -> tuple[dict[Topic, PermitBook], int]:
            rows, ((now_ms,),) = run((sql.READ_WAITED, (WAITED_MAX,)), (sql.READ_NOW, ()))
            books = {topic_of(key): book for key, packed in rows if (book := _book_of(packed)) is not None}
            return books, now_ms

        return self._sessions.script(read)


def _ask_books(run: RunScript, asks: Mapping[Topic, PermitAsk]) -> tuple[dict[Topic, PermitAnswer], list[Topic]]:
    """Return the answers of the existing books, and the topics that have no book yet."""
    keys = tuple(map(key_of, sorted(asks)))
    listed = ", ".join(["%s"] * len(keys))
    namespaces = tuple(sorted({namespace for namespace, _ in asks}))
    _, rows, ((now_ms,),), versions, removed = run(
        (sql.BEGIN, ()),
        (sql.LOCK_PERMITS.format(listed), keys),
        (sql.READ_NOW, ()),
        # Read behind the locks, so that no book grants by policies that were changed before its last change.
        (sql.READ_POLICIES_VERSIONS.format(", ".join(["%s"] * len(namespaces))), namespaces),
        (sql.READ_REMOVED, ()),
    )
    facts = PermitFacts(dict(versions), dict(removed))
    answers: dict[Topic, PermitAnswer] = {}
    books: list[tuple[bytes, bytes, int]] = []
    written: list[Statement] = []
    for key, packed in rows:
        topic = topic_of(key)
        if (book := _book_of(packed)) is None:
            continue
        answers[topic] = book.answer(topic[0], asks[topic], now_ms, facts)
        if book.shards:
            books.append((key, book.pack(), book.waited_until_ms()))
        else:
            written.append((sql.DELETE_PERMITS, (key,)))
    if books:
        listed = ", ".join(["(%s, %s, %s)"] * len(books))
        written.append((sql.WRITE_PERMITS.format(listed), tuple(chain.from_iterable(books))))
    open_keys = tuple([key_of(topic) for topic in sorted(asks) if topic not in answers])
    if not open_keys:
        run(*written, (sql.COMMIT, ()))
        return answers, []
    # Other sessions hold some of these books, and the others do not exist yet.
    find = sql.FIND_PERMITS.format(", ".join(["%s"] * len(open_keys)))
    *_, there = run(*written, (sql.COMMIT, ()), (find, open_keys))
    known = {bytes(key) for (key,) in there}
    return answers, [topic_of(key) for key in open_keys if key not in known]


def _book_of(packed: bytes) -> PermitBook | None:
    try:
        return PermitBook.unpack(packed)
    except ValueError:
        return None  # It is of a later version, whose hosts alone can use it.


def key_of(topic: Topic) -> bytes:
    """Return the key of a topic's row, which begins with that of its namespace."""
    number, name = topic
    return number.to_bytes(_NUMBER_BYTES, "big") + name.encode()


def topic_of(key: bytes) -> Topic:
    return int.from_bytes(key[:_NUMBER_BYTES], "big"), bytes(key[_NUMBER_BYTES:]).decode()


def delete_permits_of(connection: Connection, namespace: int) -> None:
    """Delete the books of a namespace that is being deleted."""
    first, last = namespace.to_bytes(_NUMBER_BYTES, "big"), (namespace + 1).to_bytes(_NUMBER_BYTES, "big")
    connection.execute(
        text("DELETE FROM permit WHERE topic >= :first AND topic < :last"), {"first": first, "last": last}
    )

"""The books of quotas of a meta database in memory: foqs.storage.meta.meta_quotas on a dictionary."""

from __future__ import annotations

from collections.abc import Generator, Mapping

from foqs.model.grants import Ask
from foqs.model.limits import SECOND_MS
from foqs.storage.meta.meta_quotas import Answer, locked_elsewhere, number_of, settle
from foqs.testing.fake_meta_tables import Reach

LOCK_WAIT_MS = 2 * SECOND_MS
"""Longest wait of a session for a lock, in milliseconds."""
_POLL_S = 0.005


class FakeQuotas:
    """The table of books."""

    def __init__(self, reach: Reach, process_id: str = "") -> None:
        """`process_id` is that of the host that has these sessions."""
        self._reach = reach
        self._process_id = process_id

    def ask(self, host_name: str, asks: Mapping[int, Ask], *, waits: bool = False) -> dict[int, Answer]:
        asking = self.asking(host_name, asks, waits=waits)
        while True:
            try:
                next(asking)
            except StopIteration as end:
                answers: dict[int, Answer] = end.value
                return answers

    def asking(
        self, host_name: str, asks: Mapping[int, Ask], *, waits: bool
    ) -> Generator[float | None, None, dict[int, Answer]]:
        """The two statements of an ask. In between the books are locked, and the host can hang or die.

        Yields None between the statements, and the seconds to the next try while it waits for a lock.
        """
        database = self._reach()
        sessions = database.sessions
        session = sessions.begin(self._process_id)
        known = {number: limit for number in asks if (limit := self._limit_of(number)) is not None}
        until_ms = database.now_ms() + (LOCK_WAIT_MS if waits else 0)
        rows = [("quota", number) for number in sorted(known)] if waits else []
        while sum([sessions.wait(session, row) for row in rows]) < len(rows):
            if database.now_ms() >= until_ms:
                sessions.commit(session)
                return {number: locked_elsewhere() for number in asks}
            yield _POLL_S
        mine = {number for number in known if sessions.lock(session, ("quota", number))}
        now_ms = database.now_ms()
        yield None
        books = self._reach().tables.quotas
        sessions.note(session)
        answers: dict[int, Answer] = {}
        for number, limit in known.items():
            if number not in mine:
                answers[number] = locked_elsewhere()
            elif self._limit_of(number) is not None:
                packed = books.get(number, b"")
                answers[number], books[number] = settle(packed, number_of(host_name), asks[number], limit, now_ms)
        sessions.commit(session)
        return answers

    def _limit_of(self, namespace: int) -> int | None:
        """The quota of a namespace, or None if it was deleted."""
        found = [one for one in self._reach().tables.namespaces.values() if one.number == namespace]
        return found[0].settings.enqueues_per_minute_max if found else None

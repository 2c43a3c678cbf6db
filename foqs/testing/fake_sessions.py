"""The sessions of a meta database in memory, and the row locks that they hold until their transactions end."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator

from foqs.model import meta_bounds
from foqs.model.errors import UnavailableError


class FakeMetaSession:
    """A session in a transaction. It ends when it is ended, or after a long silence."""

    __slots__ = ("is_ended", "process_id", "rows", "spoke_ms")

    def __init__(self, process_id: str, spoke_ms: int) -> None:
        self.process_id = process_id
        self.spoke_ms = spoke_ms
        """Time of the last statement of its host, in milliseconds."""
        self.rows: set[Hashable] = set()
        """The rows that the session has locked."""
        self.is_ended = False


class FakeSessions:
    """All sessions in transactions, of all hosts."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        """`now_ms` is the clock of the database's server, or another clock of the same speed."""
        self._now_ms = now_ms
        self._by_row: dict[Hashable, FakeMetaSession] = {}
        self._waiting: dict[Hashable, list[FakeMetaSession]] = {}
        """The sessions that wait for a row, in their order."""

    def begin(self, process_id: str) -> FakeMetaSession:
        return FakeMetaSession(process_id, self._now_ms())

    def lock(self, session: FakeMetaSession, row: Hashable) -> bool:
        """Lock the row unless another session has it. Never waits, as with SKIP LOCKED."""
        self.note(session)
        self.end_silent()
        if any(other is not session for other in self._waiting.get(row, [])[:1]):
            return False
        holder = self._by_row.setdefault(row, session)
        if holder is session:
            session.rows.add(row)
        return holder is session

    def wait(self, session: FakeMetaSession, row: Hashable) -> bool:
        """The same for a session that queues from its first call until it has the row or gives up."""
        queue = self._waiting.setdefault(row, [])
        if session not in queue:
            queue.append(session)
        if is_locked := self.lock(session, row):
            self.give_up(session, row)
        return is_locked

    def give_up(self, session: FakeMetaSession, row: Hashable) -> None:
        queue = [other for other in self._waiting.pop(row, []) if other is not session]
        if queue:
            self._waiting[row] = queue

    def note(self, session: FakeMetaSession) -> None:
        """A statement of the session's host. Raises UnavailableError if the session has ended, and with it the
        transaction.
        """
        self.end_silent()
        if session.is_ended:
            raise UnavailableError("the session with the meta database was lost")
        session.spoke_ms = self._now_ms()

    def commit(self, session: FakeMetaSession) -> None:
        """Commit the transaction and release its locks."""
        self._end(session)

    def end_of(self, process_id: str) -> int:
        """End the sessions of a process, and return their number."""
        known = [*self._by_row.values(), *[one for queue in self._waiting.values() for one in queue]]
        sessions = {id(session): session for session in known if session.process_id == process_id}
        for session in sessions.values():
            self._end(session)
        return len(sessions)

    def end_silent(self) -> None:
        """End the sessions that were silent for too long."""
        now_ms = self._now_ms()
        for session in list(self._by_row.values()):
            if now_ms - session.spoke_ms >= meta_bounds.META_SILENT_MS_MAX:
                self._end(session)

    def holders(self) -> Iterator[tuple[Hashable, FakeMetaSession]]:
        """The locked rows, each with the session that has the lock."""
        self.end_silent()
        yield from self._by_row.items()

    def _end(self, session: FakeMetaSession) -> None:
        session.is_ended = True
        for row in session.rows:
            self._by_row.pop(row, None)
        for row in list(self._waiting):
            self.give_up(session, row)
        session.rows = set()

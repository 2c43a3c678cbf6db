"""The snapshot of access that this host goes by, read from the meta database with its namespaces."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import Final, Protocol

import structlog

from foqs.host.access.refused_calls import Refusals
from foqs.host.access.snapshot import AccessSnapshot
from foqs.model import limits
from foqs.model.access import AccessRows, Credential, CredentialKind

USED_EVERY_MS: Final = limits.HOUR_MS
"""How exactly it is known when a token was used last. It bounds the writes by the number of tokens."""
USES_MAX: Final = 1_000
"""The number of tokens whose use one heartbeat writes. The others are noted when they are used again."""
STALE_MS: Final = 10_000
"""The age from which on the host warns that changes of access do not reach it."""

_log = structlog.get_logger(__name__)


class AccessTables(Protocol):
    """The meta database; foqs.storage.meta.meta_access.MetaAccess is the real one. Its methods block."""

    def read(self, version: int, changed_at_ms: int) -> AccessRows | None:
        """Return all rows, or None if they are still those of this version. Raises UnavailableError."""

    def note_used(self, token_ids: Collection[str], used_at_ms: int) -> None:
        """Note that the tokens were used. Raises UnavailableError."""


class AccessBook:
    """Has the newest snapshot that the meta database told, by which the host goes on while that is away.

    To refuse all callers then would make each outage of the meta database one of the whole cluster. Tokens still
    expire, because that needs the clock alone.
    """

    def __init__(
        self,
        tables: AccessTables,
        now_s: Callable[[], float],
    ) -> None:
        """`now_s` is monotonic."""
        self.refusals = Refusals()
        """The calls that this host refused, or would have."""
        self._tables = tables
        self._now_s = now_s
        self._snapshot = AccessSnapshot.EMPTY
        self._published = self._snapshot
        self._known = (-1, 0)
        """The version that was read last, and when it was made."""
        self._reading = threading.Lock()
        self._read_at_s = now_s()
        self._is_stale = False
        self._noted: dict[str, int] = {}
        """When the use of a token was noted last, by its id."""
        self._uses: dict[str, int] = {}
        """Uses that no reading has been given to write yet."""
        self._unwritten: tuple[tuple[str, ...], int] = ((), 0)
        """The tokens whose use the next reading writes, and the time."""

    @property
    def snapshot(self) -> AccessSnapshot:
        """Return the snapshot in force. Safe to call from any thread."""
        return self._snapshot

    @property
    def stale_s(self) -> float:
        """Return the seconds since the meta database was read last."""
        return max(0.0, self._now_s() - self._read_at_s)

    def read(self) -> None:
        """Read the changes. Blocks, so call it on a thread of the meta database. Raises UnavailableError."""
        with self._reading:
            rows = self._tables.read(*self._known)
            if rows is not None:
                self._known = rows.version, rows.changed_at_ms
                self._snapshot = AccessSnapshot(rows)
            self._read_at_s = self._now_s()

    def write_uses(self) -> None:
        """Write which tokens were used. Blocks as `read` does, and changes nothing that is known. Raises
        UnavailableError.
        """
        token_ids, used_at_ms = self._unwritten
        if token_ids:
            self._tables.note_used(token_ids, used_at_ms)
            self._unwritten = ((), 0)

    def publish(self) -> None:
        """Log a new mode, and prepare the uses to write. Call it on the event loop, after each reading."""
        if self._uses and not self._unwritten[0]:
            self._unwritten = (tuple(self._uses), max(self._uses.values()))
            self._uses = {}
        snapshot = self._snapshot
        if snapshot is self._published:
            return
        before, self._published = self._published, snapshot
        self._noted = {one: at_ms for one, at_ms in self._noted.items() if snapshot.has_token(one)}
        if snapshot.mode is not before.mode:
            _log.warning("access_mode_changed", mode=snapshot.mode.name.lower(), version=snapshot.version)

    def note_used(self, credential: Credential, now_ms: int) -> None:
        """Note that a token was shown. It is written with the next reading, once an hour at most."""
        if credential.kind is not CredentialKind.TOKEN or len(self._uses) >= USES_MAX:
            return
        last_ms = max(self._noted.get(credential.id, 0), self._snapshot.used_at_ms(credential.id))
        if now_ms - last_ms >= USED_EVERY_MS and self._snapshot.has_token(credential.id):
            self._noted[credential.id] = self._uses[credential.id] = now_ms

    def tick(self) -> None:
        """Warn once if the meta database has not told for long, and say when it tells again."""
        is_stale = self.stale_s * 1000 >= STALE_MS
        if is_stale is self._is_stale:
            return
        self._is_stale = is_stale
        if is_stale:
            _log.warning("access_stale", stale_ms=int(self.stale_s * 1000), version=self._snapshot.version)
        else:
            _log.info("access_fresh", version=self._snapshot.version)

"""Sums of audit records of one kind: the first is published at once, and all others together at the end of a window."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from foqs.model.audit import CHANGES_BYTES_MAX, AuditRecord, clipped

NAMES_PER_CALLER_MAX = 50
"""Namespaces that one caller can have named in refusals of a minute, once for each verb. All others are one."""
CALLERS_MAX = 1_000
"""Callers of whom that is kept in a minute. The names of further ones are not told."""
ADDRESSES_MAX = 100
"""Addresses that refused sign-ins of a minute are recorded with. All others are one."""
NAMES_MS = 60_000
OTHER_NAMES = "(other)"
WINDOWS_MAX = 10_000
"""Open windows; the oldest one ends early for one more."""


@dataclass(slots=True)
class _Window:
    record: AuditRecord
    """The last one, without its count."""
    ends_ms: int
    since_ms: int = 0
    """The end of the first call that it counts."""
    count: int = 0
    took_ms: int = 0


class AuditSums:
    """Windows of records that are the same but for what they name, by key. Its caller has the clock."""

    def __init__(self) -> None:
        self._windows: dict[tuple[str, ...], _Window] = {}

    def __len__(self) -> int:
        return len(self._windows)

    def add(self, key: tuple[str, ...], record: AuditRecord, window_ms: int) -> Iterator[tuple[AuditRecord, int, int]]:
        """Add a record. Yields what is to be told now: a record with its count and the time that all of it took."""
        window = self._windows.get(key)
        if window is not None and window.ends_ms > record.at_ms >= window.ends_ms - window_ms:
            window.since_ms = window.since_ms if window.count else record.at_ms
            window.record = record
            window.count += 1
            window.took_ms += record.took_ms
            return
        if window is not None:
            del self._windows[key]
            yield from _sums_of(window)
        elif len(self._windows) >= WINDOWS_MAX:
            yield from _sums_of(self._windows.pop(next(iter(self._windows))))
        self._windows[key] = _Window(record, record.at_ms + window_ms)
        yield record, 1, record.took_ms

    def ended(self, now_ms: int) -> Iterator[tuple[AuditRecord, int, int]]:
        """End the windows whose time is over, and yield their sums. A clock that went back ends them as well.

        Its caller may add records between two of them.
        """
        for key, window in list(self._windows.items()):
            if self._windows.get(key) is window and not window.record.at_ms <= now_ms < window.ends_ms:
                del self._windows[key]
                yield from _sums_of(window)

    def end_all(self) -> Iterator[tuple[AuditRecord, int, int]]:
        """End all windows, and yield their sums."""
        while self._windows:
            yield from _sums_of(self._windows.pop(next(iter(self._windows))))


def _sums_of(window: _Window) -> Iterator[tuple[AuditRecord, int, int]]:
    """The record has the times of its calls in its text, because it becomes a record later than they ended."""
    if window.count:
        record = window.record
        times = f"calls from {_utc_of(window.since_ms)} to {_utc_of(record.at_ms)}"
        changes = clipped(f"{times} {record.changes}".rstrip(), CHANGES_BYTES_MAX)
        yield replace(record, changes=changes), window.count, window.took_ms


def _utc_of(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class RecordedNames:
    """The names of namespaces in refusals. A caller without permissions makes them up, so they are bounded."""

    def __init__(self) -> None:
        self._by_caller: dict[tuple[str, str], set[tuple[str, str]]] = {}
        """The verbs and names of each principal and address."""
        self._since_ms = 0

    def name_of(self, record: AuditRecord) -> str:
        """Return the name to record, which is OTHER_NAMES once its caller has named too many."""
        caller, name = (record.principal, record.address), (record.verb, record.namespace_name)
        names = self._by_caller.get(caller)
        if names is None:
            if len(self._by_caller) >= CALLERS_MAX:
                return OTHER_NAMES
            names = self._by_caller[caller] = set()
        if name not in names and len(names) >= NAMES_PER_CALLER_MAX:
            return OTHER_NAMES
        names.add(name)
        return record.namespace_name

    def begin_anew(self, now_ms: int) -> None:
        """Forget the names of the last minute, once it is over. A clock that went back ends it as well."""
        if not self._since_ms <= now_ms < self._since_ms + NAMES_MS:
            self._since_ms = now_ms
            self._by_caller.clear()


class RecordedAddresses:
    """The addresses of refused sign-ins. A stranger can have as many as its network gives it, so they are bounded."""

    def __init__(self) -> None:
        self._addresses: set[str] = set()
        self._since_ms = 0

    def recorded(self, address: str) -> str:
        """Return the address to record, which is OTHER_NAMES once ADDRESSES_MAX others were recorded."""
        if address not in self._addresses:
            if len(self._addresses) >= ADDRESSES_MAX:
                return OTHER_NAMES
            self._addresses.add(address)
        return address

    def begin_anew(self, now_ms: int) -> None:
        """Forget the addresses of the last minute, as `RecordedNames` does."""
        if not self._since_ms <= now_ms < self._since_ms + NAMES_MS:
            self._since_ms = now_ms
            self._addresses.clear()

"""The rows of a list of consumers while they are counted: of each topic and name, the first ones behind a page."""

from __future__ import annotations

import heapq
import json

from foqs.model.errors import InvalidArgumentError, shown
from foqs.model.holder import HOSTS_SHOWN_MAX, ConsumerRow, Holder, RowKey

SPARE_ROWS_MAX = 2_000
"""Rows beyond those of the page that are kept before the last ones are dropped."""


class ConsumerRows:
    """Counts what consumers have and wait for, in the memory of a page: rows that cannot be of the page are dropped."""

    def __init__(self, after: RowKey | None, limit: int) -> None:
        self._after = None if after is None else after.place
        self._limit = limit
        self._rows: dict[RowKey, ConsumerRow] = {}
        self._last: tuple[str, str, str, bool, str] | None = None
        """The place behind which no row is of the page."""

    def add(
        self, key: RowKey, last_dequeue_at_ms: int, holder: Holder | None, host: str, *, waiting: int = 0,
        held: int = 0, since_ms: int = 0,
    ) -> None:  # fmt: skip
        """Add to the row of this key. `holder` is the consumer, and `host` the name of this host."""
        row = self._rows.get(key)
        if row is None:
            place = key.place
            if (self._after is not None and place <= self._after) or (self._last is not None and place > self._last):
                return
            row = ConsumerRow(key.name, "", key.topic, 0, 0, 0, 0, [], key.prefix, key.group or None)
            self._rows[key] = row
        if holder is not None and holder.is_connected:
            if last_dequeue_at_ms >= row.last_dequeue_at_ms:
                row.caller = holder.caller
            row.hosts = [host]
        row.last_dequeue_at_ms = max(row.last_dequeue_at_ms, last_dequeue_at_ms)
        row.waiting_calls += waiting
        row.held += held
        row.held_since_ms = _earlier(row.held_since_ms, since_ms)

    def prune(self) -> None:
        """Drop rows behind the page, if there are many."""
        kept_max = self._limit + 2
        if len(self._rows) > kept_max + SPARE_ROWS_MAX:
            self._rows = {key: self._rows[key] for key in heapq.nsmallest(kept_max, self._rows, key=_place)}
            self._last = max(map(_place, self._rows))

    def page(self) -> tuple[list[ConsumerRow], str]:
        """Return the rows of the page, and the token of the next one."""
        keys = heapq.nsmallest(self._limit + 2, self._rows, key=_place)
        has_more = self._last is not None or len(self._rows) > len(keys)
        return cut([self._rows[key] for key in keys], self._limit, has_more=has_more)


def cut(rows: list[ConsumerRow], limit: int, *, has_more: bool = False) -> tuple[list[ConsumerRow], str]:
    """Return the first rows, without those that say nothing because another row of their consumer follows.

    The second result is the token of the next page, empty if no row is left out and `has_more` is False.
    """
    said = [
        row for at, row in enumerate(rows)
        if row.topic or row.prefix is not None or at + 1 == len(rows) or rows[at + 1].name != row.name
    ]  # fmt: skip
    token = ""
    if has_more or len(said) > limit:
        last = said[limit - 1] if len(said) > limit else rows[-1] if rows else None
        token = "" if last is None else token_of(_key(last))
    return said[:limit], token


def merged_consumers(pages: list[tuple[list[ConsumerRow], str]], limit: int) -> tuple[list[ConsumerRow], str]:
    """Merge pages of several hosts: the rows of one key are one row, with the sums."""
    known_up_to = min([place_of(token).place for _, token in pages if token], default=None)
    merged: dict[RowKey, ConsumerRow] = {}
    for row in heapq.merge(*[rows for rows, _ in pages], key=lambda one: _key(one).place):
        key = _key(row)
        if known_up_to is not None and key.place > known_up_to:
            break
        known = merged.get(key)
        merged[key] = row if known is None else _sum(known, row)
    return cut(list(merged.values()), limit, has_more=known_up_to is not None)


def _key(row: ConsumerRow) -> RowKey:
    """Return the key of a row, which can be one of another host as it was decoded."""
    return RowKey(row.name, row.topic, row.group or "", row.prefix)


def _sum(one: ConsumerRow, other: ConsumerRow) -> ConsumerRow:
    last = max((one, other), key=lambda row: (bool(row.caller), row.last_dequeue_at_ms))
    return ConsumerRow(
        one.name,
        last.caller,
        one.topic,
        one.waiting_calls + other.waiting_calls,
        one.held + other.held,
        _earlier(one.held_since_ms, other.held_since_ms),
        max(one.last_dequeue_at_ms, other.last_dequeue_at_ms),
        sorted({*one.hosts, *other.hosts})[:HOSTS_SHOWN_MAX],
        one.prefix,
        one.group,
    )


def _earlier(one_ms: int, other_ms: int) -> int:
    return min(one_ms, other_ms) if one_ms and other_ms else one_ms or other_ms


def _place(key: RowKey) -> tuple[str, str, str, bool, str]:
    return key.place


def token_of(key: RowKey) -> str:
    """Return the token of the page behind the row of this key."""
    return json.dumps(key, ensure_ascii=False)


def place_of(token: str) -> RowKey:
    """Return the key of the last row of the page before. Raises InvalidArgumentError."""
    try:
        found = json.loads(token)
    except ValueError:
        found = None
    is_key = isinstance(found, list) and len(found) == 4 and all(isinstance(part, str) for part in found[:3])
    if not is_key or not isinstance(found[3], str | None):
        raise InvalidArgumentError(f"page_token {shown(token)} is none of this host: begin with the first page")
    return RowKey(*found)

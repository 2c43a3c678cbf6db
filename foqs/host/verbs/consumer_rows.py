"""The rows of a list of consumers while they are counted: of each topic and name, the first ones behind a page."""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable
from typing import Any

from foqs.model.errors import InvalidArgumentError, shown
from foqs.model.holder import HOSTS_SHOWN_MAX, ConsumerRow, LeaseHolder, RowKey

TOKEN_CHARS_MAX = 16_384
"""The longest token: the longest names of a row need less, also if each character is escaped."""
SPARE_ROWS_MAX = 2_000
"""Rows beyond those of the page that are kept before the last ones are dropped."""


class ConsumerRows:
    """Counts the items and calls of consumers, in the memory of a page: rows that cannot be of the page are dropped."""

    def __init__(self, after: RowKey | None, limit: int) -> None:
        self._after = after
        self._limit = limit
        self._rows: dict[RowKey, _Counts] = {}
        self._last: RowKey | None = None
        """The key behind which no row is of the page."""

    def add(self, key: RowKey, holder: LeaseHolder | None, waiting: int = 0, held: int = 0, since_ms: int = 0) -> None:
        """Add to the row of this key; `holder` is the consumer, if the host knows it."""
        counts = self._rows.get(key)
        if counts is not None:
            counts.waiting += waiting
            counts.held += held
            counts.since_ms = _earlier(counts.since_ms, since_ms)
            if holder is not None and holder is not counts.holder:
                counts.knows(holder)
        elif (self._after is None or key > self._after) and (self._last is None or key <= self._last):
            self._rows[key] = _Counts(holder, waiting, held, since_ms)

    def prune(self) -> None:
        """Drop rows behind the page, once these are many."""
        kept_max = self._limit + 2
        if len(self._rows) > kept_max + SPARE_ROWS_MAX:
            kept = heapq.nsmallest(kept_max, self._rows)
            self._rows = {key: self._rows[key] for key in kept}
            self._last = kept[-1]

    def page(self, host: str, at_ms: Callable[[float], int]) -> tuple[list[ConsumerRow], str]:
        """Return the rows of the page, and the token of the next one.

        `host` is the name of this host, and `at_ms` returns the time at which its monotonic clock had a value.
        """
        keys = heapq.nsmallest(self._limit + 2, self._rows)
        has_more = self._last is not None or len(self._rows) > len(keys)
        rows = [_row(key, self._rows[key], host, at_ms) for key in keys]
        return cut(rows, self._limit, has_more=has_more)


class _Counts:
    """The counts of one row, and the consumer that has made the last dequeue, of those with its name."""

    __slots__ = ("held", "holder", "since_ms", "waiting")

    def __init__(self, holder: LeaseHolder | None, waiting: int, held: int, since_ms: int) -> None:
        self.holder = holder
        self.waiting = waiting
        self.held = held
        self.since_ms = since_ms

    def knows(self, other: LeaseHolder) -> None:
        if self.holder is None or (other.dequeued_s or 0.0) >= (self.holder.dequeued_s or 0.0):
            self.holder = other


def _row(key: RowKey, counts: _Counts, host: str, at_ms: Callable[[float], int]) -> ConsumerRow:
    holder = counts.holder
    dequeued_s = None if holder is None else holder.dequeued_s
    return ConsumerRow(
        key.name,
        "" if holder is None else holder.caller,
        key.topic,
        counts.waiting,
        counts.held,
        counts.since_ms,
        0 if dequeued_s is None else at_ms(dequeued_s),
        [host] if holder is not None and holder.is_connected else [],
        key.prefix if key.is_prefix else None,
        key.group or None,
    )


def cut(rows: list[ConsumerRow], limit: int, *, has_more: bool = False) -> tuple[list[ConsumerRow], str]:
    """Return the first rows, without those that say nothing because another row of their consumer follows.

    The second result is the token of the next page, empty if no row is left out and `has_more` is False.
    """
    _share_calls(rows)
    said = [
        row for at, row in enumerate(rows)
        if row.topic or row.prefix is not None or at + 1 == len(rows) or rows[at + 1].name != row.name
    ]  # fmt: skip
    if has_more and 1 < len(said) <= limit and not said[-1].topic and said[-1].prefix is None:
        said.pop()  # Another row of its consumer can be the first one of the next page.
    is_last_page = not (has_more or len(said) > limit) or not said
    token = "" if is_last_page else token_of(_key(said[min(len(said), limit) - 1]))
    return said[:limit], token


def _share_calls(rows: list[ConsumerRow]) -> None:
    """Add the last calls of bare rows to the other rows of their consumers, which other hosts can have counted."""
    bare: ConsumerRow | None = None
    for row in rows:
        if not row.topic and row.prefix is None:
            bare = row
        elif bare is not None and bare.name == row.name:
            row.caller = row.caller or bare.caller
            row.hosts = sorted({*row.hosts, *bare.hosts})[:HOSTS_SHOWN_MAX]
            row.last_dequeue_at_ms = max(row.last_dequeue_at_ms, bare.last_dequeue_at_ms)


def merged_consumers(pages: list[tuple[list[ConsumerRow], str]], limit: int) -> tuple[list[ConsumerRow], str]:
    """Merge pages of several hosts: the rows of one key are one row, with the sums."""
    known_up_to = min([place_of(token) for _, token in pages if token], default=None)
    merged: dict[RowKey, ConsumerRow] = {}
    for row in heapq.merge(*[rows for rows, _ in pages], key=_key):
        key = _key(row)
        if known_up_to is not None and key > known_up_to:
            break
        known = merged.get(key)
        merged[key] = row if known is None else _sum(known, row)
    return cut(list(merged.values()), limit, has_more=known_up_to is not None)


def _key(row: ConsumerRow) -> RowKey:
    """Return the key of a row, which can be one of another host as it was decoded."""
    return RowKey(row.name, row.topic, row.group or "", row.prefix is not None, row.prefix or "")


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


def token_of(key: RowKey) -> str:
    """Return the token of the page behind the row of this key."""
    return json.dumps(key, ensure_ascii=False)


def place_of(token: str) -> RowKey:
    """Return the key of the last row of the page before. Raises InvalidArgumentError."""
    try:
        found: Any = json.loads(token) if len(token) <= TOKEN_CHARS_MAX else None
    except (ValueError, RecursionError):
        found = None
    kinds = [type(part) for part in found] if isinstance(found, list) else []
    if kinds != [str, str, str, bool, str]:
        raise InvalidArgumentError(f"page_token {shown(token)} is none of this host: begin with the first page")
    return RowKey(*found)

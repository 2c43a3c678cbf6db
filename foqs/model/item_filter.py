"""A filter of stored items: the fields of an item by which bulk jobs choose."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from foqs.model import ids
from foqs.model.calls import ItemContent, ItemState
from foqs.model.failures import failures_of
from foqs.model.given_times import time_ms

if TYPE_CHECKING:
    from datetime import datetime

TOPICS_MAX: Final = 100
IDS_MAX: Final = 1_000
ERROR_BYTES_MAX: Final = 500
"""Bytes of the text that is looked for in errors; no reason is longer."""
CONTENT_BYTES_MAX: Final = 1_024
"""Bytes that are looked for in payloads or in metadata."""
FOUND_BYTES_MAX: Final = 64 * 1_024
"""Places of a content at which one step looks for bytes."""
COMPARED_BYTES_MAX: Final = 500_000
"""Bytes that one step compares in the worst case."""


class FilteredRow(Protocol):
    """The row of an item; foqs.shard.port.ItemRow is the real one."""

    @property
    def key(self) -> int: ...
    @property
    def due_at(self) -> int: ...
    @property
    def priority(self) -> int: ...
    @property
    def enqueued_at(self) -> int: ...
    @property
    def failed_attempts(self) -> int: ...
    @property
    def death_reason(self) -> bytes | None: ...
    @property
    def content(self) -> ItemContent: ...
    @property
    def errors(self) -> bytes: ...


@dataclass(frozen=True, slots=True, kw_only=True, init=False)
class ItemFilter:
    """The conditions on an item, all of which must hold. A condition that is None or empty holds for every item.

    topics: names without keys and groups.  states: empty for the default of the action.
    enqueued_after_ms, died_after_ms: from this time on.  enqueued_before_ms, died_before_ms: before it.
    Each time can be given without `_ms` instead, as a datetime with a time zone.
    """

    topics: tuple[str, ...] = ()
    topic_prefix: str = ""
    states: tuple[ItemState, ...] = ()
    enqueued_after_ms: int | None = None
    enqueued_before_ms: int | None = None
    died_after_ms: int | None = None
    died_before_ms: int | None = None
    priority_min: int | None = None
    priority_max: int | None = None
    attempts_min: int | None = None
    attempts_max: int | None = None
    error_contains: str = ""
    metadata_contains: bytes = b""
    payload_contains: bytes = b""
    deliver_after_ms: int | None = None
    ids: tuple[str, ...] = ()

    def __init__(
        self,
        *,
        topics: tuple[str, ...] = (),
        topic_prefix: str = "",
        states: tuple[ItemState, ...] = (),
        enqueued_after_ms: int | None = None,
        enqueued_before_ms: int | None = None,
        died_after_ms: int | None = None,
        died_before_ms: int | None = None,
        priority_min: int | None = None,
        priority_max: int | None = None,
        attempts_min: int | None = None,
        attempts_max: int | None = None,
        error_contains: str = "",
        metadata_contains: bytes = b"",
        payload_contains: bytes = b"",
        deliver_after_ms: int | None = None,
        ids: tuple[str, ...] = (),
        enqueued_after: datetime | None = None,
        enqueued_before: datetime | None = None,
        died_after: datetime | None = None,
        died_before: datetime | None = None,
        deliver_after: datetime | None = None,
    ) -> None:
        put = partial(object.__setattr__, self)
        put("topics", topics)
        put("topic_prefix", topic_prefix)
        put("states", states)
        put("enqueued_after_ms", time_ms("enqueued_after_ms", enqueued_after_ms, enqueued_after))
        put("enqueued_before_ms", time_ms("enqueued_before_ms", enqueued_before_ms, enqueued_before))
        put("died_after_ms", time_ms("died_after_ms", died_after_ms, died_after))
        put("died_before_ms", time_ms("died_before_ms", died_before_ms, died_before))
        put("priority_min", priority_min)
        put("priority_max", priority_max)
        put("attempts_min", attempts_min)
        put("attempts_max", attempts_max)
        put("error_contains", error_contains)
        put("metadata_contains", metadata_contains)
        put("payload_contains", payload_contains)
        put("deliver_after_ms", time_ms("deliver_after_ms", deliver_after_ms, deliver_after))
        put("ids", ids)

    def has_topic(self, name: str, base_name: str) -> bool:
        """Return True if the conditions on the topic hold for this one, by its hidden name and that of its base."""
        return base_name in self.topics if self.topics else name.startswith(self.topic_prefix)

    def has_numbers(self, row: FilteredRow, state: ItemState) -> bool:
        """Return True if the conditions on numbers and times hold."""
        is_dead = state is ItemState.DEAD
        if (self.died_after_ms is not None or self.died_before_ms is not None) and not is_dead:
            return False
        if self.deliver_after_ms is not None and (
            state is not ItemState.DELAYED or row.due_at != self.deliver_after_ms
        ):
            return False
        return (
            _within(row.enqueued_at, self.enqueued_after_ms, self.enqueued_before_ms)
            and (not is_dead or _within(row.due_at, self.died_after_ms, self.died_before_ms))
            and (self.priority_min is None or row.priority >= self.priority_min)
            and (self.priority_max is None or row.priority <= self.priority_max)
            and (self.attempts_min is None or row.failed_attempts >= self.attempts_min)
            and (self.attempts_max is None or row.failed_attempts <= self.attempts_max)
        )

    @property
    def has_text_conditions(self) -> bool:
        """True if it looks into errors, metadata or payloads, which a delivery can change."""
        return bool(self.error_contains or self.metadata_contains or self.payload_contains)

    def without_texts(self) -> ItemFilter:
        """Return the conditions but those on texts and contents."""
        return replace(self, error_contains="", metadata_contains=b"", payload_contains=b"")

    def text_steps(self, row: FilteredRow, state: ItemState) -> Generator[None, None, bool]:
        """Return True if the conditions on texts and contents hold, all of which the row must have.

        It is done in steps of a millisecond or two, also for texts that were made to take long.
        """
        if not self._has_error(row, state):
            return False
        for wanted, content in (
            (self.metadata_contains, row.content.metadata),
            (self.payload_contains, row.content.payload),
        ):
            if wanted and not (yield from _find_steps(wanted, content)):
                return False
        return True

    def matches(self, row: FilteredRow, state: ItemState) -> bool:
        """Return True if all conditions hold but those on topics, states and ids."""
        if not self.has_numbers(row, state):
            return False
        steps = self.text_steps(row, state)
        while True:
            try:
                next(steps)
            except StopIteration as ended:
                return bool(ended.value)

    def _has_error(self, row: FilteredRow, state: ItemState) -> bool:
        wanted = self.error_contains
        if not wanted:
            return True
        if state is ItemState.DEAD and wanted in (row.death_reason or b"").decode(errors="replace"):
            return True
        # Most items have no such bytes at all, and are not decoded.
        encoded = wanted.encode()
        return encoded in row.errors and any(wanted in failure.reason for failure in failures_of(row.errors))

    def keys_on(self, shard_id: int) -> list[int]:
        """Return the keys of the wanted ids on a shard, in order."""
        places = {ids.parse(one)[:2] for one in self.ids}
        return sorted([key for at, key in places if at == shard_id])


def _find_steps(wanted: bytes, content: bytes) -> Generator[None, None, bool]:
    """Return True if the bytes are somewhere in the content.

    A search takes up to the product of both lengths, so each step has a part of the content.
    """
    size = len(wanted)
    advance = max(1, min(FOUND_BYTES_MAX, COMPARED_BYTES_MAX // size))
    for first in range(0, max(1, len(content) - size + 1), advance):
        if content.find(wanted, first, first + advance + size - 1) >= 0:
            return True
        if first + advance + size - 1 < len(content):
            yield
    return False


EVERYTHING: Final = ItemFilter()
"""The filter without conditions."""


def _within(value: int, from_value: int | None, before: int | None) -> bool:
    return (from_value is None or value >= from_value) and (before is None or value < before)

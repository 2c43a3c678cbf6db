"""Many items in many calls, several in flight: the batches, and the result.

State only, as in `coalescing`: the clients add threads or tasks, and run the calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import chain, islice
from operator import attrgetter
from typing import NamedTuple

from foqs.client.checks import check_many
from foqs.client.client_errors import NotSentError
from foqs.client.entries import cut
from foqs.client.flows import Attempts, Terms
from foqs.client.queue_items import ENQUEUE_BYTES_MAX, NewItem, faults_of, item_bytes, likely_faults_of
from foqs.client.retry import Repeat
from foqs.client.slot_groups import NO_ID, SlotGroups, with_own_ids
from foqs.model.calls import EnqueueResult
from foqs.model.errors import (
    FoqsError,
    InvalidArgumentError,
    OverloadedError,
    RateLimitedError,
    TooLargeError,
    UnavailableError,
)

GROUPS_BYTES_MAX = 2 * ENQUEUE_BYTES_MAX
"""Most bytes of all groups while no group fills a batch; beyond that the largest group is sent."""
ASIDE_ITEMS_MAX = 10_000
"""Most items that wait for a repetition; with more, no new items are read."""
FAILED_IN_A_ROW_MAX = 3
"""Number of batches that fail in a row before the rest is given up, because the batches are not at fault."""

_dedup_id = attrgetter("dedup_id")


class Batch(NamedTuple):
    positions: Sequence[int]
    """Positions of the items in the whole input."""
    items: list[NewItem]
    has_ids: bool
    """True if every item has a dedup id, so that the batch can be repeated after any outcome."""
    attempts: Attempts | None = None
    """State of the attempts, for repeated items."""

    def repeat(self, *, retry_unknown: bool) -> Repeat:
        """Return the repetition of its call; `retry_unknown`: True to repeat items without dedup ids as well."""
        return Repeat.ALWAYS if retry_unknown or self.has_ids else Repeat.UNLESS_UNKNOWN


@dataclass(slots=True)
class _Group:
    """Items of one group that do not fill a batch yet."""

    positions: list[int] = field(default_factory=list)
    items: list[NewItem] = field(default_factory=list)
    size_bytes: int = 0


class Bulk:
    """Batches of one `enqueue_many` and their outcomes; the call creates it and finally reads `result`.

    A caller with a free call takes a batch from `next`, and reports the outcome with `done` or `failed`. After a batch
    failed as a whole, `next` continues only if all its items had dedup ids, and stops after FAILED_IN_A_ROW_MAX such
    batches; the calls in flight still finish. Not safe for threads.
    """

    def __init__(
        self, items: Iterable[NewItem], items_max: int, *, makes_ids: bool = False, terms: Terms | None = None
    ) -> None:
        """`makes_ids`: True to give items without a dedup id a random one.

        terms: the terms of the calls, for repeating items that were certainly not enqueued; None for no repetition.
        """
        check_many("items", items, "NewItems")
        self._items = items
        self._items_max = items_max
        self._makes_ids = makes_ids
        self._iterator = iter(items)
        self._groups: SlotGroups | None = None
        self._batches: Iterator[Batch] | None = None
        self._read_count = 0
        """Number of items read. All of them were returned by `next` or wait in a group."""
        self._made: set[int] = set()
        """Positions whose ids were made here."""
        self._errors: dict[int, FoqsError] = {}
        self._duplicates: list[int] = []
        self._ids: list[tuple[Sequence[int], Sequence[str]]] = []
        """Ids of the successful batches, with their positions."""
        self._failures: list[tuple[Sequence[int], FoqsError]] = []
        """Positions of the batches that failed as a whole, with their errors."""
        self._terms = terms
        self._aside: list[tuple[int, int, Batch, FoqsError]] = []
        """Items to repeat, with their time, a sequence number and the error."""
        self._asides_total = 0
        self._failed_in_a_row = 0
        self._is_ended = False
        self._broken: BaseException | None = None
        """Error of the caller's iterable or from `stop`, which ended the work."""

    def begins_with_id(self) -> bool:
        """True if the first item has or gets a dedup id, so that the groups are worth fetching."""
        first = self._next_block(1)
        if not first:
            return False
        self._iterator = chain(first, self._iterator)
        return self._makes_ids or getattr(first[0], "dedup_id", None) is not None

    def group_by(self, groups: SlotGroups) -> None:
        """Group all items by these groups."""
        if groups.are_several:
            self._groups = groups

    def next(self) -> Batch | None:
        """Return the next batch, or None if none is available now or the work has ended; see `wait_ms`."""
        if self._is_ended or self._broken is not None:
            for _, _, batch, error in self._aside:
                self._errors.update(dict.fromkeys(batch.positions, error))
            self._aside.clear()
            return None
        if self.wait_ms() == 0:
            return heappop(self._aside)[2]
        if sum([len(batch.items) for _, _, batch, _ in self._aside]) >= ASIDE_ITEMS_MAX:
            return None
        if self._batches is None:
            self._batches = self._cut() if self._groups is None else self._grouped(self._groups)
        try:
            return next(self._batches, None)
        except BaseException as error:
            self.stop(error)
            return None

    def wait_ms(self) -> int | None:
        """Return the ms until items are to be repeated, or None if none are."""
        if not self._aside or self._terms is None:
            return None
        return max(0, self._aside[0][0] - self._terms.clock_ms())

    def done(self, batch: Batch, result: EnqueueResult) -> None:
        self._failed_in_a_row = 0
        self._ids.append((batch.positions, result.ids))
        again: dict[tuple[object, ...], list[int]] = {}
        for place, error in result.errors.items():
            if self._terms is not None and error.retryable and error.nothing_done:
                again.setdefault((type(error), error.retry_after_ms), []).append(place)
            else:
                self._errors[batch.positions[place]] = error
        for places in again.values():
            self._set_aside(batch, sorted(places), result.errors[places[0]])
        if result.duplicates:
            # A duplicate of an id made here comes from another attempt of the same call, so it is not reported.
            found = [batch.positions[place] for place in result.duplicates]
            self._duplicates += [position for position in found if position not in self._made]

    def _set_aside(self, batch: Batch, places: Sequence[int], error: FoqsError) -> None:
        """Repeat items after a pause while others continue. Items whose time is used up get their error."""
        assert self._terms is not None, "it is looked at before"
        positions = [batch.positions[place] for place in places]
        attempts = Attempts(self._terms) if batch.attempts is None else batch.attempts.copy()
        pause_ms = attempts.after(error, None, elsewhere=False)
        if pause_ms is None:
            self._errors.update(dict.fromkeys(positions, error))
            return
        once_more = Batch(positions, [batch.items[place] for place in places], batch.has_ids, attempts)
        self._asides_total += 1
        heappush(self._aside, (self._terms.clock_ms() + pause_ms, self._asides_total, once_more, error))

    def failed(self, batch: Batch, error: FoqsError) -> None:
        if isinstance(error, InvalidArgumentError | TooLargeError):
            faults = faults_of(batch.items)
            if len(faults) == len(batch.items):  # The other items can be valid.
                self._errors.update({batch.positions[place]: fault for place, fault in faults.items()})
                return
        self._failures.append((batch.positions, error))
        self._failed_in_a_row += 1
        leaves_others = batch.has_ids and _is_its_own(error)
        if not leaves_others or self._failed_in_a_row >= FAILED_IN_A_ROW_MAX:
            self._is_ended = True

    def stop(self, error: BaseException) -> None:
        """Return no more batches. `result` raises the first such error."""
        self._broken = self._broken or error

    def result(self) -> EnqueueResult:
        """Return ids and errors by position, once no call is in flight.

        Raises the error of the caller's iterable or of `stop`, with a note of the number of items enqueued before, or
        the first failure if no call succeeded.
        """
        if self._broken is not None:
            self._broken.add_note(
                f"enqueue_many had enqueued {sum([len(some) - some.count('') for _, some in self._ids])} items before"
            )
            raise self._broken
        failures = sorted(self._failures, key=lambda failure: failure[0][0])
        if failures and not self._ids:
            error = failures[0][1]
            raise error from error.__cause__
        if self._errors and not self._ids:
            first = min(self._errors)
            raise type(self._errors[first])(f"position {first}: {self._errors[first].message}")
        is_counted = bool(failures) and isinstance(self._items, Sequence)
        total = len(self._items) if is_counted else self._read_count  # type: ignore[arg-type]
        ids = [""] * total
        for positions, some in self._ids:
            if isinstance(positions, range):
                ids[positions.start : positions.stop] = some
            else:
                for position, item_id in zip(positions, some, strict=True):
                    ids[position] = item_id or ids[position]
        errors = self._errors
        for positions, error in failures:
            errors.update(dict.fromkeys(positions, error))
        if failures:
            not_sent = NotSentError(f"not sent: an earlier batch failed: {failures[0][1].message}")
            errors.update({at: not_sent for at, item_id in enumerate(ids) if not item_id and at not in errors})
        return EnqueueResult(ids, errors, sorted(self._duplicates))

    def _cut(self) -> Iterator[Batch]:
        """Iterate over the batches in the order of the items."""
        while block := self._next_block(self._items_max):
            positions, items = self._read(block)
            sizes = [item_bytes(item) for item in items]
            for some in cut(range(len(items)), sizes, self._items_max, ENQUEUE_BYTES_MAX):
                yield self._batch(positions[some[0] : some[-1] + 1], items[some[0] : some[-1] + 1])

    def _grouped(self, groups: SlotGroups) -> Iterator[Batch]:
        """Iterate over the batches of single groups, each as soon as it is full, with its items in order."""
        waiting: dict[int, _Group] = {}
        waiting_bytes = 0
        while block := self._next_block(self._items_max):
            positions, items = self._read(block)
            for position, item, key in zip(positions, items, _keys_of(groups, items), strict=True):
                size = item_bytes(item)
                group = waiting.setdefault(key, _Group())
                if group.size_bytes + size > ENQUEUE_BYTES_MAX and group.items:
                    waiting_bytes -= group.size_bytes
                    yield self._batch(group.positions, group.items)
                    group = waiting[key] = _Group()
                group.positions.append(position)
                group.items.append(item)
                group.size_bytes += size
                waiting_bytes += size
                full_key = key if len(group.items) == self._items_max else None
                if full_key is None and waiting_bytes > GROUPS_BYTES_MAX:
                    full_key = max(waiting, key=lambda one: waiting[one].size_bytes)
                if full_key is not None:
                    full = waiting.pop(full_key)
                    waiting_bytes -= full.size_bytes
                    yield self._batch(full.positions, full.items)
        for group in waiting.values():
            yield self._batch(group.positions, group.items)

    def _next_block(self, count: int) -> list[NewItem]:
        try:
            return list(islice(self._iterator, count))
        except BaseException as error:
            self.stop(error)
            return []

    def _read(self, block: list[NewItem]) -> tuple[Sequence[int], list[NewItem]]:
        """Return the sendable items of a block and their positions. Records the errors of the others."""
        positions: Sequence[int] = range(self._read_count, self._read_count + len(block))
        self._read_count += len(block)
        if faults := likely_faults_of(block):
            self._errors.update({positions[place]: fault for place, fault in faults.items()})
            positions = [position for place, position in enumerate(positions) if place not in faults]
            block = [item for place, item in enumerate(block) if place not in faults]
        if self._makes_ids:
            block, places = with_own_ids(block)
            self._made.update([positions[place] for place in places])
        return positions, block

    @staticmethod
    def _batch(positions: Sequence[int], items: list[NewItem]) -> Batch:
        return Batch(positions, items, _all_have_ids(items))


def _keys_of(groups: SlotGroups, items: Sequence[NewItem]) -> list[int]:
    """Return the group of each item. An item whose id cannot be encoded joins the items without ids."""
    try:
        return groups.of(items)
    except UnicodeEncodeError:
        faults = faults_of(items)
        return [NO_ID if place in faults else groups.of([item])[0] for place, item in enumerate(items)]


def _all_have_ids(items: Sequence[NewItem]) -> bool:
    return None not in map(_dedup_id, items)


def _is_its_own(error: FoqsError) -> bool:
    """True if other batches can succeed where this one failed."""
    return isinstance(error, UnavailableError | OverloadedError | RateLimitedError)

"""Many items in many calls, several of them in flight: the batches that they are cut into, and the result.

There is only state here, as in `coalescing`: the clients bring threads or tasks, and run the calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import chain, islice
from operator import attrgetter
from typing import NamedTuple

from foqs.client.checks import check_many
from foqs.client.entries import cut
from foqs.client.errors import NotSentError
from foqs.client.flows import Attempts, Terms
from foqs.client.items import ENQUEUE_BYTES_MAX, NewItem, faults_of, item_bytes, likely_faults_of
from foqs.client.retry import Repeat
from foqs.client.slots import NO_ID, SlotGroups, with_own_ids
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
"""The most that the items of all groups have while none of them makes a whole batch; then the largest goes."""
ASIDE_ITEMS_MAX = 10_000
"""Items that wait to be sent once more; while there are more, no others are read."""
FAILED_IN_A_ROW_MAX = 3
"""After so many batches that failed, none of them was at fault: no others are sent."""

_dedup_id = attrgetter("dedup_id")


class Batch(NamedTuple):
    """The items of one call."""

    positions: Sequence[int]
    """The places of its items among all."""
    items: list[NewItem]
    has_ids: bool
    """Each of them has a dedup id, so that it may be sent again whatever became of the call."""
    attempts: Attempts | None = None
    """What has come of them so far, where they are sent once more."""

    def repeat(self, *, retry_unknown: bool) -> Repeat:
        """How its call may be repeated; `retry_unknown`: also after an unknown outcome."""
        return Repeat.ALWAYS if retry_unknown or self.has_ids else Repeat.UNLESS_UNKNOWN


@dataclass(slots=True)
class _Group:
    """Items of one group that are no batch yet."""

    positions: list[int] = field(default_factory=list)
    items: list[NewItem] = field(default_factory=list)
    size_bytes: int = 0


class Bulk:
    """The batches of one `enqueue_many` and what became of them; the call makes it and reads `result` at its end.

    Whoever has room for a call asks `next` for a batch, and says what became of it with `done` or `failed`. After a
    batch that failed as a whole `next` gives others only where all its items had dedup ids, and not after some that
    failed one after the other; the calls in flight still end. Not safe for threads.
    """

    def __init__(
        self, items: Iterable[NewItem], items_max: int, *, makes_ids: bool = False, terms: Terms | None = None
    ) -> None:
        """`makes_ids`: an item without a dedup id gets a random one.

        terms: those of the calls, by which items are sent once more that were certainly not enqueued; else none are.
        """
        check_many("items", items, "NewItems")
        self._items = items
        self._items_max = items_max
        self._makes_ids = makes_ids
        self._iterator = iter(items)
        self._groups: SlotGroups | None = None
        self._batches: Iterator[Batch] | None = None
        self._read_count = 0
        """The items before this position were read and, unless they wait in a group, given out."""
        self._made: set[int] = set()
        """The positions whose ids were made here."""
        self._errors: dict[int, FoqsError] = {}
        self._duplicates: list[int] = []
        self._ids: list[tuple[Sequence[int], Sequence[str]]] = []
        """The ids of the batches that went through, with their positions."""
        self._failures: list[tuple[Sequence[int], FoqsError]] = []
        """The positions of the batches that failed as a whole, and why they did."""
        self._terms = terms
        self._aside: list[tuple[int, int, Batch, FoqsError]] = []
        """Items that wait to be sent once more, by when and in which order, and why."""
        self._asides_total = 0
        self._failed_in_a_row = 0
        self._is_ended = False
        self._broken: BaseException | None = None
        """The error that ended it: one that the caller's iterable raised, or the one that `stop` was given."""

    def begins_with_id(self) -> bool:
        """Tell whether the first item has a dedup id, or gets one: then it is worth to know the groups."""
        first = self._next_block(1)
        if not first:
            return False
        self._iterator = chain(first, self._iterator)
        return self._makes_ids or getattr(first[0], "dedup_id", None) is not None

    def group_by(self, groups: SlotGroups) -> None:
        """Put items together by these groups from the beginning."""
        if groups.are_several:
            self._groups = groups

    def next(self) -> Batch | None:
        """Return the next batch; None when there is no other now, or one has failed. Then `wait_ms` says when."""
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
        """Return how long it is until items are to be sent once more; None if none are."""
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
            # Whose id was made here is known from another attempt of the same call, and from nowhere else.
            found = [batch.positions[place] for place in result.duplicates]
            self._duplicates += [position for position in found if position not in self._made]

    def _set_aside(self, batch: Batch, places: Sequence[int], error: FoqsError) -> None:
        """Have items sent once more after a pause, while others go on; what waits for too long has failed."""
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
            if len(faults) == len(batch.items):  # The others may be well.
                self._errors.update({batch.positions[place]: fault for place, fault in faults.items()})
                return
        self._failures.append((batch.positions, error))
        self._failed_in_a_row += 1
        leaves_others = batch.has_ids and _is_its_own(error)
        if not leaves_others or self._failed_in_a_row >= FAILED_IN_A_ROW_MAX:
            self._is_ended = True

    def stop(self, error: BaseException) -> None:
        """Give no more batches; `result` raises the first such error."""
        self._broken = self._broken or error

    def result(self) -> EnqueueResult:
        """Return ids and errors by position, once nothing is in flight.

        Raises what the caller's iterable raised or `stop` was told, with a note of how many items were enqueued before,
        and the first failure when no call went through.
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
        """The batches in the order of the items."""
        while block := self._next_block(self._items_max):
            positions, items = self._read(block)
            sizes = [item_bytes(item) for item in items]
            for some in cut(range(len(items)), sizes, self._items_max, ENQUEUE_BYTES_MAX):
                yield self._batch(positions[some[0] : some[-1] + 1], items[some[0] : some[-1] + 1])

    def _grouped(self, groups: SlotGroups) -> Iterator[Batch]:
        """The batches as groups have enough for one. Each has the items of one group, in their order."""
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
        """Return those of the next items that can be sent, and their positions. The others have their errors then."""
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
    """The group of each item. One whose id cannot be encoded goes with those that have none."""
    try:
        return groups.of(items)
    except UnicodeEncodeError:
        faults = faults_of(items)
        return [NO_ID if place in faults else groups.of([item])[0] for place, item in enumerate(items)]


def _all_have_ids(items: Sequence[NewItem]) -> bool:
    return None not in map(_dedup_id, items)


def _is_its_own(error: FoqsError) -> bool:
    """Whether other batches may go through where this one did not."""
    return isinstance(error, UnavailableError | OverloadedError | RateLimitedError)

"""Calls of the verbs for many entries, and the outcome of each entry.

Entries share only their calls. Entries to be repeated wait on their own while others continue, and an entry with an
outcome is not sent again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import chain
from typing import Any

from foqs.client.addresses import Address
from foqs.client.client_errors import error_from_wire
from foqs.client.flows import Attempts, Call, Flow, Pause, Terms
from foqs.client.retry import Repeat, goes_elsewhere, may_repeat, verdict
from foqs.model import limits
from foqs.model.calls import PositionErrors
from foqs.model.errors import FoqsError, InternalError, InvalidArgumentError, NotFoundError, TooLargeError

CALL_BYTES_MAX = limits.FRAME_BYTES_MAX // 2
"""Most bytes of the entries of one call, which keeps the frame far below its own limit."""


@dataclass(slots=True, eq=False)
class Verb:
    """A verb for many entries.

    make_call(pending, repeated) makes the next attempt; `repeated` is True if an earlier one might have done some of
    `pending`.
    take(response, places) stores the results of a response and returns its errors; `places` are the places of its
    entries, in its order.
    gone_is_done: NOT_FOUND after an unknown outcome means that an earlier attempt succeeded.
    owner_of: the host with most of the entries, if known.
    size_of: the largest size of an entry in a frame, in bytes.
    faults_of: the errors of unsendable entries, by their place among the given ones, if that was not checked before.
    defers: leave an entry that was certainly not done to the caller, who has others to send, instead of repeating it.
    """

    make_call: Callable[[Sequence[Any], bool], Call]
    take: Callable[[Any, Sequence[int]], Mapping[int, Any] | None]
    gone_is_done: bool = False
    owner_of: Callable[[Sequence[Any]], Flow[Address | None]] | None = None
    size_of: Callable[[Any], int] = lambda _: 0
    faults_of: Callable[[Sequence[Any]], Mapping[int, FoqsError]] | None = None
    defers: bool = False


@dataclass(slots=True, eq=False)
class _Part:
    """Entries that share the same history of attempts."""

    places: Sequence[int]
    attempts: Attempts | None = None
    is_uncertain: bool = False
    """True if an earlier attempt might have done these entries."""
    due_at_ms: int = 0


class Entries:
    """The pending entries of a verb: the entries of the next call, and the entries that wait to be repeated.

    The flow of a verb creates one and sends until every entry has an outcome. A settler keeps one and adds entries to
    it.
    """

    __slots__ = (
        "_ended",
        "_entries",
        "_fresh",
        "_grain_ms",
        "_later",
        "_parts_count",
        "_terms",
        "_verb",
        "errors",
        "refusal",
        "was_answered",
    )

    def __init__(
        self,
        terms: Terms,
        verb: Verb,
        entries: Sequence[Any] | MutableMapping[int, Any],
        *,
        ended: Callable[[int, FoqsError | None], None] | None = None,
        grain_ms: int = 1,
    ) -> None:
        """`entries` are by place. `ended` receives each outcome as soon as it is known.

        grain_ms: repetitions within this time are sent together, so each is late by up to this time.
        """
        self.errors: PositionErrors = {}
        """Errors by place; empty if `ended` receives the outcomes."""
        self.refusal: FoqsError | None = None
        """Error of the first call that failed finally and as a whole."""
        self.was_answered = False
        """True once a host has returned the outcome of some entries."""
        self._terms = terms
        self._verb = verb
        self._entries = entries
        self._ended = ended
        self._grain_ms = grain_ms
        self._fresh: deque[_Part] = deque()
        self._later: list[tuple[int, int, _Part]] = []
        self._parts_count = 0

    def add(self, places: Sequence[int]) -> None:
        """Send these entries with one call."""
        self._fresh.append(_Part(places))

    def wait_ms(self) -> int | None:
        """Return the ms until the next call, or None if every entry has an outcome."""
        if self._fresh:
            return 0
        return max(0, self._later[0][0] - self._terms.clock_ms()) if self._later else None

    def send_all(self) -> Flow[None]:
        """Send until every entry has an outcome."""
        while (wait_ms := self.wait_ms()) is not None:
            if wait_ms:
                yield Pause(wait_ms)
            else:
                yield from self.send_next()

    def send_next(self) -> Flow[None]:
        """Make the next call and record its outcome. Entries that are due precede new ones."""
        parts = self._take()
        places = parts[0].places if len(parts) == 1 else sorted(chain.from_iterable([part.places for part in parts]))
        pending = self._at(places)
        attempts = parts[0].attempts
        if attempts is None:
            owner = None if self._verb.owner_of is None else (yield from self._verb.owner_of(pending))
            attempts = parts[0].attempts = Attempts(self._terms, owner)
        call = self._verb.make_call(pending, any(part.is_uncertain for part in parts))
        try:
            response = yield attempts.send(call)
            errors_by_place = self._verb.take(response, places) or {}
        except FoqsError as error:
            if not self._leaves_out_faults(parts, pending, error):
                self._failed(parts, attempts, error, call.repeat)
        else:
            self._answered(parts, places, errors_by_place, call.repeat)

    def give_up(self, error: FoqsError) -> None:
        """End all pending entries with this error."""
        parts = [*self._fresh, *[part for _, _, part in self._later]]
        self._fresh.clear()
        self._later.clear()
        for part in parts:
            self._end(part.places, verdict(error, part.is_uncertain))

    def _take(self) -> list[_Part]:
        """Return the parts of the next call. Due parts come first, because new ones were sent while they waited."""
        now_ms = self._terms.clock_ms()
        if not (self._later and self._later[0][0] <= now_ms):
            return [self._fresh.popleft()]
        parts = [heappop(self._later)[2]]
        while self._later and self._later[0][0] <= now_ms and self._go_together([*parts, self._later[0][2]]):
            parts.append(heappop(self._later)[2])
        return parts

    def _go_together(self, parts: Sequence[_Part]) -> bool:
        attempts = [part.attempts for part in parts if part.attempts is not None]
        if any(set(one.avoided) != set(attempts[0].avoided) for one in attempts):
            return False
        if sum([len(part.places) for part in parts]) > limits.BATCH_ITEMS_MAX:
            return False
        size_of = self._verb.size_of
        return sum([size_of(entry) for part in parts for entry in self._at(part.places)]) <= CALL_BYTES_MAX

    def _at(self, places: Sequence[int]) -> Sequence[Any]:
        entries = self._entries
        if isinstance(places, range) and isinstance(entries, Sequence):
            return entries if len(places) == len(entries) else entries[places.start : places.stop]
        return [entries[place] for place in places]

    def _leaves_out_faults(self, parts: Sequence[_Part], pending: Sequence[Any], error: FoqsError) -> bool:
        """Refuse only the faulty entries of a call that could not be made. True if it had any."""
        if self._verb.faults_of is None or not isinstance(error, InvalidArgumentError | TooLargeError):
            return False
        faults = self._verb.faults_of(pending)
        places = sorted(chain.from_iterable([part.places for part in parts]))
        faulty = {places[at]: fault for at, fault in faults.items()}
        for place, fault in faulty.items():
            self._end([place], fault)
        if faulty:
            for part in reversed(parts):
                part.places = [place for place in part.places if place not in faulty]
                if part.places:
                    self._fresh.appendleft(part)
        return bool(faulty)

    def _failed(self, parts: Sequence[_Part], attempts: Attempts, error: FoqsError, repeat: Repeat) -> None:
        """Record that a call failed as a whole."""
        for part in parts:
            part.attempts = own = attempts if part.attempts is None else part.attempts.at_step_of(attempts)
            pause_ms = own.failed(error) if may_repeat(error, repeat) else None
            if pause_ms is not None:
                part.is_uncertain = part.is_uncertain or not error.nothing_done
                self._repeat(part, pause_ms)
                continue
            final = verdict(own.explained(error), part.is_uncertain)
            if self.refusal is None:
                self.refusal = final
            self._end(part.places, final)

    def _answered(
        self, parts: Sequence[_Part], places: Sequence[int], errors_by_place: Mapping[int, Any], repeat: Repeat
    ) -> None:
        """Record the positions that failed, and repeat these if allowed."""
        self.was_answered = True
        if not errors_by_place:
            for part in parts:
                assert part.attempts is not None, "it was sent"
                part.attempts.served()
                self._end(part.places, None)
            return
        errors: PositionErrors = {}
        for index, wire_error in errors_by_place.items():
            if not 0 <= index < len(places):
                raise InternalError(f"the host reported position {index} of a batch of {len(places)}")
            errors[places[index]] = error_from_wire(wire_error)
        first = parts[0].attempts
        assert first is not None, "it was sent"
        if len(errors) < len(places):
            first.served()
        elif all(map(goes_elsewhere, errors.values())):
            first.blame(next(iter(errors.values())))
        for part in parts:
            assert part.attempts is not None, "it was sent"
            self._enter(part, part.attempts.at_step_of(first), errors, repeat)

    def _enter(self, part: _Part, attempts: Attempts, errors: PositionErrors, repeat: Repeat) -> None:
        """Record the errors of a part. Entries that are repeated for the same reason stay together."""
        again: dict[tuple[object, ...], list[int]] = {}
        for place in part.places:
            error = errors.get(place)
            is_deferred = self._verb.defers and error is not None and error.nothing_done and not part.is_uncertain
            if error is not None and may_repeat(error, repeat) and not is_deferred:
                kind = (type(error), error.retry_after_ms, error.nothing_done)
                again.setdefault(kind, []).append(place)
            elif part.is_uncertain and self._verb.gone_is_done and isinstance(error, NotFoundError):
                self._end([place], None)
            else:
                self._end([place], error)
        for places in again.values():
            error = errors[places[0]]
            own = attempts.copy()
            pause_ms = own.after(error, own.address, elsewhere=goes_elsewhere(error))
            if pause_ms is None:
                for place in places:
                    self._end([place], verdict(errors[place], part.is_uncertain))
            else:
                self._repeat(_Part(places, own, part.is_uncertain or not error.nothing_done), pause_ms)

    def _repeat(self, part: _Part, pause_ms: int) -> None:
        grain_ms = self._grain_ms
        due_at_ms = -(-(self._terms.clock_ms() + pause_ms) // grain_ms) * grain_ms
        self._parts_count += 1
        heappush(self._later, (due_at_ms, self._parts_count, part))

    def _end(self, places: Iterable[int], error: FoqsError | None) -> None:
        if self._ended is not None:
            for place in places:
                self._ended(place, error)
        elif error is not None:
            self.errors.update(dict.fromkeys(places, error))


def batch_flow(terms: Terms, verb: Verb, entries: Sequence[Any]) -> Flow[PositionErrors]:
    """Send the entries in one call, and return the errors by position.

    Positions that allow it are repeated until the deadline.
    Raises if the call fails as a whole before the outcome of any position is known.
    """
    work = Entries(terms, verb, entries)
    work.add(range(len(entries)))
    yield from work.send_all()
    refusal = work.refusal
    if refusal is None and len(work.errors) == len(entries) > 0:
        refusal = work.errors[0]  # No entry could be sent.
    if refusal is not None and not work.was_answered:
        raise refusal from refusal.__cause__
    return work.errors


def cut(places: Sequence[int], sizes: Sequence[int], items_max: int, bytes_max: int) -> Iterable[Sequence[int]]:
    """Split places into pieces of at most `items_max` entries and `bytes_max` bytes, by the entries' sizes."""
    start = size = 0
    for end, one in enumerate(sizes):
        if end > start and (end - start == items_max or size + one > bytes_max):
            yield places[start:end]
            start, size = end, 0
        size += one
    if start < len(places):
        yield places[start:]

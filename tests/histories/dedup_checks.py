"""Promise P13: of the enqueues of one dedup id within its window one makes an item, and all that succeed get its id.

Certain only is what the record leaves no doubt about: two enqueues lie within the window when the latest end of the
one and the earliest begin of the other do, and when no more ids can have come in between than the window holds. A
window begins when an item is made. A repeat does not make it longer, so of a repeat the begin is that of its first one.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

from foqs.model.limits import NEVER_MS
from tests.histories.history import Call, Outcome, Put, Verb
from tests.histories.lives import Lives, returned_at_ms
from tests.histories.report import Report


class DedupWindow(NamedTuple):
    """How long and how many ids are known in each of the namespaces.

    They are the parts of topics before a slash: a history of one namespace, whose topics have none, names it "".
    """

    namespaces: Collection[str] = ()
    ms: int = NEVER_MS
    ids: int = NEVER_MS
    by_topic: bool = False
    accepted: Collection[str] = ()
    """The uids of items that were taken as if they had no id, as `dedup_when_away = ACCEPT` allows."""
    sliced: Collection[str] = ()
    """The uids of items of bulk calls, which a host does in slices: each of those is as a call there."""


NO_WINDOW = DedupWindow()
WHOLE_WINDOW = DedupWindow([""])
"""Of a history of one namespace in which no id is forgotten."""


class IdPut(NamedTuple):
    """One position of an enqueue that has a dedup id. `scope` is the namespace or the topic in which the id counts."""

    position: int
    put: Put
    namespace: str
    scope: str


def puts_with_ids(call: Call, window: DedupWindow) -> Iterator[IdPut]:
    for position, put in enumerate(call.asked if call.verb is Verb.ENQUEUE else ()):
        head, slash, _ = put.topic.partition("/")
        namespace = head if slash else ""
        if put.dedup_id and namespace in window.namespaces:
            yield IdPut(position, put, namespace, put.topic if window.by_topic else namespace)


class Begins:
    """When the enqueues of ids began, by namespace: of a whole history, however it is split to be checked."""

    def __init__(self, calls: Iterable[Call], window: DedupWindow) -> None:
        self._by_namespace: dict[str, array[int]] = defaultdict(lambda: array("q"))
        for call in calls:
            self.see(call, window)
        self.sort()

    def see(self, call: Call, window: DedupWindow) -> None:
        for found in puts_with_ids(call, window):
            self._by_namespace[found.namespace].append(call.invoked_at_ms)

    def sort(self) -> None:
        for namespace, begins in self._by_namespace.items():
            self._by_namespace[namespace] = array("q", sorted(begins))

    def of(self, namespace: str) -> Sequence[int]:
        return self._by_namespace[namespace]


class _Try(NamedTuple):
    """One enqueue of an id. `item_id` is what it was answered, `ended_ms` when it had certainly ended."""

    put: Put
    call: Call
    item_id: str
    is_duplicate: bool
    is_made: bool
    known_from_ms: int
    """The earliest time at which the item that it was answered can have been made."""
    ended_ms: int


def check_dedup(
    calls: Iterable[Call], lives: Lives, window: DedupWindow, report: Report, begins: Begins | None = None
) -> None:
    """Hold all tries of each id against each other. `begins` is that of all calls, if these are a part of them."""
    calls = list(calls)
    begins = begins or Begins(calls, window)
    by_id: dict[tuple[str, str, str], list[_Try]] = defaultdict(list)
    for call in calls:
        accepted: dict[tuple[str, str], list[int]] = defaultdict(list)
        for position, put, namespace, scope in puts_with_ids(call, window):
            if put.uid in window.accepted:
                accepted[scope, put.dedup_id].append(position)
            else:
                by_id[namespace, scope, put.dedup_id].append(_try(call, position, put, lives))
        for (scope, dedup_id), positions in accepted.items():
            is_sliced = call.asked[positions[0]].uid in window.sliced
            _check_accepted(call, f"{scope} {dedup_id}", positions, report, is_sliced=is_sliced)
    for (namespace, scope, dedup_id), tries in by_id.items():
        report.counts["dedup ids"] += 1
        report.counts["repeats answered with the first one's id"] += sum(one.is_duplicate for one in tries)
        for one, other in combinations(tries, 2):
            if not _surely_within(one, other, window, begins.of(namespace)):
                continue
            report.counts["pairs of enqueues with one dedup id"] += 1
            if one.is_made and other.is_made:
                what = f"made {one.put.uid} at {one.call.invoked_at_ms} and {other.put.uid} at"
                report.add("P13", f"{scope} {dedup_id}", f"{what} {other.call.invoked_at_ms}")
            elif one.item_id and other.item_id and one.item_id != other.item_id:
                report.add("P13", f"{scope} {dedup_id}", f"was answered {one.item_id} and {other.item_id}")
        _check_duplicates(f"{scope} {dedup_id}", tries, lives, report)


def _check_accepted(call: Call, item: str, positions: Sequence[int], report: Report, *, is_sliced: bool) -> None:
    """Whoever takes an item without its id knows only of its call whether it is a repeat: each call makes one item."""
    report.counts["items accepted without their dedup ids"] += len(positions)
    made = [at for at in positions if call.outcome_at(at) is Outcome.OK and at not in call.duplicates]
    if len(made) > 1 and not is_sliced:
        report.add("P13", item, f"was made {len(made)} times by the call at {call.invoked_at_ms}")
    for position in positions:
        if position not in call.duplicates:
            continue
        report.counts["repeats in a call among items accepted without their dedup ids"] += 1
        if not any(at < position and call.ids[at] == call.ids[position] for at in made):
            report.add("P13", item, f"was taken as if it had no id, and is called a repeat of {call.ids[position]}")


def _check_duplicates(item: str, tries: list[_Try], lives: Lives, report: Report) -> None:
    """A repeat comes after something, and has the id of what was enqueued with the same dedup id."""
    uids = {one.put.uid for one in tries}
    for one in tries:
        if not one.is_duplicate:
            continue
        strangers = lives.by_id.get(one.item_id, set()) - uids
        if strangers:
            report.add("P13", item, f"{one.put.uid} was answered {one.item_id}, which is {sorted(strangers)}")
        may_be_first = [
            other for other in tries
            if other is not one and other.call.invoked_at_ms <= one.ended_ms
            and (other.is_made or other.call.outcome is Outcome.INFO or Outcome.INFO in other.call.others.values())
        ]  # fmt: skip
        if not may_be_first:
            report.add("P13", item, f"{one.put.uid} is called a repeat, and nothing came before it")


def _try(call: Call, position: int, put: Put, lives: Lives) -> _Try:
    is_ok = call.outcome_at(position) is Outcome.OK
    is_duplicate = position in call.duplicates
    life = lives.by_uid[put.uid]
    known_from_ms = _made_from_ms(call.ids[position], lives) if is_duplicate else call.invoked_at_ms
    ended_ms = min([returned_at_ms(call), *[delivery.returned_at_ms for delivery in life.deliveries]])
    if life.stored:
        ended_ms = min(ended_ms, lives.ended_ms)
    is_made = bool(life.deliveries or life.stored) or (is_ok and not is_duplicate)
    return _Try(put, call, call.ids[position] if is_ok else "", is_duplicate, is_made, known_from_ms, ended_ms)


def _made_from_ms(item_id: str, lives: Lives) -> int:
    """0 where the record does not tell who made the item: its enqueue had no answer, and nobody has seen it."""
    makers = [lives.by_uid[uid].call for uid in lives.by_id.get(item_id, ())]
    return min([call.invoked_at_ms for call in makers if call is not None], default=0)


def _surely_within(one: _Try, other: _Try, window: DedupWindow, begins: Sequence[int]) -> bool:
    first_ms = min(one.known_from_ms, other.known_from_ms)
    last_ms = max(one.ended_ms, other.ended_ms)
    # What began before the first of them may have come in between as well, if it took long.
    return last_ms - first_ms < window.ms and bisect_left(begins, last_ms) < window.ids

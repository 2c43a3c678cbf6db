"""What a history says of each item, put together from the calls of all clients."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from types import MappingProxyType
from typing import NamedTuple

from foqs.model import ids
from foqs.model.calls import ItemState
from foqs.model.errors import ErrorCode
from foqs.model.limits import NEVER_MS
from tests.histories.history import Call, Outcome, Put, Settled, Taken, Verb

_UNAVAILABLE = ErrorCode.UNAVAILABLE.name
NONE_LEFT: Mapping[str, Collection[int]] = MappingProxyType({})


class Delivery(NamedTuple):
    number: int
    """The delivery number of the receipt."""
    taken: Taken
    call: Call

    @property
    def returned_at_ms(self) -> int:
        return returned_at_ms(self.call)


class End(NamedTuple):
    """One position of an ack, nack or extend; `number` is 0 for a bare id."""

    number: int
    settled: Settled
    outcome: Outcome
    call: Call


class Stored(NamedTuple):
    """One item as the tables have it after all that the history holds."""

    id: str
    uid: str
    state: ItemState
    group: str = ""
    """The consumer group that it is a copy for."""


@dataclass(slots=True)
class Life:
    """One item by its uid. `stored` are its rows in the end."""

    uid: str
    put: Put | None = None
    outcome: Outcome = Outcome.FAIL
    call: Call | None = None
    ids: set[str] = field(default_factory=set)
    deliveries: list[Delivery] = field(default_factory=list)
    ends: list[End] = field(default_factory=list)
    stored: list[Stored] = field(default_factory=list)

    def ready_from_ms(self) -> tuple[int, int]:
        """The earliest and the latest time that its deliver_after can be, by what was asked and when."""
        put, call = self.put, self.call
        assert put is not None
        assert call is not None
        earliest, latest = call.invoked_at_ms, returned_at_ms(call) if self.outcome is Outcome.OK else NEVER_MS
        if put.delay_ms is not None:
            return earliest + put.delay_ms, min(latest + put.delay_ms, NEVER_MS)
        if put.deliver_after_ms is not None:
            return max(earliest, put.deliver_after_ms), max(latest, put.deliver_after_ms)
        return earliest, latest

    def expires_ms(self) -> tuple[int, int]:
        """The earliest and the latest end of its TTL; without one it is long after every test."""
        if self.put is None or self.put.ttl_ms is None:
            return NEVER_MS, NEVER_MS
        earliest, latest = self.ready_from_ms()
        return earliest + self.put.ttl_ms, min(latest + self.put.ttl_ms, NEVER_MS)

    def has(self, verb: Verb, *outcomes: Outcome) -> bool:
        return any(end.call.verb is verb and end.outcome in outcomes for end in self.ends)


class Lives:
    """`strays`: ends that were answered OK although nobody was given such an item.

    ended_ms: when the stored rows were read; 0 says at the last call.
    claims_left, hand_overs_lost: see `tests.histories.checker.check`.
    """

    def __init__(
        self,
        calls: Iterable[Call],
        stored: Iterable[Stored],
        ended_ms: int = 0,
        claims_left: Mapping[str, Collection[int]] = NONE_LEFT,
        *,
        hand_overs_lost: bool = False,
    ) -> None:
        self.claims_left = claims_left
        self.hand_overs_lost = hand_overs_lost
        self.by_uid: dict[str, Life] = {}
        self.by_id: dict[str, set[str]] = {}
        """The uids under which an id was seen: more than one breaks P9."""
        self.ids_of_firsts: set[str] = set()
        """What repeats were answered. The uid of such an item may be known to nobody, if its own answer was lost."""
        self.torn: list[tuple[str, Call]] = []
        """Ids whose payload was not whole."""
        self.strays: list[tuple[str, Call]] = []
        self.empty_answers: dict[str, list[Call]] = {}
        """Dequeue calls that brought nothing, by topic, in order of their begin."""
        self.unanswered: dict[str, list[Call]] = {}
        """Dequeue calls for which items may have been claimed that nobody got, by topic, in order of their begin.

        Those of which nobody knows what they brought, and those that were refused because their host lost its shards.
        """
        self.last_ms = 0
        ends: list[Call] = []
        for call in sorted(calls, key=attrgetter("invoked_at_ms")):
            self.last_ms = max(self.last_ms, call.invoked_at_ms, call.returned_at_ms or 0)
            if call.verb is Verb.ENQUEUE:
                self._add_puts(call)
            elif call.verb is Verb.DEQUEUE:
                self._add_deliveries(call)
            else:
                ends.append(call)
        self.ended_ms = max(ended_ms, self.last_ms)
        for row in stored:
            self._life(row.uid, row.id).stored.append(row)
        for call in ends:
            self._add_ends(call)
        for life in self.by_uid.values():
            life.deliveries.sort(key=lambda delivery: (delivery.number, delivery.returned_at_ms))
            life.ends.sort(key=lambda end: end.call.invoked_at_ms)

    def empty_answer_within(self, topic: str, start_ms: int, end_ms: int) -> Call | None:
        """A dequeue of the topic that began and was answered with nothing within the time."""
        answers = self.empty_answers.get(topic, [])
        at = bisect_left(answers, start_ms, key=attrgetter("invoked_at_ms"))
        if at < len(answers) and returned_at_ms(answers[at]) <= end_ms:
            return answers[at]
        return None

    def unanswered_count(self, topic: str, end_ms: int) -> int:
        """Dequeues of the topic that may have taken an item before this time, and whose answers were lost.

        A host may do what was asked long after its caller has given up.
        """
        return bisect_left(self.unanswered.get(topic, []), end_ms, key=attrgetter("invoked_at_ms"))

    def _life(self, uid: str, item_id: str | None) -> Life:
        life = self.by_uid.get(uid)
        if life is None:
            life = self.by_uid[uid] = Life(uid)
        if item_id:
            life.ids.add(item_id)
            self.by_id.setdefault(item_id, set()).add(uid)
        return life

    def _add_puts(self, call: Call) -> None:
        for position, put in enumerate(call.asked):
            # A repeat has no item of its own: it is as if it had been refused.
            outcome = Outcome.FAIL if position in call.duplicates else call.outcome_at(position)
            if position in call.duplicates:
                self.ids_of_firsts.add(call.ids[position])
            life = self._life(put.uid, call.ids[position] if outcome is Outcome.OK else None)
            if life.put is not None:
                raise ValueError(f"uid {put.uid} was enqueued twice: a history must name every item anew")
            life.put, life.call, life.outcome = put, call, outcome

    def _add_deliveries(self, call: Call) -> None:
        if call.outcome is Outcome.OK and not call.taken:
            for topic in call.asked:
                self.empty_answers.setdefault(topic, []).append(call)
        if call.outcome is Outcome.INFO or call.error == _UNAVAILABLE:
            for topic in call.asked:
                self.unanswered.setdefault(topic, []).append(call)
        for taken in call.taken:
            item_id, number = _split(taken.receipt)
            if not taken.uid:
                self.torn.append((item_id, call))
                continue
            self._life(taken.uid, item_id).deliveries.append(Delivery(number, taken, call))

    def _add_ends(self, call: Call) -> None:
        for position, settled in enumerate(call.asked):
            item_id, number = _split(settled.receipt)
            outcome = call.outcome_at(position)
            uids = self.by_id.get(item_id)
            if uids is None and outcome is Outcome.OK and item_id not in self.ids_of_firsts:
                self.strays.append((settled.receipt, call))
            for uid in uids or ():
                self.by_uid[uid].ends.append(End(number, settled, outcome, call))


def returned_at_ms(call: Call) -> int:
    return NEVER_MS if call.returned_at_ms is None else call.returned_at_ms


def order_key(taken: Taken) -> tuple[int, int, int, int]:
    """The sort key of an item in its topic (promise P6)."""
    shard_id, key, _ = ids.parse(taken.receipt)
    return taken.priority, taken.deliver_after_ms, key, shard_id


def _split(receipt: str) -> tuple[str, int]:
    item_id, _, number = receipt.partition(":")
    return item_id, int(number, 16) if number else 0


def overlaps(windows: Sequence[tuple[int, int]], start_ms: int, end_ms: int) -> bool:
    return any(start < end_ms and start_ms < end for start, end in windows)

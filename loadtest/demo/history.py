"""Everything the demo's processes saw, and what of it must hold.

The order of a topic (promise P6) is that of each host, so the items of a topic are checked by the host that has their
shard. Within an answer they must be in order. Across answers, a violation is a pair: answer A hands out an item, a more
urgent item of the topic and host is handed out by answer B, and

    the more urgent item was certainly ready before the call of A began, and
    the call of B began after A had been answered, so the item was not yet handed out when A was filled.

Everything less certain is allowed: calls that overlap, items that became ready while A was on its way. An item is
certainly ready once its enqueue was answered; a delayed one READY_MARGIN_MS after its deliver_after; an item whose
lease ended READY_MARGIN_MS after that end.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from loadtest.demo.messages import Answer, Enqueued, Handout, Phase, Settled

READY_MARGIN_MS = 1_000
"""Promise P7: an ended lease is redelivered within a second; a delayed item gets as much."""
_NS_PER_MS = 1_000_000


@dataclass(slots=True)
class OrderCheck:
    """`compared_count`: deliveries that some answer could have wronged; the others prove nothing."""

    compared_count: int = 0
    violations: list[str] = field(default_factory=list)


class History:
    """`wall_minus_monotonic_ms`: what to add to the monotonic clock for the time of day.

    `owners`: the host of each shard, all the time; without them, one host has all.
    """

    def __init__(self, wall_minus_monotonic_ms: float, owners: Mapping[int, int] | None = None) -> None:
        self._wall_minus_monotonic_ms = wall_minus_monotonic_ms
        self._owners = owners or {}
        self.enqueued: dict[str, Enqueued] = {}
        """By item id, the call that stored it."""
        self.answers: list[Answer] = []
        self.acked: list[str] = []
        self.dead: list[str] = []
        self.refused: list[str] = []
        """Acks and nacks that came after the end of their lease."""
        self._unsettled: dict[int, list[Handout]] = defaultdict(list)

    # ---- what happened ----

    def add_enqueued(self, message: Enqueued) -> None:
        self.enqueued.update(dict.fromkeys(message.ids, message))

    def add_answer(self, consumer: int, answer: Answer) -> None:
        answer.consumer = consumer
        self.answers.append(answer)
        self._unsettled[consumer] += answer.handouts

    def add_settled(self, consumer: int, settled: Settled) -> None:
        self.dead += settled.dead
        self.refused += settled.refused
        others = {*settled.dead, *settled.refused}
        self.acked += [handout.id for handout in self._unsettled.pop(consumer) if handout.id not in others]

    def held_by(self, consumer: int) -> list[Handout]:
        """What the consumer was given and has not settled."""
        return list(self._unsettled[consumer])

    @property
    def settled_count(self) -> int:
        return len(self.acked) + len(self.dead)

    def deliveries(self) -> Iterator[tuple[Answer, Handout]]:
        for answer in self.answers:
            for handout in answer.handouts:
                yield answer, handout

    def latencies_ms(self, phase: Phase) -> list[float]:
        """From ready to dequeued, of first deliveries: from deliver_after to the answer in the consumer's hands."""
        return [
            answer.answered_at_ms - handout.deliver_after_ms
            for answer, handout in self.deliveries()
            if handout.attempt == 1 and self.enqueued[handout.id].phase is phase
        ]

    def was_behind(self, answer: Answer, handout: Handout, since_ms: float) -> bool:
        """Whether more urgent items of the topic were handed out between that time and this delivery."""
        return any(
            other.place < handout.place and other.topic == handout.topic
            for earlier in self.answers
            if since_ms < earlier.answered_at_ms <= answer.answered_at_ms
            for other in earlier.handouts
        )

    # ---- what must hold ----

    def out_of_order_answers(self) -> int:
        """Answers in which the items of a topic and host are not in order."""
        wrong = 0
        for answer in self.answers:
            places: dict[tuple[str, int], list[int]] = defaultdict(list)
            for handout in answer.handouts:
                places[self._queue_of(handout)].append(handout.place)
            wrong += any(first > second for of_topic in places.values() for first, second in pairwise(of_topic))
        return wrong

    def check_order(self) -> OrderCheck:
        """See the head of this module."""
        check = OrderCheck()
        by_queue: dict[tuple[str, int], list[tuple[Answer, Handout]]] = defaultdict(list)
        for answer, handout in self.deliveries():
            by_queue[self._queue_of(handout)].append((answer, handout))
        ready_ns = self._ready_times_ns()
        for (topic, _), deliveries in by_queue.items():
            _check_topic(topic, [(a, h, ready_ns[h.id, h.attempt]) for a, h in deliveries], check)
        return check

    def early_count(self) -> int:
        """Deliveries before their deliver_after (P7)."""
        return sum(answer.answered_at_ms < handout.deliver_after_ms for answer, handout in self.deliveries())

    def doubly_leased_count(self) -> int:
        """Deliveries while an earlier lease of the same item still ran (P3)."""
        count = 0
        leased_until_ms: dict[str, int] = {}
        for answer, handout in sorted(self.deliveries(), key=lambda delivery: delivery[0].answered_ns):
            count += answer.answered_at_ms < leased_until_ms.get(handout.id, 0)
            leased_until_ms[handout.id] = handout.lease_expires_at_ms
        return count

    def lost_count(self) -> int:
        """Items that were stored and neither acked nor dead-lettered (P2)."""
        return len(self.enqueued.keys() - {*self.acked, *self.dead})

    def settled_twice_count(self) -> int:
        """Items that were acked or dead-lettered more than once (P5)."""
        return self.settled_count - len({*self.acked, *self.dead})

    def _ready_times_ns(self) -> dict[tuple[str, int], int]:
        """When each delivery's item was certainly ready, by id and attempt."""
        ready: dict[tuple[str, int], int] = {}
        lease_ends_ms = {(h.id, h.attempt): h.lease_expires_at_ms for _, h in self.deliveries()}
        for _, handout in self.deliveries():
            at_ns = self.enqueued[handout.id].answered_ns
            if handout.delayed:
                at_ns = max(at_ns, self._certain_ns(handout.deliver_after_ms))
            if handout.attempt > 1:
                at_ns = max(at_ns, self._certain_ns(lease_ends_ms[handout.id, handout.attempt - 1]))
            ready[handout.id, handout.attempt] = at_ns
        return ready

    def _queue_of(self, handout: Handout) -> tuple[str, int]:
        """What has one order: the topic, on the host that delivers it."""
        return handout.topic, self._owners.get(handout.shard_id, 0)

    def _certain_ns(self, at_ms: int) -> int:
        return int((at_ms + READY_MARGIN_MS - self._wall_minus_monotonic_ms) * _NS_PER_MS)


def _check_topic(topic: str, deliveries: list[tuple[Answer, Handout, int]], check: OrderCheck) -> None:
    """Find deliveries that a certain earlier answer passed over.

    The answers are added latest call first, so that all that are there when a delivery is looked at began after
    it was ready; among them those that ended before its own call began are a prefix by the time of their end.
    """
    worst: dict[int, tuple[Answer, int]] = {}
    for answer, handout, _ in deliveries:
        known = worst.get(id(answer))
        if known is None or known[1] < handout.place:
            worst[id(answer)] = (answer, handout.place)
    by_end = sorted(worst.values(), key=lambda entry: entry[0].answered_ns)
    ends_ns = [answer.answered_ns for answer, _ in by_end]
    position = {id(answer): index for index, (answer, _) in enumerate(by_end)}
    waiting = sorted(worst.values(), key=lambda entry: entry[0].asked_ns)
    seen = _PrefixMaximum(len(by_end))
    for answer, handout, ready_ns in sorted(deliveries, key=lambda delivery: -delivery[2]):
        while waiting and waiting[-1][0].asked_ns > ready_ns:
            earlier, place = waiting.pop()
            seen.add(position[id(earlier)], place)
        least_urgent = seen.of_first(bisect_left(ends_ns, answer.asked_ns))
        if least_urgent is None:
            continue
        check.compared_count += 1
        if least_urgent > handout.place:
            check.violations.append(
                f"{handout.id} of {topic} (attempt {handout.attempt}) was passed over by a less urgent item"
            )


class _PrefixMaximum:
    """The largest value among the first n positions (P. M. Fenwick's tree, 1994)."""

    def __init__(self, size: int) -> None:
        self._tree: list[int | None] = [None] * (size + 1)

    def add(self, position: int, value: int) -> None:
        at = position + 1
        while at < len(self._tree):
            known = self._tree[at]
            if known is None or known < value:
                self._tree[at] = value
            at += at & -at

    def of_first(self, count: int) -> int | None:
        best: int | None = None
        while count > 0:
            value = self._tree[count]
            if value is not None and (best is None or value > best):
                best = value
            count -= count & -count
        return best

"""The checks of one item's life, by the promises that it can break: P1 to P5, P7 and P9."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from foqs.model.calls import ItemState
from foqs.model.limits import NEVER_MS
from tests.histories.clocks import Clocks, shard_of
from tests.histories.history import Outcome, Verb
from tests.histories.lives import Delivery, End, Life, Lives, overlaps, returned_at_ms
from tests.histories.report import Report

REDELIVERY_MS_MAX = 1_000
"""Promise P7: an expired lease is redelivered within this time while the owner lives."""
_LIVE = (ItemState.READY, ItemState.DELAYED, ItemState.LEASED)
_EVER = (Outcome.OK, Outcome.INFO)


class LifeChecks:
    """See `tests.histories.checker.check` for what each argument means; what is found goes into the report."""

    def __init__(
        self,
        lives: Lives,
        drained: bool,
        clocks: Clocks,
        disturbed: Sequence[tuple[int, int]],
        report: Report,
        *,
        one_host: bool = True,
    ) -> None:
        self._one_host = one_host
        self._clocks = clocks
        self._tolerance_ms = clocks.tolerance_ms
        self._lives = lives
        self._drained = drained
        self._disturbed = disturbed
        self._report = report

    def run(self) -> None:
        for item_id, call in self._lives.torn:
            self._add("P1", item_id, f"delivered to {call.client} with a payload that is not whole")
        for receipt, call in self._lives.strays:
            self._add("P5", receipt, f"{call.verb} of {call.client} was answered OK, but there never was such an item")
        for item_id, uids in self._lives.by_id.items():
            if len(uids) > 1:
                self._add("P9", item_id, f"is the id of several items: {', '.join(sorted(uids))}")
        for life in self._lives.by_uid.values():
            if self._check_origin(life):
                self._check_whole(life)
                self._check_there(life)
                self._check_leases(life)
                self._check_attempts(life)
                self._check_ends(life)
                self._check_once(life)
                self._check_times(life)
                self._check_redelivery(life)

    def _add(self, promise: str, item: str, what: str) -> None:
        self._report.add(promise, item, what)

    # ---- P1 and P9: an item is what was enqueued, once ----

    def _check_origin(self, life: Life) -> bool:
        """Whether the item came from one enqueue that can have stored it, and is one item."""
        self._report.counts["items"] += 1
        self._report.counts["deliveries"] += len(life.deliveries)
        if life.put is None or life.call is None:
            self._add("P1", life.uid, "exists, but nobody enqueued it")
            return False
        seen = bool(life.deliveries or life.stored)
        if life.outcome is Outcome.FAIL and seen:
            self._add("P1", life.uid, f"exists, but its enqueue by {life.call.client} was refused")
            return False
        if len(life.ids) > 1:
            self._add("P1", life.uid, f"was enqueued once and exists {len(life.ids)} times: {sorted(life.ids)}")
            return False
        for delivery in life.deliveries:
            if delivery.returned_at_ms < life.call.invoked_at_ms:
                self._add("P1", life.uid, f"was delivered to {delivery.call.client} before its enqueue")
        return True

    def _check_whole(self, life: Life) -> None:
        put = life.put
        assert put is not None
        earliest, latest = life.ready_from_ms()
        assert life.call is not None
        earliest_put, latest_put = life.call.invoked_at_ms, returned_at_ms(life.call)
        metadata = {put.metadata}
        ends = sorted((end for end in life.ends if end.call.verb is Verb.NACK), key=lambda end: end.number)
        delayed = False
        at = 0
        for delivery in life.deliveries:
            while at < len(ends) and ends[at].number < delivery.number:
                end, at = ends[at], at + 1
                delayed = delayed or (end.settled.delay_ms > 0 and end.outcome in _EVER)
                if end.settled.metadata is not None and end.outcome in _EVER:
                    metadata = {end.settled.metadata} | (metadata if end.outcome is Outcome.INFO else set())
            taken = delivery.taken
            if (taken.topic, taken.priority, taken.ordering_key) != (put.topic, put.priority, put.ordering_key):
                self._add("P1", life.uid, f"was enqueued as {put}, delivered as {taken}")
            if taken.metadata not in metadata:
                self._add("P1", life.uid, f"has metadata {taken.metadata!r}, which is none of {sorted(metadata)}")
            slack = self._tolerance_ms
            stepped = self._clocks.steps.offsets_ms(shard_of(life.ids), earliest_put, latest_put)
            least = earliest - slack - self._clocks.late_ms + min(0, *stepped)
            if not delayed and not least <= taken.deliver_after_ms <= latest + slack + max(0, *stepped):
                self._add("P1", life.uid, f"deliver_after {taken.deliver_after_ms} is not in {earliest}..{latest}")

    # ---- P1 and P2: nothing is lost ----

    def _check_there(self, life: Life) -> None:
        put = life.put
        assert put is not None
        expired = (
            life.expires_ms()[0] - self._early_ms(life, self._lives.ended_ms)
            <= self._lives.ended_ms + self._tolerance_ms
        )
        for row in life.stored:
            due = life.ready_from_ms()[1] < self._lives.last_ms and not self._may_be_delayed(life)
            if self._drained and row.state in _LIVE and due and not expired:
                self._add("P2", life.uid, f"is still {row.state.name} in the end, although all was drained")
        if life.stored or life.has(Verb.ACK, *_EVER):
            return
        if expired:
            if not put.at_most_once and _has_failed(life):
                self._add("P2", life.uid, "had a failed attempt and vanished after its TTL: it is no dead letter")
            return
        if put.at_most_once:
            is_lost = life.outcome is Outcome.OK and not life.deliveries
            self._report.counts["at-most-once lost"] += is_lost
            is_left = life.uid in self._lives.claims_left or self._lives.hand_overs_lost
            if is_lost and not is_left and not self._unanswered_count(life, NEVER_MS):
                self._add("P2", life.uid, "is at-most-once and vanished, and no lost answer can have had it")
        elif life.deliveries:
            self._add("P2", life.uid, f"vanished after delivery {life.deliveries[-1].number}: nobody acked it")
        elif life.outcome is Outcome.OK:
            self._add("P1", life.uid, f"was enqueued as {sorted(life.ids)} and never seen again")

    def _early_ms(self, life: Life, by_ms: int) -> int:
        """By how much steps of its server's clock may have brought its dates forward by then."""
        assert life.call is not None
        return self._clocks.steps.forward_ms(shard_of(life.ids), life.call.invoked_at_ms, by_ms, dated=_is_dated(life))

    def _late_ms(self, life: Life, by_ms: int) -> int:
        """The same for late."""
        assert life.call is not None
        return self._clocks.steps.backward_ms(shard_of(life.ids), life.call.invoked_at_ms, by_ms, dated=_is_dated(life))

    def _may_be_delayed(self, life: Life) -> bool:
        return any(
            end.call.verb is Verb.NACK
            and end.outcome in _EVER
            and returned_at_ms(end.call) + end.settled.delay_ms >= self._lives.last_ms
            for end in life.ends
        )

    # ---- P3: one holder ----

    def _check_leases(self, life: Life) -> None:
        seen = len({delivery.number for delivery in life.deliveries})
        # Lost answers, what a host had prefetched when it died, and what went back unasked for.
        self._report.counts["claims that no consumer saw"] += max((d.number for d in life.deliveries), default=0) - seen
        for earlier, later in pairwise(life.deliveries):
            self._report.counts["redeliveries"] += 1
            if earlier.number == later.number:
                self._add("P3", life.uid, f"{earlier.taken.receipt} was given to {_who(earlier)} and {_who(later)}")
                continue
            self._report.counts[_why_again(life, earlier)] += 1
            until_ms = self._leased_until_ms(life, earlier, later.returned_at_ms)
            if later.returned_at_ms < until_ms - self._clocks.lease_ms:
                left_ms = until_ms - later.returned_at_ms
                what = f"given to {_who(later)} {left_ms} ms before the lease of {_who(earlier)} ended"
                self._add("P3", life.uid, f"{what} (deliveries {earlier.number} and {later.number})")

    def _leased_until_ms(self, life: Life, delivery: Delivery, before_ms: int) -> int:
        """The earliest time when the lease can have ended, by what was asked before `before_ms`."""
        until_ms = delivery.taken.lease_expires_at_ms
        doubtful_ms = NEVER_MS
        last_returned_ms = 0
        for end in life.ends:
            if end.number not in (0, delivery.number) or end.call.invoked_at_ms > before_ms:
                continue
            if end.outcome is Outcome.FAIL:
                continue
            if end.call.verb is not Verb.EXTEND:
                return 0
            extended_ms = end.call.invoked_at_ms + end.settled.lease_ms
            in_turn = end.call.invoked_at_ms > last_returned_ms and returned_at_ms(end.call) <= before_ms
            if end.outcome is Outcome.OK and in_turn:
                until_ms = extended_ms
            else:
                doubtful_ms = min(doubtful_ms, extended_ms)
            last_returned_ms = max(last_returned_ms, returned_at_ms(end.call) if end.outcome is Outcome.OK else 0)
        return min(until_ms, doubtful_ms)

    # ---- P1: the attempts that a consumer is told ----

    def _check_attempts(self, life: Life) -> None:
        """They grow with every delivery that failed, and with nothing else.

        A lease that ended while its owner lived is a failure. Of one that an owner left behind nobody can know whether
        it was handed out: it may be one.
        """
        nacks = [end for end in life.ends if end.call.verb is Verb.NACK]
        released = {end.number for end in nacks if end.settled.release and end.outcome in _EVER}
        given_back = {end.number for end in nacks if end.settled.release and end.outcome is Outcome.OK}
        failed = {end.number for end in nacks if not end.settled.release and end.outcome is Outcome.OK}
        for earlier, later in pairwise(life.deliveries):
            is_failure = earlier.number in failed or not (
                {0, earlier.number} & released
                or overlaps(self._disturbed, earlier.call.invoked_at_ms, later.returned_at_ms)
            )
            if later.taken.attempt < earlier.taken.attempt + is_failure:
                what = f"attempt {later.taken.attempt} follows on attempt {earlier.taken.attempt}"
                self._add("P1", life.uid, f"{what} (deliveries {earlier.number} and {later.number})")
        seen_count = 0
        for delivery in life.deliveries:
            attempt, most = delivery.taken.attempt, 1 + seen_count + self._lost_deliveries_max(life, delivery)
            if not 1 <= attempt <= most:
                what = f"delivery {delivery.number} is called attempt {attempt}, and is {most} at most"
                self._add("P1", life.uid, f"{what} by all that consumers saw or can have seen")
            seen_count += delivery.number not in given_back

    def _lost_deliveries_max(self, life: Life, delivery: Delivery) -> int:
        """How many deliveries before this one can have been on their way to consumers who never got them."""
        seen = {earlier.number for earlier in life.deliveries}
        unseen = [number for number in range(1, delivery.number) if number not in seen]
        left = self._lives.claims_left.get(life.uid, ())
        left_count = sum(1 for number in unseen if number in left)
        lost_count = len(unseen) - left_count
        if lost_count and not self._lives.hand_overs_lost:
            lost_count = min(lost_count, self._unanswered_count(life, delivery.returned_at_ms))
        return left_count + lost_count

    def _unanswered_count(self, life: Life, until_ms: int) -> int:
        assert life.put is not None
        return self._lives.unanswered_count(life.put.topic, until_ms)

    # ---- P5: an ack is final, a lost lease says so ----

    def _check_ends(self, life: Life) -> None:
        settled: dict[int, End] = {}
        for end in life.ends:
            if end.outcome is not Outcome.OK:
                lost = end.outcome is Outcome.FAIL and any(d.number > end.number > 0 for d in life.deliveries)
                self._report.counts["stale receipts refused"] += lost
                continue
            if end.number == 0:
                if end.call.verb is Verb.ACK:
                    self._check_bare_ack(life, end)
                continue
            if end.call.verb is Verb.ACK:
                later = [d for d in life.deliveries if d.number > end.number]
                if later:
                    self._add("P5", life.uid, f"delivered to {_who(later[-1])} despite {_ack(end)} of an older receipt")
                if life.stored:
                    self._add("P5", life.uid, f"is still stored after {_ack(end)}")
            elif any(d.number > end.number and d.returned_at_ms < end.call.invoked_at_ms for d in life.deliveries):
                self._add("P5", life.uid, f"{_ack(end)} was done although its lease {end.number} was lost before")
            earlier = settled.get(end.number)
            if earlier is not None and returned_at_ms(earlier.call) < end.call.invoked_at_ms:
                self._add("P5", life.uid, f"{_ack(end)} was done after {_ack(earlier)} had ended lease {end.number}")
            elif end.call.verb is not Verb.EXTEND:
                if earlier is not None:
                    self._add("P5", life.uid, f"{_ack(end)} and {_ack(earlier)} both ended lease {end.number}")
                settled[end.number] = end

    def _check_bare_ack(self, life: Life, end: End) -> None:
        for delivery in life.deliveries:
            if delivery.call.invoked_at_ms > returned_at_ms(end.call):
                self._add("P5", life.uid, f"delivered to {_who(delivery)} after {_ack(end)} of its id")
        if life.stored:
            self._add("P5", life.uid, f"is still stored after {_ack(end)} of its id")

    # ---- P4: at most once ----

    def _check_once(self, life: Life) -> None:
        put = life.put
        assert put is not None
        if not put.at_most_once or not life.deliveries:
            return
        if len(life.deliveries) > 1:
            times = ", ".join(_who(delivery) for delivery in life.deliveries)
            self._add("P4", life.uid, f"is at-most-once and was delivered {len(life.deliveries)} times: {times}")
        if self._drained and any(row.state in _LIVE for row in life.stored):
            self._add("P4", life.uid, "is at-most-once, was delivered and is stored to be delivered again")

    # ---- P7: time ----

    def _check_times(self, life: Life) -> None:
        slack_ms = self._tolerance_ms + self._clocks.late_ms
        ready_ms = life.ready_from_ms()[0] - slack_ms
        expired_ms = life.expires_ms()[1] + slack_ms
        delays = {
            end.number: end.call.invoked_at_ms + end.settled.delay_ms - slack_ms
            for end in life.ends
            if end.call.verb is Verb.NACK and end.outcome is Outcome.OK
        }
        for delivery in life.deliveries:
            bound_ms = max(ready_ms, delays.get(delivery.number - 1, 0))
            bound_ms -= self._early_ms(life, delivery.returned_at_ms)
            if delivery.returned_at_ms < bound_ms:
                early_ms = bound_ms - delivery.returned_at_ms
                self._add("P7", life.uid, f"delivered to {_who(delivery)} {early_ms} ms before it was due")
            late_ms = delivery.call.invoked_at_ms - expired_ms
            if late_ms > self._late_ms(life, delivery.call.invoked_at_ms):
                self._add("P7", life.uid, f"delivered to {_who(delivery)} {late_ms} ms after its TTL had ended")

    def _check_redelivery(self, life: Life) -> None:
        """An empty answer while a lease had ended for more than a second, and nothing had happened to it."""
        assert life.put is not None
        if life.put.at_most_once or life.expires_ms()[0] < NEVER_MS:
            return
        changed_topics = {end.number for end in life.ends if end.outcome is not Outcome.FAIL}
        for delivery, following in pairwise(life.deliveries):
            if following.number != delivery.number + 1 or {0, delivery.number} & changed_topics:
                continue
            ended_ms = delivery.taken.lease_expires_at_ms + self._tolerance_ms
            if overlaps(self._disturbed, delivery.call.invoked_at_ms, following.returned_at_ms):
                continue
            self._report.counts["expired leases watched"] += 1
            late_ms = ended_ms + REDELIVERY_MS_MAX
            if not self._one_host:
                continue  # It may have been asked of a host that had none, and had not heard of it yet.
            empty = self._lives.empty_answer_within(life.put.topic, late_ms, following.call.invoked_at_ms)
            if empty is not None:
                what = f"its lease {delivery.number} ended at {ended_ms}, and {empty.client} asked in vain at"
                self._add("P7", life.uid, f"{what} {empty.invoked_at_ms}")


def _is_dated(life: Life) -> bool:
    return life.put is not None and life.put.deliver_after_ms is not None


def _why_again(life: Life, delivery: Delivery) -> str:
    """What explains that another delivery follows, unless it is found to break promise P3 or P5."""
    ends = [end for end in life.ends if end.number in (0, delivery.number) and end.call.verb is not Verb.EXTEND]
    if any(end.outcome is Outcome.OK for end in ends):
        return "redelivered after a nack"
    if any(end.outcome is Outcome.INFO for end in ends):
        return "redelivered after an ack or nack of unknown outcome, or after its lease"
    return "redelivered after its lease"


def _who(delivery: Delivery) -> str:
    return f"{delivery.call.client} at {delivery.returned_at_ms}"


def _ack(end: End) -> str:
    return f"the {end.call.verb} by {end.call.client} at {end.call.invoked_at_ms}"


def _has_failed(life: Life) -> bool:
    """Whether an attempt has certainly failed: what is known of it must not end without a trace."""
    return any(
        end.call.verb is Verb.NACK and end.outcome is Outcome.OK and not end.settled.release for end in life.ends
    )

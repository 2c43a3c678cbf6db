"""What can be told from calls as they are, whatever became of their items: P6 within an answer, P8, P12."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from foqs.model import ids
from tests.histories.history import Call, Outcome, Taken, Verb
from tests.histories.lives import order_key, overlaps, returned_at_ms
from tests.histories.report import Report

_DEFECT = "INTERNAL"
_FIRST, _LAST = 0, 1 << 62


class CallChecks:
    """Calls are handed to `see` in any order, then `finish` is called once.

    disturbed: the times when a call may stay without a clear answer; None when it always may.
    """

    def __init__(self, report: Report, disturbed: Sequence[tuple[int, int]] | None) -> None:
        self._report = report
        self._disturbed = disturbed
        self._epochs: dict[int, dict[int, list[int]]] = defaultdict(dict)
        """By shard and epoch: when the first insert under it was answered, and when the last was asked for."""

    def see(self, call: Call) -> None:
        counts = self._report.counts
        counts[f"{call.verb} {call.outcome}"] += 1
        if call.error:
            counts[f"answered {call.error}"] += 1
        if call.verb is Verb.DEQUEUE:
            self._check_order(call)
        elif call.verb is Verb.ENQUEUE:
            self._note_epochs(call)
        self._check_answer(call)

    def finish(self) -> None:
        for shard_id, epochs in self._epochs.items():
            earliest_ms = _LAST
            for epoch, (first_returned_ms, last_invoked_ms) in sorted(epochs.items(), reverse=True):
                # Of the later epochs: whoever asked after their first answer cannot have had an earlier owner.
                if earliest_ms < last_invoked_ms:
                    what = f"an item asked for at {last_invoked_ms} was stored under epoch {epoch}"
                    self._report.add("P8", f"shard {shard_id}", f"{what}, which was over by {earliest_ms}")
                earliest_ms = min(earliest_ms, first_returned_ms)

    # ---- P6: order within one answer ----

    def _check_order(self, call: Call) -> None:
        # The ordering keys of a topic have turns.
        by_topic: dict[tuple[str, str], list[Taken]] = defaultdict(list)
        for taken in call.taken:
            by_topic[taken.topic, taken.ordering_key].append(taken)
        for (topic, _), items in by_topic.items():
            self._report.counts["answers in order compared"] += len(items) > 1
            for first, second in pairwise(items):
                if order_key(first) > order_key(second):
                    what = f"{first.receipt} stands before the more urgent {second.receipt} in an answer"
                    self._report.add("P6", topic, f"{what} to {call.client}")

    # ---- P8: who asks after a new owner's first answer is not stored by an old one ----

    def _note_epochs(self, call: Call) -> None:
        for position, item_id in enumerate(call.ids):
            if not item_id or position in call.duplicates:
                continue
            shard_id, key, _ = ids.parse(item_id)
            times = self._epochs[shard_id].setdefault(key >> ids.SEQUENCE_BITS, [_LAST, _FIRST])
            times[0] = min(times[0], returned_at_ms(call))
            times[1] = max(times[1], call.invoked_at_ms)

    # ---- P12: every call gets a clear answer ----

    def _check_answer(self, call: Call) -> None:
        if call.error == _DEFECT:
            self._report.add("P12", call.client, f"its {call.verb} at {call.invoked_at_ms} was answered {_DEFECT}")
        if self._disturbed is None or call.outcome is not Outcome.INFO:
            return
        if not overlaps(self._disturbed, call.invoked_at_ms, returned_at_ms(call)):
            what = f"nobody knows what became of its {call.verb} at {call.invoked_at_ms} ({call.error})"
            self._report.add("P12", call.client, f"{what}, and nothing was wrong")

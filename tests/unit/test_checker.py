"""Histories made by hand: one that is right, and for each promise those that break it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from foqs.model.calls import ItemState
from tests.histories.checker import Report, check
from tests.histories.clocks import ClockSteps
from tests.histories.dedup_checks import NO_WINDOW, WHOLE_WINDOW, DedupWindow
from tests.histories.history import (
    Call,
    History,
    Outcome,
    Put,
    Settled,
    Taken,
    Verb,
    make_payload,
    now_ns,
    read_histories,
    uid_of,
)
from tests.histories.lives import Stored

LEASE_MS = 1_000
OK, FAIL, INFO = Outcome.OK, Outcome.FAIL, Outcome.INFO


class Story:
    """A history told call by call: each takes eight milliseconds of ten, and `at` moves the clock forward."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.stored: list[Stored] = []
        self.now_ms = 1_000_000

    def at(self, ms: int) -> Story:
        """The time since the beginning."""
        self.now_ms = 1_000_000 + ms
        return self

    def put(
        self,
        uid: str = "a",
        item_id: str = "0-1",
        outcome: Outcome = OK,
        topic: str = "t",
        error: str = "",
        **more: Any,
    ) -> Story:
        ids = [item_id] if outcome is OK else []
        return self._call(Verb.ENQUEUE, [Put(uid, topic, **more)], outcome, ids=ids, error=error)

    def once(self, uid: str = "a", item_id: str = "0-1", outcome: Outcome = OK, **more: Any) -> Story:
        """An enqueue with the dedup id "d"."""
        return self.put(uid, item_id, outcome, **{"dedup_id": "d"} | more)

    def again(self, uid: str = "b", item_id: str = "0-1", **more: Any) -> Story:
        """One that is called a repeat."""
        self.once(uid, item_id, **more).calls[-1].duplicates = [0]
        return self

    def take(self, uid: str = "a", receipt: str = "0-1:1", after_ms: int = 0, **more: Any) -> Story:
        """`after_ms`: the item's deliver_after, since the beginning."""
        return self.take_all((uid, receipt, after_ms, more))

    def take_all(self, *items: tuple[str, str, int, dict[str, Any]], outcome: Outcome = OK) -> Story:
        expires_at_ms = self.now_ms + LEASE_MS
        taken = [
            Taken(
                receipt,
                uid,
                "t",
                more.pop("priority", 0),
                1_000_000 + after_ms,
                expires_at_ms,
                more.pop("attempt", int(receipt.partition(":")[2], 16)),
                **more,
            )
            for uid, receipt, after_ms, more in items
        ]
        return self._call(Verb.DEQUEUE, ["t"], outcome, taken=taken)

    def ack(self, receipt: str = "0-1:1", outcome: Outcome = OK) -> Story:
        return self._call(Verb.ACK, [Settled(receipt)], outcome)

    def nack(self, receipt: str = "0-1:1", outcome: Outcome = OK, **more: Any) -> Story:
        return self._call(Verb.NACK, [Settled(receipt, **more)], outcome)

    def extend(self, receipt: str = "0-1:1", lease_ms: int = LEASE_MS, outcome: Outcome = OK) -> Story:
        return self._call(Verb.EXTEND, [Settled(receipt, lease_ms=lease_ms)], outcome)

    def left(self, state: ItemState, uid: str = "a", item_id: str = "0-1") -> Story:
        self.stored.append(Stored(item_id, uid, state))
        return self

    def asked_before(self, ms: int) -> Story:
        """The last call had begun so much earlier."""
        self.calls[-1].invoked_at_ms -= ms
        return self

    def never_answered(self) -> Story:
        """The client of the last call died."""
        self.calls[-1].returned_at_ms = None
        return self

    def check(self, **options: Any) -> Report:
        options.setdefault("dedup", WHOLE_WINDOW)
        return check(self.calls, self.stored, **options)

    def _call(self, verb: Verb, asked: Sequence[Any], outcome: Outcome, **answer: Any) -> Story:
        began_ms, self.now_ms = self.now_ms, self.now_ms + 10
        number = len(self.calls) + 1
        self.calls.append(Call(f"client-{number}", number, verb, asked, began_ms, began_ms + 8, outcome, **answer))
        return self


GOOD: dict[str, Callable[[Story], Story]] = {
    "whole life": lambda s: s.put().take().ack(),
    "redelivered after the lease": lambda s: s.put().take().at(1_100).take(receipt="0-1:2").ack("0-1:2"),
    "redelivered after a nack": lambda s: s.put().take().nack().take(receipt="0-1:2").ack("0-1:2"),
    "nack without an answer": lambda s: s.put().take().nack(outcome=INFO).take(receipt="0-1:2").ack("0-1:2"),
    "ack without an answer, and it was done": lambda s: s.put().take().ack(outcome=INFO),
    "ack without an answer, and it was not": lambda s: s.put().take().ack(outcome=INFO).at(1_100)
    .take(receipt="0-1:2").ack("0-1:2"),
    "enqueue without an answer, and it was done": lambda s: s.put(outcome=INFO).never_answered().take().ack(),
    "enqueue without an answer, and it was not": lambda s: s.put(outcome=INFO),
    "refused enqueue": lambda s: s.put(outcome=FAIL),
    "refused ack": lambda s: s.put().take().at(1_100).take(receipt="0-1:2").ack(outcome=FAIL).ack("0-1:2"),
    "dead letter": lambda s: s.put().take().nack(dead_letter=True).left(ItemState.DEAD),
    "TTL ended": lambda s: s.put(ttl_ms=50).at(100).take_all(),
    "TTL ended, row not yet found": lambda s: s.put(ttl_ms=50).at(100).take_all().left(ItemState.READY),
    "not yet due": lambda s: s.put(delay_ms=9_000).left(ItemState.DELAYED).take_all(),
    "at-most-once": lambda s: s.put(at_most_once=True).take(),
    "at-most-once, never seen": lambda s: s.put(at_most_once=True).take_all(outcome=INFO),
    "shortened lease": lambda s: s.put().take().extend(lease_ms=100).at(200).take(receipt="0-1:2").ack("0-1:2"),
    "extension without an answer": lambda s: s.put().take().extend(lease_ms=9_000, outcome=INFO).at(1_100)
    .take(receipt="0-1:2").ack("0-1:2"),
    "metadata of a nack": lambda s: s.put(metadata="aa").take(metadata="aa").nack(metadata="bb")
    .take(receipt="0-1:2", metadata="bb").ack("0-1:2"),
    "metadata of a nack that may be": lambda s: s.put(metadata="aa").take(metadata="aa")
    .nack(metadata="bb", outcome=INFO).take(receipt="0-1:2", metadata="aa").ack("0-1:2"),
    "ack by bare id": lambda s: s.put().take().ack("0-1"),
    "less urgent while the more urgent one was on its way to another": lambda s: s.put("a").put("b", "0-2", priority=5)
    .take("b", "0-2:1", 10, priority=5).asked_before(1).take().asked_before(15).ack().ack("0-2:1"),
    "less urgent before the more urgent one was there": lambda s: s.put("b", "0-2", priority=5)
    .take("b", "0-2:1", 0, priority=5).put("a").take(after_ms=20).ack().ack("0-2:1"),
    "released, so not counted as an attempt": lambda s: s.put().take().nack(release=True)
    .take(receipt="0-1:2", attempt=1).ack("0-1:2"),
    "an attempt whose answer was lost": lambda s: s.put().take_all(outcome=INFO).at(1_100)
    .take(receipt="0-1:2", attempt=2).ack("0-1:2"),
    "a delivery that nobody saw, and no attempt": lambda s: s.put().take(receipt="0-1:2", attempt=1).ack("0-1:2"),
    "two owners in turn": lambda s: s.put("a", "0-10000000001").put("b", "0-20000000001")
    .take("a", "0-10000000001:1").take("b", "0-20000000001:1", 10).ack("0-10000000001:1").ack("0-20000000001:1"),
    "delayed by its nack": lambda s: s.put().take().nack(delay_ms=500).at(530)
    .take(receipt="0-1:2", after_ms=525).ack("0-1:2"),
    "a repeat gets the id of the first": lambda s: s.once().again().take().ack(),
    "a repeat after the first one's ack": lambda s: s.once().take().ack().again().again("c"),
    "a repeat after the first one's TTL": lambda s: s.once(ttl_ms=50).at(100).take_all().again(),
    "a repeat of an enqueue without an answer that was done": lambda s: s.once(outcome=INFO).again().take().ack(),
    "a repeat of one that was not done": lambda s: s.once(outcome=INFO).once("b").take("b", after_ms=10).ack(),
    "a repeat of one that was refused": lambda s: s.once(outcome=FAIL).once("b").take("b", after_ms=10).ack(),
    "a repeat that overtook its first": lambda s: s.once("b").again("a").asked_before(15).take("b").ack(),
    "two dedup ids, two items": lambda s: s.once().once("b", "0-2", dedup_id="e").take()
    .take("b", "0-2:1", 10).ack().ack("0-2:1"),
}  # fmt: skip

BAD: dict[str, tuple[str, Callable[[Story], Story]]] = {
    "answered and lost": ("P1", lambda s: s.put().take_all()),
    "from nowhere": ("P1", lambda s: s.take()),
    "refused and there": ("P1", lambda s: s.put(outcome=FAIL).take().ack()),
    "stored twice": ("P1", lambda s: s.put().take().ack().take(receipt="0-2:1").ack("0-2:1")),
    "half an item": ("P1", lambda s: s.put().take(uid="").ack()),
    "another priority": ("P1", lambda s: s.put(priority=4).take(priority=5).ack()),
    "another deliver_after": ("P1", lambda s: s.put().take(after_ms=90_000).ack()),
    "delivered before its enqueue": ("P1", lambda s: s.take().put().ack()),
    "metadata lost by a nack": ("P1", lambda s: s.put(metadata="aa").take(metadata="aa").nack(metadata="bb")
                                .take(receipt="0-1:2", metadata="aa").ack("0-1:2")),
    "delivered and vanished": ("P2", lambda s: s.put().take()),
    "nacked and vanished": ("P2", lambda s: s.put().take().nack()),
    "dead letter vanished": ("P2", lambda s: s.put().take().nack(dead_letter=True)),
    "refused ack and vanished": ("P2", lambda s: s.put().take().ack(outcome=FAIL)),
    "stuck": ("P2", lambda s: s.put().at(100).take_all().left(ItemState.READY)),
    "stuck in the timers": ("P2", lambda s: s.put(delay_ms=10).at(2_000).take_all().left(ItemState.DELAYED)),
    "two holders": ("P3", lambda s: s.put().take().at(900).take(receipt="0-1:2").ack("0-1:2")),
    "one receipt twice": ("P3", lambda s: s.put().take().at(2_000).take().ack()),
    "extended lease broken": ("P3", lambda s: s.put().take().extend(lease_ms=5_000).at(1_100)
                              .take(receipt="0-1:2").ack("0-1:2")),
    "extension broken that followed on a doubtful one": (
        "P3",
        lambda s: s.put().take().extend(lease_ms=5_000, outcome=INFO).at(100).extend(lease_ms=5_000)
        .at(3_000).take(receipt="0-1:2").ack("0-1:2"),
    ),
    "a refused nack does not free the item": (
        "P3", lambda s: s.put().take().nack(outcome=FAIL).take(receipt="0-1:2").ack("0-1:2")
    ),
    "twice at most once": ("P4", lambda s: s.put(at_most_once=True).take().at(1_100).take(receipt="0-1:2")),
    "at most once, released": ("P4", lambda s: s.put(at_most_once=True).take().nack(release=True)
                               .take(receipt="0-1:2")),
    "at most once, still there": ("P4", lambda s: s.put(at_most_once=True).take().left(ItemState.READY)),
    "back after its ack": ("P5", lambda s: s.put().take().ack().at(1_100).take(receipt="0-1:2")),
    "stored after its ack": ("P5", lambda s: s.put().take().ack().left(ItemState.DEAD)),
    "stale ack": ("P5", lambda s: s.put().take().at(1_100).take(receipt="0-1:2").ack("0-1:1")),
    "stale nack": ("P5", lambda s: s.put().take().at(1_100).take(receipt="0-1:2").nack("0-1:1").ack("0-1:2")),
    "stale extension": ("P5", lambda s: s.put().take().at(1_100).take(receipt="0-1:2").extend("0-1:1").ack("0-1:2")),
    "acked twice": ("P5", lambda s: s.put().take().ack().ack()),
    "extended after its ack": ("P5", lambda s: s.put().take().ack().extend()),
    "back after the ack of its id": ("P5", lambda s: s.put().take().ack("0-1").at(1_100).take(receipt="0-1:2")),
    "an ack of nothing": ("P5", lambda s: s.ack("0-99:1")),
    "less urgent first": ("P6", lambda s: s.put("a").put("b", "0-2", priority=-1).take_all(
        ("a", "0-1:1", 0, {}), ("b", "0-2:1", 10, {"priority": -1})).ack("0-1:1").ack("0-2:1")),
    "younger first": ("P6", lambda s: s.put("a").put("b", "0-2").take_all(
        ("b", "0-2:1", 10, {}), ("a", "0-1:1", 0, {})).ack("0-1:1").ack("0-2:1")),
    "overtaken by a less urgent one": ("P6", lambda s: s.put("a").put("b", "0-2", priority=5)
                                       .take("b", "0-2:1", 10, priority=5).take().ack().ack("0-2:1")),
    "overtaken by a younger one": ("P6", lambda s: s.put("a").put("b", "0-2").take("b", "0-2:1", 10).take()
                                   .ack().ack("0-2:1")),
    "an old owner after a new one": (
        "P8",
        lambda s: s.put("a", "0-20000000001").put("b", "0-10000000001").take("a", "0-20000000001:1")
        .take("b", "0-10000000001:1", 10).ack("0-10000000001:1").ack("0-20000000001:1"),
    ),
    "a defect": ("P12", lambda s: s.put(outcome=INFO, error="INTERNAL")),
    "an attempt that is not counted": ("P1", lambda s: s.put().take().at(1_100).take(receipt="0-1:2", attempt=1)
                                       .ack("0-1:2")),
    "an attempt that nobody saw": ("P1", lambda s: s.put().take(receipt="0-1:2", attempt=2).ack("0-1:2")),
    "an attempt that was given back": ("P1", lambda s: s.put().take().nack(release=True)
                                       .take(receipt="0-1:2", attempt=2).ack("0-1:2")),
    "at-most-once, and lost unseen": ("P2", lambda s: s.put(at_most_once=True).take_all()),
    "more attempts than deliveries": ("P1", lambda s: s.put().take(attempt=2).ack()),
    "too early": ("P7", lambda s: s.put(delay_ms=500).at(300).take(after_ms=505).ack()),
    "too early by its date": ("P7", lambda s: s.put(deliver_after_ms=1_000_500).at(300).take(after_ms=500).ack()),
    "too early after its nack": ("P7", lambda s: s.put().take().nack(delay_ms=500).at(300)
                                 .take(receipt="0-1:2", after_ms=525).ack("0-1:2")),
    "after its TTL": ("P7", lambda s: s.put(ttl_ms=50).at(100).take().ack()),
    "late redelivery": ("P7", lambda s: s.put().take().at(2_500).take_all().at(2_600).take(receipt="0-1:2")
                        .ack("0-1:2")),
    "a repeat made a second item": ("P13", lambda s: s.once().once("b", "0-2").take().take("b", "0-2:1", 10)
                                    .ack().ack("0-2:1")),
    "both answers were lost, and both were done": (
        "P13",
        lambda s: s.once(outcome=INFO).once("b", outcome=INFO).take().take("b", "0-2:1", 10).ack().ack("0-2:1"),
    ),
    "a second item after the first one's ack": ("P13", lambda s: s.once().take().ack().once("b", "0-2")
                                                .take("b", "0-2:1", 30).ack("0-2:1")),
    "a second item that is still stored": ("P13", lambda s: s.once().take().ack().once("b", outcome=INFO)
                                           .left(ItemState.DEAD, "b", "0-2")),
    "a repeat was answered another id": ("P13", lambda s: s.once().again(item_id="0-9").take().ack()),
    "a repeat was answered the id of something else": (
        "P13", lambda s: s.once().put("c", "0-2").again(item_id="0-2").take().take("c", "0-2:1", 10).ack().ack("0-2:1")
    ),
    "called a repeat, and the first was refused": ("P13", lambda s: s.once(outcome=FAIL).again()),
    "called a repeat, and nothing was before it": ("P13", lambda s: s.again()),
    "one id for two items": ("P9", lambda s: s.put("a").take().ack().put("b").take("b", "0-1:2", 30).ack("0-1:2")),
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_a_history_without_fault_is_green(name: str) -> None:
    report = GOOD[name](Story()).check()
    assert not report.violations, str(report)


LEFT: dict[str, tuple[Callable[[Story], Story], Sequence[int]]] = {
    "at-most-once": (lambda s: s.put(at_most_once=True).take_all(), [1]),
    "an attempt": (lambda s: s.put().take(receipt="0-1:2", attempt=2).ack("0-1:2"), [1]),
    "beside one whose answer was lost": (
        lambda s: s.put().take_all(outcome=INFO).at(1_100).take(receipt="0-1:3", attempt=3).ack("0-1:3"), [2]
    ),
}  # fmt: skip
"""What is right only because a host left claims behind that nobody got, and the numbers of these."""


@pytest.mark.parametrize("name", LEFT)
def test_a_claim_that_an_owner_left_and_nobody_got_explains_one_attempt_of_its_item(name: str) -> None:
    tell, numbers = LEFT[name]
    story = tell(Story())
    assert not story.check(claims_left={"a": numbers}).violations
    for others in ({}, {"b": numbers}):
        assert story.check(claims_left=others).violations


def test_a_claim_that_was_left_explains_no_other_delivery_and_no_item_that_comes_at_least_once() -> None:
    story = Story().put().take().at(1_100).take(receipt="0-1:3", attempt=4).ack("0-1:3")
    assert story.check(claims_left={"a": [1, 2, 4]}).violations, "delivery 1 was seen, and 4 was after it"
    assert Story().put().take_all().check(claims_left={"a": [1]}).violations, "it is to come again"


@pytest.mark.parametrize("name", BAD)
def test_a_broken_promise_is_found_and_named(name: str) -> None:
    promise, tell = BAD[name]
    report = tell(Story()).check()
    assert promise in report.promises_broken, str(report)


@pytest.mark.parametrize("name", ["overtaken by a less urgent one", "late redelivery"])
def test_what_one_host_owes_is_not_asked_of_several(name: str) -> None:
    assert not BAD[name][1](Story()).check(one_host=False).violations


@pytest.mark.parametrize("name", ["at-most-once, and lost unseen", "an attempt that nobody saw"])
def test_a_delivery_that_nobody_saw_may_have_been_lost_between_hosts(name: str) -> None:
    assert not BAD[name][1](Story()).check(hand_overs_lost=True).violations


def test_what_may_be_lost_between_hosts_is_no_item_that_comes_at_least_once_and_no_delivery_that_was_seen() -> None:
    for story in (Story().put(), BAD["an attempt that was given back"][1](Story())):
        assert story.check(hand_overs_lost=True).promises_broken == {"P1"}


def test_a_late_redelivery_is_excused_while_the_owner_was_away() -> None:
    story = BAD["late redelivery"][1](Story())
    assert not story.check(disturbed=[(1_000_000, 1_002_000)]).violations
    assert story.check(disturbed=[(2_000_000, 3_000_000)]).violations


def test_a_call_without_a_clear_answer_is_excused_while_something_was_wrong() -> None:
    story = Story().put(outcome=INFO, error="OutcomeUnknown")
    assert not story.check().violations
    assert story.check(answers_due=True).promises_broken == {"P12"}
    assert not story.check(answers_due=True, disturbed=[(1_000_005, 1_000_006)]).violations


def test_a_dedup_id_may_make_a_second_item_only_beyond_its_window() -> None:
    """In time, in ids that came in between, or in another topic where ids count by topic."""
    story = Story().once().put("c", "0-3", dedup_id="e").at(900).once("b", "0-2")
    story.take().take("c", "0-3:1", 10).take("b", "0-2:1", 900).ack().ack("0-3:1").ack("0-2:1")

    def broken(**window: Any) -> set[str]:
        return story.check(dedup=WHOLE_WINDOW._replace(**window)).promises_broken

    assert broken() == broken(ms=1_000) == broken(ids=4) == broken(by_topic=True) == {"P13"}
    assert not broken(ms=800)
    assert not broken(ids=2)
    assert not story.check(dedup=NO_WINDOW).violations
    story.calls[2].asked = [Put("b", "u", dedup_id="d")]
    story.calls[5].taken = [story.calls[5].taken[0]._replace(topic="u")]
    assert broken() == {"P13"}
    assert not broken(by_topic=True)


def test_dedup_ids_of_two_namespaces_are_two() -> None:
    story = Story().once(topic="x/t").once("b", "0-2", topic="y/t")
    for number, topic in enumerate(["x/t", "y/t"]):
        story.take("ab"[number], f"0-{number + 1}:1", 10 * number)
        story.calls[-1].taken = [story.calls[-1].taken[0]._replace(topic=topic)]
    story.ack().ack("0-2:1")
    assert not story.check(dedup=DedupWindow(["x", "y"])).violations
    story.calls[1].asked = [Put("b", "x/t", dedup_id="d")]
    assert "P13" in story.check(dedup=DedupWindow(["x", "y"])).promises_broken
    assert "P13" not in story.check(dedup=DedupWindow(["y"])).promises_broken


def test_clocks_may_differ_by_the_tolerance_and_no_more() -> None:
    story = Story().put(delay_ms=500).at(495).take(after_ms=500).ack()
    assert not story.check(tolerance_ms=20).violations
    assert story.check(tolerance_ms=1).promises_broken <= {"P7", "P1"}
    assert "P7" not in story.check(tolerance_ms=20).promises_broken
    early = Story().put(delay_ms=500).at(400).take(after_ms=500).ack()
    assert early.check(tolerance_ms=20).promises_broken == {"P7"}


def test_a_late_clock_excuses_times_reckoned_from_it_and_no_broken_lease() -> None:
    early = Story().put(delay_ms=500).at(400).take(after_ms=405).ack()
    assert {"P1", "P7"} <= early.check(tolerance_ms=20).promises_broken
    assert not early.check(tolerance_ms=20, late_ms=100).violations
    two_holders = BAD["two holders"][1](Story())
    assert two_holders.check(tolerance_ms=20, late_ms=100).promises_broken == {"P3"}


def test_items_are_left_behind_when_nothing_was_drained() -> None:
    story = Story().put().left(ItemState.READY).take_all()
    assert not story.check(drained=False).violations


def test_an_item_may_expire_between_the_last_call_and_the_look_at_the_rows() -> None:
    story = Story().put(ttl_ms=500).at(100).take_all()
    assert not story.check(ended_ms=1_000_700).violations
    assert story.check(ended_ms=1_000_300).promises_broken == {"P1"}
    assert story.check().promises_broken == {"P1"}


def test_a_position_of_a_batch_has_its_own_outcome() -> None:
    story = Story().put("a").put("b", "0-2").take_all(("a", "0-1:1", 0, {}), ("b", "0-2:1", 10, {}))
    story.ack()
    story.calls[-1] = replace(story.calls[-1], asked=[Settled("0-1:1"), Settled("0-2:1")], others={1: FAIL})
    report = story.check()
    assert [(v.promise, v.item) for v in report.violations] == [("P2", "b")]


def test_a_uid_that_is_used_twice_is_an_error_of_the_test_and_not_of_the_queue() -> None:
    with pytest.raises(ValueError, match="enqueued twice"):
        Story().put().put().check()


def test_the_report_says_what_was_compared_and_shortens_a_flood_of_violations() -> None:
    story = Story()
    for number in range(30):
        story.put(f"u{number}", f"0-{number + 1:x}")
    text = str(story.at(9_000).take_all().check())
    assert text.startswith("30 violations; ")
    assert "items 30" in text
    assert text.endswith("and 10 more")


def test_a_payload_tells_its_uid_and_whether_it_is_whole() -> None:
    payload = make_payload("client-7/12", 200)
    assert len(payload) == 200
    assert uid_of(payload) == "client-7/12"
    assert uid_of(payload[:-1]) == ""
    assert uid_of(payload[:50] + b"x" + payload[51:]) == ""
    assert uid_of(b"") == ""


def test_a_history_in_a_file_is_the_history_that_was_told(tmp_path: Path) -> None:
    paths = [tmp_path / "one", tmp_path / "two"]
    told: list[Call] = []
    for name, path in zip(("one", "two"), paths, strict=True):
        history = History(path)
        call = history.begin(name, Verb.ENQUEUE, [Put(f"{name}/1", "t", metadata="aa")])
        history.end(call, OK, ids=["0-1"])
        told.append(call)
        call = history.begin(name, Verb.DEQUEUE, ["t"])
        history.end(call, OK, taken=[Taken("0-1:1", "one/1", "t", 0, 1, 2, 1)])
        told.append(call)
        call = history.begin(name, Verb.NACK, [Settled("0-1:1", metadata="bb"), Settled("0-1:2")])
        history.end(call, OK, others={1: FAIL})
        told.append(call)
        told.append(history.begin(name, Verb.ACK, [Settled("0-1:1")]))
        history.close()
    read = read_histories(paths)
    assert {(c.client, c.number): c for c in read} == {(c.client, c.number): c for c in told}
    assert [call.outcome for call in read if call.verb is Verb.ACK] == [INFO, INFO]
    assert all(first.invoked_at_ms <= second.invoked_at_ms for first, second in pairwise(read))


def test_the_line_that_a_kill_cut_off_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "history"
    history = History(path)
    history.end(history.begin("c", Verb.ENQUEUE, [Put("c/1", "t")]), OK, ids=["0-1"])
    history.close()
    path.write_text(path.read_text()[:-3])
    (call,) = read_histories([path])
    assert (call.outcome, call.returned_at_ms) == (INFO, None)


def test_a_call_ends_no_earlier_and_begins_no_later_than_its_record_says() -> None:
    history = History()
    before_ms = now_ns() / 1e6
    call = history.begin("c", Verb.DEQUEUE, ["t"])
    between_ms = now_ns() / 1e6
    history.end(call, OK)
    after_ms = now_ns() / 1e6
    assert before_ms - 1 <= call.invoked_at_ms <= between_ms
    assert call.returned_at_ms is not None
    assert between_ms <= call.returned_at_ms <= after_ms + 1
    assert history.calls == [call]


@pytest.mark.parametrize(("stepped_ms", "allowed"), [(200, True), (160, True), (140, False), (-200, False)])
def test_a_step_of_a_servers_clock_brings_dates_forward_by_as_much_and_no_more(stepped_ms: int, allowed: bool) -> None:
    steps = ClockSteps()
    steps.note(0, 1_000_000 + 100, stepped_ms)
    early = Story().put(delay_ms=500).at(320).take(after_ms=505).ack()
    assert bool(early.check(tolerance_ms=20, steps=steps).violations) is not allowed


@pytest.mark.parametrize(("stepped_ms", "allowed"), [(-100, True), (-10, False), (100, False)])
def test_a_step_back_lets_an_item_outlive_its_ttl_by_as_much_and_no_more(stepped_ms: int, allowed: bool) -> None:
    steps = ClockSteps()
    steps.note(0, 1_000_000 + 20, stepped_ms)
    late = Story().put(ttl_ms=50).at(110).take().ack()
    assert bool(late.check(tolerance_ms=20, steps=steps).violations) is not allowed


def test_a_lease_is_held_against_its_own_clock_whatever_a_servers_does() -> None:
    steps = ClockSteps()
    steps.note(0, 1_000_000 + 20, 3_600_000)
    two_holders = Story().put().take().at(900).take(receipt="0-1:2").ack("0-1:2")
    assert two_holders.check(tolerance_ms=500, lease_tolerance_ms=2, steps=steps).promises_broken == {"P3"}

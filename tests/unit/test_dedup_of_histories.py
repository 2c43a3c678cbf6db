"""The checker's view of items that were taken without their ids, and of those known by repeats alone."""

from __future__ import annotations

from tests.histories.checker import check
from tests.histories.dedup_checks import DedupWindow
from tests.histories.history import Call, Outcome, Put, Settled, Verb


def enqueue(at_ms: int, uid: str, item_id: str, *, is_repeat: bool = False, outcome: Outcome = Outcome.OK) -> Call:
    put = Put(uid, "ns/topic", dedup_id="same")
    duplicates = (0,) if is_repeat else ()
    return Call("client", at_ms, Verb.ENQUEUE, [put], at_ms, at_ms + 1, outcome, ids=[item_id], duplicates=duplicates)


def promises_broken(calls: list[Call], *accepted: str) -> set[str]:
    """Of those about dedup ids, and about items that never were."""
    window = DedupWindow(("ns",), accepted=accepted)
    return check(calls, [], drained=False, dedup=window).promises_broken & {"P5", "P13"}


def test_an_item_that_was_taken_without_its_id_may_be_a_second_one_and_no_other_may() -> None:
    first, second, third = enqueue(1, "a", "1-1"), enqueue(5, "b", "2-1"), enqueue(9, "c", "1-2")
    assert promises_broken([first, second]) == {"P13"}
    assert promises_broken([first, second], "b") == set()
    assert promises_broken([first, second, third], "b") == {"P13"}


def test_an_item_that_was_taken_without_its_id_is_nobodys_first() -> None:
    assert promises_broken([enqueue(1, "a", "1-1"), enqueue(5, "b", "1-1", is_repeat=True)], "a") == {"P13"}
    assert promises_broken([enqueue(1, "a", "1-1"), enqueue(5, "b", "1-1", is_repeat=True)], "b") == {"P13"}


def test_of_equal_ids_of_one_call_one_item_is_made_without_their_id() -> None:
    def both(*item_ids: str, duplicates: tuple[int, ...]) -> Call:
        puts = [Put(uid, "ns/topic", dedup_id="same") for uid in "ab"]
        return Call("c", 1, Verb.ENQUEUE, puts, 1, 2, Outcome.OK, ids=list(item_ids), duplicates=duplicates)

    assert promises_broken([both("1-1", "1-1", duplicates=(1,))], "a", "b") == set()
    assert promises_broken([both("1-1", "1-2", duplicates=())], "a", "b") == {"P13"}
    assert promises_broken([both("1-1", "1-2", duplicates=(1,))], "a", "b") == {"P13"}
    assert promises_broken([both("1-1", "1-1", duplicates=(0,))], "a", "b") == {"P13"}
    in_slices = DedupWindow(("ns",), accepted=("a", "b"), sliced=("a", "b"))
    told = check([both("1-1", "1-2", duplicates=())], [], drained=False, dedup=in_slices)
    assert "P13" not in told.promises_broken


def test_an_item_is_known_by_the_answer_of_its_repeat_alone() -> None:
    lost = enqueue(1, "a", "", outcome=Outcome.INFO)
    ended = Call("client", 9, Verb.ACK, [Settled("1-1")], 9, 10, Outcome.OK)
    assert promises_broken([lost, enqueue(5, "b", "1-1", is_repeat=True), ended]) == set()
    assert promises_broken([lost, ended]) == {"P5"}

"""The checker's view of dedup windows: from when an item is made, which repeats do not change."""

from __future__ import annotations

import pytest

from tests.histories.checker import check
from tests.histories.dedup_checks import DedupWindow
from tests.histories.history import Call, Outcome, Put, Verb

WINDOW = DedupWindow(("ns",), ms=1_000)


def enqueue(at_ms: int, uid: str, item_id: str, duplicates: tuple[int, ...] = ()) -> Call:
    put = Put(uid, "ns/topic", dedup_id="same")
    return Call(
        "client", at_ms, Verb.ENQUEUE, [put], at_ms, at_ms + 1, Outcome.OK, ids=[item_id], duplicates=duplicates
    )


@pytest.mark.parametrize(("second_ms", "third_ms", "holds"), [(900, 1_500, True), (400, 900, False)])
def test_a_repeat_makes_the_window_of_its_item_no_longer(second_ms: int, third_ms: int, holds: bool) -> None:
    calls = [enqueue(1, "a", "1-1"), enqueue(second_ms, "b", "1-1", (0,)), enqueue(third_ms, "c", "1-2")]
    report = check(calls, [], drained=False, dedup=WINDOW)
    assert ("P13" not in report.promises_broken) is holds, report

"""What a host says of something that fails each second for an hour."""

from __future__ import annotations

from foqs.model.outage import LOSS_LOG_MS, Outage

MINUTE_S = LOSS_LOG_MS // 1000


def test_it_is_told_at_once_when_the_reason_changes_and_once_a_minute() -> None:
    now_s = 1_000.0
    outage = Outage(lambda: now_s)
    assert not outage.has_ended()
    assert outage.is_to_be_logged("away")
    told = []
    for second in range(1, 3 * MINUTE_S):
        now_s = 1_000.0 + second
        if outage.is_to_be_logged("away"):
            told.append(second)
    assert told == [MINUTE_S, 2 * MINUTE_S]
    assert outage.is_to_be_logged("too slow")
    assert outage.has_ended()
    assert not outage.has_ended()
    assert outage.is_to_be_logged("too slow"), "the next outage is another one"


def test_reasons_that_come_in_turns_are_each_told_once_a_minute() -> None:
    now_s = 1_000.0
    outage = Outage(lambda: now_s)
    told = []
    for half_second in range(4 * MINUTE_S):
        now_s = 1_000.0 + half_second / 2
        reason = ("read-only", "another one takes it over")[half_second % 2]
        if outage.is_to_be_logged(reason):
            told.append(reason)
    assert len(told) == 4
    assert outage.has_ended()

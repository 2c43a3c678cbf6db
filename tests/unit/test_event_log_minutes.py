"""A minute of the roll-ups is written when it is over by its server's clock, whatever the host's own says."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from foqs.model.item import Outcome
from tests.support.event_log import MadeLog, rollups

BASE_S = 1_764_000_000
MINUTES = 5


def run(log: MadeLog, seconds: int, *, ahead_s: float, every_s: float = 0.5) -> None:
    """Traffic of so many seconds of the server's clock, which the host's is ahead of."""
    topic = log.topic("t")
    log.now_s = BASE_S + ahead_s
    for step in range(int(seconds / every_s)):
        log.end(topic, Outcome.ACKED, ready_ms=int(1000 * (BASE_S + step * every_s)), wait_ms=0, processing_ms=0)
        log.passes(every_s)


@pytest.mark.parametrize("ahead_s", [-3_600, -100, -30, 0, 30, 66, 100, 3_600])
def test_a_minute_has_one_row_however_far_the_clocks_are_apart(tmp_path: Path, ahead_s: float) -> None:
    log = MadeLog(tmp_path)
    run(log, 60 * MINUTES, ahead_s=ahead_s)
    log.close()
    rows = Counter(row["minute_ms"] for row in rollups(tmp_path))
    assert rows == {(BASE_S + 60 * minute) * 1000: 1 for minute in range(MINUTES)}


@pytest.mark.parametrize("ahead_s", [-3_600, -100, 0, 100, 3_600])
def test_a_minute_is_written_soon_after_its_end_however_far_the_clocks_are_apart(
    tmp_path: Path, ahead_s: float
) -> None:
    log = MadeLog(tmp_path)
    run(log, 60, ahead_s=ahead_s)
    log.passes(70)
    log.passes(3)
    assert log.log.rollups_files.written_count == 1


def test_a_minute_of_two_servers_whose_clocks_differ_has_one_row_for_each_time_it_was_over(tmp_path: Path) -> None:
    """One shard's server is 100 s behind the host and the other's is not: each has its minutes."""
    log = MadeLog(tmp_path)
    topic = log.topic("t")
    for step in range(600):
        log.now_s = BASE_S + step / 2
        for behind_s in (0, 100):
            at_ms = int(1000 * (log.now_s - behind_s))
            log.end(topic, Outcome.ACKED, ready_ms=at_ms, wait_ms=0, processing_ms=0)
        log.passes()
    log.close()
    rows = Counter(row["minute_ms"] for row in rollups(tmp_path))
    assert max(rows.values()) <= 2
    assert sum(row["count"] for row in rollups(tmp_path)) == 1_200

"""What operators read of the watch over other hosts: in the log and in the metrics."""

from __future__ import annotations

from typing import Any

from structlog.testing import capture_logs

from foqs.cluster.members.host_watch import HostSign, HostWatch
from foqs.cluster.members.watch_report import NOT_SEEN_MS, OF_WATCH, WatchReport
from foqs.model import limits
from foqs.model.meta_bounds import META_SLOW_MS

BEAT_S = limits.HEARTBEAT_MS / 1000


class Reported:
    """A watch and its report, on a clock that goes on with the rounds."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.watch = HostWatch()
        self.report = WatchReport(self.watch, lambda: self.now_s)

    def round(self, *, answer_s: float = 0.0, fails: bool = False) -> None:
        began_s = self.now_s
        self.now_s += answer_s
        if fails:
            self.watch.missed(began_s, self.now_s)
        else:
            self.watch.saw(began_s, self.now_s, {"other": HostSign(1, 1)})
        self.report.round_ended()
        self.now_s += BEAT_S

    def rounds(self, seconds: float, **how: Any) -> None:
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.round(**how)

    def gauge(self, name: str) -> float:
        (found,) = [row.metric(self.report).samples[0].value for row in OF_WATCH if row.name == name]
        return found


def test_a_host_that_could_not_see_a_death_says_so_and_says_when_it_can_again() -> None:
    seen = Reported()
    with capture_logs() as logs:
        seen.rounds(2 * seen.watch.silence_s)
        seen.rounds(seen.watch.silence_s + NOT_SEEN_MS / 1000 - 2 * BEAT_S, fails=True)
        assert seen.gauge("foqs_deaths_not_seen") == 0, "a short outage is no news"
        assert logs == []
        seen.rounds(5.0, fails=True)
        assert seen.gauge("foqs_deaths_not_seen") == 1
        seen.rounds(5 * seen.watch.silence_s)
        assert seen.gauge("foqs_deaths_not_seen") == 0
    assert [(log["event"], log["log_level"]) for log in logs] == [
        ("deaths_not_seen", "warning"), ("deaths_seen_again", "info"),
    ]  # fmt: skip
    assert logs[0]["for_ms"] > NOT_SEEN_MS


def test_a_meta_database_that_is_far_is_told_with_the_time_that_a_death_takes_then() -> None:
    seen = Reported()
    near_s = seen.gauge("foqs_host_dead_after_seconds")
    answer_s = 2 * META_SLOW_MS / 1000
    with capture_logs() as logs:
        seen.rounds(10.0, answer_s=answer_s)
    told = [log for log in logs if log["event"] == "meta_slow"]
    assert len(told) == 1, "once a minute"
    assert told[0]["round_trip_ms"] >= META_SLOW_MS
    assert seen.gauge("foqs_heartbeat_round_trip_seconds") >= META_SLOW_MS / 1000
    assert seen.gauge("foqs_host_dead_after_seconds") > near_s
    assert "deaths_not_seen" not in {log["event"] for log in logs}

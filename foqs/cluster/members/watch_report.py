"""The state of the watch over other hosts, for operators: how soon it can notice a death, if at all."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from foqs.cluster.members.host_watch import HostWatch
from foqs.host.metrics.metric_rows import MetricRow, gauge
from foqs.model import limits
from foqs.model.meta_bounds import META_SLOW_MS
from foqs.model.outage import Outage

NOT_SEEN_MS = 10 * limits.SECOND_MS
"""A watch that could not have noticed a death for this long, besides the required silence, is reported."""

_log = structlog.get_logger(__name__)


class WatchReport:
    """Reports to the log and the metrics."""

    def __init__(self, watch: HostWatch, now_s: Callable[[], float]) -> None:
        """`now_s` is the monotonic clock of the watch."""
        self.watch = watch
        self._now_s = now_s
        self._blind = Outage(now_s)
        self._slow = Outage(now_s)

    @property
    def is_blind(self) -> bool:
        """True if no death could be noticed for longer than a start or a short outage takes."""
        watch = self.watch
        return watch.blind_s(self._now_s()) > watch.silence_s + NOT_SEEN_MS / 1000

    def round_ended(self) -> None:
        """Check the watch after a round that was answered or failed."""
        watch = self.watch
        round_trip_ms, dead_after_ms = round(watch.round_trip_s * 1000), round(watch.silence_s * 1000)
        if round_trip_ms < META_SLOW_MS:
            self._slow.has_ended()
        elif self._slow.is_to_be_logged(""):
            _log.warning("meta_slow", round_trip_ms=round_trip_ms, dead_after_ms=dead_after_ms)
        if not self.is_blind:
            if self._blind.has_ended():
                _log.info("deaths_seen_again", dead_after_ms=dead_after_ms)
        elif self._blind.is_to_be_logged(""):
            _log.warning(
                "deaths_not_seen",
                for_ms=round(watch.blind_s(self._now_s()) * 1000),
                round_trip_ms=round_trip_ms,
                problem="heartbeats fail, or come too late and too unevenly: the shards of a host that hangs would go "
                "to nobody",
            )


OF_WATCH: tuple[MetricRow[WatchReport], ...] = (
    gauge("foqs_heartbeat_round_trip_seconds",
        "What a heartbeat of this host usually takes, with the read of all others.",
        lambda report: report.watch.round_trip_s),
    gauge("foqs_host_dead_after_seconds",
        "How long another host has to be silent until this one takes it for dead. It grows with the round trip.",
        lambda report: report.watch.silence_s),
    gauge("foqs_deaths_not_seen",
        "1 while this host could not see the death of another one, because its heartbeats fail or come unevenly.",
        lambda report: report.is_blind),
)  # fmt: skip

"""What grows with what in a cluster, computed from the constants of the code: the table of docs/scale.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from foqs.cluster.homes import interests, probes, topic_homes, topic_reports
from foqs.cluster.members.backends import zookeeper_backend
from foqs.host.admission import quotas
from foqs.model import limits
from foqs.wire.codec import Codec, structs

_TOPIC = "orders-000000-eu-west"


class Size(NamedTuple):
    hosts: int
    shards: int
    topics: int
    """With ready items, each on `spread` hosts."""
    spread: int

    @property
    def shards_of_host(self) -> float:
        return self.shards / self.hosts

    @property
    def ready_of_host(self) -> float:
        return self.topics * self.spread / self.hosts


class Row(NamedTuple):
    what: str
    formula: str
    value: Callable[[Size], float]


SIZES = (Size(3, 12, 1_000, 3), Size(20, 100, 10_000, 4), Size(200, 1_000, 100_000, 4))
_BEATS = limits.SECOND_MS / limits.HEARTBEAT_MS
_REPEATS_S = topic_reports.REPEAT_MS / limits.SECOND_MS


def report_bytes() -> int:
    """Of a topic in a report of many, with a name of 21 characters."""
    stocks = [structs.TopicStock(7, _TOPIC, 1_234, -5, 1_764_042_000_000, False) for _ in range(500)]
    frame: bytes = Codec().encode_call("report", structs.ReportRequest(stocks), 1)
    return round(len(frame) / len(stocks))


def _reports(size: Size) -> float:
    """Topics that a host reports in a second while nothing changes but that time passes."""
    return min(size.ready_of_host / _REPEATS_S, topic_reports.REPORTS_PER_SECOND_MAX)


def _rounds(size: Size) -> float:
    """Rounds until a host has asked all others for T / H topics that its consumers wait for in vain."""
    topics = max(1, min(size.topics // size.hosts, probes.PROBED_TOPICS_MAX))
    of_topics = -(-topics // probes.PROBE_TOPICS_MAX)
    at_once = max(1, min(probes.PROBE_HOSTS_MAX, probes.PROBE_TOPICS_MAX // min(topics, probes.PROBE_TOPICS_MAX)))
    return of_topics * -(-(size.hosts - 1) // at_once)


ROWS = (
    Row("heartbeats a second, all hosts", "H x 1000 / `HEARTBEAT_MS`", lambda n: n.hosts * _BEATS),
    Row("rows of hosts read a second, all hosts", "H x H x 1000 / `HEARTBEAT_MS`", lambda n: n.hosts**2 * _BEATS),
    Row(
        "rows of shards read a second, all hosts",
        "2 x H x S x 1000 / `HEARTBEAT_MS`: with the shards, and with the namespaces",
        lambda n: 2 * n.hosts * n.shards * _BEATS,
    ),
    Row(
        "the same with ZooKeeper: writes a second to the ensemble",
        "H x 1000 / `HEARTBEAT_MS`",
        lambda n: n.hosts * _BEATS,
    ),
    Row("reads a second from the ensemble", "H x H x 1000 / `HEARTBEAT_MS`", lambda n: n.hosts**2 * _BEATS),
    Row(
        "heartbeats a second to the meta database then",
        "H x 1000 / `ANNOUNCE_MS`",
        lambda n: n.hosts * limits.SECOND_MS / zookeeper_backend.ANNOUNCE_MS,
    ),
    Row(
        "transactions a second for quotas, at most: all namespaces near their quotas",
        "H x 1000 / `ASK_MS`",
        lambda n: n.hosts * limits.SECOND_MS / quotas.ASK_MS,
    ),
    Row("shards of a host", "S / H, at most `SHARDS_PER_HOST_MAX`", lambda n: n.shards_of_host),
    Row("shards that move when a host leaves", "S / H", lambda n: n.shards_of_host),
    Row(
        "sessions on the servers of shards, all together",
        "3 x S: two of the owner, one of the host that stands by",
        lambda n: 3 * n.shards,
    ),
    Row("connections between hosts, at most", "H x (H - 1)", lambda n: n.hosts * (n.hosts - 1)),
    Row("the same of one host, both ways", "2 x (H - 1)", lambda n: 2 * (n.hosts - 1)),
    Row("topics that a host has ready", "T x k / H", lambda n: n.ready_of_host),
    Row(
        "topics that a host reports a second, nothing changing",
        "T x k / H x 1000 / `REPEAT_MS`, at most `REPORTS_PER_SECOND_MAX`",
        _reports,
    ),
    Row(
        "topics that a host reports a second, at most",
        "`REPORTS_PER_SECOND_MAX`",
        lambda n: topic_reports.REPORTS_PER_SECOND_MAX,
    ),
    Row(
        "KB a second of reports that a host sends, nothing changing",
        f"{report_bytes()} bytes a topic",
        lambda n: _reports(n) * report_bytes() / 1000,
    ),
    Row(
        "the same at most",
        f"`REPORTS_PER_SECOND_MAX` x {report_bytes()} bytes",
        lambda n: topic_reports.REPORTS_PER_SECOND_MAX * report_bytes() / 1000,
    ),
    Row(
        "topics that consumers of a host can wait for, asked for a second",
        "`INTERESTS_MAX` x 1000 / `FIND_MS`",
        lambda n: interests.INTERESTS_MAX * limits.SECOND_MS / topic_homes.FIND_MS,
    ),
    Row(
        "the same asked of other hosts than their homes, at most",
        "`PROBE_TOPICS_MAX` x 1000 / `PROBE_MS`",
        lambda n: probes.PROBE_TOPICS_MAX * limits.SECOND_MS / probes.PROBE_MS,
    ),
    Row(
        "seconds until all other hosts were asked for a topic, with T / H topics that a host waits for",
        "(H - 1) / min(`PROBE_HOSTS_MAX`, `PROBE_TOPICS_MAX` / (T / H)), and T / H / `PROBE_TOPICS_MAX` times as many",
        lambda n: _rounds(n) * probes.PROBE_MS / limits.SECOND_MS,
    ),
    Row("topics whose home a host is", "T / H, at most `TOPICS_OF_HOME_MAX`", lambda n: n.topics / n.hosts),
)


def scale() -> str:
    """The table, with a column for each size."""
    names = [f"H {size.hosts}, S {size.shards:,}, T {size.topics:,}, k {size.spread}" for size in SIZES]
    lines = [f"| what | formula | {' | '.join(names)} |", "| --- | --- |" + " --- |" * len(SIZES)]
    for row in ROWS:
        values = [_shown(row.value(size)) for size in SIZES]
        lines.append(f"| {row.what} | {row.formula} | {' | '.join(values)} |")
    return "\n".join(lines) + "\n"


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) or value >= 10 else f"{value:,.1f}"

"""Writes deploy/grafana/foqs.json, the dashboard of foqs for Grafana.

python -m scripts.dashboard          brings it up to date
python -m scripts.dashboard --check  fails if it is not
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

PATH = Path(__file__).parents[1] / "deploy/grafana/foqs.json"
_COLUMNS_COUNT, _PANEL_WIDTH, _PANEL_HEIGHT = 24, 8, 8
_SOURCE = {"type": "prometheus", "uid": "${source}"}
_NAMESPACES = 'namespace=~"$namespace"'
_FLOW = '{event=~"enqueued|delivered|acked|nacked"}'
_EVENT_OF = "{{namespace}} {{event}}"


class Panel(NamedTuple):
    """A graph over time. `unit` is one of Grafana's; `series` are expressions with the legends of their lines."""

    title: str
    unit: str
    description: str
    series: tuple[tuple[str, str], ...]


def _rate(metric: str, by: str, labels: str = "") -> str:
    return f"sum by ({by}) (rate({metric}{labels}[$__rate_interval]))"


ROWS: dict[str, tuple[Panel, ...]] = {
    "Overview": (
        Panel("Items a second", "ops", "What becomes of items in the whole cluster.",
            ((f"sum by (event) (foqs:namespace_events:rate1m{_FLOW})", "{{event}}"),)),
        Panel("Items", "short", "Stored items by state; leased are also those that are claimed ahead of consumers.",
            (("sum by (state) (foqs_items)", "{{state}}"),)),
        Panel("Oldest ready item", "s", "The wait of the oldest ready item. It grows while consumers are too few.",
            (("foqs:oldest_ready:max", "oldest"),)),
        Panel("Calls a second", "reqps", "Calls of clients by method, without dequeues that may wait.",
            ((_rate("foqs_call_seconds_count", "method"), "{{method}}"),)),
        Panel("Slowest of 100 calls", "s", "The time within which 99 of 100 calls end, by method.",
            (("foqs:call_duration:p99", "{{method}}"),)),
        Panel("Errors a second", "reqps", "Calls that end with an error, by its code.",
            ((_rate("foqs_call_seconds_count", "outcome", '{outcome!="OK"}'), "{{outcome}}"),)),
    ),
    "Namespaces": (
        Panel("Enqueued", "ops", "Items a second that a namespace enqueues.",
            ((f'foqs:namespace_events:rate1m{{event="enqueued", {_NAMESPACES}}}', "{{namespace}}"),)),
        Panel("Acked", "ops", "Items a second that consumers of a namespace finish.",
            ((f'foqs:namespace_events:rate1m{{event="acked", {_NAMESPACES}}}', "{{namespace}}"),)),
        Panel("Backlog", "short", "Ready items of a namespace.",
            ((f'foqs:items:by_namespace{{state="ready", {_NAMESPACES}}}', "{{namespace}}"),)),
        Panel("In flight", "short", "Items of a namespace that are under lease, or claimed ahead of consumers.",
            ((f'foqs:items:by_namespace{{state="leased", {_NAMESPACES}}}', "{{namespace}}"),)),
        Panel("Failed attempts", "ops", "Attempts a second that end with a nack or without any settlement.",
            ((f'foqs:namespace_events:rate1m{{event=~"nacked|lease_ended", {_NAMESPACES}}}', _EVENT_OF),)),
        Panel("Dead letters", "short", "Items that have used up their attempts and wait for an operator.",
            ((f'foqs:items:by_namespace{{state="dead", {_NAMESPACES}}}', "{{namespace}}"),)),
    ),
    "Shards and MySQL": (
        Panel("Unserved and sick shards", "short", "Shards that no host serves, and shards with open breakers.",
            (("count(max by (shard) (foqs_shard_owned) == 0) or vector(0)", "unserved"),
                ("count(foqs_shard_owned == 1 and foqs_shard_healthy == 0) or vector(0)", "sick"))),
        Panel("Slowest of 100 transactions", "s", "The time within which 99 of 100 transactions of a shard end.",
            (("foqs:transaction_duration:p99", "shard {{shard}}"),)),
        Panel("Transactions a second", "ops", "Transactions of all shards by outcome. Failed ones did nothing.",
            ((_rate("foqs_transactions_total", "outcome"), "{{outcome}}"),)),
        Panel("Wait for a turn on the server", "s", "Mean wait of a shard for others of its host on the server.",
            (("sum by (shard) (rate(foqs_slot_wait_seconds_sum[$__rate_interval])) / "
              "sum by (shard) (rate(foqs_slot_wait_seconds_count[$__rate_interval]))", "shard {{shard}}"),)),
        Panel("Enqueues that wait in memory", "short", "From 20,000 items of a shard on, enqueues are refused.",
            (("foqs_enqueue_buffer_items", "shard {{shard}}"),)),
        Panel("Rows that a transaction may read", "short", "It falls when a backlog is read from disk.",
            (("foqs_read_budget_rows", "shard {{shard}}"),)),
    ),
    "Hosts": (
        Panel("Hosts", "short", "Hosts that run, by version, and those that drain.",
            (("count by (version) (foqs_build_info)", "{{version}}"), ("sum(foqs_host_draining)", "draining"))),
        Panel("CPU", "percentunit", "Cores that a host uses. Its event loop cannot use more than one.",
            (("rate(process_cpu_seconds_total[$__rate_interval]) and on (instance) foqs_build_info", "{{instance}}"),)),
        Panel("Memory", "bytes", "Resident memory of a host.",
            (("process_resident_memory_bytes and on (instance) foqs_build_info", "{{instance}}"),)),
        Panel("Event loop is late by", "s", "Lateness of 99 of 100 turns of the event loop. All calls wait as long.",
            (("foqs:loop_lag:p99", "{{instance}}"),)),
        Panel("Shards of a host", "short", "Shards that a host owns. Hosts of a tier have about the same number.",
            (("sum by (instance) (foqs_shard_owned)", "{{instance}}"),)),
        Panel("Calls to other hosts", "reqps", "Calls a second from host to host, by outcome.",
            ((_rate("foqs_peer_calls_total", "outcome"), "{{outcome}}"),)),
    ),
    "Quotas and caps": (
        Panel("Quota in use", "percentunit", "Part of its quota that a namespace has used up in the last minute.",
            ((f"foqs:quota_used:ratio{{{_NAMESPACES}}}", "{{namespace}}"),)),
        Panel("Refused by the quota", "ops", "Items a second that a quota refuses. Clients repeat them later.",
            ((f'foqs:namespace_events:rate1m{{event="rate_limited", {_NAMESPACES}}}', "{{namespace}}"),)),
        Panel("Time to ask for tokens", "s", "What it takes a host to ask the meta database for tokens of quotas.",
            (("foqs_quota_ask_seconds", "{{instance}}"),)),
        Panel("Open leases", "short", "Items of a shard that are under lease. At 250,000 it delivers nothing more.",
            (("foqs_open_leases", "shard {{shard}}"),)),
        Panel("Dequeues that wait", "short", "Calls of consumers that wait for items.",
            (("sum by (instance) (foqs_dequeues_waiting)", "{{instance}}"),)),
        Panel("Bulk enqueues", "ops", "Items a second of bulk enqueues, which yield to all other calls.",
            ((_rate("foqs_bulk_items_total", "instance"), "{{instance}}"),)),
    ),
    "Event log": (
        Panel("Written", "ops", "Rows a second that the event log writes, by kind.",
            ((_rate("foqs_event_log_written_total", "kind"), "{{kind}}"),)),
        Panel("Lost", "ops", "What reports miss, because the event log did not keep up or its disk refused it.",
            ((_rate("foqs_event_log_lost_total", "kind"), "{{kind}}"),)),
        Panel("Disk", "bytes", "Size of the files of the event log.",
            (("foqs_event_log_disk_bytes", "{{instance}}"),)),
    ),
}  # fmt: skip
"""The panels by their row."""


def dashboard() -> dict[str, Any]:
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS.items():
        panels.append({"type": "row", "title": title, "gridPos": _place(0, y, _COLUMNS_COUNT, 1), "collapsed": False})
        y += 1
        for position, panel in enumerate(row):
            x = position * _PANEL_WIDTH % _COLUMNS_COUNT
            if position and x == 0:
                y += _PANEL_HEIGHT
            panels.append(_graph(panel) | {"gridPos": _place(x, y, _PANEL_WIDTH, _PANEL_HEIGHT)})
        y += _PANEL_HEIGHT
    return {
        "title": "foqs",
        "uid": "foqs",
        "tags": ["foqs"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": _variables()},
        "panels": [panel | {"id": number} for number, panel in enumerate(panels, 1)],
    }


def _place(x: int, y: int, width: int, height: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": width, "h": height}


def _graph(panel: Panel) -> dict[str, Any]:
    return {
        "type": "timeseries",
        "title": panel.title,
        "description": panel.description,
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + number), "datasource": _SOURCE, "expr": expression, "legendFormat": legend}
            for number, (expression, legend) in enumerate(panel.series)
        ],
    }


def _variables() -> list[dict[str, Any]]:
    namespaces = "label_values(foqs:items:by_namespace, namespace)"
    return [
        {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
        {
            "name": "namespace", "label": "Namespace", "type": "query", "datasource": _SOURCE, "definition": namespaces,
            "query": {"query": namespaces, "refId": "namespaces"}, "refresh": 2, "sort": 1,
            "multi": True, "includeAll": True, "allValue": ".*", "current": {"text": "All", "value": "$__all"},
        },
    ]  # fmt: skip


def text() -> str:
    return json.dumps(dashboard(), indent=2) + "\n"


def main(arguments: list[str]) -> int:
    is_current = PATH.exists() and PATH.read_text() == text()
    if "--check" in arguments:
        print("current" if is_current else f"{PATH.name} is out of date: run python -m scripts.dashboard")
        return 0 if is_current else 1
    if not is_current:
        PATH.write_text(text())
        print(f"{PATH.name}: written")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

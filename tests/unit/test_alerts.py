"""Each alert of deploy/prometheus fires for the series that it is for, and is silent for those of a healthy cluster."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.support.outside_tools import outside_tool
from tests.support.waiting import PROGRAM_S_MAX

_PROMETHEUS = Path(__file__).parents[2] / "deploy/prometheus"
_MINUTES, _MINUTES_IF_PATIENT = 20, 125
"""The length of a test, and that of one for an alert that waits for hours."""
_STEPS_COUNT = _MINUTES_IF_PATIENT * 4
"""Samples of a series, one each 15 s."""


class Case(NamedTuple):
    """Series with their values: `fires` raises the alert with these labels, and `silent` does not."""

    fires: dict[str, str]
    labels: dict[str, str]
    silent: dict[str, str]


def _constant(value: float) -> str:
    return f"{value}x{_STEPS_COUNT}"


def _growing(step: float, start: float = 0) -> str:
    return f"{start}+{step}x{_STEPS_COUNT}"


def _level(series: str, high: float, low: float, **labels: str) -> Case:
    return Case({series: _constant(high)}, labels, {series: _constant(low)})


def _growth(series: str, fast: float, slow: float, **labels: str) -> Case:
    return Case({series: _growing(fast)}, labels, {series: _growing(slow)})


def _times(metric: str, labels: str, bound: str, beyond: str) -> tuple[dict[str, str], dict[str, str]]:
    """Histograms of which all times are above a bound, and of which all are below it."""
    comma = "," if labels else ""

    def of(below: float) -> dict[str, str]:
        counts = {bound: below, beyond: 10.0, "+Inf": 10.0}
        return {f'{metric}_bucket{{{labels}{comma}le="{le}"}}': _growing(count) for le, count in counts.items()}

    return of(0), of(10)


_SLOW_TRANSACTIONS = _times("foqs_transaction_seconds", 'instance="q:9600",shard="7"', "0.05", "0.5")
_LATE_LOOP = _times("foqs_event_loop_lag_seconds", 'instance="q:9600"', "0.05", "0.5")
_EVENTS = 'foqs_item_events_total{{namespace="jobs",event="{}"}}'.format
_INSTANCE = 'instance="q:9600"'
_SHARD = f'{_INSTANCE},shard="7"'
_VERSIONS = ('foqs_build_info{instance="q:9600",version="1.0"}', 'foqs_build_info{instance="r:9600",version="1.1"}')
_SCHEMAS = tuple(f'foqs_schema_version{{instance="{one}:9600",database="meta"}}' for one in "qr")
_LEASED, _DELIVERED = _EVENTS("lease_ended"), _EVENTS("delivered")
_OF_Q, _OF_7 = {"instance": "q:9600"}, {"instance": "q:9600", "shard": "7"}

CASES: dict[str, Case] = {
    "FoqsHostDown": _level('up{job="foqs",instance="q:9600"}', 0, 1, job="foqs", **_OF_Q),
    "FoqsNoHost": Case({'up{job="foqs"}': _constant(0)}, {}, {_VERSIONS[0]: _constant(1)}),
    "FoqsNoStandby": Case({_VERSIONS[0]: _constant(1)}, {}, dict.fromkeys(_VERSIONS, _constant(1))),
    "FoqsShardUnserved": Case(
        {f"foqs_shard_owned{{{_SHARD}}}": _constant(0), 'foqs_shard_owned{instance="r:9600",shard="7"}': _constant(0)},
        {"shard": "7"},
        {f"foqs_shard_owned{{{_SHARD}}}": _constant(0), 'foqs_shard_owned{instance="r:9600",shard="7"}': _constant(1)},
    ),
    "FoqsShardSick": Case(
        {f"foqs_shard_owned{{{_SHARD}}}": _constant(1), f"foqs_shard_healthy{{{_SHARD}}}": _constant(0)},
        _OF_7,
        {f"foqs_shard_owned{{{_SHARD}}}": _constant(0), f"foqs_shard_healthy{{{_SHARD}}}": _constant(0)},
    ),
    "FoqsBreakerFlaps": _growth(f"foqs_breaker_opened_total{{{_SHARD}}}", 0.2, 0.01, **_OF_7),
    "FoqsTransactionsFail": Case(
        {f'foqs_transactions_total{{{_SHARD},outcome="failed"}}': _growing(10)},
        {"shard": "7"},
        {f'foqs_transactions_total{{{_SHARD},outcome="committed"}}': _growing(1000)},
    ),
    "FoqsTransactionSlow": Case(_SLOW_TRANSACTIONS[0], {"shard": "7"}, _SLOW_TRANSACTIONS[1]),
    "FoqsTransactionsLost": _growth(f"foqs_transactions_lost_total{{{_SHARD}}}", 1, 0, **_OF_7),
    "FoqsEnqueuesPileUp": _level(f"foqs_enqueue_buffer_items{{{_SHARD}}}", 16_000, 9_000, **_OF_7),
    "FoqsOldestReadyHigh": _level(f"foqs_oldest_ready_age_seconds{{{_SHARD}}}", 700, 500),
    "FoqsDelayedItemsLate": _level(f"foqs_delay_sweep_lag_seconds{{{_SHARD}}}", 6, 1, **_OF_7),
    "FoqsDeadLettersGrow": _growth(_EVENTS("dead_lettered"), 1, 0, namespace="jobs"),
    "FoqsLeasesEndUnsettled": Case(
        {_LEASED: _growing(1), _DELIVERED: _growing(10)},
        {"namespace": "jobs"},
        {_LEASED: _growing(1), _DELIVERED: _growing(100)},
    ),
    "FoqsOpenLeasesNearMax": _level(f"foqs_open_leases{{{_SHARD}}}", 210_000, 100_000, **_OF_7),
    "FoqsQuotaNearlyUsed": Case(
        {f'foqs_quota_used_ratio{{instance="{one}:9600",namespace="jobs"}}': _constant(0.5) for one in "qr"},
        {"namespace": "jobs"},
        {f'foqs_quota_used_ratio{{instance="{one}:9600",namespace="jobs"}}': _constant(0.4) for one in "qr"},
    ),
    "FoqsQuotaRefuses": _growth(_EVENTS("rate_limited"), 1, 0, namespace="jobs", event="rate_limited"),
    "FoqsDedupWindowShort": _level(
        f'foqs_dedup_window_seconds{{{_INSTANCE},namespace="jobs"}}', 3_600, 90_000, namespace="jobs", **_OF_Q
    ),
    "FoqsSlotGated": _level(
        f'foqs_slot_gated_seconds{{{_INSTANCE},slot="3",from_shard="1",to_shard="2"}}', 1_000, 100,
        slot="3", from_shard="1", to_shard="2",
    ),
    "FoqsLoopLag": Case(_LATE_LOOP[0], _OF_Q, _LATE_LOOP[1]),
    "FoqsInternalErrors": Case(
        {f'foqs_call_seconds_count{{{_INSTANCE},method="ack",outcome="INTERNAL"}}': _growing(1)},
        {},
        {f'foqs_call_seconds_count{{{_INSTANCE},method="ack",outcome="UNAVAILABLE"}}': _growing(1)},
    ),
    "FoqsEventLogFailing": _level(f"foqs_event_log_failing{{{_INSTANCE}}}", 1, 0, **_OF_Q),
    "FoqsMetaAway": _level(f"foqs_access_stale_seconds{{{_INSTANCE}}}", 40, 2, **_OF_Q),
    "FoqsDeathsNotSeen": _level(f"foqs_deaths_not_seen{{{_INSTANCE}}}", 1, 0, **_OF_Q),
    "FoqsPeerNotReached": _level(f'foqs_peers{{{_INSTANCE},state="failed"}}', 1, 0, state="failed", **_OF_Q),
    "FoqsTopicNewsLate": _level(f"foqs_topic_news_age_seconds{{{_INSTANCE}}}", 6, 1, **_OF_Q),
    "FoqsVersionsDiffer": Case(
        dict.fromkeys(_VERSIONS, _constant(1)),
        {},
        dict.fromkeys((_VERSIONS[0], _VERSIONS[0].replace("q", "r")), _constant(1)),
    ),
    "FoqsSchemaPending": Case(
        dict(zip(_SCHEMAS, (_constant(30), _constant(31)), strict=True)),
        {"database": "meta"},
        dict.fromkeys(_SCHEMAS, _constant(31)),
    ),
    "FoqsClockStepped": _growth(f"foqs_server_clock_steps_total{{{_SHARD}}}", 1, 0, **_OF_7),
    "FoqsCertificateExpires": _level(f"foqs_certificate_expires_seconds{{{_INSTANCE}}}", 86_400, 900_000, **_OF_Q),
    "FoqsUnknownNamespaces": _level(f"foqs_unknown_namespaces{{{_INSTANCE}}}", 1, 0),
    "FoqsAuditLost": _growth(f"foqs_audit_lost_total{{{_INSTANCE}}}", 1, 0, **_OF_Q),
}  # fmt: skip


_NEW = f"_x{_MINUTES * 3} 1x{_STEPS_COUNT}"
"""A counter that appears with its first event, which increase() alone does not see."""
NEW_COUNTERS = {
    "FoqsTransactionsLost": f"foqs_transactions_lost_total{{{_SHARD}}}",
    "FoqsDeadLettersGrow": _EVENTS("dead_lettered"),
    "FoqsInternalErrors": f'foqs_call_seconds_count{{{_INSTANCE},method="ack",outcome="INTERNAL"}}',
}


def _alerts() -> dict[str, dict[str, Any]]:
    groups = yaml.safe_load((_PROMETHEUS / "alerts.yml").read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def _expected(name: str, labels: dict[str, str]) -> dict[str, Any]:
    rule = _alerts()[name]
    summary = re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda found: labels[found[1]], rule["annotations"]["summary"])
    return {
        "exp_labels": labels | rule["labels"],
        "exp_annotations": {"summary": summary, "runbook_url": rule["annotations"]["runbook_url"]},
    }


def _test(name: str, series: dict[str, str], expected: list[dict[str, Any]]) -> dict[str, Any]:
    is_patient = _alerts()[name].get("for", "").endswith("h")
    return {
        "name": name,
        "interval": "15s",
        "input_series": [{"series": one, "values": values} for one, values in series.items()],
        "alert_rule_test": [
            {
                "eval_time": f"{_MINUTES_IF_PATIENT if is_patient else _MINUTES}m",
                "alertname": name,
                "exp_alerts": expected,
            }
        ],
    }


def _promtool(folder: Path, tests: list[dict[str, Any]]) -> subprocess.CompletedProcess[str]:
    promtool = outside_tool("promtool", "prometheus")
    rules = [str(_PROMETHEUS / name) for name in ("rules.yml", "alerts.yml")]
    (folder / "tests.yml").write_text(
        yaml.safe_dump({"rule_files": rules, "evaluation_interval": "1m", "tests": tests})
    )
    command = [promtool, "test", "rules", str(folder / "tests.yml")]
    return subprocess.run(command, capture_output=True, text=True, timeout=PROGRAM_S_MAX, check=False)


def test_each_alert_has_a_case() -> None:
    assert list(CASES) == list(_alerts())


@pytest.mark.deep
def test_alerts_fire_for_what_they_are_for_and_else_are_silent(tmp_path: Path) -> None:
    tests = []
    for name, case in CASES.items():
        if name in NEW_COUNTERS:
            tests.append(_test(name, {NEW_COUNTERS[name]: _NEW}, [_expected(name, case.labels)]))
        tests += [_test(name, case.fires, [_expected(name, case.labels)]), _test(name, case.silent, [])]
    done = _promtool(tmp_path, tests)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_silent_alert_and_a_wrong_one_are_found(tmp_path: Path) -> None:
    name, case = "FoqsEventLogFailing", CASES["FoqsEventLogFailing"]
    done = _promtool(tmp_path, [_test(name, case.silent, [_expected(name, case.labels)])])
    assert done.returncode != 0
    assert name in done.stdout + done.stderr
    assert _promtool(tmp_path, [_test(name, case.fires, [])]).returncode != 0

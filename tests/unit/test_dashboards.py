"""The files for Grafana and Prometheus: hosts export each metric and label of them, and each alert has a runbook."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from foqs.model.item import ItemEvent
from scripts import dashboard
from scripts.generate_docs import SECTIONS
from tests.support.outside_tools import outside_tool
from tests.support.waiting import PROGRAM_S_MAX

_ROOT = Path(__file__).parents[2]
_RULES, _ALERTS = (_ROOT / "deploy/prometheus" / name for name in ("rules.yml", "alerts.yml"))
_OF_OTHERS = {"up": {"job"}, "process_cpu_seconds_total": set(), "process_resident_memory_bytes": set()}
"""Metrics that Prometheus and its client library make."""
_OF_SCRAPES = {"instance", "job", "le"}
_SELECTOR = re.compile(r"(?<![\w:.])(?P<name>(?:foqs[:_]|process_|up\b)[\w:]*)(?:\{(?P<labels>[^}]*)\})?")
_LABEL = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
_BY = re.compile(r"\bby \(([\w, ]+)\)")
_NEW_LABEL = re.compile(r'count_values by \([\w, ]+\) \("(\w+)"')


def _rules(path: Path) -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]]


def _exported() -> dict[str, set[str]]:
    """The labels of each series that hosts export or rules.yml records, by name."""
    found = dict(_OF_OTHERS)
    for line in SECTIONS["metrics"]().splitlines()[2:]:
        name, kind, labels, _ = [cell.strip() for cell in line.strip("|").split("|", 3)]
        own = set(re.findall(r"`(\w+)`", labels))
        parts = ("_bucket", "_count", "_sum") if kind == "histogram" else ("",)
        found |= {f"{name.strip('`')}{part}": own for part in parts}
    for rule in _rules(_RULES):
        by = _BY.search(rule["expr"])
        found[rule["record"]] = {one.strip() for one in by[1].split(",")} - {"le"} if by else set()
    return found


def _faults(expression: str, exported: dict[str, set[str]]) -> list[str]:
    """What an expression asks for that nobody exports."""
    faults, own_labels = [], set(_NEW_LABEL.findall(expression)) | _OF_SCRAPES
    for found in _SELECTOR.finditer(expression):
        name = found["name"]
        if name not in exported:
            faults.append(f"no metric {name}")
            continue
        own_labels |= exported[name]
        for label, _, value in _LABEL.findall(found["labels"] or ""):
            if label not in exported[name] | _OF_SCRAPES:
                faults.append(f"{name} has no label {label}")
            if label == "event":
                faults += [f"no event {one}" for one in value.split("|") if one.upper() not in ItemEvent.__members__]
    labels = {one.strip() for names in _BY.findall(expression) for one in names.split(",")}
    return faults + [f"nothing here has the label {label}" for label in sorted(labels - own_labels)]


def _panels() -> list[dict[str, Any]]:
    return [panel for panel in json.loads(dashboard.PATH.read_text())["panels"] if panel["type"] != "row"]


def test_the_dashboard_is_current() -> None:
    assert dashboard.PATH.read_text() == dashboard.text(), "run: .venv/bin/python -m scripts.dashboard"


def test_each_panel_has_a_unit_a_description_and_a_place_of_its_own() -> None:
    panels = _panels()
    assert len(panels) > 30
    for panel in panels:
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert re.fullmatch(r"[A-Z].{20,}\.", panel["description"]), panel["title"]
        assert panel["targets"], panel["title"]
    for names in ([panel["title"] for panel in panels], [panel["id"] for panel in panels]):
        assert len(set(names)) == len(names)
    cells = [
        (panel["gridPos"]["x"] + x, panel["gridPos"]["y"] + y)
        for panel in json.loads(dashboard.PATH.read_text())["panels"]
        for x in range(panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells), "panels cover each other"
    assert max(x for x, _ in cells) < 24


def test_dashboard_rules_and_alerts_read_what_hosts_export() -> None:
    exported = _exported()
    asked = [(panel["title"], target["expr"]) for panel in _panels() for target in panel["targets"]]
    asked += [
        (rule.get("alert") or rule["record"], rule["expr"]) for path in (_RULES, _ALERTS) for rule in _rules(path)
    ]
    assert len(asked) > 70
    assert [(name, faults) for name, one in asked if (faults := _faults(one, exported))] == []


@pytest.mark.parametrize(
    ("expression", "fault"),
    [
        ("foqs_item", "no metric foqs_item"),
        ("sum by (shards) (foqs_items)", "nothing here has the label shards"),
        ('foqs_items{topic="t"}', "foqs_items has no label topic"),
        ('foqs_item_events_total{event=~"acked|finished"}', "no event finished"),
        ("foqs_call_seconds", "no metric foqs_call_seconds"),
        ("sum by (namespace) (foqs:oldest_ready:max)", "nothing here has the label namespace"),
    ],
)
def test_what_nobody_exports_is_found(expression: str, fault: str) -> None:
    assert _faults(expression, _exported()) == [fault]


def test_each_alert_has_a_runbook_and_each_runbook_an_alert() -> None:
    text = (_ROOT / "docs/operations.md").read_text()
    section = text.partition("\n## Alerts\n")[2].partition("\n## ")[0]
    headings = re.findall(r"^### (\w+)$", section, re.MULTILINE)
    alerts = _rules(_ALERTS)
    assert [rule["alert"] for rule in alerts] == headings
    assert len(set(headings)) == len(headings) > 25
    for rule in alerts:
        assert rule["annotations"]["runbook_url"] == f"docs/operations.md#{rule['alert'].lower()}"
        assert rule["annotations"]["summary"].endswith(".")
        assert rule["labels"]["severity"] in ("page", "ticket")


def test_the_labels_that_a_summary_names_are_those_of_its_alert() -> None:
    exported = _exported()
    for rule in _rules(_ALERTS):
        named = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        by = _BY.search(rule["expr"])
        if by:
            kept = {one.strip() for one in by[1].split(",")}
        else:
            kept = {"instance"} if not re.match(r"(max|sum|count|absent)\(", rule["expr"]) else set()
            names = [found["name"] for found in _SELECTOR.finditer(rule["expr"])]
            kept |= set.intersection(*[exported[name] for name in names])
            if any(name.startswith("foqs:") and "instance" not in exported[name] for name in names):
                kept.discard("instance")
        assert named <= kept, rule["alert"]


def test_prometheus_takes_the_files() -> None:
    promtool = outside_tool("promtool", "prometheus")
    _run(promtool, "check", "rules", _RULES, _ALERTS)
    _run(promtool, "check", "config", _ROOT / "deploy/prometheus/prometheus.yml")


def _run(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=PROGRAM_S_MAX, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

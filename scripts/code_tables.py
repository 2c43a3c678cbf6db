"""Tables for docs/ from the code: configuration, namespace settings, limits, errors, metrics, log events."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

from foqs.config import ENVIRONMENT_PREFIX, HostConfig
from foqs.model import access, aging, failures, groups, limits, policy, serial, topic_name
from foqs.model.errors import ERROR_BY_CODE, ErrorCode
from foqs.model.namespace import SETTING_BOUNDS, SETTING_CHOICES, SETTING_RATES, SETTING_TEXTS, NamespaceSettings
from foqs.spark.columns import COLUMNS
from foqs.spark.json_types import REFUSED, WRITTEN
from foqs.spark.options import option_table
from foqs.spark.read_options import read_option_table
from foqs.spark.rows import READ_COLUMNS

_UNITS_MS = ((limits.DAY_MS, "d"), (limits.HOUR_MS, "h"), (limits.MINUTE_MS, "min"), (limits.SECOND_MS, "s"))
_UNITS_BYTES = ((limits.MIB, "MiB"), (limits.KIB, "KiB"))
_SECTION = re.compile(r"# --- (?P<title>.+) ---")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [_line(head), _line(["---"] * len(head))]
    return "\n".join([*lines, *[_line(row) for row in rows], ""])


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def amount(name: str, value: object) -> str:
    """A value with its unit in words where the name says which one it is."""
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, int):
        return str(value)
    plain = str(value) if name == "port" else f"{value:,}"
    if "_bytes_per_ms" in name.lower():
        return plain
    for mark, units in (("_ms", _UNITS_MS), ("_bytes", _UNITS_BYTES)):
        if f"{mark}_" in f"{name.lower()}_":
            for size, unit in units:
                if value >= size and value % size == 0:
                    return f"{plain} ({value // size} {unit})"
    return plain


# ---- configuration ----


def host_config() -> str:
    rows = []
    bounds = HostConfig.model_json_schema()["properties"]
    for key, field in HostConfig.model_fields.items():
        flag = "--shard ID=URL" if key == "shards" else "--" + key.replace("_", "-")
        default = "required" if field.is_required() else amount(key, field.default)
        if field.default_factory in (dict, tuple):
            default = ""
        elif field.default_factory is not None:
            default = "system name and port"
        allowed = _allowed(bounds[key])
        rows.append(
            [
                f"`{key}`",
                f"`{flag}`",
                f"`{ENVIRONMENT_PREFIX}{key.upper()}`",
                default,
                f"`{allowed}`" if allowed else "",
                field.description or "",
            ]
        )
    return table(["key", "flag", "variable", "default", "allowed", "meaning"], rows)


def _allowed(schema: dict[str, Any]) -> str:
    """What a JSON schema says of a value."""
    if "minimum" in schema:
        return f"{schema['minimum']}..{schema['maximum']}"
    if "enum" in schema:
        return ", ".join(schema["enum"])
    return "true, false" if schema.get("type") == "boolean" else str(schema.get("pattern", ""))


def namespace_settings() -> str:
    rows = []
    for field in fields(NamespaceSettings):
        bounds = SETTING_BOUNDS.get(field.name)
        choices = SETTING_CHOICES.get(field.name)
        allowed = " .. ".join(amount(field.name, bound) for bound in bounds) if bounds else "true, false"
        if field.name in SETTING_RATES:
            low, high = limits.DELIVERIES_PER_SECOND_MIN, limits.DELIVERIES_PER_SECOND_MAX
            allowed = f"0 for none, {low} .. {high:,}"
        elif field.name == "tier":
            allowed = f"up to {limits.TIER_CHARS_MAX} of `A-Za-z0-9._-`"
        elif field.name in SETTING_TEXTS:
            allowed = f"up to {limits.PAUSE_REASON_BYTES_MAX} bytes"
        default = amount(field.name, field.default)
        if choices is not None:
            allowed, default = ", ".join(one.name.lower() for one in choices), field.default.name.lower()
        if field.name == "key_spread":
            allowed += ", a power of two"
        rows.append([f"`{field.name}`", default, allowed])
    return table(["setting", "default", "allowed"], rows)


# ---- limits ----


LIMITS_MET: Mapping[str, Sequence[str]] = {
    "Names": ("TOPIC_BYTES_MAX", "NAMESPACE_NAME_CHARS_MAX", "NAMESPACES_MAX"),
    "One call": (
        "FRAME_BYTES_MAX", "BATCH_ITEMS_MAX", "DEQUEUE_TOPICS_MAX", "DEQUEUE_ITEMS_MAX", "DEQUEUE_ANSWER_BYTES_MAX",
        "PAGE_ITEMS_MAX", "PAGE_BYTES_MAX", "WAIT_MS_MAX", "CALL_MS_MAX", "META_CALL_MS_MAX",
    ),
    "One item": (
        "PAYLOAD_BYTES_DEFAULT", "PAYLOAD_BYTES_MAX", "METADATA_BYTES_DEFAULT", "METADATA_BYTES_MAX",
        "TRACE_CONTEXT_BYTES_MAX", "LEASE_MS_MIN", "LEASE_MS_DEFAULT", "LEASE_MS_MAX", "DELAY_MS_MAX", "TTL_MS_DEFAULT",
        "TTL_MS_MAX", "ATTEMPTS_DEFAULT", "ATTEMPTS_MAX",
    ),
    "One namespace": (
        "ENQUEUES_PER_MINUTE_DEFAULT", "ENQUEUES_PER_MINUTE_MAX", "DEDUP_MS_DEFAULT", "DEDUP_MS_MIN", "DEDUP_MS_MAX",
        "DEDUP_IDS_DEFAULT", "DEDUP_IDS_MIN", "DEDUP_IDS_MAX", "KEY_SPREAD_MAX",
    ),
    "Connections and calls of a host": (
        "CONNECTIONS_MAX", "CONNECTIONS_PER_ADDRESS_MAX", "UNKNOWN_CONNECTIONS_MAX", "CONNECTIONS_PER_PRINCIPAL_MAX",
        "CALLS_IN_FLIGHT_PER_CONNECTION_MAX",
        "CALL_BYTES_PER_CONNECTION_MAX", "CALLS_IN_FLIGHT_MAX", "CALL_BYTES_MAX", "ENQUEUE_WAIT_MS_MAX",
        "DEQUEUES_WAITING_MAX", "DEQUEUE_TOPICS_WAITING_MAX", "LONG_POLL_TOPICS_PER_ADDRESS_MAX", "PAGES_BYTES_MAX",
        "PAGES_WAITING_MAX", "META_CALLS_WAITING_MAX", "CENSUSES_MAX",
    ),
    "What closes a connection": (
        "FIRST_FRAME_MS_MAX", "FRAME_HEADER_MS_MAX", "FRAME_BODY_MS_MIN", "FRAME_BODY_BYTES_PER_MS_MIN", "IDLE_MS_MAX",
        "WRITE_STALL_MS_MAX", "UNSENT_ANSWER_BYTES_MAX", "PARTIAL_FRAME_BYTES_MAX", "FRAME_ELEMENTS_MAX",
        "FRAME_FIELDS_PER_STRUCT_MAX", "FRAME_DEPTH_MAX",
    ),
    "One shard": (
        "ENQUEUE_BUFFER_ITEMS_MAX", "ENQUEUE_BUFFER_BYTES_MAX", "OPEN_LEASES_MAX", "EXTENSIONS_WAITING_MAX",
        "LOOK_UPS_WAITING_MAX", "TOPICS_PER_SHARD_MAX", "TOPIC_IDLE_MS", "BREAKER_OPENS_MS_MAX",
    ),
    "One host": (
        "SHARDS_PER_HOST_MAX", "SHARD_ID_MAX", "TRANSACTIONS_PER_SERVER_MAX", "PREFETCH_BYTES_MAX",
        "PACKS_OF_HOST_BYTES_MAX", "AHEAD_LEASE_MS", "DRAIN_MS_MAX", "HOST_DEAD_MS", "HOSTS_MAX",
        "OPERATOR_CONNECTIONS_MAX", "METRIC_NAMESPACES_MAX", "EVENT_LOG_WAITING_MAX", "ROLLUP_SERIES_MAX",
        "LOOP_SILENCE_MS_MAX",
    ),
}  # fmt: skip
"""Limits that a caller or an operator can meet, by the part of docs/limits.md that has them."""
LIMITS_BESIDE: Mapping[str, Mapping[str, str]] = {
    "Groups, keys and policies": {
        "GROUPS_PER_TOPIC_MAX": "Consumer groups of a topic, beside its own.",
        "GROUPS_PER_NAMESPACE_MAX": "Consumer groups of all topics of a namespace.",
        "GROUPS_COPYING_MAX": "Jobs of a cluster that copy waiting items for new groups, at the same time.",
        "GROUPS_COPYING_PER_NAMESPACE_MAX": "Those of one namespace.",
        "GROUPS_COPYING_PER_PREFIX_MAX": "Those of the namespaces whose names begin with a prefix, if the caller can "
        "create the group because of a grant of this prefix alone.",
        "GROUP_BYTES_MAX": "The longest name of a group, in bytes of UTF-8.",
        "COPIES_PER_CALL_MAX": "Items of one enqueue, counted once for each group that gets a copy. Their payload and "
        "metadata, counted as often, have at most FRAME_BYTES_MAX.",
        "ORDERING_KEY_BYTES_MAX": "The longest ordering key, in bytes of UTF-8. With the topic, and the group if there "
        "is one, it has up to TOPIC_BYTES_MAX.",
        "FAIRNESS_KEY_BYTES_MAX": "The longest fairness key, in bytes of UTF-8, with the same bound for all names.",
        "KEY_BUCKETS_MAX": "The highest `key_buckets` of a policy.",
        "KEY_BATCH_MAX": "The highest `key_batch` of a policy.",
        "IN_FLIGHT_MAX": "The highest `in_flight_max` of a policy.",
        "DEPTH_MAX": "The highest `depth_max` of a policy.",
        "AGING_MS_MAX": "The highest `aging_ms_per_priority` of a policy.",
    },
    "Reasons": {
        "REASON_BYTES_MAX": "The longest reason of a nack or a release, in bytes of UTF-8. A longer one is cut.",
        "DEATH_REASON_BYTES_MAX": "The longest reason of death of a dead letter, in bytes. A longer one is cut.",
        "FAILURES_SHOWN_MAX": "Failures of an item that `getItem` shows.",
    },
    "Principals": {
        "PRINCIPALS_MAX": "Principals of a cluster.",
        "GRANTS_MAX": "Grants of one principal.",
        "CREDENTIALS_MAX": "Tokens and certificates of one principal, together.",
        "LABEL_BYTES_MAX": "The longest label of a token or certificate, in bytes.",
        "TOKEN_LIFE_MS_MAX": "The longest life of a token that expires.",
        "CERTIFICATE_NAME_BYTES_MAX": "The longest name of a certificate of a caller, in bytes.",
        "CERTIFICATE_NAMES_MAX": "Names of one certificate that a host checks.",
    },
}
"""Limits that stand beside what they bound, with their meanings, by the part of docs/limits.md that has them."""
BESIDE = (access, aging, failures, groups, policy, serial, topic_name)
"""The modules that these limits are in."""


def limits_met(path: Path) -> str:
    rows = {row[0]: row for _, found in _limit_sections(path.read_text()) for row in found}
    return _limit_tables((title, [rows[f"`{name}`"] for name in names]) for title, names in LIMITS_MET.items())


def limits_beside() -> str:
    values: dict[str, object] = {}
    for module in BESIDE:
        values |= vars(module)
    return _limit_tables(
        (title, [[f"`{name}`", amount(name, values[name]), meaning] for name, meaning in meanings.items()])
        for title, meanings in LIMITS_BESIDE.items()
    )


def limits_inside(path: Path) -> str:
    met = {f"`{name}`" for names in LIMITS_MET.values() for name in names}
    sections = _limit_sections(path.read_text())
    return _limit_tables((title, [row for row in rows if row[0] not in met]) for title, rows in sections)


def _limit_tables(sections: Iterable[tuple[str, list[list[str]]]]) -> str:
    return "\n".join(
        f"### {title[0].upper()}{title[1:]}\n\n{table(['limit', 'value', 'meaning'], rows)}"
        for title, rows in sections
        if rows
    )


def _limit_sections(source: str) -> Iterator[tuple[str, list[list[str]]]]:
    titles = {
        number: found["title"] for number, line in enumerate(source.splitlines(), 1) if (found := _SECTION.match(line))
    }
    body = ast.parse(source).body
    starts = [*sorted(titles), len(source.splitlines()) + 1]
    for start, end in pairwise(starts):
        rows = []
        for position, node in enumerate(body):
            if isinstance(node, ast.Assign) and start < node.lineno < end:
                assert isinstance(node.targets[0], ast.Name)
                name = node.targets[0].id
                rows.append([f"`{name}`", amount(name, getattr(limits, name)), _words_after(body, position)])
        yield titles[start], rows


def _words_after(body: Sequence[ast.stmt], position: int) -> str:
    """The string that follows an assignment."""
    after = body[position + 1] if position + 1 < len(body) else None
    if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str):
        return inspect.cleandoc(after.value.value).replace("\n", " ")
    return ""


# ---- errors ----


def errors() -> str:
    rows = []
    for code in ErrorCode:
        error = ERROR_BY_CODE[code]
        rows.append(
            [
                str(int(code)),
                f"`{code.name}`",
                f"`{error.__name__}`",
                "yes" if error.retryable else "no",
                inspect.cleandoc(error.__doc__ or "").replace("\n", " "),
            ]
        )
    return table(["code", "name", "in Python", "worth a retry", "meaning"], rows)


# ---- metrics and log events, from the source ----


def spark_columns() -> str:
    rows = [[f"`{name}`", ", ".join(types), meaning] for name, (types, meaning) in COLUMNS.items()]
    return table(["column", "types of Spark", "meaning"], rows)


def spark_read_columns() -> str:
    rows = [[f"`{name}`", kind, meaning] for name, (kind, meaning, _) in READ_COLUMNS.items()]
    return table(["column", "type", "meaning"], rows)


def spark_read_options() -> str:
    rows = [[f"`{name}`", default, meaning] for name, default, meaning in read_option_table()]
    return table(["option", "default", "meaning"], rows)


def spark_json_types() -> str:
    rows = [[f"{_quoted(kinds)}", meaning] for kinds, meaning in WRITTEN.items()]
    rows += [[_quoted(kind) if kind != "others" else kind, f"refused: {advice}"] for kind, advice in REFUSED.items()]
    return table(["type", "in the payload"], rows)


def _quoted(kinds: str) -> str:
    return ", ".join(f"`{kind}`" for kind in kinds.split(", "))


def spark_options() -> str:
    rows = [[f"`{name}`", default, meaning] for name, default, meaning in option_table()]
    return table(["option", "default", "meaning"], rows)


_METRIC_KINDS = ("counter", "gauge", "histogram")
"""Rows of metrics and the classes of the library have these names."""


def metrics(*packages: Path) -> str:
    paths = [path for package in packages for path in package.rglob("*.py")]
    rows = [row for path in paths for row in _metrics_of(ast.parse(path.read_text()))]
    return table(["metric", "kind", "labels", "meaning"], sorted(rows))


def _metrics_of(module: ast.Module) -> Iterator[list[str]]:
    for node in ast.walk(module):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        words = [str(arg.value) for arg in node.args if isinstance(arg, ast.Constant)]
        if node.func.id.lower() not in _METRIC_KINDS or len(words) < 2:
            continue
        labels = words[2:] + [str(label.value) for arg in node.args if isinstance(arg, ast.List)
                              for label in arg.elts if isinstance(label, ast.Constant)]  # fmt: skip
        yield [f"`{words[0]}`", node.func.id.lower(), ", ".join(f"`{label}`" for label in labels), words[1]]


@dataclass(frozen=True, slots=True, order=True)
class LogEvent:
    name: str
    level: str


def log_events(package: Path) -> list[LogEvent]:
    """Every event that the package logs through structlog, by name and level."""
    found = set()
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "OutageLog":
                levels = zip(node.args[1:], ("warning", "info"), strict=False)
                found |= {LogEvent(name, level) for argument, level in levels for name in _names(argument)}
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            if not (isinstance(node.func.value, ast.Name) and node.func.value.id == "_log" and node.args):
                continue
            if path.name != "outage_log.py":  # Its events are those of its owners.
                found |= {LogEvent(name, node.func.attr) for name in _names(node.args[0])}
    return sorted(found)


def _names(argument: ast.expr) -> list[str]:
    if isinstance(argument, ast.Constant):
        return [str(argument.value)]
    if isinstance(argument, ast.IfExp):
        return [*_names(argument.body), *_names(argument.orelse)]
    raise ValueError(f"line {argument.lineno}: the name of a log event must be a literal")

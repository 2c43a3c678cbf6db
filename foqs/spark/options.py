"""The options of `df.write.format("foqs")`, checked all at once, before a task starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from foqs.client.addresses import parse_addresses
from foqs.model import limits
from foqs.model.errors import FoqsError, InvalidArgumentError, shown
from foqs.model.namespace import check_namespace_name

CALLS_IN_FLIGHT_DEFAULT = 4
RETRY_TIMEOUT_MS_DEFAULT = 600_000
RETRY_TIMEOUT_MS_MAX = 24 * limits.HOUR_MS
INVALID_ROWS_MAX = 1_000_000_000

_DEDUP_MISSING = (
    "dedup is not set: set it to none, and rows of a task that Spark repeats are enqueued again; "
    "key and content, which prevent that, are not supported yet"
)
_LATER = frozenset(
    {
        "dedupidcolumn",
        "jobid",
        "maxitemspersecond",
        "oninvalidrow",
        "payloadformat",
        "rejectedrowspath",
        "spreadoverms",
    }
)
"""Names that are reserved: who sets one must not believe that it has an effect."""
_SPARKS_OWN = frozenset({"path"})
"""Spark sets it when `save()` is called with a path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """What one write is to do.

    addresses: of hosts, as the clients take them.  namespace: which must exist.
    topic: of all rows; it wins over a column `topic`.
    batch_items: rows in one call.  calls_in_flight: of one task.
    invalid_rows_max: so many rows that the service refuses are counted; with one more the job fails.
    retry_timeout_ms: for how long one call is repeated while hosts are away or ask for patience.
    ignores_extra_columns: columns without a meaning are left out instead of refused.
    """

    addresses: str
    namespace: str
    topic: str | None = None
    batch_items: int = limits.BATCH_ITEMS_MAX
    calls_in_flight: int = CALLS_IN_FLIGHT_DEFAULT
    invalid_rows_max: int = 0
    retry_timeout_ms: int = RETRY_TIMEOUT_MS_DEFAULT
    ignores_extra_columns: bool = False


def parse_write_options(given: Mapping[str, str]) -> WriteOptions:
    """The options as Spark gives them: texts, by names in any case.

    Raises InvalidArgumentError that names everything that is wrong.
    """
    options = {name.lower(): text for name, text in given.items()}
    problems = [_unknown(name) for name in options if name not in _NAMES and name not in _SPARKS_OWN]
    if "path" in options:
        problems.append(f"path {shown(options['path'])} means nothing here: call save() without one")
    dedup = options.pop("dedup", None)
    if dedup is None:
        problems.append(_DEDUP_MISSING)
    elif dedup.lower() in ("key", "content"):
        problems.append(f"dedup={dedup} is not supported yet: only none is, which may enqueue a row twice")
    elif dedup.lower() != "none":
        problems.append(f"dedup {shown(dedup)} is not none, key or content")
    values: dict[str, object] = {}
    for name, (field, _, parse) in _OPTIONS.items():
        text = options.get(name.lower())
        if text is None:
            if field in ("addresses", "namespace"):
                problems.append(f"{name} is not set")
            continue
        try:
            values[field] = parse(name, text)
        except FoqsError as error:
            problems.append(error.message)
    if problems:
        raise InvalidArgumentError("options of format foqs: " + "; ".join(problems))
    return WriteOptions(**values)  # type: ignore[arg-type]


def option_table() -> list[tuple[str, str, str]]:
    """Return name, default and meaning of each option, for the documentation."""
    defaults = WriteOptions(addresses="", namespace="")
    rows = []
    for name, (field, meaning, _) in _OPTIONS.items():
        default = "required" if field in ("addresses", "namespace") else _told(getattr(defaults, field))
        rows.append((name, default, meaning))
    dedup = ("dedup", "required", "`none`: a row may be enqueued twice when Spark repeats a task")
    return [*rows[:2], dedup, *rows[2:]]


def _told(value: object) -> str:
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _unknown(name: str) -> str:
    if name in _LATER:
        return f"{name} is not supported yet: leave it out"
    close = get_close_matches(name, _NAMES, 1)
    known = ", ".join([*_OPTIONS, "dedup"])
    return f"unknown option {shown(name)}" + (f" (did you mean {_spelled(close[0])}?)" if close else f": use {known}")


def _spelled(lower: str) -> str:
    return next((name for name in _OPTIONS if name.lower() == lower), lower)


def _addresses(_: str, text: str) -> str:
    parse_addresses(text)
    return text


def _namespace(_: str, text: str) -> str:
    return check_namespace_name(text)


def _text(name: str, text: str) -> str:
    if not text:
        raise InvalidArgumentError(f"{name} is empty")
    return text


def _whole(least: int, most: int) -> Callable[[str, str], int]:
    def parse(name: str, text: str) -> int:
        digits = text.strip().replace("_", "")
        if not (digits.isascii() and digits.isdigit()) or not least <= int(digits[:20]) <= most:
            raise InvalidArgumentError(f"{name} {shown(text)} is not a whole number within {least}..{most}")
        return int(digits)

    return parse


def _flag(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise InvalidArgumentError(f"{name} {shown(text)} is neither true nor false")
    return text.lower() == "true"


_OPTIONS: dict[str, tuple[str, str, Callable[[str, str], object]]] = {
    "addresses": ("addresses", "hosts as `host:port`, comma-separated", _addresses),
    "namespace": ("namespace", "the namespace to enqueue into; it must exist", _namespace),
    "topic": ("topic", "the topic of all rows; it wins over a column `topic`", _text),
    "batchSize": (
        "batch_items",
        "rows in one call; fewer where the namespace allows fewer",
        _whole(1, limits.BATCH_ITEMS_MAX),
    ),
    "maxInFlight": (
        "calls_in_flight",
        "calls in flight of one task",
        _whole(1, limits.CALLS_IN_FLIGHT_PER_CONNECTION_MAX),
    ),
    "maxInvalidRows": (
        "invalid_rows_max",
        "rows that the service may refuse, over the whole job, before the job fails",
        _whole(0, INVALID_ROWS_MAX),
    ),
    "retryTimeoutMs": (
        "retry_timeout_ms",
        "how long one call is repeated while hosts are away or ask for patience; then the task fails",
        _whole(1, RETRY_TIMEOUT_MS_MAX),
    ),
    "ignoreExtraColumns": (
        "ignores_extra_columns",
        "leave columns out that have no meaning, instead of refusing them",
        _flag,
    ),
}
_NAMES = frozenset(name.lower() for name in _OPTIONS) | {"dedup"}

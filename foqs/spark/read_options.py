"""The options of `spark.read.format("foqs")`, checked all at once, before a task starts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches

from foqs.client.addresses import parse_addresses
from foqs.model import limits
from foqs.model.calls import ItemState
from foqs.model.errors import FoqsError, InvalidArgumentError, shown
from foqs.model.namespace import check_namespace_name
from foqs.spark.credentials import CREDENTIAL_OPTIONS, Credentials, take_credentials
from foqs.spark.option_texts import flag, whole, without_tokens

RETRY_TIMEOUT_MS_DEFAULT = 600_000
RETRY_TIMEOUT_MS_MAX = 24 * limits.HOUR_MS
_REQUIRED = ("addresses", "namespace")
_SPARKS_OWN = frozenset({"path"})
"""Option that Spark sets if `load()` is called with a path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The options of one read.

    addresses: of hosts, in the form of the clients. namespace: must exist. states: all if empty. topics: all if empty.
    topic_prefix: prefix of topics, instead of topics. splits_per_shard: most tasks for one shard. includes_payload: if
    False, payloads are null. page_items: items of one call. retry_timeout_ms: longest time that one call is repeated.
    pushes_filters: True if the service does Spark's filters on state and topic. credentials: TLS and the identity of
    the read, by names of files and without secrets.
    """

    addresses: str
    namespace: str
    states: frozenset[ItemState] = frozenset()
    topics: frozenset[str] = frozenset()
    topic_prefix: str = ""
    splits_per_shard: int = 1
    includes_payload: bool = True
    page_items: int = limits.PAGE_ITEMS_MAX
    retry_timeout_ms: int = RETRY_TIMEOUT_MS_DEFAULT
    pushes_filters: bool = False
    credentials: Credentials = field(default_factory=Credentials)


def is_for_reading(given: Mapping[str, str]) -> bool:
    """True if every option is one of a read. A view with such options is read, not written to."""
    return all(name.lower() in _NAMES for name in given)


def parse_read_options(given: Mapping[str, str]) -> ReadOptions:
    """Parse the options as Spark gives them: texts, by names in any case.

    Raises InvalidArgumentError that names all problems.
    """
    problems: list[str] = []
    options = without_tokens(given, problems)
    problems += [_unknown(name) for name in options if name not in _NAMES and name not in _SPARKS_OWN]
    if "path" in options:
        problems.append(f"path {shown(options['path'])} means nothing here: call load() without one")
    values: dict[str, object] = {}
    for name, (field_name, _, parse) in _OPTIONS.items():
        text = options.get(name.lower())
        if text is None:
            if field_name in _REQUIRED:
                problems.append(f"{name} is not set")
            continue
        try:
            values[field_name] = parse(name, text)
        except FoqsError as error:
            problems.append(error.message)
    if "topics" in values and "topic_prefix" in values:
        problems.append("topics and topicPrefix exclude each other")
    credentials = take_credentials(values)
    problems += credentials.problems(str(values.get("addresses", "")))
    if problems:
        raise InvalidArgumentError("options of format foqs: " + "; ".join(problems))
    return ReadOptions(credentials=credentials, **values)  # type: ignore[arg-type]


def read_option_table() -> list[tuple[str, str, str]]:
    """Return name, default and meaning of each option, for the documentation."""
    defaults = ReadOptions(addresses="", namespace="")
    rows = []
    for name, (field_name, meaning, _) in _OPTIONS.items():
        if name in CREDENTIAL_OPTIONS:
            default = CREDENTIAL_OPTIONS[name].default
        else:
            default = "required" if field_name in _REQUIRED else _shown_default(getattr(defaults, field_name))
        rows.append((name, default, meaning))
    return rows


def _shown_default(value: object) -> str:
    if not value and not isinstance(value, bool):
        return "all"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _unknown(name: str) -> str:
    close = get_close_matches(name, _NAMES, 1)
    hint = f" (did you mean {_spelled(close[0])}?)" if close else f": use {', '.join(_OPTIONS)}"
    return f"unknown option {shown(name)} of a read{hint}"


def _spelled(lower: str) -> str:
    return next(name for name in _OPTIONS if name.lower() == lower)


def _addresses(_: str, text: str) -> str:
    parse_addresses(text)
    return text


def _namespace(_: str, text: str) -> str:
    return check_namespace_name(text)


def _states(name: str, text: str) -> frozenset[ItemState]:
    states = set()
    for word in filter(None, [word.strip() for word in text.split(",")]):
        if word.upper() not in ItemState.__members__:
            raise InvalidArgumentError(f"{name} {shown(word)} is not one of {', '.join(state_names())}")
        states.add(ItemState[word.upper()])
    if not states:
        raise InvalidArgumentError(f"{name} is empty: leave it out for all states")
    return frozenset(states)


def state_names() -> list[str]:
    """The names of the states in rows."""
    return [state.name.lower() for state in ItemState]


def topics_text(topics: Iterable[str]) -> str:
    """The text of the option `topics` for these topics. It is JSON, because a name can contain any character, even a
    comma.
    """
    return json.dumps(list(topics), ensure_ascii=False)


def _topics(name: str, text: str) -> frozenset[str]:
    try:
        names = json.loads(text)
    except (ValueError, RecursionError):
        names = None
    if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
        raise InvalidArgumentError(f'{name} {shown(text)} is not a list of names in JSON, such as ["mails", "orders"]')
    topics = frozenset(names)
    if not topics:
        raise InvalidArgumentError(f"{name} is empty: leave it out for all topics")
    if len(topics) > limits.EXPORT_TOPICS_MAX:
        raise InvalidArgumentError(f"{name} has {len(topics)} topics, over the limit of {limits.EXPORT_TOPICS_MAX}")
    return topics


def _prefix(name: str, text: str) -> str:
    if not text:
        raise InvalidArgumentError(f"{name} is empty: leave it out for all topics")
    return text


_OPTIONS: dict[str, tuple[str, str, Callable[[str, str], object]]] = {
    "addresses": ("addresses", "hosts as `host:port`, comma-separated", _addresses),
    "namespace": ("namespace", "the namespace to read; it must exist", _namespace),
    "state": ("states", "`ready`, `delayed`, `leased`, `dead`, or several of them, comma-separated", _states),
    "topics": ("topics", 'names of topics as a list in JSON, such as `["mails", "orders"]`, up to 500', _topics),
    "topicPrefix": ("topic_prefix", "how the names of topics begin, instead of `topics`", _prefix),
    "splitsPerShard": (
        "splits_per_shard",
        "tasks for each shard, at most; a shard reads one page at a time, so more of them mainly spread Spark's work",
        whole(1, limits.EXPORT_SPLITS_MAX),
    ),
    "includePayload": ("includes_payload", "if false, payloads are not read and are null", flag),
    "pageSize": ("page_items", "items of one call", whole(1, limits.PAGE_ITEMS_MAX)),
    "retryTimeoutMs": (
        "retry_timeout_ms",
        "how long one call is repeated while hosts are away or ask for patience; then the task fails",
        whole(1, RETRY_TIMEOUT_MS_MAX),
    ),
    "pushdown": (
        "pushes_filters",
        "leave filters on `state` and `topic` to the service; Spark needs "
        "`spark.sql.python.filterPushdown.enabled=true` for it",
        flag,
    ),
    **{name: (option.field, option.meaning, option.parse) for name, option in CREDENTIAL_OPTIONS.items()},
}
_NAMES = frozenset(name.lower() for name in _OPTIONS)

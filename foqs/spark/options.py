"""The options of `df.write.format("foqs")` and of `df.writeStream`, checked all at once, before a task starts."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches

from foqs.client.addresses import parse_addresses
from foqs.model import limits
from foqs.model.errors import FoqsError, InvalidArgumentError, shown
from foqs.model.jobs import check_job_id
from foqs.model.namespace import check_namespace_name
from foqs.spark.credentials import CREDENTIAL_OPTIONS, Credentials, take_credentials
from foqs.spark.option_texts import flag, whole, without_tokens

CALLS_IN_FLIGHT_DEFAULT = 4
RETRY_TIMEOUT_MS_DEFAULT = 600_000
RETRY_TIMEOUT_MS_MAX = 24 * limits.HOUR_MS
INVALID_ROWS_MAX = 1_000_000_000

DRAWN_JOB_ID = "drawnJobId"
"""A program of foqs names its job by this option, so that it can ask for the job's record while the job runs."""
KEY, CONTENT, NONE = "key", "content", "none"
BINARY, JSON = "binary", "json"
WINDOW, ACKED = "window", "acked"
FAIL, SKIP, SIDE_OUTPUT, WARN = "fail", "skip", "sideOutput", "warn"


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """The options of one write, each valid by itself. `OPTIONS` has their meanings."""

    addresses: str = ""
    namespace: str = ""
    topic: str | None = None
    dedup: str | None = None
    dedup_id_column: str | None = None
    dedup_until: str = WINDOW
    on_short_window: str = WARN
    job_id: str | None = None
    drawn_job_id: str | None = None
    """Name of a job that the user has not named. A job that needs no record runs without one."""
    items_per_second_max: int | None = None
    batch_items: int = limits.BATCH_ITEMS_MAX
    calls_in_flight: int = CALLS_IN_FLIGHT_DEFAULT
    retry_timeout_ms: int = RETRY_TIMEOUT_MS_DEFAULT
    spread_over_ms: int = 0
    payload_format: str = BINARY
    on_invalid_row: str = FAIL
    invalid_rows_max: int | None = None
    rejected_rows_path: str | None = field(default=None, repr=False)
    """Not in the repr, because it can contain a password."""
    ignores_extra_columns: bool = False
    credentials: Credentials = field(default_factory=Credentials)
    """TLS and the identity of the job: names of files, and no secrets."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option: its field of WriteOptions, the parser of its text, and its description in the documents."""

    field: str
    meaning: str
    parse: Callable[[str, str], object]
    default: str | None = None
    """The default in the documents, if it is not that of the field."""


def parse_options(given: Mapping[str, str], problems: list[str]) -> WriteOptions:
    """Parse the options as Spark gives them: texts, by names in any case. A wrong option is added to `problems` and
    gets its default.
    """
    options = without_tokens(given, problems)
    drawn_job_id = options.pop(DRAWN_JOB_ID.lower(), None)
    problems += [_unknown(name) for name in options if name not in _NAMES and name not in _SPARKS_OWN]
    if "path" in options:
        problems.append(f"path {shown(options['path'])} means nothing here: call save() without one")
    values: dict[str, object] = {"drawn_job_id": drawn_job_id}
    for name, option in OPTIONS.items():
        text = options.get(name.lower())
        if text is None:
            if option.default == _REQUIRED:
                problems.append(f"{name} is not set")
            continue
        try:
            values[option.field] = option.parse(name, text)
        except FoqsError as error:
            problems.append(error.message)
    made = WriteOptions(credentials=take_credentials(values), **values)  # type: ignore[arg-type]
    problems += _contradictions(made) + made.credentials.problems(made.addresses)
    return made


def draw_job_id() -> str:
    """Return a name for a job that the user has not named."""
    return f"spark-{uuid.uuid4()}"


def option_table() -> list[tuple[str, str, str]]:
    """Return name, default and meaning of each option, for the documentation."""
    defaults = WriteOptions()
    return [
        (name, option.default or _shown_default(getattr(defaults, option.field)), option.meaning)
        for name, option in OPTIONS.items()
    ]


def _contradictions(options: WriteOptions) -> list[str]:
    found = []
    if options.dedup_id_column is not None and options.dedup not in (None, KEY):
        found.append(f"dedupIdColumn is set, and dedup is {options.dedup}: only dedup=key has a column")
    if options.dedup_until == ACKED and options.dedup in (CONTENT, NONE):
        found.append(f"dedupUntil is acked, and dedup is {options.dedup}: only keys can be taken as long as items live")
    if options.on_invalid_row == FAIL and options.invalid_rows_max:
        found.append("maxInvalidRows allows invalid rows, and onInvalidRow is fail: set it to skip or sideOutput")
    if options.on_invalid_row == SIDE_OUTPUT and options.rejected_rows_path is None:
        found.append("onInvalidRow=sideOutput needs rejectedRowsPath")
    if options.on_invalid_row != SIDE_OUTPUT and options.rejected_rows_path is not None:
        found.append("rejectedRowsPath is for onInvalidRow=sideOutput alone")
    return found


def _shown_default(value: object) -> str:
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _unknown(name: str) -> str:
    close = get_close_matches(name, _NAMES, 1)
    return f"unknown option {shown(name)}" + (
        f" (did you mean {_spelled(close[0])}?)" if close else f": use {', '.join(OPTIONS)}"
    )


def _spelled(lower: str) -> str:
    return next(name for name in OPTIONS if name.lower() == lower)


def _addresses(_: str, text: str) -> str:
    parse_addresses(text)
    return text


def _namespace(_: str, text: str) -> str:
    return check_namespace_name(text)


def _text(name: str, text: str) -> str:
    if not text:
        raise InvalidArgumentError(f"{name} is empty")
    return text


def _job_id(name: str, text: str) -> str:
    try:
        return check_job_id(text)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{name}: {error.message}") from error


def _one_of(*choices: str) -> Callable[[str, str], str]:
    def parse(name: str, text: str) -> str:
        for choice in choices:
            if choice.lower() == text.lower():
                return choice
        raise InvalidArgumentError(f"{name} {shown(text)} is not {', '.join(choices[:-1])} or {choices[-1]}")

    return parse


_REQUIRED = "required"
OPTIONS: dict[str, Option] = {
    "addresses": Option("addresses", "hosts as `host:port`, comma-separated", _addresses, _REQUIRED),
    "namespace": Option("namespace", "the namespace to enqueue into; it must exist", _namespace, _REQUIRED),
    "topic": Option("topic", "the topic of all rows; it wins over a column `topic`", _text),
    "dedup": Option(
        "dedup",
        "`key`: each value of the key column is enqueued once; `content`: each row is enqueued once by what it says, "
        "for plans that give the same rows again; `none`: rows of a task that Spark repeats are enqueued twice",
        _one_of(KEY, CONTENT, NONE),
        "`key` with a key column, else required",
    ),
    "dedupIdColumn": Option(
        "dedup_id_column",
        "the key column: text (1 to 255 bytes), whole numbers, or bytes (up to 127, as hexadecimal)",
        _text,
        "`dedup_id`",
    ),
    "dedupUntil": Option(
        "dedup_until",
        "how long a key is taken: `window`, the dedup window of the namespace; `acked`, as long as its item lives, so "
        "that a task that Spark repeats enqueues again what was acked meanwhile",
        _one_of(WINDOW, ACKED),
    ),
    "onShortWindow": Option(
        "on_short_window",
        "the service may have forgotten ids of this job: `warn`, or `fail` the job",
        _one_of(WARN, FAIL),
    ),
    "jobId": Option(
        "job_id",
        "name of the load and of its record in the service: 1 to 128 of A-Z, a-z, 0-9, `._-`; refused once a load of "
        "that name has succeeded",
        _job_id,
    ),
    "maxItemsPerSecond": Option(
        "items_per_second_max",
        "rate of the whole job, kept by the service for all tasks together",
        whole(1, limits.JOB_ITEMS_PER_SECOND_MAX),
    ),
    "batchSize": Option(
        "batch_items",
        "rows in one call; fewer where the namespace allows fewer",
        whole(1, limits.BATCH_ITEMS_MAX),
    ),
    "maxInFlight": Option(
        "calls_in_flight",
        "calls in flight of one task",
        whole(1, limits.CALLS_IN_FLIGHT_PER_CONNECTION_MAX),
    ),
    "retryTimeoutMs": Option(
        "retry_timeout_ms",
        "how long one call is repeated while hosts are away or ask for patience; then the task fails",
        whole(1, RETRY_TIMEOUT_MS_MAX),
    ),
    "spreadOverMs": Option(
        "spread_over_ms",
        "the items become deliverable evenly over this time, from the begin of the job or from their own time",
        whole(0, limits.DELAY_MS_MAX),
    ),
    "payloadFormat": Option(
        "payload_format",
        "`binary`: the column `payload` as it is; `json`: an object of all columns that have no meaning of their own, "
        "or a column `payload` that is a struct, map or array",
        _one_of(BINARY, JSON),
    ),
    "onInvalidRow": Option(
        "on_invalid_row",
        "a row that cannot become an item: `fail` the job, `skip` the row, or write it to a `sideOutput`",
        _one_of(FAIL, SKIP, SIDE_OUTPUT),
    ),
    "maxInvalidRows": Option(
        "invalid_rows_max",
        "with one more of them over the whole job, the job fails",
        whole(0, INVALID_ROWS_MAX),
        "0 with `fail`, else no bound",
    ),
    "rejectedRowsPath": Option(
        "rejected_rows_path",
        "directory of the side output, as a path or URI that pyarrow.fs knows (`s3://`, `gs://`, `hdfs://`, `file://`)",
        _text,
    ),
    "ignoreExtraColumns": Option(
        "ignores_extra_columns",
        "leave columns out that have no meaning, instead of refusing them",
        flag,
    ),
    **{
        name: Option(option.field, option.meaning, option.parse, option.default)
        for name, option in CREDENTIAL_OPTIONS.items()
    },
}
_NAMES = frozenset(name.lower() for name in OPTIONS)
_SPARKS_OWN = frozenset({"path", "checkpointlocation"})
"""Options that Spark sets: the first if `save()` is called with a path, the second for every stream."""

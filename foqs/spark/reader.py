"""The batch reader: a snapshot of the items of a namespace, split by the service and read in pages by each task."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    In,
    InputPartition,
    IsNotNull,
    StringStartsWith,
)
from pyspark.sql.types import StructType

from foqs.client.retry import RetryPolicy
from foqs.client.sync import AdminClient
from foqs.model import limits
from foqs.model.calls import ExportPage, ExportSplit, ItemState
from foqs.model.errors import PermissionDeniedError, UnavailableError
from foqs.spark.credentials import Replacements, in_options
from foqs.spark.read_options import ReadOptions
from foqs.spark.rows import batch_of, check_read_columns

if TYPE_CHECKING:
    import pyarrow as pa

_FIRST_CALL_MS_MAX = 10_000
"""Deadline of the calls before the tasks, in milliseconds, so that a wrong address is reported soon."""
_CALL_TIMEOUT_MS = 30_000
_BACKOFF_MS_MAX = 5_000
_NEVER_NULL = ("id", "topic", "state", "priority", "metadata", "enqueued_at", "expires_at", "delivery")


@dataclass(frozen=True)
class Wanted:
    """The selection of items to read; None stands for all."""

    states: frozenset[ItemState] | None = None
    topics: frozenset[str] | None = None
    topic_prefix: str = ""

    @property
    def is_nothing(self) -> bool:
        return self.states == frozenset() or self.topics == frozenset()


class SplitPartition(InputPartition):
    """A split of the plan. It stays valid, so a second action or a repeated task reads it again."""

    def __init__(self, split: ExportSplit) -> None:
        super().__init__(split)
        self.split = split


class FoqsReader(DataSourceReader):
    """Made by Spark's planner and sent to the tasks. It holds checked options and no connection."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self.schema = schema
        self.names = check_read_columns([(field.name, field.dataType.simpleString()) for field in schema.fields])
        self.wanted = Wanted(options.states or None, options.topics or None, options.topic_prefix)

    def partitions(self) -> list[InputPartition]:
        """Ask the service for splits. Spark turns an empty list into one partition that is None."""
        if self.wanted.is_nothing:
            return []
        with _client(self.options, _FIRST_CALL_MS_MAX) as client:
            plan = client.plan_export(self.options.namespace, self.options.splits_per_shard)
        return [SplitPartition(split) for split in plan.splits]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The items of one split, a page at a time."""
        if not isinstance(partition, SplitPartition):
            return  # Nothing matches the filters.
        from pyspark.sql.pandas.types import to_arrow_schema

        options, wanted = self.options, self.wanted
        arrow_schema = to_arrow_schema(self.schema, timezone="UTC")
        has_payload = options.includes_payload and "payload" in self.names
        options.credentials.check_files()
        with RenewedReader(options) as client:
            after_key = 0
            while True:
                page = client.export_items(
                    partition.split,
                    after_key,
                    topics=sorted(wanted.topics or ()),
                    topic_prefix=wanted.topic_prefix,
                    states=wanted.states or (),
                    with_payload=has_payload,
                    with_metadata="metadata" in self.names,
                )
                if page.items:
                    yield batch_of(page.items, self.names, arrow_schema, has_payload=has_payload)
                after_key = page.next_after_key
                if not after_key:
                    return


class FilteringReader(FoqsReader):
    """Leaves Spark's filters on state and topic to the service.

    This is a separate class, because Spark refuses a reader that accepts filters while its setting for that is off.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 (Spark's name)
        """Accept the filters that the service serves exactly, and return the others."""
        for given in filters:
            narrowed = _narrowed(self.wanted, given)
            if narrowed is None:
                yield given
            else:
                self.wanted = narrowed


def make_reader(options: ReadOptions, schema: StructType) -> FoqsReader:
    """A reader of these columns, after asking the service for the namespace. Raises FoqsError."""
    options.credentials.check_files()
    reader = (FilteringReader if options.pushes_filters else FoqsReader)(options, schema)
    try:
        with _client(options, _FIRST_CALL_MS_MAX) as client:
            client.get_namespace(options.namespace)
    except UnavailableError as error:
        message = in_options(error.message)
        raise UnavailableError(f"no host of addresses={options.addresses} answers: {message}") from error
    except PermissionDeniedError as error:
        raise PermissionDeniedError(in_options(error.message)) from error
    return reader


class RenewedReader:
    """The client of one task, which connects anew when its credentials were replaced and the old ones are refused."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._replacements = Replacements(options.credentials)
        self._client = _client(options, options.retry_timeout_ms)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def export_items(self, split: ExportSplit, after_key: int, **wanted: Any) -> ExportPage:
        """Read one page. Raises PermissionDeniedError if the newest credentials are refused."""
        options = self._options
        while True:
            try:
                return self._client.export_items(options.namespace, split, after_key, options.page_items, **wanted)
            except PermissionDeniedError as error:
                if not self._replacements.came():
                    raise PermissionDeniedError(in_options(error.message)) from error
            self._client.close()
            self._client = _client(options, options.retry_timeout_ms)


def _client(options: ReadOptions, deadline_ms: int) -> AdminClient:
    retry = RetryPolicy(deadline_ms=deadline_ms, backoff_ms_max=_BACKOFF_MS_MAX)
    return AdminClient(
        options.addresses,
        timeout_ms=min(deadline_ms, _CALL_TIMEOUT_MS),
        connections_max=1,
        retry=retry,
        **options.credentials.client_arguments(),
    )


# ---- filters ----


def _narrowed(wanted: Wanted, given: Filter) -> Wanted | None:
    """Add the filter to the selection. None if the service cannot serve it exactly."""
    if isinstance(given, IsNotNull):
        return wanted if len(given.attribute) == 1 and given.attribute[0] in _NEVER_NULL else None
    if isinstance(given, StringStartsWith) and given.attribute == ("topic",):
        return _begins(wanted, given.value)
    values: set[object]
    if isinstance(given, EqualTo | EqualNullSafe):
        values = {given.value}
    elif isinstance(given, In):
        values = set(given.value)
    else:
        return None
    if given.attribute == ("state",):
        states = frozenset([state for state in ItemState if state.name.lower() in values])
        return replace(wanted, states=states if wanted.states is None else states & wanted.states)
    if given.attribute == ("topic",):
        return _named(wanted, values)
    return None


def _named(wanted: Wanted, values: set[object]) -> Wanted | None:
    topics = frozenset([value for value in values if isinstance(value, str) and _is_topic(value)])
    if wanted.topics is not None:
        topics &= wanted.topics
    topics = frozenset([topic for topic in topics if topic.startswith(wanted.topic_prefix)])
    if len(topics) > limits.EXPORT_TOPICS_MAX:
        return None
    return replace(wanted, topics=topics, topic_prefix="")


def _begins(wanted: Wanted, prefix: str) -> Wanted | None:
    if wanted.topics is not None:
        return replace(wanted, topics=frozenset([topic for topic in wanted.topics if topic.startswith(prefix)]))
    if prefix and not _is_topic(prefix):
        return replace(wanted, topics=frozenset(), topic_prefix="")
    if prefix.startswith(wanted.topic_prefix):
        return replace(wanted, topic_prefix=prefix)
    if wanted.topic_prefix.startswith(prefix):
        return wanted
    return replace(wanted, topics=frozenset(), topic_prefix="")


def _is_topic(text: str) -> bool:
    """True if a topic can have this name; other topics are never stored."""
    is_plain = not any(ord(char) < 0x20 or 0x7F <= ord(char) <= 0x9F for char in text)
    return bool(text) and is_plain and len(text.encode(errors="replace")) <= limits.TOPIC_BYTES_MAX

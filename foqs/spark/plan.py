"""The plan of a write, after options and columns have been checked together. It asks no host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from foqs.model.calls import DedupUntil
from foqs.model.errors import InvalidArgumentError, shown
from foqs.spark.columns import Columns, check_columns, json_columns, key_column_of
from foqs.spark.dedup_ids import ContentIds
from foqs.spark.encoding import RowEncoder, Spread
from foqs.spark.json_payload import JsonPayload
from foqs.spark.options import ACKED, CONTENT, FAIL, WriteOptions, parse_options


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePlan:
    """One write: made before the job, sent to its tasks and to the commit. So it holds only values.

    key_column: makes the dedup ids. payload_columns: make a JSON payload. payload_is_whole: the one column is the
    payload. job_id: names the job. has_record: the service has a record of the job, which counts the items of tasks.
    run_id: names the load for ids of the content; a stream gets one with each micro-batch. begin_ms: start of the
    write, in milliseconds since the epoch. key_spread, shard_by_slot: the shard of each id, if rows shall be grouped by
    shard. warnings: reasons for weaker promises of this write, printed when it begins and kept in the record at its
    end.
    """

    options: WriteOptions
    key_column: str | None = None
    payload_columns: tuple[str, ...] = ()
    payload_is_whole: bool = False
    job_id: str = ""
    run_id: str = ""
    has_record: bool = False
    begin_ms: int = 0
    key_spread: int = 1
    shard_by_slot: tuple[int, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def rejects_id(self) -> str:
        """The name for a batch's files of rejected rows. It differs in each run of a job, so earlier files stay."""
        return f"{self.job_id}-{self.begin_ms}"

    @property
    def has_ids(self) -> bool:
        """True if rows have dedup ids, so that a repeated row is enqueued once."""
        return self.key_column is not None or self.options.dedup == CONTENT

    @property
    def invalid_rows_max(self) -> int | None:
        """Most rows of the job that can be refused, or None for no limit."""
        return 0 if self.options.on_invalid_row == FAIL else self.options.invalid_rows_max

    def encoder(self, run_id: str, partition: int) -> RowEncoder:
        """The encoder of one task. `run_id` names the job or the micro-batch, which has the same rows when it is
        repeated.
        """
        options = self.options
        return RowEncoder(
            topic=options.topic,
            key_column=self.key_column,
            content_ids=ContentIds(run_id, partition) if options.dedup == CONTENT else None,
            dedup_until=DedupUntil.ACKED if options.dedup_until == ACKED else None,
            spread=Spread(over_ms=options.spread_over_ms, begin_ms=self.begin_ms) if options.spread_over_ms else None,
            json_payload=(
                JsonPayload(self.payload_columns, is_whole=self.payload_is_whole) if self.payload_columns else None
            ),
        )


def plan_write(given: Mapping[str, str], columns: Columns, no_json: Mapping[str, str] | None = None) -> WritePlan:
    """Check options and columns. Raises InvalidArgumentError that names all problems.

    no_json: reasons that columns cannot be JSON, by their names.
    """
    problems: list[str] = []
    options = parse_options(given, problems)
    key_column = key_column_of(columns, options, problems)
    check_columns(columns, options, key_column, problems)
    payload = json_columns(columns, options, problems)
    named = payload[0] if payload is not None else ()
    problems += [f"column {shown(name)}: {reason}" for name in named if (reason := (no_json or {}).get(name))]
    if problems:
        raise InvalidArgumentError("format foqs: " + "; ".join(problems))
    payload_columns, is_whole = payload or ((), False)
    return WritePlan(options=options, key_column=key_column, payload_columns=payload_columns, payload_is_whole=is_whole)

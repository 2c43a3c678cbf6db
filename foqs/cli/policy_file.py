"""`foqs topic set-policies`: policies of many topics and prefixes, from a CSV file."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from itertools import islice
from typing import Any, TextIO

import click

from foqs.cli.output import Exit, exit_of, leave_for, note
from foqs.cli.remote import Remote, remote_command
from foqs.cli.topic_policy import EXPIRY, NO_CAP
from foqs.client.policy_change import TopicPolicyChange
from foqs.model import limits
from foqs.model.errors import FoqsError, InvalidArgumentError, shown
from foqs.model.policy import TriState
from foqs.model.serial import OnDead

COLUMNS = (
    "topic",
    "prefix",
    "group",
    "enqueue_paused",
    "dequeue_paused",
    "reason",
    "items_per_second",
    "weight",
    "attempts",
    "depth",
    "expiry",
    "backoff_ms",
    "backoff_ms_max",
    "serial",
    "on_dead",
    "in_flight",
    "key_buckets",
    "key_batch",
    "aging_ms_per_priority",
)
_FLAGS = {"true": True, "false": False}


@click.command("set-policies")
@click.argument("namespace")
@click.argument("file", metavar="FILE", type=click.File("r", encoding="utf-8-sig"))
@remote_command
def set_policies(remote: Remote, namespace: str, file: TextIO) -> None:
    """Set policies of topics of NAMESPACE from FILE, a CSV file of UTF-8, or - for stdin.

    The first line names columns: topic, and any of prefix, group, enqueue_paused, dequeue_paused (true or false),
    reason, items_per_second (a rate, or none), weight, attempts, in_flight (0: no limit), depth (0: no limit), expiry
    (dead-letter, delete or namespace), backoff_ms, backoff_ms_max, serial (true or false), on_dead (continue or hold),
    key_buckets, key_batch and aging_ms_per_priority. If prefix is true, topic is a prefix. An empty cell leaves its
    field unchanged. Lines are applied in order, 1,000 in one transaction. An invalid line fails alone. The command can
    be run again.
    """
    done_count, failed_count, codes = 0, 0, set[Exit]()
    if hasattr(file, "reconfigure"):
        file.reconfigure(newline="")  # The csv module needs line ends inside quotes unchanged.
    changes = _changes_of(file)
    with remote.admin() as admin:
        while some := list(islice(changes, limits.BATCH_ITEMS_MAX)):
            errors = {line: change for line, change in some if isinstance(change, FoqsError)}
            good = [(line, change) for line, change in some if isinstance(change, TopicPolicyChange)]
            try:
                failed = admin.set_topic_policies(namespace, [change for _, change in good], return_errors=True)
            except FoqsError:
                note(f"stopped at line {some[0][0]}: from there on no policy is known to be set")
                raise
            errors |= {good[position][0]: error for position, error in failed.items()}
            for line, error in sorted(errors.items()):
                note(f"error: line {line}: {error.message}")
                codes.add(exit_of(error))
            failed_count += len(errors)
            done_count += len(some) - len(errors)
    remote.output.document({"done": done_count, "failed": failed_count})
    remote.output.line(f"{done_count} policies set" + (f", {failed_count} failed" if failed_count else ""))
    leave_for(codes)


def _changes_of(file: TextIO) -> Iterator[tuple[int, TopicPolicyChange | FoqsError]]:
    """Yield the number and the change of each line, or its error.

    Raises InvalidArgumentError if the file is not CSV in UTF-8 or has wrong columns.
    """
    rows = csv.reader(file, strict=True)
    try:
        columns = next(rows, [])
        unknown = [name for name in columns if name not in COLUMNS]
        if "topic" not in columns or unknown or len(set(columns)) < len(columns):
            raise InvalidArgumentError(
                f"the first line names the columns {shown(','.join(columns))}: it has to name topic, and may name each "
                f"of {', '.join(COLUMNS[1:])} once"
            )
        for row in rows:
            if row:
                yield rows.line_num, _change_of(columns, row)
    except (csv.Error, UnicodeDecodeError) as error:
        raise InvalidArgumentError(f"line {rows.line_num} is no CSV of UTF-8: {error}") from None


def _change_of(columns: list[str], row: list[str]) -> TopicPolicyChange | FoqsError:
    if len(row) != len(columns):
        return InvalidArgumentError(f"{len(row)} cells, and the first line names {len(columns)} columns")
    cells = dict(zip(columns, row, strict=True))
    try:
        return TopicPolicyChange(
            cells["topic"],
            is_prefix=_flag(cells, "prefix") or False,
            enqueue_paused=_flag(cells, "enqueue_paused"),
            dequeue_paused=_flag(cells, "dequeue_paused"),
            reason=cells.get("reason") or None,
            deliveries_per_second_max=_number(cells, "items_per_second", float),
            weight=_number(cells, "weight", int),
            attempts_max=_number(cells, "attempts", int),
            in_flight_max=_number(cells, "in_flight", int),
            group=cells.get("group") or None,
            depth_max=_number(cells, "depth", int),
            dead_letter_on_expiry=_expiry(cells),
            backoff_ms=_number(cells, "backoff_ms", int),
            backoff_ms_max=_number(cells, "backoff_ms_max", int),
            serial=_flag(cells, "serial"),
            on_dead=_on_dead(cells.get("on_dead", "")),
            key_buckets=_number(cells, "key_buckets", int),
            key_batch=_number(cells, "key_batch", int),
            aging_ms_per_priority=_number(cells, "aging_ms_per_priority", int),
        )
    except InvalidArgumentError as error:
        return error


def _flag(cells: dict[str, str], name: str) -> bool | None:
    cell = cells.get(name, "").lower()
    if cell and cell not in _FLAGS:
        raise InvalidArgumentError(f"{name} {shown(cell)} is neither true nor false")
    return _FLAGS.get(cell)


def _expiry(cells: dict[str, str]) -> TriState | None:
    cell = cells.get("expiry", "").lower()
    if cell and cell not in EXPIRY:
        raise InvalidArgumentError(f"expiry {shown(cell)} is none of {', '.join(EXPIRY)}")
    return EXPIRY.get(cell)


def _on_dead(cell: str) -> OnDead | None:
    if cell and cell.upper() not in OnDead.__members__:
        raise InvalidArgumentError(f"on_dead {shown(cell)} is neither continue nor hold")
    return OnDead[cell.upper()] if cell else None


def _number(cells: dict[str, str], name: str, kind: type[float] | type[int]) -> Any:
    cell = cells.get(name, "")
    if not cell:
        return None
    try:
        return 0.0 if cell == NO_CAP and kind is float else kind(cell)
    except ValueError:
        raise InvalidArgumentError(f"{name} {shown(cell)} is not a number") from None

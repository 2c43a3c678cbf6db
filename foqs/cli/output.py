"""The output of commands: a table or a JSON document on stdout, messages on stderr, and exit codes."""

from __future__ import annotations

import base64
import json
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from enum import IntEnum
from itertools import islice
from typing import TYPE_CHECKING, Any, NoReturn

import click

from foqs.cli.tables import table_lines
from foqs.model.errors import ErrorCode, FoqsError
from foqs.model.shown_text import escaped_json, one_line, some_lines

if TYPE_CHECKING:
    from foqs.model.calls import PositionErrors

_LINES_PER_WRITE = 500


class Exit(IntEnum):
    OK = 0
    FAILURE = 1
    USAGE = 2
    NOT_FOUND = 3
    CONFLICT = 4
    UNAVAILABLE = 5
    PARTIAL = 6
    """The output is incomplete: some shards or hosts do not respond."""


_EXIT_BY_CODE = {
    ErrorCode.INVALID_ARGUMENT: Exit.USAGE,
    ErrorCode.TOO_LARGE: Exit.USAGE,
    ErrorCode.UNKNOWN_NAMESPACE: Exit.NOT_FOUND,
    ErrorCode.NOT_FOUND: Exit.NOT_FOUND,
    ErrorCode.STALE_LEASE: Exit.CONFLICT,
    ErrorCode.ALREADY_EXISTS: Exit.CONFLICT,
    ErrorCode.RATE_LIMITED: Exit.UNAVAILABLE,
    ErrorCode.OVERLOADED: Exit.UNAVAILABLE,
    ErrorCode.UNAVAILABLE: Exit.UNAVAILABLE,
    ErrorCode.PAUSED: Exit.UNAVAILABLE,
}


def exit_of(error: FoqsError) -> Exit:
    return _EXIT_BY_CODE.get(error.code, Exit.FAILURE)


def note(message: str) -> None:
    """Print a message on stderr, so that stdout has only the result. Names in it can be made up by others."""
    click.echo(some_lines(message), err=True)


class Output:
    """Prints one result, as a table or as JSON. The keys of the JSON are stable; new ones can be added."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json

    def document(self, value: object) -> None:
        """Print `value` if the output is JSON."""
        if self.as_json:
            click.echo(_json_of(value, indent=2))

    def json_line(self, value: object) -> None:
        """Print `value` on one line if the output is JSON, for results of unknown length."""
        if self.as_json:
            click.echo(_json_of(value))

    def line(self, text: str) -> None:
        """Print a line if the output is a table."""
        if not self.as_json:
            click.echo(one_line(text))

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[object]], *, is_last_cut: bool = False) -> None:
        """Print a table if that is the output format, each row as it arrives; see table_lines."""
        if self.as_json:
            return
        terminal_columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        lines = table_lines(columns, rows, terminal_columns, is_last_cut=is_last_cut)
        while some := list(islice(lines, _LINES_PER_WRITE)):
            click.echo("\n".join(some))


def report_failures(names: Sequence[str], errors: PositionErrors) -> None:
    """If a batch has failures, name their positions and exit with their code."""
    for position, error in sorted(errors.items()):
        note(f"error: {names[position]}: {error.message}")
    leave_for({exit_of(error) for error in errors.values()})


def leave_for(codes: set[Exit]) -> None:
    """Exit with the code that all failures share, or with FAILURE if they differ. Return if `codes` is empty."""
    if codes:
        leave(codes.pop() if len(codes) == 1 else Exit.FAILURE)


def leave(code: Exit) -> NoReturn:
    raise click.exceptions.Exit(int(code))


def _json_of(value: object, indent: int | None = None) -> str:
    """Encode as JSON. Escape non-ASCII characters unless stdout is in a Unicode encoding.

    Those that end a line for some programs or steer a terminal are always escaped, so a document stays on one line.
    """
    is_unicode = (sys.stdout.encoding or "").lower().replace("-", "").startswith("utf")
    text = json.dumps(plain(value), ensure_ascii=not is_unicode, indent=indent)
    return escaped_json(text) if is_unicode else text


def plain(value: object) -> Any:
    """Convert `value` to JSON types. Bytes appear twice: as text (null if they are not UTF-8) and as base64."""
    if is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, FoqsError):
        return {"code": value.code.name, "message": value.message, "retry_after_ms": value.retry_after_ms}
    if isinstance(value, IntEnum):
        return value.name.lower()
    if isinstance(value, Mapping):
        document: dict[str, Any] = {}
        for key, entry in value.items():
            document[str(key)] = _text_of(entry) if isinstance(entry, bytes) else plain(entry)
            if isinstance(entry, bytes):
                document[f"{key}_base64"] = base64.b64encode(entry).decode()
        return document
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    return value


def _text_of(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def time_of(time_ms: int | None) -> str | None:
    """Format a time in UTC for a table; JSON has the milliseconds."""
    if not time_ms:
        return None
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(sep=" ", timespec="milliseconds")[:-6]

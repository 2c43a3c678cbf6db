"""The log of a host: one event a line on stdout."""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Any

import structlog

from foqs.model.shown_text import escaped


class Lines:
    """Prints lines for structlog. No terminal must stop the host: a closed one, or one of few characters."""

    def msg(self, message: str) -> None:
        with suppress(OSError):
            try:
                print(message, flush=True)
            except UnicodeEncodeError:
                print(message.encode("ascii", "backslashreplace").decode(), flush=True)

    debug = info = warning = error = critical = exception = msg


def _escape_texts(logger: object, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Escape what steers a terminal, because callers make up names that are logged. Lists are escaped by their form."""
    for key, value in event.items():
        if isinstance(value, str):
            event[key] = escaped(value)
    return event


def configure_logs(level: str, style: str) -> None:
    """Log from `level` up, in the style json or console. It can be called again."""
    console = structlog.dev.ConsoleRenderer(colors=sys.stdout.isatty())
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            *([structlog.processors.JSONRenderer()] if style == "json" else [_escape_texts, console]),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=lambda *_: Lines(),
    )

"""The log of a host: one event a line on stdout."""

from __future__ import annotations

import logging
import sys
from contextlib import suppress

import structlog


class Lines:
    """Prints lines for structlog. No terminal must stop the host: a closed one, or one of few characters."""

    def msg(self, message: str) -> None:
        with suppress(OSError):
            try:
                print(message, flush=True)
            except UnicodeEncodeError:
                print(message.encode("ascii", "backslashreplace").decode(), flush=True)

    debug = info = warning = error = critical = exception = msg


def configure_logs(level: str, style: str) -> None:
    """Log from `level` up, in the style json or console. It can be called again."""
    console = structlog.dev.ConsoleRenderer(colors=sys.stdout.isatty())
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer() if style == "json" else console,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=lambda *_: Lines(),
    )

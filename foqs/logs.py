"""The log of a host: one event a line on stdout."""

from __future__ import annotations

import logging
import sys
from contextlib import suppress

import structlog


class Lines:
    """Prints lines for structlog. A closed pipe or terminal must not stop the host."""

    def msg(self, message: str) -> None:
        with suppress(OSError):
            print(message, flush=True)

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

"""What holds for all tests of real hosts."""

from __future__ import annotations

import sys

import pytest
import structlog


@pytest.fixture(autouse=True)
def _log_beside_commands() -> None:
    """Log on the stderr of the process: many hosts run in the process of the commands whose stdout is read."""
    structlog.reset_defaults()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.__stderr__))

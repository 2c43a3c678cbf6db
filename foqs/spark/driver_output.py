"""Messages for the driver's output."""

from __future__ import annotations

import sys


def note(text: str) -> None:
    """Print a line to the driver's output."""
    print(f"foqs: {text}", file=sys.stderr, flush=True)

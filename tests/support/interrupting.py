"""Exceptions out of the handlers of signals: one at every line of the blocking client, by turns."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import foqs.client

_CLIENT = str(Path(foqs.client.__file__).parent)
LINES_MAX = 5_000


class Interrupted(BaseException):
    """What the handler raises, such as KeyboardInterrupt or a time limit."""


class _Interruption:
    def __init__(self, at_line: int) -> None:
        self.at_line = at_line
        self.lines_count = 0
        self.where = ""

    def trace(self, frame: FrameType, event: str, _argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(_CLIENT):
            return None
        if event == "line":
            self.lines_count += 1
            if self.lines_count == self.at_line:
                self.where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} ({frame.f_code.co_name})"
                raise Interrupted(self.where)
        return self.trace


def interrupted_everywhere(work: Callable[[], object], *, first: int = 1) -> Iterator[str]:
    """Do the work again and again, with an exception in this thread at its first line, its second, and so on.

    Yields where each came, and ends when the work has gone through without one.
    """
    for at_line in range(first, LINES_MAX):
        interruption = _Interruption(at_line)
        sys.settrace(interruption.trace)
        try:
            work()
        except Interrupted:
            pass
        finally:
            sys.settrace(None)
        if not interruption.where:
            return
        yield interruption.where
    raise AssertionError(f"the work has {LINES_MAX} lines")

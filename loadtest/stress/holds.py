"""An event loop whose callbacks are timed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Holds(asyncio.SelectorEventLoop):
    """An event loop that knows the longest of its callbacks since it was asked last."""

    def __init__(self) -> None:
        super().__init__()
        self._longest = (0, "")

    def take(self) -> tuple[float, str]:
        """Its milliseconds of CPU, and what it was."""
        longest, self._longest = self._longest, (0, "")
        return longest[0] / 1e6, longest[1]

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Within it callbacks are timed, on the loop's own thread."""
        run = asyncio.Handle._run

        def timed_run(handle: asyncio.Handle) -> None:
            began_ns = time.thread_time_ns()
            run(handle)
            took_ns = time.thread_time_ns() - began_ns
            if took_ns > self._longest[0]:
                self._longest = (took_ns, _name_of(handle))

        asyncio.Handle._run = timed_run  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            asyncio.Handle._run = run  # type: ignore[method-assign]


def _name_of(handle: asyncio.Handle) -> str:
    """A task's name, or that of the function."""
    callback = getattr(handle, "_callback", None)
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        code = getattr(owner.get_coro(), "__qualname__", "")
        return f"{owner.get_name()} {code}".strip()
    return str(getattr(callback, "__qualname__", callback))

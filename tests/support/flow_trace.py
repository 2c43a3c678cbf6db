"""Which files of foqs a call enters, in which order, from its first byte to the last of its response."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import foqs
from foqs.bootstrap import Host
from foqs.cluster.members.membership import Membership
from foqs.host.registry.namespaces import Namespaces
from foqs.transport.listener import Listener

_ROOT = str(Path(foqs.__file__).parent) + "/"
_RESPONSE_WRITTEN = ("transport/connection.py", "Connection.answer_call")
_BACKGROUND = frozenset(
    function.__code__
    for function in (
        Host._tick,
        Membership._pause,
        Membership._beat,
        Membership._refresh,
        Namespaces._refresh_in_time,
        Listener._accept_from_now_on,
    )
)
"""The functions that run by the clock, which have nothing to do with the call."""


@dataclass(slots=True)
class Flow:
    """The functions entered, as (file, qualified name)."""

    entered: list[tuple[str, str]] = field(default_factory=list)

    @property
    def files(self) -> list[str]:
        """Each once, in the order in which they are entered first."""
        return list(dict.fromkeys(file for file, _ in self.entered))

    @property
    def returns_count(self) -> int:
        """How often a function of a file is entered that was left before for another file."""
        seen: set[str] = set()
        last, count = "", 0
        for file, _ in self.entered:
            if file != last:
                count += file in seen
                seen.add(file)
                last = file
        return count

    def __str__(self) -> str:
        lines, last = [], ""
        for file, name in self.entered:
            lines.append(f"{file:<40} {name}" if file != last else f"{'':<40} {name}")
            last = file
        folders = Counter(file.rpartition("/")[0] for file in self.files)
        counts = ", ".join(f"{folder} {count}" for folder, count in folders.items())
        return "\n".join([*lines, f"{len(self.files)} files ({counts}), {self.returns_count} returns"])


@contextmanager
def traced() -> Iterator[Flow]:
    """Record what this thread enters: the event loop's, which does all of a call."""
    flow = Flow()
    depth_ignored = 0

    def note(frame: FrameType, event: str, _: Any) -> None:
        nonlocal depth_ignored
        code = frame.f_code
        if not code.co_filename.startswith(_ROOT):
            return
        is_background = code in _BACKGROUND
        if event == "call":
            depth_ignored += is_background
            if not depth_ignored:
                flow.entered.append((code.co_filename.removeprefix(_ROOT), code.co_qualname))
        elif event == "return":
            depth_ignored -= is_background

    sys.setprofile(note)
    try:
        yield flow
    finally:
        sys.setprofile(None)
        while flow.entered and flow.entered[-1] != _RESPONSE_WRITTEN:
            flow.entered.pop()  # The call is over.

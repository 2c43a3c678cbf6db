"""Cores for those who are measured, and others for those who measure."""

from __future__ import annotations

import os
from types import TracebackType
from typing import Self


class Cores:
    """The first half of the cores for host and server, the second for the clients: as many calls as these may make,
    they take no time from those who answer them.
    """

    def __init__(self) -> None:
        self._all = sorted(os.sched_getaffinity(0))

    def __enter__(self) -> Self:
        """What is started from now on is the servers'."""
        self.go_on_with_servers()
        return self

    def go_on_with_servers(self) -> None:
        """What is started from now on is the servers', again."""
        os.sched_setaffinity(0, self._all[: (len(self._all) + 1) // 2])

    def go_on_with_clients(self) -> None:
        """What is started from now on is the clients'."""
        os.sched_setaffinity(0, self._all[(len(self._all) + 1) // 2 :] or self._all)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        os.sched_setaffinity(0, self._all)

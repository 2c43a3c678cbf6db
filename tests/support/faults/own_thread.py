"""Something that is done beside the load, in a thread of its own."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from tests.support.faults import FaultError
from tests.support.waiting import PATIENCE_S


class OwnThread(ABC):
    """From `start` to `stop`, or while it is entered."""

    def __init__(self, name: str) -> None:
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Raises FaultError when it does not end."""
        self._stopped.set()
        self._thread.join(PATIENCE_S)
        if self._thread.is_alive():
            raise FaultError(f"{self._thread.name} does not end")

    @abstractmethod
    def _run(self) -> None:
        """Until `_stopped` is set."""

"""What a fault is. The kinds are in host_faults, server_faults, session_faults, network_faults and cluster_faults."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from typing import ClassVar, Generic, TypeVar

from loadtest.chaos.room import SHARDS
from tests.support.faults.own_thread import OwnThread

R = TypeVar("R")
"""The room that it happens in: one host, or a cluster."""
HOST, META, CLIENTS, CLOCK = "host", "meta", "clients", "clock"


class Fault(ABC, Generic[R]):
    """One fault with all that it draws by chance, drawn when it is planned: so a plan hangs on its seed alone.

    `targets`: what no other fault may touch meanwhile. `shards`: those that may be away.
    """

    kind: ClassVar[str]
    length_ms: ClassVar[tuple[int, int]] = (200, 8_000)
    """From .. to, log-uniform."""
    targets: frozenset[str]
    shards: frozenset[int] = frozenset(SHARDS)

    @abstractmethod
    def __init__(self, rng: random.Random) -> None: ...

    @abstractmethod
    def begin(self, room: R) -> None: ...

    def tick(self, room: R) -> None:
        """Called some times a second while it lasts."""
        return

    @abstractmethod
    def end(self, room: R) -> None:
        """What it did is undone, and what it broke is started again."""


def shards_of(server: int) -> frozenset[int]:
    return frozenset(shard for shard, at in SHARDS.items() if at == server)


class Work(OwnThread):
    """Something that a fault does again and again in a thread of its own until it ends."""

    def __init__(self, name: str) -> None:
        super().__init__(f"fault-{name}")
        self._failure: Exception | None = None

    def stop(self) -> None:
        """Raises what the work raised."""
        super().stop()
        if self._failure is not None:
            raise self._failure

    @abstractmethod
    def once(self) -> None: ...

    def _run(self) -> None:
        try:
            while not self._stopped.is_set():
                self.once()
        except Exception as error:
            self._failure = error

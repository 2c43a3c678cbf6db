"""What the workloads ask of every queue: foqs, plain SQL, and the peers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

CACHE_MIB = 1_024
"""Of a database server: the buffer pool of MySQL and MariaDB, the shared buffers of PostgreSQL."""
LOG_MIB = 512
"""Of redo log: with a small one MySQL and MariaDB write pages early, again and again. PostgreSQL's default is more."""


class Offer(NamedTuple):
    """An item to enqueue. A lower `priority` is more urgent."""

    topic: str
    payload: bytes
    priority: int = 0
    delay_ms: int = 0
    dedup_id: str | None = None


class Held(NamedTuple):
    """An item that this client has claimed; `receipt` is what the queue needs to settle it."""

    payload: bytes
    receipt: Any


class Client(Protocol):
    """One producer's or consumer's access, used by many tasks at once in one event loop.

    Each call returns when the queue has answered it: an enqueued or acked item survives a power cut from then on.
    """

    async def enqueue(self, offers: Sequence[Offer]) -> None: ...

    async def claim(self, topics: Sequence[str], count: int, wait_ms: int) -> list[Held]:
        """At most `count` ready items of the topics, none when there was none for `wait_ms`.

        Priorities hold within a topic.
        """
        ...

    async def ack(self, held: Sequence[Held]) -> None: ...

    async def nack(self, held: Sequence[Held], delay_ms: int) -> None: ...

    async def close(self) -> None: ...


class Adapter(Protocol):
    """One queue: its servers on this machine, and clients of it. Pickled into the client processes when it runs."""

    name: str
    durability: str
    """Why an acknowledged write survives a power cut, with the settings that make it so."""
    batch_max: int
    """The batch size that suits it; workloads in batches use the least of it and theirs."""
    lacks: frozenset[str]
    """Of {"priority", "delay", "lease", "batch", "nack_delay", "many_topics"}: workloads that need one are not run.

    Without many_topics a claim is of one.
    """

    def start(self, directory: Path, topics: Sequence[str]) -> None:
        """Start its servers with all data in `directory`; return when clients can connect."""
        ...

    def stop(self) -> None: ...

    def pids(self) -> dict[str, int]:
        """Its server processes by name; their CPU, memory and written bytes are counted, children included."""
        ...

    def version(self) -> str: ...

    async def connect(self, in_flight: int) -> Client:
        """In a client process: for at most `in_flight` calls at once."""
        ...


class Server(Protocol):
    """A started one."""

    @property
    def pid(self) -> int: ...

    def stop(self) -> None: ...


S = TypeVar("S", bound=Server)


class OneServer(Generic[S]):
    """What adapters of queues with one server have in common. The copies in client processes are without it."""

    server_name: str
    """As `pids` says it."""

    def __init__(self) -> None:
        self._server: S | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_server": None}

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()
            self._server = None

    def pids(self) -> dict[str, int]:
        return {self.server_name: self._running.pid}

    @property
    def _running(self) -> S:
        assert self._server is not None
        return self._server

"""What the demo's processes tell their parent, each over a pipe of its own.

A pipe and not a shared queue: a process that is killed in mid-send must not take a lock of the others with it.
Times in `_ns` are of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple


class Phase(Enum):
    FLOOD = "flood"
    """Producers go as fast as they can; a backlog builds up."""
    STEADY = "steady"
    """Producers keep a pace below what the consumers can take; no backlog."""


class Command(Enum):
    """What the parent tells a process."""

    STEADY = "steady"
    HOLD = "hold"
    STOP = "stop"


class Handout(NamedTuple):
    """One delivery, as its consumer saw it."""

    id: str
    topic: str
    place: int
    """Its place in the order of its topic, see foqs.model.order."""
    attempt: int
    deliver_after_ms: int
    lease_expires_at_ms: int
    delayed: bool
    shard_id: int = 0


@dataclass(slots=True)
class Enqueued:
    """One enqueue call that was answered."""

    phase: Phase
    answered_ns: int
    ids: list[str]


@dataclass(slots=True)
class Answer:
    """One dequeue call that brought items."""

    asked_ns: int
    answered_ns: int
    answered_at_ms: float
    handouts: list[Handout]
    consumer: int = -1
    """Whose it is; the parent knows."""


@dataclass(slots=True)
class Settled:
    """All that the consumer held is acked, except these."""

    dead: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


class Holding:
    """The consumer keeps what it holds and does nothing more."""


class Produced:
    """The producer has sent all records of its phase."""


@dataclass(slots=True)
class Failed:
    """The process ends for this reason."""

    reason: str


Message = Enqueued | Answer | Settled | Holding | Produced | Failed

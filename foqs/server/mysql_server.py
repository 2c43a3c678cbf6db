"""What the shards of this host on one MySQL server have in common: when each may commit, and whether it answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from foqs.server.commit_scheduler import CommitScheduler

PULSE_MS = 200
"""A server that has said nothing for so long is asked for the time, by one of its shards that has nothing to do."""


class MysqlServer:
    """One MySQL server, known by the address in the URLs of its shards.

    The host makes one for each address. The writers of its shards take their turns at `scheduler`, and say here when
    they ask the server something and when it answers; so the silence of a server is noticed for all of its shards at
    once, whichever of them asked.

    An address may lead to several machines, as a proxy does, or a fail-over for a while. So nothing that a promise
    rests on is known here: every shard asks for the time and for durability through its own session, and has a circuit
    breaker of its own (docs/decisions/0013-commit-scheduler.md).

    All times are seconds in which the event loop turned (foqs.server.turning.TurningTime).
    """

    def __init__(self, address: str, scheduler: CommitScheduler, turned_s: Callable[[], float]) -> None:
        self.address = address
        self.scheduler = scheduler
        self.turned_s = turned_s
        self.heard_s = 0.0
        """When the server last answered a shard of this host."""
        self.silent_since_s: float | None = None
        """When the first question was asked after that, all of which are unanswered; None while there is none."""
        self._pulsed_s = 0.0

    def asked(self) -> None:
        """A shard has begun a transaction, or asks something else."""
        if self.silent_since_s is None:
            self.silent_since_s = self.turned_s()

    def answered(self) -> None:
        """A shard has its answer, whatever it says. A lost session is none."""
        self.heard_s = self.turned_s()
        self.silent_since_s = None

    @contextmanager
    def question(self) -> Iterator[None]:
        """Around a question, which is answered unless the body raises an error."""
        self.asked()
        yield
        self.answered()

    def claim_pulse(self) -> bool:
        """Whether the caller is to ask for the time now, because the server has not been heard for PULSE_MS.

        Of several callers one is told so. Another one is, PULSE_MS later, when the first has no answer: what hangs may
        be its session alone.
        """
        now_s = self.turned_s()
        if now_s - max(self.heard_s, self._pulsed_s) <= PULSE_MS / 1000:
            return False
        self._pulsed_s = now_s
        return True

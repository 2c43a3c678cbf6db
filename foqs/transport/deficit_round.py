"""Deficit round robin (Shreedhar and Varghese, 1995): members that have something to do are served in turn, by work.

Each member of the round may have a quantum of work when it is its turn. What a call costs is known once it was read. So
it is charged then: a member is served while its deficit is above zero, and one that had more than its quantum pays with
its next turns.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Generic, TypeVar

QUANTUM: Final = 8
"""Work that a flow, and a caller within its flow, may have in each round."""
BULK_QUANTUM: Final = 2
"""The same of a flow of bulk calls."""


class Member:
    """A member of a round. The round alone sets `is_in_round`."""

    __slots__ = ("deficit", "is_in_round", "quantum")

    def __init__(self, quantum: int = QUANTUM) -> None:
        """`quantum` is what it may have in each round: its weight among the others."""
        self.quantum = float(quantum)
        self.deficit = 0.0
        self.is_in_round = False

    def is_ready(self) -> bool:
        """Whether it has a call that may be started now."""
        raise NotImplementedError


M = TypeVar("M", bound=Member)


class DeficitRound(Generic[M]):
    """Deficit round robin over members that have calls to start."""

    __slots__ = ("_members", "is_empty")

    def __init__(self) -> None:
        self._members: deque[M] = deque()
        self.is_empty = True

    def join(self, member: M) -> None:
        """Let a member have its turns, the first one after those of all others."""
        if not member.is_in_round:
            member.is_in_round = True
            member.deficit = member.quantum
            self._members.append(member)
            self.is_empty = False

    def head(self) -> M | None:
        """The member whose turn it is; None when none is ready.

        A member that is not ready leaves once it has paid for what it had.
        """
        members = self._members
        while members:
            member = members[0]
            if member.deficit <= 0:
                member.deficit += member.quantum
                members.rotate(-1)
            elif member.is_ready():
                return member
            else:
                member.is_in_round = False
                members.popleft()
        self.is_empty = True
        return None

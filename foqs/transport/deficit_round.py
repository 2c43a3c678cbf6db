"""Deficit round robin (Shreedhar and Varghese, 1995): members with work are served in turn, measured by work.

Each member of the round gets a quantum of work in its turn. The cost of a call is known only after it was read, so it
is charged then. A member is served while its deficit is above zero, and pays for any excess with its next turns.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Generic, TypeVar

QUANTUM: Final = 8
"""Work that a flow, and a caller within its flow, gets in each round."""
BULK_QUANTUM: Final = 2
"""The same for a flow of bulk calls."""


class Member:
    """A member of a round. The round alone sets `is_in_round`."""

    __slots__ = ("deficit", "is_in_round", "quantum")

    def __init__(self, quantum: int = QUANTUM) -> None:
        """`quantum` is its work in each round, and so its weight among the members."""
        self.quantum = float(quantum)
        self.deficit = 0.0
        self.is_in_round = False

    def is_ready(self) -> bool:
        """True if it has a call that can start now."""
        raise NotImplementedError


M = TypeVar("M", bound=Member)


class DeficitRound(Generic[M]):
    """Deficit round robin over members that have calls to start."""

    __slots__ = ("_members", "is_empty")

    def __init__(self) -> None:
        self._members: deque[M] = deque()
        self.is_empty = True

    def join(self, member: M) -> None:
        """Add a member to the round, behind all others."""
        if not member.is_in_round:
            member.is_in_round = True
            member.deficit = member.quantum
            self._members.append(member)
            self.is_empty = False

    def head(self) -> M | None:
        """Return the member whose turn it is; None if no member is ready.

        A member that is not ready leaves once it has paid for its excess.
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

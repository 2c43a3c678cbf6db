"""The entrances of a server: each is a port with its own admission, so that a flood of one leaves the other open.

docs/decisions/0063-peer-port.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from enum import Enum

from foqs.model.errors import ErrorCode
from foqs.transport.bounds import TransportLimits
from foqs.transport.sign_ins import SignIns


class CallersOf(Enum):
    """The callers for whom a port is."""

    EVERYBODY = ""
    CLIENTS = "clients"
    """Hosts have a port of their own. Those of older builds do not know it, and call here while such a host lives."""
    HOSTS = "hosts"
    """Nobody is served but hosts that have proven to be of the cluster."""


class Entrance:
    """One port of a server. It counts the connections that came through it, and says which of their calls are known.

    The server makes it. Its connections, and the table of connections, ask it.
    """

    def __init__(
        self,
        bounds: TransportLimits,
        sign_ins: SignIns,
        callers: CallersOf = CallersOf.EVERYBODY,
        has_older_hosts: Callable[[], bool] = lambda: False,
    ) -> None:
        """`sign_ins` counts the callers of this port alone. `has_older_hosts` is asked if `callers` are CLIENTS."""
        self.sign_ins = sign_ins
        self.callers = callers
        self._has_older_hosts = has_older_hosts
        self._connections_max = bounds.peer_connections_max if self.is_for_hosts else bounds.connections_max
        self._per_address_max = bounds.connections_per_address_max
        self._count = 0
        self._by_address: Counter[str] = Counter()

    @property
    def is_for_hosts(self) -> bool:
        return self.callers is CallersOf.HOSTS

    @property
    def is_for_clients(self) -> bool:
        """True if hosts have another port."""
        return self.callers is CallersOf.CLIENTS

    def hides_hosts(self) -> bool:
        """True if the verbs between hosts do not exist here: no living host calls them through this port."""
        return self.is_for_clients and not self._has_older_hosts()

    def too_many(self, address: str) -> str:
        """Return the bound that one more connection of this address would break, or empty text."""
        if self._count >= self._connections_max:
            reason = "connections_max"
        elif self._by_address.get(address, 0) >= self._per_address_max:
            reason = "connections_per_address_max"
        else:
            reason = self.sign_ins.too_many_unknown(address)
            if reason:
                self.sign_ins.refused(address, f"{ErrorCode.OVERLOADED.name}, {reason}")
        return f"peer_port_{reason}" if reason and self.is_for_hosts else reason

    def enter(self, address: str) -> None:
        """Count a connection that was admitted."""
        self._count += 1
        self._by_address[address] += 1

    def leave(self, address: str) -> None:
        """Stop counting it."""
        self._count -= 1
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]

"""The two clocks of a shard's state."""

from __future__ import annotations

from typing import NamedTuple


class Now(NamedTuple):
    """One moment, in milliseconds, on both clocks of a shard.

    server_ms: the wall clock of its server, which can step. It is for times that callers give as dates, such as
    deliver_after and the end of a TTL. steady_ms: the shard's steady clock, which continues from one owner to the next
    and never steps. It is for leases and other durations. The two clocks are independent.
    """

    server_ms: int
    steady_ms: int

    def on_server(self, steady_ms: int) -> int:
        """Return the time on the server's clock at a moment of the steady one, if it does not step until then."""
        return steady_ms + self.server_ms - self.steady_ms

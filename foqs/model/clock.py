"""The two clocks that a shard's state counts on."""

from __future__ import annotations

from typing import NamedTuple


class Now(NamedTuple):
    """One moment, in milliseconds, on both clocks of a shard.

    server_ms: its server's wall clock, which may step: for what callers name by the date, such as deliver_after and
    the end of a TTL. steady_ms: its steady clock, which goes on from one owner to the next and never steps: for
    leases, and for whatever lasts so long. The two have nothing to do with each other.
    """

    server_ms: int
    steady_ms: int

    def on_server(self, steady_ms: int) -> int:
        """The time on the server's clock at a moment of the steady one, if it does not step until then."""
        return steady_ms + self.server_ms - self.steady_ms

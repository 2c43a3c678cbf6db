"""Waiting for a shard's transaction, with a bound."""

from __future__ import annotations

import asyncio

from foqs.core import limits
from foqs.core.errors import UnavailableError
from foqs.shard.parts import Ticket


class Answer:
    """`ticket` goes to the shards; `wait` returns once it is settled. It is open until `wait` is called."""

    def __init__(self) -> None:
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.ticket = Ticket(self._settled)
        self.ticket.open_count = 1

    async def wait(self) -> None:
        """Raises the failure of the ticket, or UnavailableError past limits.CALL_MS_MAX."""
        self.ticket.settle()
        try:
            async with asyncio.timeout(limits.CALL_MS_MAX / 1000):
                await self._done
        except TimeoutError:
            raise UnavailableError(
                f"the shard has not answered for {limits.CALL_MS_MAX} ms: whether the call was done is unknown"
            ) from None

    def _settled(self, ticket: Ticket) -> None:
        if self._done.done():
            return
        if ticket.failure is None:
            self._done.set_result(None)
        else:
            self._done.set_exception(ticket.failure)

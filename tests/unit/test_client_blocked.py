"""A host that does not read: what the client could not hand over was certainly not done."""

from __future__ import annotations

import asyncio
import socket

from foqs.client.aio import AsyncClient
from foqs.client.client_errors import NotSentError, OutcomeUnknownError
from foqs.client.queue_items import NewItem
from foqs.client.retry import RetryPolicy


async def test_a_call_that_waited_in_vain_for_room_to_be_written_is_not_called_unknown() -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:  # The system accepts, and nobody reads.
        address = "127.0.0.1:{1}".format(*deaf.getsockname())
        big = [NewItem("t", bytes(1 << 20))] * 30
        once = RetryPolicy(deadline_ms=0)
        async with AsyncClient(address, retry=once, timeout_ms=500, connections_max=1) as client:
            outcomes = await asyncio.gather(
                client.enqueue_many("ns", big), client.enqueue_many("ns", [NewItem("t", b"")]), return_exceptions=True
            )
    assert isinstance(outcomes[0], OutcomeUnknownError)
    assert isinstance(outcomes[1], NotSentError), outcomes[1]

"""The clients of the console: its own, by which it polls, and one for each viewer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Protocol

from foqs.client.aio import AsyncAdminClient, AsyncClient
from foqs.client.retry import RetryPolicy

_CONNECTIONS_MAX: Final = 2
"""Connections of the poller and of each viewer. Calls beyond them wait."""
CALL_MS_MAX: Final = 5_000
"""The time limit of each call of a page, in milliseconds."""
_RETRY: Final = RetryPolicy(deadline_ms=0)


class ClientPair(NamedTuple):
    """The clients of both services with one credential."""

    admin: AsyncAdminClient
    queue: AsyncClient

    async def close(self) -> None:
        await self.admin.close()
        await self.queue.close()


class Reach(Protocol):
    """Makes clients of the hosts."""

    def own(self) -> ClientPair:
        """Make clients with the console's own credential."""
        ...

    def by_token(self, token: str) -> ClientPair:
        """Make clients with a viewer's token. Raises InvalidArgumentError for a text that is no token."""
        ...

    def by_token_file(self, path: str) -> ClientPair:
        """Make clients with the token in a file. Raises InvalidArgumentError if it cannot be read."""
        ...


class HostReach:
    """Makes clients by the options of the command. Viewers share its addresses and its TLS, not its credential."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        """`arguments` are those of a client with the console's own credential."""
        self._arguments = {
            **arguments, "connections_max": _CONNECTIONS_MAX, "timeout_ms": CALL_MS_MAX, "retry": _RETRY
        }  # fmt: skip
        own = ("token", "token_file", "cert_file", "key_file")
        self._shared = {name: value for name, value in self._arguments.items() if name not in own}

    def own(self) -> ClientPair:
        return _pair(self._arguments)

    def by_token(self, token: str) -> ClientPair:
        return _pair({**self._shared, "token": token})

    def by_token_file(self, path: str) -> ClientPair:
        return _pair({**self._shared, "token_file": path})


def _pair(arguments: Mapping[str, Any]) -> ClientPair:
    return ClientPair(AsyncAdminClient(**arguments), AsyncClient(**arguments))

"""Which host to connect to next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from foqs.core.errors import InvalidArgumentError

PORT_DEFAULT = 7600
COOLDOWN_MS = 2_000
"""A host that refused a connection is tried after the others for this long."""


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_addresses(addresses: str | Sequence[str]) -> list[Address]:
    """Out of "host:port, [v6]:port, host" or a sequence of such. Raises InvalidArgumentError."""
    texts = addresses.split(",") if isinstance(addresses, str) else list(addresses)
    for text in texts:
        if not isinstance(text, str):
            raise InvalidArgumentError(f"{text!r} is not an address: use the text host:port")
    parsed = [_parse(text.strip()) for text in texts if text.strip()]
    if not parsed:
        raise InvalidArgumentError("no address: give at least one host:port")
    return parsed


def _parse(text: str) -> Address:
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        port = rest.removeprefix(":") if bracket else "none"
    else:
        host, _, port = text.partition(":")
    if not host or not ((port.isascii() and port.isdigit()) or not port) or not 0 < int(port or 1) < 65_536:
        raise InvalidArgumentError(f"{text!r} is not an address: use host:port or [v6 address]:port")
    return Address(host, int(port or PORT_DEFAULT))


class AddressBook:
    """Spreads connections over the addresses in turn; those that failed of late come last."""

    def __init__(self, addresses: Sequence[Address], first: int) -> None:
        self._addresses = list(addresses)
        self._next = first
        self._cooling_until_ms: dict[Address, int] = {}

    def candidates(self, now_ms: int) -> list[Address]:
        """Every address once, in the order to try."""
        start = self._next % len(self._addresses)
        self._next = start + 1
        turn = self._addresses[start:] + self._addresses[:start]
        return sorted(turn, key=lambda address: self._cooling_until_ms.get(address, 0) > now_ms)

    def failed(self, address: Address, now_ms: int) -> None:
        self._cooling_until_ms[address] = now_ms + COOLDOWN_MS

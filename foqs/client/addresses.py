"""The addresses of a client: parsing, and the choice of the next host."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from foqs.client.checks import check_many
from foqs.model.errors import InvalidArgumentError, shown
from foqs.model.host_addresses import bracketed, parse_address

PORT_DEFAULT = 7600
COOLDOWN_MS = 1_000
"""First cooldown of an unreachable or unserving host, in ms; it doubles each time. Such a host is tried last."""
COOLDOWN_MS_MAX = 30_000


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"{bracketed(self.host)}:{self.port}"


def parse_addresses(addresses: str | Sequence[str]) -> list[Address]:
    """Parse "host:port, [v6]:port, host" or a sequence of such texts. Raises InvalidArgumentError."""
    if not isinstance(addresses, str):
        check_many("addresses", addresses, "texts host:port")
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
        port = rest.removeprefix(":") if bracket and (not rest or rest.startswith(":")) else "none"
    else:
        host, _, port = text.partition(":")
    try:
        found = parse_address(f"{bracketed(host)}:{port or PORT_DEFAULT}")
    except ValueError as error:
        raise InvalidArgumentError(
            f"{shown(text)} is not an address ({error}): use host:port or [v6 address]:port"
        ) from error
    return Address(found.host, found.port)


class AddressBook:
    """Addresses of one client, and their recent failures.

    Safe for threads without a lock, because a lock could stay held if a signal handler raises. Each change replaces a
    single value, and two concurrent changes have the same result.

    The client's pool asks it for addresses and reports the outcomes. Connections rotate over the addresses, with
    recently failed ones last. These are still tried after the others have failed, so a long cooldown does not reduce
    availability.
    """

    def __init__(self, addresses: Sequence[Address], first: int) -> None:
        self._addresses = list(dict.fromkeys(addresses))
        self._next = first
        self._cooling: dict[Address, tuple[int, int]] = {}
        """End of the cooldown of each failed address, and its length, in ms."""

    def candidates(self, now_ms: int, avoided: Collection[Address] = ()) -> list[Address]:
        """Return every address that is not avoided, once, in the order to try."""
        start = self._next % len(self._addresses)
        self._next = start + 1
        turn = self._addresses[start:] + self._addresses[:start]
        return sorted([a for a in turn if a not in avoided], key=lambda address: self.is_cooling(address, now_ms))

    def preferred(self, now_ms: int, avoided: Collection[Address] = ()) -> Collection[Address]:
        """Return the addresses without a recent failure, or all of them if each one failed.

        Avoided addresses are left out.
        """
        if not self._cooling and not avoided:
            return self._addresses
        open_ones = [address for address in self._addresses if address not in avoided]
        return [address for address in open_ones if not self.is_cooling(address, now_ms)] or open_ones

    def is_cooling(self, address: Address, now_ms: int) -> bool:
        """True if the address failed recently; it need not be one of the client's addresses."""
        cooling = self._cooling.get(address)
        return cooling is not None and cooling[0] > now_ms

    def has_other(self, avoided: Collection[Address]) -> bool:
        """True if at least one address is not avoided."""
        return any(address not in avoided for address in self._addresses)

    def has_others(self, avoided: Collection[Address]) -> bool:
        """True if several addresses are not avoided."""
        return len(self._addresses) - len(avoided) > 1 and len(set(self._addresses).difference(avoided)) > 1

    def failed(self, address: Address, now_ms: int) -> None:
        """Record that an address was unreachable or did not serve a request."""
        until_ms, lasted_ms = self._cooling.get(address, (0, 0))
        if until_ms <= now_ms:  # Calls that failed together count once.
            lasts_ms = min(max(COOLDOWN_MS, 2 * lasted_ms), COOLDOWN_MS_MAX)
            self._cooling[address] = (now_ms + lasts_ms, lasts_ms)

    def served(self, address: Address) -> None:
        """Record that an address served a request."""
        if address in self._cooling:
            self._cooling.pop(address, None)

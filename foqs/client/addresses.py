"""The addresses of a client: how they are written, and which host to connect to next."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from foqs.client.checks import check_many
from foqs.model.addresses import bracketed, parse_address
from foqs.model.errors import InvalidArgumentError, shown

PORT_DEFAULT = 7600
COOLDOWN_MS = 1_000
"""A host that could not be reached or did not serve is tried after the others for this long, doubled each time."""
COOLDOWN_MS_MAX = 30_000


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"{bracketed(self.host)}:{self.port}"


def parse_addresses(addresses: str | Sequence[str]) -> list[Address]:
    """Read "host:port, [v6]:port, host" or a sequence of such texts. Raises InvalidArgumentError."""
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
    """The addresses of one client, and which of them failed of late.

    Safe for threads without a lock, which what the handler of a signal raises could leave held: each change is one of a
    single value, and two that come at the same time come to the same.

    The pool of the client asks it where to connect, and tells it what came of that. Connections are spread over the
    addresses in turn; the ones that failed of late come last. An address that comes last is still tried when the others
    fail, so a long cooldown costs no availability.
    """

    def __init__(self, addresses: Sequence[Address], first: int) -> None:
        self._addresses = list(dict.fromkeys(addresses))
        self._next = first
        self._cooling: dict[Address, tuple[int, int]] = {}
        """When each of these addresses may be preferred again, and how long it had to wait for that."""

    def candidates(self, now_ms: int, avoided: Collection[Address] = ()) -> list[Address]:
        """Return every address that is not avoided, once, in the order in which to try them."""
        start = self._next % len(self._addresses)
        self._next = start + 1
        turn = self._addresses[start:] + self._addresses[:start]
        return sorted([a for a in turn if a not in avoided], key=lambda address: self.is_cooling(address, now_ms))

    def preferred(self, now_ms: int, avoided: Collection[Address] = ()) -> Collection[Address]:
        """Return the addresses whose connections to use: those that did not fail of late, or all if there are none.

        Avoided addresses are not among them.
        """
        if not self._cooling and not avoided:
            return self._addresses
        open_ones = [address for address in self._addresses if address not in avoided]
        return [address for address in open_ones if not self.is_cooling(address, now_ms)] or open_ones

    def is_cooling(self, address: Address, now_ms: int) -> bool:
        """Tell whether the address failed of late, be it one of the client's or not."""
        cooling = self._cooling.get(address)
        return cooling is not None and cooling[0] > now_ms

    def has_other(self, avoided: Collection[Address]) -> bool:
        """Tell whether there is an address that is not avoided."""
        return any(address not in avoided for address in self._addresses)

    def has_others(self, avoided: Collection[Address]) -> bool:
        """Tell whether there are several addresses that are not avoided."""
        return len(self._addresses) - len(avoided) > 1 and len(set(self._addresses).difference(avoided)) > 1

    def failed(self, address: Address, now_ms: int) -> None:
        """Note that an address could not be reached, or does not serve what it was asked for."""
        until_ms, lasted_ms = self._cooling.get(address, (0, 0))
        if until_ms <= now_ms:  # Calls that failed together count once.
            lasts_ms = min(max(COOLDOWN_MS, 2 * lasted_ms), COOLDOWN_MS_MAX)
            self._cooling[address] = (now_ms + lasts_ms, lasts_ms)

    def served(self, address: Address) -> None:
        """Note that an address did what it was asked for."""
        if address in self._cooling:
            self._cooling.pop(address, None)

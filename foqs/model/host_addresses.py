"""Addresses of hosts as texts, HOST:PORT: the check of their form, without asking a resolver."""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple

from foqs.model.errors import shown

PORT_MAX = 65_535
NAME_CHARS_MAX = 253
LABEL_CHARS_MAX = 63
_DIGITS_MAX = 12

_LABEL = re.compile(r"[A-Za-z0-9_-]+")
_PORT = re.compile(r"[0-9]{1,5}")


class HostPort(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"{bracketed(self.host)}:{self.port}"


def bracketed(host: str) -> str:
    """Return the host in the form that stands before a port."""
    return f"[{host}]" if ":" in host else host


def host_problem(host: str) -> str:
    """Return the reason why no host can be reached by this name or IP address (without brackets), or an empty text.

    It checks the form alone. A name that passes makes no resolver fail with anything but OSError.
    """
    if ":" in host:
        return _v6_problem(host)
    try:
        name = host.encode("idna").decode()
    except UnicodeError as error:
        return f"it is no name of a host ({_first_line(error)})"
    labels = name.removesuffix(".").split(".")
    if len(name) > NAME_CHARS_MAX:
        return f"its name has {len(name)} characters, and {NAME_CHARS_MAX} are allowed"
    for label in labels:
        if not label:
            return "a part of its name is empty"
        if len(label) > LABEL_CHARS_MAX:
            return f"a part of its name has {len(label)} characters, and {LABEL_CHARS_MAX} are allowed"
        if not _LABEL.fullmatch(label):
            return f"{shown(label)} in it is no part of a name"
    return _v4_problem(name) if labels[-1].isdigit() else ""


def _v6_problem(host: str) -> str:
    address, _, zone = host.partition("%")
    try:
        ipaddress.IPv6Address(address)
    except ValueError:
        return "it is no IPv6 address"
    return "" if "%" not in host or _LABEL.fullmatch(zone.replace(".", "-")) else "its zone is none"


def _v4_problem(name: str) -> str:
    """Check a name with a number as its last part: it can only be an IPv4 address, as resolvers read 127.1."""
    numbers = [_number(part) for part in name.split(".")]
    *first, last = numbers
    is_one = len(numbers) <= 4 and all(0 <= one <= 255 for one in first) and 0 <= last < 256 ** (5 - len(numbers))
    return "" if is_one else "it ends like an IPv4 address and is none"


def _number(text: str) -> int:
    """Read a part of an address: decimal, octal after a 0, hexadecimal after 0x. Returns -1 if it is invalid."""
    base = 16 if text[:2].lower() == "0x" else 8 if text.startswith("0") else 10
    try:
        return int(text, base) if len(text) <= _DIGITS_MAX and "_" not in text else -1
    except ValueError:
        return -1


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:100]


def parse_address(text: str, port_default: int | None = None) -> HostPort:
    """Read HOST:PORT, [V6]:PORT, and with a default port also HOST, V6 and [V6].

    Raises ValueError, which names the problem, if no connection to the address is possible.
    """
    host, port = _halves(text)
    if problem := host_problem(host):
        raise ValueError(problem)
    if port is None:
        if port_default is None:
            raise ValueError("it has no port")
        return HostPort(host, port_default)
    if not _PORT.fullmatch(port) or not 0 < int(port) <= PORT_MAX:
        raise ValueError(f"its port {shown(port)} is not within 1..{PORT_MAX}")
    return HostPort(host, int(port))


def _halves(text: str) -> tuple[str, str | None]:
    """Split the text into the host, without brackets, and the port, if it has one."""
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ValueError("its brackets do not match")
        return host, rest[1:] if rest else None
    if text.count(":") > 1:
        return text, None  # An IPv6 address without a port.
    host, colon, port = text.partition(":")
    return host, port if colon else None


def is_loopback(address: str) -> bool:
    """True for an address of this machine, also if it is one of IPv4 written as one of IPv6, and for `localhost`."""
    if address == "localhost":
        return True
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)
    return found.is_loopback if mapped is None else bool(mapped.is_loopback)

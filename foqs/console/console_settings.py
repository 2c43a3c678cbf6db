"""The settings of the console, checked: where it listens, who is let in, and by which names browsers reach it."""

from __future__ import annotations

import ipaddress
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from foqs.model.access import check_principal_name
from foqs.model.errors import InvalidArgumentError, shown
from foqs.model.host_addresses import is_loopback, parse_address
from foqs.model.limits import KIB

LISTEN: Final = "127.0.0.1:7680"
USERS_BYTES_MAX: Final = 256 * KIB
USER_CHARS_MAX: Final = 255
_HEADER: Final = re.compile(r"[A-Za-z0-9-]{1,64}", re.ASCII)
_HOST: Final = re.compile(r"[A-Za-z0-9._:\[\]-]{1,255}", re.ASCII)
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class KnownUser:
    """A user whom a proxy names, and the principal as which it acts."""

    principal: str
    token_file: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleSettings:
    """The settings of one console.

    listen: HOST:PORT.  allows_actions: True to let viewers change things, as far as hosts permit each.
    is_behind_tls: a proxy before it speaks TLS with browsers, so that cookies are for TLS alone.
    signs_in_by_token: people sign in with tokens of the port.  host_names: names in URLs by which it is reached, beside
    those of loopback.  trust_header, trusted_proxies, users: the header in which these proxies name a user.
    hides_payloads: True to show no payload and no metadata.
    """

    listen: str = LISTEN
    allows_actions: bool = False
    is_behind_tls: bool = False
    signs_in_by_token: bool = False
    host_names: Sequence[str] = ()
    trust_header: str = ""
    trusted_proxies: Sequence[str] = ()
    users: Mapping[str, KnownUser] = field(default_factory=dict)
    hides_payloads: bool = False

    def __post_init__(self) -> None:
        address = self.address
        for name in self.host_names:
            if not _HOST.fullmatch(name):
                raise InvalidArgumentError(f"host name {shown(name)} is none: give NAME or NAME:PORT, as in the URL")
        self._check_proxy()
        if is_loopback(address[0]):
            return
        if not (self.signs_in_by_token or self.trust_header):
            raise InvalidArgumentError(
                f"listen is {self.listen}, which others can reach, and nobody would have to sign in: give "
                "--sign-in-by-token or --trust-header, or listen on 127.0.0.1"
            )
        if self.signs_in_by_token and not self.is_behind_tls:
            raise InvalidArgumentError(
                f"listen is {self.listen}, and tokens would be sent there in clear: put a proxy with TLS before it and "
                "give --behind-tls, or listen on 127.0.0.1"
            )
        if not self.host_names:
            raise InvalidArgumentError(
                f"listen is {self.listen}, and no URL leads there: give --host-name, the name in the URL of browsers"
            )

    def _check_proxy(self) -> None:
        parts = (bool(self.trust_header), bool(self.trusted_proxies), bool(self.users))
        if any(parts) and not all(parts):
            raise InvalidArgumentError(
                "--trust-header, --trusted-proxy and --users belong together: the header, the addresses that can send "
                "it, and the principals of its users"
            )
        if self.trust_header and not _HEADER.fullmatch(self.trust_header):
            raise InvalidArgumentError(f"trust_header {shown(self.trust_header)} is no name of a header")
        self.networks()

    @property
    def address(self) -> tuple[str, int]:
        """The host and the port on which it listens."""
        try:
            found = parse_address(self.listen)
        except ValueError as error:
            raise InvalidArgumentError(f"listen {shown(self.listen)}: {error}: give HOST:PORT") from None
        return found.host, found.port

    @property
    def is_on_loopback(self) -> bool:
        return is_loopback(self.address[0])

    @property
    def signs_in_by_url(self) -> bool:
        """True if a URL with a token that is good for one use signs in: on loopback alone."""
        return self.is_on_loopback

    def networks(self) -> list[Network]:
        """Return the networks of trusted proxies. Raises InvalidArgumentError."""
        try:
            return [ipaddress.ip_network(one) for one in self.trusted_proxies]
        except ValueError as error:
            raise InvalidArgumentError(
                f"trusted_proxy: {error}: give an address or a network such as 10.0.0.0/8"
            ) from None

    def allowed_hosts(self, port: int) -> frozenset[str]:
        """Return the values of the header Host that are answered; others can come from a rebound name."""
        own = {f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]")} if self.is_on_loopback else set()
        return frozenset(own | {name.lower() for name in self.host_names})


def read_users(path: Path) -> dict[str, KnownUser]:
    """Read the file that maps users of a proxy to principals: a table [users."NAME"] with principal and token_file.

    Raises InvalidArgumentError for a file that cannot be used.
    """
    try:
        with path.open("rb") as file:
            content = file.read(USERS_BYTES_MAX + 1)
        if len(content) > USERS_BYTES_MAX:
            raise InvalidArgumentError(f"{path} has more than {USERS_BYTES_MAX} bytes")
        found = tomllib.loads(content.decode()).get("users")
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidArgumentError(f"{path} cannot be read: {error}") from None
    if not isinstance(found, dict) or not found:
        raise InvalidArgumentError(f'{path} has no user: write [users."ana@example.com"] with principal and token_file')
    return {name: _known_user(path, name, value) for name, value in found.items()}


def _known_user(path: Path, name: str, value: object) -> KnownUser:
    is_right = isinstance(value, dict) and set(value) == {"principal", "token_file"}
    if not isinstance(value, dict) or not is_right or not all(isinstance(one, str) for one in value.values()):
        raise InvalidArgumentError(
            f"{path}: user {shown(name)} needs principal and token_file, texts, and nothing else"
        )
    if not 0 < len(name) <= USER_CHARS_MAX:
        raise InvalidArgumentError(f"{path}: user {shown(name)} is not of 1 to {USER_CHARS_MAX} characters")
    token_file = Path(value["token_file"]).expanduser()
    return KnownUser(check_principal_name(value["principal"]), str(path.parent / token_file))

"""The sign-in of a client's connections: its token, the call, and the time at which a connection is replaced."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

from foqs.client.addresses import Address
from foqs.client.checks import check_flag
from foqs.client.client_errors import NotSentError
from foqs.client.flows import Call
from foqs.client.retry import Repeat
from foqs.model import limits
from foqs.model.access_tokens import TOKEN_CHARS, parse
from foqs.model.errors import InvalidArgumentError
from foqs.model.host_addresses import is_loopback
from foqs.wire import codec as wire

AUTHENTICATE = "authenticate"
RENEW_MS = 60 * limits.SECOND_MS
"""The time before the end of a token at which connections of it take no new calls."""

TokenFile = str | os.PathLike[str]


class OwnToken:
    """The token of a client, or the file that has it. Its representation shows neither a token nor a part of one."""

    __slots__ = ("_file", "_over_tls", "_token", "_without_tls")

    def __init__(self, token: str | None, file: TokenFile | None, *, without_tls: bool, over_tls: bool = False) -> None:
        """A client that has neither does not sign in. `over_tls` is True for one whose connections all have TLS.

        Raises InvalidArgumentError.
        """
        check_flag("tokens_without_tls", without_tls)
        if token is not None and file is not None:
            raise InvalidArgumentError("token and token_file are both given: give one of them")
        if token is not None:
            parse(token)
        self._token = token
        try:
            self._file = None if file is None else Path(file)
        except TypeError:
            raise InvalidArgumentError(f"token_file is {type(file).__name__}, not a path") from None
        self._without_tls = without_tls
        self._over_tls = over_tls

    def __repr__(self) -> str:
        return f"OwnToken({'none' if not self else self._file or '***'})"

    def __reduce__(self) -> tuple[Any, ...]:
        if self._token is not None:
            raise TypeError("a token is not pickled: give token_file, and make the client where it is used")
        return _of_file, (self._file, self._without_tls, self._over_tls)

    def __bool__(self) -> bool:
        return self._token is not None or self._file is not None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OwnToken) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[object, ...]:
        return self._token, self._file, self._without_tls, self._over_tls

    def may_go_to(self, address: Address) -> bool:
        """True if the token can be sent there: over TLS, to this machine, or anywhere if the user takes that risk."""
        return not self or self._over_tls or self._without_tls or is_loopback(address.host)

    def check(self, addresses: list[Address]) -> None:
        """Raise InvalidArgumentError if the token would be sent to another machine over a plain connection."""
        for address in addresses:
            if not self.may_go_to(address):
                raise InvalidArgumentError(
                    f"the token is not sent to {address} over a plain connection, where others can read it: give "
                    "tls=True, or tokens_without_tls=True if the network is trusted"
                )

    def call(self) -> Call:
        """Make the call that signs a connection in, with the present text of the file. Raises InvalidArgumentError."""
        request = wire.structs.AuthenticateRequest(token=self._read())
        return Call(AUTHENTICATE, request, Repeat.READ)

    def _read(self) -> str:
        if self._token is not None:
            return self._token
        assert self._file is not None, "there is a token"
        try:
            with self._file.open(encoding="ascii") as file:
                text = file.read(TOKEN_CHARS + 3).strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not text of a token"
            raise InvalidArgumentError(f"token_file {self._file} cannot be read: {reason}") from None
        try:
            parse(text)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"token_file {self._file}: {error.message}") from None
        return text


def _of_file(file: Path | None, without_tls: bool, over_tls: bool) -> OwnToken:
    return OwnToken(None, file, without_tls=without_tls, over_tls=over_tls)


def renew_at_ms(identity: Any, wall_ms: float, clock_ms: int) -> float:
    """Return the time of the client's clock at which a connection takes no new calls, because its token ends then."""
    if not identity.expires_at_ms:
        return math.inf
    left_ms: float = identity.expires_at_ms - wall_ms
    if left_ms <= 0:
        left_ms = RENEW_MS  # The host has just taken it, so the clock here is ahead.
    return clock_ms + left_ms - min(RENEW_MS, left_ms / 2)


def not_signed_in(address: Address, error: InvalidArgumentError) -> NotSentError:
    """Make the error of a host that does not know the call. Nobody goes on there without a token."""
    return NotSentError(f"{address} does not know tokens, so it is an older host or no host of foqs: {error.message}")

"""A password, a token or another secret, which only its user sees."""

from __future__ import annotations

from hmac import compare_digest
from typing import Final, NoReturn, final

_HIDDEN: Final = "***"


@final
class Secret:
    """Secret bytes, which no log, error or traceback with local values shows.

    Only `reveal` returns them, so a search for that word finds every use.
    """

    __slots__ = ("_value",)

    def __init__(self, value: bytes) -> None:
        self._value = value

    def reveal(self) -> bytes:
        """Return the bytes. Hand them to their user, and keep them nowhere."""
        return self._value

    def __repr__(self) -> str:
        return _HIDDEN

    def __str__(self) -> str:
        return _HIDDEN

    def __format__(self, spec: str) -> str:
        return _HIDDEN

    def __eq__(self, other: object) -> bool:
        """Compare in a time that does not show how much of the two is equal."""
        return compare_digest(self._value, other._value) if isinstance(other, Secret) else NotImplemented

    __hash__ = None  # type: ignore[assignment]
    """A hash of it in a table would take a time that depends on the value."""

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a secret is not pickled or copied: read its file where it is needed")

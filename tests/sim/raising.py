"""Calls between hosts that raise whatever it may be: before anything is sent, or when it was done."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

from foqs.model.errors import InternalError, PermissionDeniedError, UnknownNamespaceError

_SHARE_OF_SEEDS = 0.2
_SHARE_OF_CALLS = 0.1
_KINDS: list[Callable[[], Exception]] = [
    lambda: ValueError("invalid literal for int() with base 10: ''"),
    lambda: OSError(113, "No route to host"),
    lambda: UnicodeError("label empty or too long"),
    lambda: OverflowError("getaddrinfo(): port must be 0-65535."),
    lambda: KeyError("items"),
    lambda: TypeError("object of type 'NoneType' has no len()"),
    MemoryError,
    lambda: RuntimeError("the peer's build is another one"),
]
_REFUSALS: list[Callable[[], Exception]] = [
    lambda: PermissionDeniedError("only hosts of this cluster may call this"),
    lambda: UnknownNamespaceError("this host knows no such namespace"),
]
"""What a peer may say that sees the cluster otherwise, before anything is done."""


_FAILURES: list[Callable[[], Exception]] = [lambda: InternalError("the host has a bug")]


class Raising:
    """Which calls raise what. It draws from a stream of its own."""

    def __init__(self, seed: int, is_calm: Callable[[], bool], counts: Counter[str]) -> None:
        self._chance = random.Random(f"raising {seed}")
        self._is_calm = is_calm
        self._counts = counts
        self._share = _SHARE_OF_CALLS if self._chance.random() < _SHARE_OF_SEEDS else 0.0
        self._pairs: dict[tuple[str, str], Callable[[], Exception]] = {}
        """Links on which each call raises the same, as by an address that nobody can dial."""

    def some_kind(self, chance: random.Random) -> Callable[[], Exception]:
        return chance.choice(_KINDS)

    def always(self, sender: str, receiver: str, kind: Callable[[], Exception]) -> None:
        self._pairs[sender, receiver] = kind

    def heal(self) -> None:
        self._pairs.clear()
        self._share = 0.0

    def before(self, sender: str, receiver: str) -> None:
        """Raise what a call raises that is not sent."""
        kind = self._pairs.get((sender, receiver))
        if kind is None and self._is_due():
            kind = self._chance.choice([*_KINDS, *_REFUSALS])
        if kind is not None:
            self._counts["calls of peers that raised before they were sent"] += 1
            raise kind()

    def after(self) -> None:
        """Raise what a call raises that was done."""
        if self._is_due():
            self._counts["calls of peers that raised when they were done"] += 1
            raise self._chance.choice([*_KINDS, *_FAILURES])()

    def _is_due(self) -> bool:
        return bool(self._share) and not self._is_calm() and self._chance.random() < self._share

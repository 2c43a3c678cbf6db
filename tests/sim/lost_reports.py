"""The tables of bulk jobs as a host reaches them, whose answers get lost now and then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from foqs.model.errors import UnavailableError
from foqs.testing.fake_bulk import FakeBulk

_WRITES = frozenset(["report", "take"])


class LossyBulk:
    """Does every call, and then loses the answers to some writes of hosts."""

    def __init__(self, bulk: FakeBulk, loses: Callable[[], bool]) -> None:
        """`loses` says if the next answer gets lost."""
        self._bulk = bulk
        self._loses = loses

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._bulk, name)
        if name not in _WRITES:
            return verb

        def write(*arguments: Any) -> Any:
            answer = verb(*arguments)
            if self._loses():
                raise UnavailableError("the answer of the meta database got lost")
            return answer

        return write

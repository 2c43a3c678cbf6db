"""How much of a table each host may fill: a host that says too much loses what it said first, and nobody else anything.

Pure.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

K = TypeVar("K")


class Portions(Generic[K]):
    """The keys that each host has in a table. The table owns it, and removes what it is told to.

    A host may have twice an even share: hosts are not alike, and all of them together still fill no more than twice
    the table.
    """

    __slots__ = ("_keys", "_places", "share")

    def __init__(self, places: int) -> None:
        """`places` are those of the table for all hosts."""
        self._places = places
        self._keys: dict[str, OrderedDict[K, None]] = {}
        """The keys of each host, in the order in which it has named them last."""
        self.share = places
        """The keys that one host may have."""

    def has_hosts(self, count: int) -> None:
        """So many hosts live."""
        self.share = max(1, 2 * self._places // max(2, count))

    def count_of(self, host_id: str) -> int:
        return len(self._keys.get(host_id, ()))

    def put(self, host_id: str, key: K) -> list[K]:
        """A host names a key. Returns those keys of its own that are to go: two at most, so that it costs little."""
        keys = self._keys.setdefault(host_id, OrderedDict())
        keys[key] = None
        keys.move_to_end(key)
        return [keys.popitem(last=False)[0] for _ in range(min(2, len(keys) - self.share))]

    def greediest(self) -> tuple[str, K] | None:
        """The oldest key of the host that has most."""
        host_id = max(self._keys, key=lambda one: len(self._keys[one]), default=None)
        if host_id is None or not self._keys[host_id]:
            return None
        return host_id, next(iter(self._keys[host_id]))

    def drop(self, host_id: str, key: K) -> None:
        """A key of the host's is not in the table any more."""
        keys = self._keys.get(host_id)
        if keys is not None:
            keys.pop(key, None)
            if not keys:
                del self._keys[host_id]

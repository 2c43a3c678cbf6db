"""The part of a table that each host can fill: a host that names too many keys loses its own oldest ones.

Pure.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

K = TypeVar("K")


class Portions(Generic[K]):
    """The keys that each host has in a table. The table owns it, and removes the keys that `put` returns.

    A host can have twice an even share, because hosts differ, and all hosts together still fill at most twice the
    table.
    """

    __slots__ = ("_keys", "_places", "share")

    def __init__(self, places: int) -> None:
        """`places` is the number of places in the table for all hosts."""
        self._places = places
        self._keys: dict[str, OrderedDict[K, None]] = {}
        """The keys of each host, least recently named first."""
        self.share = places
        """The most keys of one host."""

    def has_hosts(self, count: int) -> None:
        """Set the number of living hosts."""
        self.share = max(1, 2 * self._places // max(2, count))

    def count_of(self, host_id: str) -> int:
        return len(self._keys.get(host_id, ()))

    def put(self, host_id: str, key: K) -> list[K]:
        """Note that a host names a key. Returns its own keys to remove: two at most, so that the call is cheap."""
        keys = self._keys.setdefault(host_id, OrderedDict())
        keys[key] = None
        keys.move_to_end(key)
        return [keys.popitem(last=False)[0] for _ in range(min(2, len(keys) - self.share))]

    def greediest(self) -> tuple[str, K] | None:
        """Return the host with the most keys, and its oldest key."""
        host_id = max(self._keys, key=lambda one: len(self._keys[one]), default=None)
        if host_id is None or not self._keys[host_id]:
            return None
        return host_id, next(iter(self._keys[host_id]))

    def drop(self, host_id: str, key: K) -> None:
        """Note that a key of the host's is not in the table any more."""
        keys = self._keys.get(host_id)
        if keys is not None:
            keys.pop(key, None)
            if not keys:
                del self._keys[host_id]

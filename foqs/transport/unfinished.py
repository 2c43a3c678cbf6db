"""Bytes that were received and are no call yet: how many the host holds, and whose are not read any further."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Protocol


class Holder(Protocol):
    """A connection."""

    address: str
    unfinished_since: float | None
    """When the frame that is still incomplete began, in the loop's time."""
    held_bytes: int
    """Received, and no call yet."""

    def refuse(self, reason: str, detail: str) -> None: ...

    def hold_up(self) -> None:
        """Read nothing more until `go_on`."""

    def go_on(self) -> None: ...


class UnfinishedBytes:
    """Bounded for an address and in total.

    Beyond the bound of an address one of its connections is read on, and each other one that brings more is held up
    until it is its turn: many large frames of one address come in one after the other, and what never ends takes the
    host no time. Beyond the total the longest unfinished frames have to go; where none is, whoever sent most in
    advance.
    """

    def __init__(self, holders: Collection[Holder], bytes_max: int, per_address_bytes_max: int) -> None:
        self._holders = holders
        self._bytes_max = bytes_max
        self._per_address_bytes_max = per_address_bytes_max
        self._bytes = 0
        self._bytes_by_address: Counter[str] = Counter()
        self._first: dict[str, Holder] = {}
        """By address: who is read on beyond its bound."""
        self._held_up: dict[str, dict[Holder, None]] = {}

    def changed(self, holder: Holder, added_bytes: int) -> None:
        """`held_bytes` of a connection has become so much more, or less; 0 once it is gone."""
        address = holder.address
        self._bytes += added_bytes
        self._bytes_by_address[address] += added_bytes
        if added_bytes < 0:
            self._became_less(holder)
            return
        is_over = self._bytes_by_address[address] > self._per_address_bytes_max
        if is_over and self._first.setdefault(address, holder) is not holder:
            self._held_up.setdefault(address, {})[holder] = None
            holder.hold_up()
        while self._bytes > self._bytes_max:
            self._make_room()

    def _became_less(self, holder: Holder) -> None:
        address = holder.address
        if not self._bytes_by_address[address]:
            del self._bytes_by_address[address]
        waiting = self._held_up.get(address, {})
        waiting.pop(holder, None)
        if self._first.get(address) is holder:
            del self._first[address]
            if waiting:
                self._first[address] = following = next(iter(waiting))
                del waiting[following]
                following.go_on()
        if not waiting:
            self._held_up.pop(address, None)

    def _make_room(self) -> None:
        slow = [holder for holder in self._holders if holder.unfinished_since is not None]
        if slow:
            chosen = min(slow, key=lambda holder: holder.unfinished_since or 0.0)
        else:
            chosen = max(self._holders, key=lambda holder: holder.held_bytes)
        chosen.refuse("unfinished_bytes_max", "too many bytes of unfinished frames in the host")

"""Bytes that were received and are no call yet: how many the host holds, and whose are not read any further."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from itertools import islice
from typing import Protocol

from foqs.model import limits


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
    """What an address and all together may hold.

    An address beyond its bound is read one connection after the other: each other one that brings more is held up, with
    what it brought, until there is room or it is its turn. So many large frames of one address come in one by one, and
    what never ends takes the host no time. Beyond the bound of all together the longest unfinished frames have to go,
    those of addresses beyond theirs before others; where none is, whoever sent most in advance.
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
        if self._is_over(address) and self._first.setdefault(address, holder) is not holder:
            self._held_up.setdefault(address, {})[holder] = None
            holder.hold_up()
        while self._bytes > self._bytes_max:
            self._make_room()

    def _is_over(self, address: str) -> bool:
        return self._bytes_by_address[address] > self._per_address_bytes_max

    def _became_less(self, holder: Holder) -> None:
        address = holder.address
        waiting = self._held_up.get(address, {})
        if holder in waiting:
            del waiting[holder]
            holder.go_on()
        was_first = self._first.get(address) is holder
        if was_first:
            del self._first[address]
        if not self._is_over(address):
            room_bytes = self._per_address_bytes_max - self._bytes_by_address[address]
            self._let_go_on(waiting, max(1, room_bytes // limits.READ_BYTES_MAX))
        elif was_first and waiting:
            self._first[address] = next(iter(waiting))
            self._let_go_on(waiting, 1)
        if not waiting:
            self._held_up.pop(address, None)
        if not self._bytes_by_address[address]:
            del self._bytes_by_address[address]

    def _let_go_on(self, waiting: dict[Holder, None], count: int) -> None:
        for holder in list(islice(waiting, count)):
            del waiting[holder]
            holder.go_on()

    def _make_room(self) -> None:
        slow = [holder for holder in self._holders if holder.unfinished_since is not None]
        slow = [holder for holder in slow if self._is_over(holder.address)] or slow
        if slow:
            chosen = min(slow, key=lambda holder: holder.unfinished_since or 0.0)
        else:
            chosen = max(self._holders, key=lambda holder: holder.held_bytes)
        chosen.refuse("unfinished_bytes_max", "too many bytes of unfinished frames in the host")

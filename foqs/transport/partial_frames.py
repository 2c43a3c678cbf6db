"""Bounds on received bytes that are no call yet, enforced by pausing or closing connections."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from itertools import islice
from typing import Protocol

from foqs.model import limits

READ_BYTES_MAX = 256 * limits.KIB
"""Bytes that the event loop reads from a connection at once."""


class FrameSender(Protocol):
    address: str
    buffered_bytes: int
    """Received bytes that are no call yet."""

    @property
    def partial_since_s(self) -> float | None:
        """The time at which the incomplete frame began, in the loop's time."""

    def refuse(self, reason: str, detail: str) -> None: ...

    def pause(self) -> None:
        """Stop reading until `resume`."""

    def resume(self) -> None: ...


class PartialFrames:
    """Bounds the received bytes that are no call yet, by address and in all.

    Connections report each change. For an address beyond its bound, only one connection at a time is read. Any other
    one that brings more is paused, with its bytes, until there is room or it has its turn. So many large frames of one
    address come in one by one, and a frame that never ends costs the host nothing. Beyond the bound for all addresses
    together, the connections with the oldest partial frames are closed, beginning with addresses beyond their own
    bound. If no frame is partial, the connection with the most buffered bytes is closed.
    """

    def __init__(self, senders: Collection[FrameSender], bytes_max: int, per_address_bytes_max: int) -> None:
        self._senders = senders
        self._bytes_max = bytes_max
        self._per_address_bytes_max = per_address_bytes_max
        self._bytes = 0
        self._bytes_by_address: Counter[str] = Counter()
        self._first: dict[str, FrameSender] = {}
        """The only connection of each address that is read beyond the bound of the address."""
        self._paused: dict[str, dict[FrameSender, None]] = {}

    def changed(self, sender: FrameSender, added_bytes: int, *, has_progressed: bool) -> None:
        """Note that the `buffered_bytes` of a connection changed by this much; they are 0 once it is lost.

        It has progressed if a call was taken. Bytes can become fewer without that, because TLS records are longer than
        their content, and then the connection keeps its turn or waits on.
        """
        address = sender.address
        self._bytes += added_bytes
        self._bytes_by_address[address] += added_bytes
        if added_bytes < 0:
            if has_progressed or not sender.buffered_bytes:
                self._became_less(sender)
            else:
                self._resume_others(address)
            return
        if self._is_over(address):
            self._read_only_first(sender)
        while self._bytes > self._bytes_max:
            self._make_room()

    def _read_only_first(self, sender: FrameSender) -> None:
        """Pause a connection that has grown, or read it if its turn has come.

        A paused one can grow as well: bytes that came before its pause are decrypted later.
        """
        waiting = self._paused.setdefault(sender.address, {})
        if self._first.setdefault(sender.address, sender) is not sender:
            if sender not in waiting:
                waiting[sender] = None
                sender.pause()
        elif sender in waiting:
            del waiting[sender]
            sender.resume()
        if not waiting:
            del self._paused[sender.address]

    def _is_over(self, address: str) -> bool:
        return self._bytes_by_address[address] > self._per_address_bytes_max

    def _became_less(self, sender: FrameSender) -> None:
        address = sender.address
        waiting = self._paused.get(address, {})
        if sender in waiting:
            del waiting[sender]
            sender.resume()
        if self._first.get(address) is sender:
            del self._first[address]
        self._resume_others(address)

    def _resume_others(self, address: str) -> None:
        """Resume connections of an address as far as its bound has room, or the one whose turn it is."""
        waiting = self._paused.get(address, {})
        if not self._is_over(address):
            room_bytes = self._per_address_bytes_max - self._bytes_by_address[address]
            self._resume_some(waiting, max(1, room_bytes // READ_BYTES_MAX))
        elif waiting and address not in self._first:
            self._first[address] = next(iter(waiting))
            self._resume_some(waiting, 1)
        if not waiting:
            self._paused.pop(address, None)
        if not self._bytes_by_address[address]:
            del self._bytes_by_address[address]

    def _resume_some(self, waiting: dict[FrameSender, None], count: int) -> None:
        for sender in list(islice(waiting, count)):
            del waiting[sender]
            sender.resume()

    def _make_room(self) -> None:
        slow = [sender for sender in self._senders if sender.partial_since_s is not None]
        slow = [sender for sender in slow if self._is_over(sender.address)] or slow
        if slow:
            chosen = min(slow, key=lambda sender: sender.partial_since_s or 0.0)
        else:
            chosen = max(self._senders, key=lambda sender: sender.buffered_bytes)
        chosen.refuse("partial_frame_bytes_max", "too many bytes of partial frames in the host")

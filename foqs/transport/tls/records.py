"""The records in the bytes of a TLS connection, of which only the lengths are read."""

from __future__ import annotations

HEAD_BYTES = 5
"""Type, version and length of a record."""
_HEAD_BEFORE_LENGTH = 3


class RecordMeter:
    """Knows how many bytes of an incomplete record have come. OpenSSL keeps those, and shows them to nobody."""

    __slots__ = ("_head", "_left_bytes", "_partial_bytes")

    def __init__(self) -> None:
        self._head = b""
        self._left_bytes = 0
        """Bytes of the begun record's body that have not come."""
        self._partial_bytes = 0

    @property
    def partial_bytes(self) -> int:
        """Bytes of the record whose rest has not come; 0 between two records."""
        return self._partial_bytes + len(self._head)

    def end_of_record(self, data: bytes, at: int) -> int:
        """Take bytes from `at` on, up to the end of the begun record. Returns the position behind them."""
        end = len(data)
        if not self._left_bytes:
            body_at = at + HEAD_BYTES
            if not self._head and body_at < end:  # Most records come whole.
                record_end = body_at + int.from_bytes(data[at + _HEAD_BEFORE_LENGTH : body_at], "big")
                if record_end <= end:
                    return record_end
            taken = min(HEAD_BYTES - len(self._head), end - at)
            self._head += data[at : at + taken]
            at += taken
            if len(self._head) < HEAD_BYTES:
                return at
            self._left_bytes = int.from_bytes(self._head[_HEAD_BEFORE_LENGTH:], "big")
            self._partial_bytes, self._head = HEAD_BYTES if self._left_bytes else 0, b""
        taken = min(self._left_bytes, end - at)
        self._left_bytes -= taken
        self._partial_bytes = self._partial_bytes + taken if self._left_bytes else 0
        return at + taken

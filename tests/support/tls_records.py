"""Records of TLS 1.3 that no library of Python makes, by the keys of a connection that one has made."""

from __future__ import annotations

import ssl
from pathlib import Path

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

HANDSHAKE, APPLICATION_DATA = 0x16, 0x17
"""Types of the content of a record."""
KEY_UPDATE = b"\x18\x00\x00\x01\x01"
"""The message with which a peer takes a new key, and asks for one of the other side."""
_CIPHER = "TLS_AES_256_GCM_SHA384"
_TAG_BYTES = 16


class RecordForger:
    """Makes the next records of a client, whose own object must send nothing more."""

    def __init__(self, key_log: Path, client: ssl.SSLObject, *, sent_count: int) -> None:
        """`sent_count` is the number of records that the client sent after its handshake."""
        cipher = client.cipher()
        assert cipher is not None
        assert cipher[0] == _CIPHER, "the context lets OpenSSL choose"
        (line,) = (line for line in key_log.read_text().splitlines() if line.startswith("CLIENT_TRAFFIC_SECRET_0"))
        self._secret = bytes.fromhex(line.split()[2])
        self._number = sent_count

    def record(self, kind: int, content: bytes) -> bytes:
        """Return a record. Those behind a KEY_UPDATE have the new key."""
        number = self._number.to_bytes(12, "big")
        nonce = bytes(one ^ other for one, other in zip(self._derived(b"iv", 12), number, strict=True))
        plain = content + bytes([kind])
        head = b"\x17\x03\x03" + (len(plain) + _TAG_BYTES).to_bytes(2, "big")
        made = head + AESGCM(self._derived(b"key", 32)).encrypt(nonce, plain, head)
        self._number += 1
        if kind == HANDSHAKE and content == KEY_UPDATE:
            self._secret, self._number = self._derived(b"traffic upd", 48), 0
        return made

    def _derived(self, label: bytes, length: int) -> bytes:
        full = b"tls13 " + label
        info = length.to_bytes(2, "big") + bytes([len(full)]) + full + b"\x00"
        return HKDFExpand(hashes.SHA384(), length, info).derive(self._secret)

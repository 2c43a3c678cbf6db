"""A false MySQL server: it speaks the login as an attacker does, and keeps what clients say to it."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pymysql.constants import CLIENT

from tests.support.waiting import PATIENCE_S

SALT: Final = b"abcdefghijklmnopqrst"
OK: Final = b"\x00\x00\x00\x02\x00\x00\x00"
FULL_LOGIN: Final = b"\x01\x04"
KNOWN: Final = b"\x01\x03"
_CAPABILITIES: Final = CLIENT.CAPABILITIES | CLIENT.CONNECT_WITH_DB


@dataclass
class Talk:
    """One connection: `heard` has all packets of the client in clear, behind TLS as well."""

    sock: socket.socket
    heard: list[bytes] = field(default_factory=list)
    _next_number: int = 0

    def say(self, packet: bytes) -> None:
        self.sock.sendall(struct.pack("<I", len(packet))[:3] + bytes([self._next_number]) + packet)
        self._next_number = (self._next_number + 1) % 256

    def hear(self) -> bytes:
        """Raises ConnectionError when the client has gone."""
        head = self._read(4)
        self._next_number = (head[3] + 1) % 256
        packet = self._read(head[0] | head[1] << 8 | head[2] << 16)
        self.heard.append(packet)
        return packet

    def greet(self, plugin: str, certificates: Path | None = None, salt: bytes = SALT) -> bytes:
        """Greet by this default plugin, and return the client's answer; with certificates, go over to TLS before."""
        capabilities = _CAPABILITIES | (CLIENT.SSL if certificates else 0)
        self.say(
            b"\x0a8.0.36\0" + struct.pack("<I", 7) + salt[:8] + b"\0" + struct.pack("<H", capabilities & 0xFFFF)
            + struct.pack("<BHHB", 45, 2, capabilities >> 16, 21) + bytes(10) + salt[8:] + b"\0"
            + plugin.encode() + b"\0"
        )  # fmt: skip
        answer = self.hear()
        if certificates is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificates / "cert.pem", certificates / "key.pem")
            self.sock = context.wrap_socket(self.sock, server_side=True)
            answer = self.hear()
        return answer

    def switch(self, plugin: str, data: bytes = SALT + b"\0") -> bytes:
        """Ask the client to log in by another plugin, and return its answer."""
        self.say(b"\xfe" + plugin.encode() + b"\0" + data)
        return self.hear()

    def serve(self) -> None:
        """Say yes to all further commands."""
        self._next_number = 0
        while True:
            self.hear()
            self.say(OK)

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            chunk = self.sock.recv(size - len(data))
            if not chunk:
                raise ConnectionError("the client has gone")
            data += chunk
        return data


class FalseServer:
    """Listens on a loopback port or a socket, and does with each connection what `script` says, one by one."""

    def __init__(self, script: Callable[[Talk], object], path: Path | None = None) -> None:
        self.talks: list[Talk] = []
        self._script = script
        if path is None:
            self._listener = socket.create_server(("127.0.0.1", 0))
        else:
            self._listener = socket.create_server(str(path), family=socket.AF_UNIX)  # type: ignore[arg-type]
        self._thread = threading.Thread(target=self._run, name="false-server", daemon=True)

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    def url(self, user: str = "app", password: str = "geheimnis", options: str = "") -> str:
        return f"mysql+pymysql://{user}:{password}@127.0.0.1:{self.port}/d{options}"

    @property
    def heard(self) -> bytes:
        """All that any client said, once the connections are over."""
        return b"|".join(packet for talk in self.talks for packet in talk.heard)

    def __enter__(self) -> FalseServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            sock.settimeout(PATIENCE_S)
            talk = Talk(sock)
            self.talks.append(talk)
            try:
                self._script(talk)
            except OSError:
                pass  # The client has had enough.
            finally:
                talk.sock.close()

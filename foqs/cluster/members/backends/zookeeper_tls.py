"""Verified TLS connections to ZooKeeper, for its client.

The client's own TLS always trusts the authorities of the system too, and can leave an answer unread that came in one
record with another one.
"""

from __future__ import annotations

import socket
import ssl
from typing import Any

from kazoo.handlers.threading import SequentialThreadingHandler

from foqs.cluster.members.backends.zookeeper_url import ZookeeperAccess


class TlsHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """Makes the connections of one client. The files are read for each, so that new certificates need no restart."""

    def __init__(self, access: ZookeeperAccess) -> None:
        super().__init__()
        self._access = access
        self.problem = ""
        """The reason that the last connection could not be made; empty after a success."""

    def create_connection(
        self, address: tuple[str, int], timeout: float | None = None, hostname: str | None = None, **_: Any
    ) -> ssl.SSLSocket:
        """Connect to a server of the name. Raises OSError, also if it has no certificate for this name."""
        try:
            context = _context(self._access)
            plain = socket.create_connection(address, timeout)
            try:
                plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                # The timeout is that of the whole handshake.
                connection = context.wrap_socket(plain, server_hostname=hostname or address[0])
            except BaseException:
                plain.close()
                raise
        except OSError as error:
            self.problem = str(error)
            raise
        self.problem = ""
        return connection

    def select(self, reads: list[Any], writes: list[Any], errors: list[Any], timeout: float | None = None) -> Any:
        """Wait as select does. A connection with decrypted bytes is ready, though the kernel has none for it."""
        ready = [one for one in reads if isinstance(one, ssl.SSLSocket) and one.fileno() >= 0 and one.pending()]
        if ready:
            return ready, [], []
        return super().select(reads, writes, errors, timeout)


class HiddenText(str):
    """A text of the client's own API that is secret, so that no `repr` or format of its values shows it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "***"

    def __str__(self) -> str:
        return "***"

    def __format__(self, spec: str) -> str:
        return "***"


def _context(access: ZookeeperAccess) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=access.ca_file or None)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if access.cert_file:
        # For a key with a pass phrase, the host would prompt at its terminal.
        context.load_cert_chain(access.cert_file, access.key_file or None, password="")
    return context

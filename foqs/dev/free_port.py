"""Ports for private servers and for tests."""

from __future__ import annotations

import errno
import random
import socket

_PORTS = range(20_000, 32_000)


def free_port() -> int:
    """Return a port of 127.0.0.1 that is free now, for a server that must come back under the same address.

    It is outside the range that the system assigns by itself, because a connection could take such a port meanwhile.
    """
    while True:
        port = random.choice(_PORTS)
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise

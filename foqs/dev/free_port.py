"""Ports for private servers and for tests."""

from __future__ import annotations

import errno
import random
import socket

_PORTS = range(20_000, 32_000)


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on now, for a server that must come back under the same address.

    It is none of those that the system gives out by itself: a connection of another program could have it meanwhile.
    """
    while True:
        port = random.choice(_PORTS)
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise

"""TLS on the socket of a blocking client."""

from __future__ import annotations

import select
import socket
import ssl

from foqs.client.addresses import Address
from foqs.client.own_tls import OwnTls


def begin_tls(sock: socket.socket, address: Address, timeout_ms: int, tls: OwnTls) -> ssl.SSLSocket:
    """Return a socket with TLS in place of `sock`, whose host has proved its name.

    Raises NotSentError, and InvalidArgumentError for files that cannot be used. The socket is closed then.
    """
    over_tls: ssl.SSLSocket | None = None
    try:
        name = tls.name_at(address)
        over_tls = tls.context().wrap_socket(sock, server_hostname=name, do_handshake_on_connect=False)
        over_tls.settimeout(timeout_ms / 1000)  # For the whole handshake, however slowly its bytes come.
        over_tls.do_handshake()
    except BaseException as error:
        (over_tls or sock).close()
        if isinstance(error, OSError | ValueError):
            raise tls.failure(address, error) from error
        raise
    return over_tls


def has_stray_data(sock: ssl.SSLSocket, poll: select.poll) -> bool:
    """True if the host closed the connection or sent bytes that are not TLS's own, as its session tickets are.

    The timeout of the socket is 0 afterwards.
    """
    if not sock.pending() and not poll.poll(0):
        return False
    try:
        sock.settimeout(0)
        sock.recv(1)  # No bytes mean that the host has closed it.
    except ssl.SSLWantReadError:
        return False
    except OSError:
        return True
    return True

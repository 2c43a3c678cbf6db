"""The console as a process: its port, its first URL, and its end by a signal."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Final

import uvicorn

from foqs.client.client_options import monotonic_ms, wall_ms
from foqs.console.console_app import Console
from foqs.console.console_settings import ConsoleSettings
from foqs.console.reach import Reach
from foqs.model.host_addresses import bracketed

_CONNECTIONS_MAX: Final = 256
_KEEP_ALIVE_S: Final = 15
_STOP_S_MAX: Final = 3
_BACKLOG: Final = 128


def serve_console(settings: ConsoleSettings, reach: Reach, say: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM. `say` gets the lines for the person who started it.

    Raises OSError if the port cannot be used.
    """
    host, port = settings.address
    with socket.create_server((host, port), family=_family(host), backlog=_BACKLOG) as listener:
        console = Console(settings, reach, now_ms=wall_ms, monotonic_ms=monotonic_ms, port=port)
        base = f"http://{bracketed(host)}:{port}"
        if settings.signs_in_by_url:
            say(f"foqs console: {base}/enter?token={console.entrance.sessions.entry_token()}")
            say("this URL signs one browser in; Ctrl-C stops the console")
        else:
            say(f"foqs console listens on {base}; Ctrl-C stops it")
        uvicorn.Server(_config(console)).run(sockets=[listener])


def _config(console: Console) -> uvicorn.Config:
    """Return the configuration of the server. Addresses are the true ones, not those of headers."""
    return uvicorn.Config(
        console.app(),
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=True,
        proxy_headers=False,
        limit_concurrency=_CONNECTIONS_MAX,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_STOP_S_MAX,
        lifespan="on",
    )


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET

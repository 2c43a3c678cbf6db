"""The first look at each request: its Host, its origin and its size; and the headers of each answer."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from foqs.model.limits import KIB

BODY_BYTES_MAX: Final = 64 * KIB
CSP: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
_HEADERS: Final = {
    "content-security-policy": CSP,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
_READS: Final = frozenset(["GET", "HEAD"])


class FrontGuard:
    """Refuses requests for other hosts, those that other sites have made a browser send, and bodies that are too long.

    A name of an attacker that leads to this address has another Host. POST needs the Origin of the site itself.
    """

    def __init__(self, app: ASGIApp, allowed_hosts: frozenset[str], scheme: str) -> None:
        self._app = app
        self._allowed_hosts = allowed_hosts
        self._origins = frozenset(f"{scheme}://{host}" for host in allowed_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        guarded = _with_headers(send)
        if refusal:
            await PlainTextResponse(refusal[1], refusal[0])(scope, receive, guarded)
            return
        await self._app(scope, _Bounded(receive), guarded)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or hosts[0].lower() not in self._allowed_hosts:
            return 421, "This console is not reached by that host name: start it with --host-name NAME.\n"
        if scope["method"] in _READS:
            return None
        if scope["method"] != "POST":
            return 405, "Only GET and POST are answered.\n"
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return 403, "Another site has sent this request: nothing was done.\n"
        origin = headers.get("origin", "")
        if origin.lower() not in self._origins:
            return 403, "The request has not come from a page of this console: nothing was done.\n"
        length = headers.get("content-length", "")
        if not length.isdecimal() or int(length) > BODY_BYTES_MAX:
            return 413, f"A body has at most {BODY_BYTES_MAX} bytes, and says its length: nothing was done.\n"
        return None


class _Bounded:
    """Reads a body up to its bound, also if its header is wrong."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._size_bytes = 0

    async def __call__(self) -> Message:
        message = await self._receive()
        self._size_bytes += len(message.get("body", b""))
        if self._size_bytes > BODY_BYTES_MAX:
            return {"type": "http.disconnect"}
        return message


def _with_headers(send: Send) -> Send:
    async def guarded(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers[name] = value
            headers.setdefault("cache-control", "private, no-cache")
        await send(message)

    return guarded

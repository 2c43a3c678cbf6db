"""The sign-in of browsers: by a URL that is good for one use, by a token of the port, or by the header of a proxy."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from foqs.console.console_settings import ConsoleSettings
from foqs.console.reach import Reach
from foqs.console.sessions import SESSION_MS_MAX, BrowserSession, Sessions
from foqs.console.viewers import signed_in
from foqs.model.errors import PermissionDeniedError, shown

TOKEN_CHARS_MAX: Final = 200


class ConsoleEntrance:
    """Finds the session of each request, and begins sessions."""

    def __init__(self, settings: ConsoleSettings, reach: Reach, monotonic_ms: Callable[[], int], port: int) -> None:
        self._settings = settings
        self._reach = reach
        self._monotonic_ms = monotonic_ms
        self._networks = settings.networks()
        self.sessions = Sessions(monotonic_ms)
        # Cookies are of a host and not of a port, so that consoles on one machine need names of their own.
        self.cookie_name = "__Host-foqs_console" if settings.is_behind_tls else f"foqs_console_{port}"

    async def session_of(self, request: Request) -> BrowserSession | None:
        """Return the session of a request, or None for a browser that is not signed in.

        A user whom a proxy names has no cookie. Raises PermissionDeniedError for one that the configuration does not
        have, and FoqsErrors if the hosts do not know its principal.
        """
        if self._settings.trust_header and self._is_proxy(request):
            named = request.headers.getlist(self._settings.trust_header)
            if named:
                return await self._of_user(named)
        cookie = request.cookies.get(self.cookie_name, "")
        return await self.sessions.by_cookie(cookie) if cookie else None

    async def enter_by_url(self, token: str) -> BrowserSession | None:
        """Sign a browser in as the console itself; None if the URL was used, or was never given out."""
        if not self._settings.signs_in_by_url or not self.sessions.use_entry_token(token[:TOKEN_CHARS_MAX]):
            return None
        return await self.sessions.begin(
            await signed_in(self._reach.own(), self._monotonic_ms), "the URL of the console"
        )

    async def enter_by_token(self, token: str) -> BrowserSession:
        """Sign a browser in with a token of the port. Raises FoqsErrors for one that the hosts refuse."""
        clients = self._reach.by_token(token.strip()[:TOKEN_CHARS_MAX])
        return await self.sessions.begin(await signed_in(clients, self._monotonic_ms), "a token")

    def remember(self, response: Response, session: BrowserSession) -> None:
        """Give the browser the cookie of its session."""
        response.set_cookie(
            self.cookie_name,
            self.sessions.cookie_of(session),
            max_age=SESSION_MS_MAX // 1_000,
            path="/",
            httponly=True,
            samesite="strict",
            secure=self._settings.is_behind_tls,
        )

    def forget(self, response: Response) -> None:
        response.delete_cookie(self.cookie_name, path="/", secure=self._settings.is_behind_tls, httponly=True)

    def _is_proxy(self, request: Request) -> bool:
        if request.client is None:
            return False
        try:
            address = ipaddress.ip_address(request.client.host)
        except ValueError:
            return False
        return any(address in network for network in self._networks)

    async def _of_user(self, named: list[str]) -> BrowserSession:
        user = self._settings.users.get(named[0]) if len(named) == 1 else None
        if user is None:
            raise PermissionDeniedError(
                f"the proxy names user {shown(', '.join(named))}, and the console knows no principal of it: add it to "
                "the file of --users"
            )
        key = f"user {named[0]}"
        session = await self.sessions.by_key(key)
        if session is None:
            clients = self._reach.by_token_file(user.token_file)
            viewer = await signed_in(clients, self._monotonic_ms, expected=user.principal)
            session = await self.sessions.begin(viewer, f"{self._settings.trust_header}: {named[0]}", key)
        return session

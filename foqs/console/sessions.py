"""The sessions of browsers: who is signed in, by which cookie, and the tokens that are good for one use."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

from itsdangerous import BadSignature, TimestampSigner

from foqs.console.viewers import Viewer
from foqs.model import limits

SESSION_MS_MAX: Final = 12 * limits.HOUR_MS
SESSIONS_MAX: Final = 1_000
"""Browsers that are signed in at the same time; the oldest is signed out for a further one."""
PENDING_MAX: Final = 100
"""The actions of a session that were shown and not yet done; the oldest is dropped for a further one."""
KEPT_MAX: Final = 10
PENDING_MS_MAX: Final = 15 * limits.MINUTE_MS
_TOKEN_BYTES: Final = 24


@dataclass(slots=True)
class BrowserSession:
    """A browser that is signed in."""

    id: str
    viewer: Viewer
    began_at_ms: int
    how: str
    """How its viewer has signed in, for people."""
    pending: dict[str, tuple[int, Any]] = field(default_factory=dict)
    message: str = ""
    """A text that the next page shows once."""
    kept: dict[str, tuple[int, Any]] = field(default_factory=dict)
    """Values that cost hosts much, by their keys, each with its time."""

    async def recent(self, key: str, now_ms: int, age_ms_max: int, make: Callable[[], Awaitable[Any]]) -> Any:
        """Return the value of a key, made anew if it is older than this."""
        made_at_ms, value = self.kept.get(key, (now_ms - age_ms_max, None))
        if now_ms - made_at_ms < age_ms_max:
            return value
        value = await make()
        self.kept.pop(key, None)
        while len(self.kept) >= KEPT_MAX:
            del self.kept[next(iter(self.kept))]
        self.kept[key] = (now_ms, value)
        return value

    def offer(self, value: object, now_ms: int) -> str:
        """Return a token for `value` that is good for one use in this session."""
        while len(self.pending) >= PENDING_MAX:
            del self.pending[next(iter(self.pending))]
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        self.pending[token] = (now_ms, value)
        return token

    def take(self, token: str, now_ms: int) -> Any:
        """Return the value of a token, which is then used up; None for one that is not good."""
        offered_at_ms, value = self.pending.pop(token, (0, None))
        return value if now_ms - offered_at_ms < PENDING_MS_MAX else None


class Sessions:
    """The sessions of this process. Their key is in memory alone, so that a restart signs everybody out."""

    def __init__(self, monotonic_ms: Callable[[], int]) -> None:
        self._monotonic_ms = monotonic_ms
        self._signer = TimestampSigner(secrets.token_bytes(32))
        self._by_id: dict[str, BrowserSession] = {}
        self._entry_tokens: set[str] = set()

    def entry_token(self) -> str:
        """Make a token that signs one browser in, as the console itself."""
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        self._entry_tokens.add(token)
        return token

    def use_entry_token(self, token: str) -> bool:
        """Use a token of `entry_token` up. Return False for another one."""
        found = next((one for one in self._entry_tokens if secrets.compare_digest(one.encode(), token.encode())), None)
        self._entry_tokens.discard(found or "")
        return found is not None

    async def begin(self, viewer: Viewer, how: str, key: str = "") -> BrowserSession:
        """Begin a session. `key` is its id if no cookie has one."""
        while len(self._by_id) >= SESSIONS_MAX:
            await self.end(next(iter(self._by_id.values())))
        session = BrowserSession(key or secrets.token_urlsafe(_TOKEN_BYTES), viewer, self._monotonic_ms(), how)
        self._by_id[session.id] = session
        return session

    def cookie_of(self, session: BrowserSession) -> str:
        """Return the value of the cookie of a session."""
        return self._signer.sign(session.id).decode()

    async def by_cookie(self, cookie: str) -> BrowserSession | None:
        """Return the session of a cookie, or None. One that has lasted too long is ended."""
        try:
            id = self._signer.unsign(cookie.encode(), max_age=SESSION_MS_MAX // 1_000).decode()
        except (BadSignature, UnicodeError):
            return None
        return await self.by_key(id)

    async def by_key(self, key: str) -> BrowserSession | None:
        """Return the session with this id, or None."""
        session = self._by_id.get(key)
        if session is not None and self._monotonic_ms() - session.began_at_ms >= SESSION_MS_MAX:
            await self.end(session)
            return None
        return session

    async def end(self, session: BrowserSession) -> None:
        """Sign a browser out."""
        if self._by_id.pop(session.id, None) is not None:
            await session.viewer.close()

    async def close(self) -> None:
        """Sign everybody out."""
        for session in list(self._by_id.values()):
            await self.end(session)

"""URIs without their secrets, for logs and people."""

from __future__ import annotations

from urllib.parse import unquote

_HIDDEN = "***"
_SECRET_CHARS_MIN = 6
"""Shorter values of a query are not treated as secrets, because they would match too much of other texts."""


def redacted(uri: str) -> str:
    """The URI without user, password and the values of its query."""
    if "://" not in uri:
        return uri
    scheme, _, rest = uri.partition("://")
    rest, sign, query = rest.partition("?")
    if "@" in query:  # This is part of the query, or the question mark is part of the password: both are possible.
        return f"{scheme}://{_HIDDEN}"
    # A password can have a slash in it, though it should not.
    user, at, place = rest.rpartition("@")
    pairs = [pair.partition("=")[:2] if "=" in pair else ("", "") for pair in query.split("&")] if sign else []
    hidden = "&".join([f"{name}{equals}{_HIDDEN}" for name, equals in pairs])
    return f"{scheme}://{_HIDDEN + at if user else at}{place}{sign}{hidden}"


def redacted_text(text: str, uri: str) -> str:
    """A text about the URI, without the secrets of the URI."""
    text = text.replace(uri, redacted(uri))
    for secret in sorted(_secrets_of(uri), key=len, reverse=True):
        text = text.replace(secret, _HIDDEN)
    return text


def _secrets_of(uri: str) -> set[str]:
    if "://" not in uri:
        return set()
    rest, _, query = (whole := uri.partition("://")[2]).partition("?")
    user = rest.rpartition("@")[0]
    if "@" in query:
        user = whole.rpartition("@")[0]
    values = [pair.partition("=")[2] if "=" in pair else pair for pair in query.split("&")]
    found = {user, user.partition(":")[2], *(value for value in values if len(value) >= _SECRET_CHARS_MIN)}
    return {text for secret in found for text in (secret, unquote(secret)) if text}

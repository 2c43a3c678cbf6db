"""Command lines of `foqs` that do the same as a page or an action."""

from __future__ import annotations

import shlex


def command(*words: str | None) -> str:
    """Return a command line for a shell, of the words that are neither None nor empty."""
    return " ".join(shlex.quote(word) for word in words if word)


def option(flag: str, value: object) -> list[str]:
    """Return an option with its value; nothing for a value that is None or empty."""
    return [] if value in (None, "") else [flag, str(value)]


def argument(text: str) -> list[str]:
    """Return a positional argument that a command does not take for an option."""
    return ["--", text] if text.startswith("-") else [text]

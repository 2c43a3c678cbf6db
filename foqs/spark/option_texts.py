"""Parsers of the texts of options, and the search for secrets in them, for reads and for writes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from foqs.model.access_tokens import TOKEN_PREFIX
from foqs.model.errors import InvalidArgumentError, shown

_TOKEN = "token"
_LIKE_TOKEN = re.compile(re.escape(TOKEN_PREFIX) + r"[a-z2-7]{12}_[A-Za-z0-9_-]{8}", re.ASCII)
"""The begin of a token: one that was not copied whole is a secret as well."""
_NO_TOKENS = (
    "Spark keeps options in plans and sends them to every executor: write the token to a file that only Spark's user "
    "can read, and give tokenFile"
)


def whole(least: int, most: int) -> Callable[[str, str], int]:
    """Return a parser of whole numbers within these bounds."""

    def parse(name: str, text: str) -> int:
        digits = text.strip().replace("_", "")
        if not (digits.isascii() and digits.isdigit()) or not least <= int(digits[:20]) <= most:
            raise InvalidArgumentError(f"{name} {shown(text)} is not a whole number within {least}..{most}")
        return int(digits)

    return parse


def flag(name: str, text: str) -> bool:
    """Parse `true` or `false`. Raises InvalidArgumentError."""
    if text.lower() not in ("true", "false"):
        raise InvalidArgumentError(f"{name} {shown(text)} is neither true nor false")
    return text.lower() == "true"


def without_tokens(given: Mapping[str, str], problems: list[str]) -> dict[str, str]:
    """Return the options by their names in lower case, without those that are or contain a token.

    These are added to `problems`, which do not repeat them.
    """
    options: dict[str, str] = {}
    for name, text in given.items():
        if name.lower() == _TOKEN:
            problems.append(f"{_TOKEN} is no option, because {_NO_TOKENS}")
        elif _LIKE_TOKEN.search(text):
            problems.append(f"{shown(name)} has a token in it, which no option may have, because {_NO_TOKENS}")
        else:
            options[name.lower()] = text
    return options


def check_tokens(given: Mapping[str, str]) -> None:
    """Raise InvalidArgumentError if an option is or contains a token."""
    problems: list[str] = []
    without_tokens(given, problems)
    if problems:
        raise InvalidArgumentError("options of format foqs: " + "; ".join(problems))

"""The texts of problems in a configuration, and URLs without their passwords."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping

from annotated_types import Ge, Le
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from foqs.model.errors import shown
from foqs.storage.sessions.passwords import FILE, KEPT, shown_url

ENVIRONMENT_PREFIX = "FOQS_"
_HIDDEN = "***"
_ADDRESSES = ("listen_address", "advertise_address", "metrics_address")


def redact_url(url: str) -> str:
    """The URL without its password, for logs and people."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        return _HIDDEN
    if re.search(r"[\s:@]", parsed.database or ""):
        return _HIDDEN  # Another text follows, perhaps a second URL with its password.
    shown_as_is = (KEPT, FILE)
    hidden = {key: _HIDDEN for key in parsed.query if ("pass" in key or "pwd" in key) and key not in shown_as_is}
    return shown_url(parsed.update_query_dict(hidden))


def sentence_of(detail: ErrorDetails, origins: Mapping[str, str], fields: Mapping[str, FieldInfo]) -> str:
    """A sentence for a problem: the key, its origin, the value without passwords, and the allowed values."""
    key = str(detail["loc"][0]) if detail["loc"] else ""
    message = str(detail["ctx"]["error"]) if detail["type"] == "value_error" else detail["msg"]
    if not key:
        return message
    if detail["type"] == "missing":
        variable = f"{ENVIRONMENT_PREFIX}{key.upper()}"
        return f"{key} is not set: give it by flag, in {variable} or in the file ({_description(fields[key])})"
    origin = origins.get(key, "unknown origin")
    if detail["type"] == "extra_forbidden":
        near = difflib.get_close_matches(key, fields, n=1)
        return f"{key} ({origin}) is not a key" + (f": did you mean {near[0]}?" if near else "")
    if detail["type"] == "value_error":
        text = str(detail["input"])
        of_many = key in ("shards", "shard_places")
        value = "" if of_many else f"{shown(text) if key in _ADDRESSES else redact_url(text)} "
        return f"{key} ({origin}): {value}{message}"
    return f"{key} = {detail['input']!r:.80} ({origin}) is refused; allowed: {_allowed(fields[key]) or message}"


def _description(field: FieldInfo) -> str:
    return field.description or ""


def _allowed(field: FieldInfo) -> str:
    """The allowed values of a key by the bounds of its field."""
    least = next((bound.ge for bound in field.metadata if isinstance(bound, Ge)), None)
    most = next((bound.le for bound in field.metadata if isinstance(bound, Le)), None)
    if least is not None and most is not None:
        return f"{least}..{most}"
    if field.annotation is bool:
        return "true, false"
    choices = getattr(field.annotation, "__args__", ())
    if choices:
        return ", ".join(map(str, choices))
    patterns = (pattern for bound in field.metadata if (pattern := getattr(bound, "pattern", None)))
    return next(patterns, "")

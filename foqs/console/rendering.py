"""Pages and their parts as HTML, and their documents as JSON."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, is_dataclass
from enum import Enum
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from foqs.console import texts
from foqs.console.asked import item_url, namespace_url, topic_url
from foqs.model.shown_text import escaped_json

STATIC_DIR: Final = Path(str(files("foqs.console") / "static"))
_TEMPLATES_DIR: Final = Path(str(files("foqs.console") / "templates"))


def make_environment() -> Environment:
    """Make the templates. All values are escaped, and one that is missing is an error."""
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES_DIR),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": texts.number, "rate": texts.per_second, "age": texts.age, "clock": texts.clock,
        "moment": texts.moment, "size": texts.size, "name": texts.name, "short": texts.short,
        "lines": texts.escaped_text,
    }  # fmt: skip
    environment.globals |= {
        "topic_url": topic_url, "item_url": item_url, "namespace_url": namespace_url, "asset": _asset_versions(),
    }  # fmt: skip
    return environment


def _asset_versions() -> dict[str, str]:
    """Return the URLs of the static files by their paths, with a version each, so that browsers can keep them."""
    found = {}
    for path in sorted(STATIC_DIR.rglob("*")):
        if path.is_file():
            name = path.relative_to(STATIC_DIR).as_posix()
            found[name] = f"/static/{name}?v={hashlib.sha256(path.read_bytes()).hexdigest()[:12]}"
    return found


def rendered(environment: Environment, template: str, values: dict[str, Any], *, is_part: bool) -> str:
    """Return a whole page, or only the part of it that is fetched again and again."""
    found = environment.get_template(template)
    if not is_part:
        return found.render(values)
    return "".join(found.blocks["live"](found.new_context(values)))


def json_text(document: object) -> str:
    """Return a document as JSON without characters that steer a terminal."""
    return escaped_json(json.dumps(document, default=_plain, ensure_ascii=False, indent=2)) + "\n"


def _plain(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, Enum):
        return value.name.lower()
    raise TypeError(f"{type(value).__name__} is not for JSON")

"""The guide of docs/security.md from open access to enforced access and TLS, for the test that runs it step by step."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_PAGE = Path(__file__).parents[2] / "docs/security.md"
_TITLE = "### From open to protected, without a stop"
_SETTING = re.compile(r"(?P<key>\w+) = (?P<value>.+)")


@dataclass(slots=True)
class Stretch:
    """What one part of a step says, in this order: what programs are given, settings of all hosts, commands."""

    programs: dict[str, Any] | None = None
    settings: dict[str, str] = field(default_factory=dict)
    commands: list[list[str]] = field(default_factory=list)


@dataclass(slots=True)
class Step:
    """One step: what is done once, what is done each time, and the way back."""

    title: str
    once: Stretch = field(default_factory=Stretch)
    do: Stretch = field(default_factory=Stretch)
    back: Stretch = field(default_factory=Stretch)


def steps(directory: Path) -> list[Step]:
    """Read the guide, with its files in `directory` instead of /etc/foqs."""
    _, _, guide = _PAGE.read_text().partition(f"{_TITLE}\n")
    assert guide, f"docs/security.md has no section {_TITLE!r}"
    guide = guide.partition("\n### ")[0].replace("/etc/foqs/", f"{directory}/")
    return [_step(part) for part in guide.split("\n#### ")[1:]]


def _step(text: str) -> Step:
    title, _, rest = text.partition("\n")
    step = Step(title)
    stretch = step.do
    for paragraph in re.split(r"\n{2,}", rest.strip("\n")):
        if paragraph.startswith("    "):
            for line in paragraph.splitlines():
                _read(line.strip(), stretch)
        elif paragraph == "Once:":
            stretch = step.once
        elif paragraph.startswith("Back"):
            stretch = step.back
        elif stretch is step.once:
            stretch = step.do
    return step


def _read(line: str, stretch: Stretch) -> None:
    if line.startswith(("foqs ", "export ")):
        stretch.commands.append(shlex.split(line))
    elif line.startswith("Client("):
        stretch.programs = eval(line, {"__builtins__": {}, "Client": _options})
    else:
        setting = _SETTING.fullmatch(line)
        assert setting is not None, f"neither a setting, a command nor a client: {line!r}"
        stretch.settings[setting["key"]] = setting["value"]


def _options(addresses: str, **options: Any) -> dict[str, Any]:
    assert addresses
    return options


def exported(command: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the variables that `export` sets, with their values."""
    for word in command[1:]:
        name, _, value = word.partition("=")
        yield name, value

"""Tables for docs/wire-contract.md from idl/foqs.thrift, its comments included.

The Thrift parser drops comments, so the file is read here, line by line in the form it is written in; a test
holds the result against what the parser finds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_BLOCK = re.compile(
    r"(?:/\*\*(?P<comment>(?:(?!\*/).)*)\*/\s*)?(?P<kind>struct|exception|enum) (?P<name>\w+)\s*\{(?P<body>[^}]*)\}",
    re.DOTALL,
)
_FIELD = re.compile(
    r"(?:/\*\*(?P<comment>(?:(?!\*/).)*)\*/\s*)?(?P<number>\d+):\s*(?P<need>required |optional )?"
    r"(?P<type>[\w<>, ]+?)\s+(?P<name>\w+)(?:\s*=\s*(?P<default>[^,/\s]+))?\s*(?:/\*(?P<after>[^*]*)\*/)?\s*(?:,|$)",
    re.DOTALL,
)
_MEMBER = re.compile(r"(?:/\*\*(?P<comment>(?:(?!\*/).)*)\*/\s*)?(?P<name>[A-Z_]+)\s*=\s*(?P<value>\d+)", re.DOTALL)
_SERVICE = re.compile(r"service (?P<name>\w+)\s*\{(?P<body>[^}]*)\}", re.DOTALL)
_CALL = re.compile(r"(?P<answer>\w+) (?P<name>\w+)\(1: (?P<request>\w+) request\)")


@dataclass(slots=True)
class Field:
    number: str
    name: str
    type: str
    need: str
    meaning: str


@dataclass(slots=True)
class Block:
    kind: str
    name: str
    meaning: str
    fields: list[Field] = field(default_factory=list)


def blocks(path: Path) -> Iterator[Block]:
    """Structs, exceptions and enums in the order of the file."""
    for found in _BLOCK.finditer(path.read_text()):
        block = Block(found["kind"], found["name"], _plain(found["comment"]))
        if block.kind == "enum":
            block.fields = [
                Field(m["value"], m["name"], "", "", _plain(m["comment"])) for m in _MEMBER.finditer(found["body"])
            ]
        else:
            block.fields = [_field(match) for match in _FIELD.finditer(found["body"].strip() + ",")]
        yield block


def services(path: Path) -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
    """By service its calls as (name, request, answer)."""
    for found in _SERVICE.finditer(path.read_text()):
        yield found["name"], [(c["name"], c["request"], c["answer"]) for c in _CALL.finditer(found["body"])]


def calls(path: Path) -> str:
    parts = []
    for service, found in services(path):
        rows = [f"| `{name}` | {_link(request)} | {_link(answer)} |" for name, request, answer in found]
        parts.append(
            "\n".join([f"### Service {service}\n", "| call | request | answer |", "| --- | --- | --- |", *rows])
        )
    return "\n\n".join(parts) + "\n"


def structs(path: Path) -> str:
    return "\n".join(_section(block) for block in blocks(path))


def _section(block: Block) -> str:
    lines = [f"### {block.name}", ""]
    if block.meaning:
        lines += [block.meaning, ""]
    if not block.fields:
        return "\n".join([*lines, "No fields.", ""])
    if block.kind == "enum":
        lines += ["| value | name | meaning |", "| --- | --- | --- |"]
        lines += [f"| {f.number} | `{f.name}` | {f.meaning} |" for f in block.fields]
    else:
        lines += ["| no. | field | type | | meaning |", "| --- | --- | --- | --- | --- |"]
        lines += [f"| {f.number} | `{f.name}` | {_typed(f.type)} | {f.need} | {f.meaning} |" for f in block.fields]
    return "\n".join([*lines, ""])


def _field(match: re.Match[str]) -> Field:
    need = (match["need"] or "").strip()
    if match["default"]:
        need = f"default `{match['default']}`"
    meaning = _plain(match["comment"] or match["after"])
    return Field(match["number"], match["name"], match["type"].strip(), need, meaning)


def _plain(comment: str | None) -> str:
    return re.sub(r"\s*\n\s*\*?\s*", " ", comment or "").strip()


def _typed(text: str) -> str:
    """A type as code, with links to the structs in it."""
    return re.sub(r"[A-Z]\w+", lambda found: _link(found[0]), text).replace("<", "&lt;").replace(">", "&gt;")


def _link(name: str) -> str:
    return f"[{name}](#{name.lower()})"

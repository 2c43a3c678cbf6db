"""Makes the types of requests from the contract: foqs/contract/requests.pyi from idl/foqs.thrift.

python -m scripts.generate_requests          brings the file up to date
python -m scripts.generate_requests --check  fails if it is not

The structs themselves are those of thriftpy2, which has neither types nor comments. A required field or one with a
default value of a request is never None, because the host checks it; any other field can be.
"""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from scripts.idl_tables import Block, Field, blocks, services

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "idl/foqs.thrift"
TARGET = ROOT / "foqs/contract/requests.pyi"
PEER_SERVICE = "FoqsPeer"
"""The service whose responses are of interest, too: hosts make and read them."""

_PLAIN = {"string": "str", "binary": "bytes", "bool": "bool", "i32": "int", "i64": "int", "double": "float"}
_HEADER = """\
# Generated from idl/foqs.thrift by scripts/generate_requests.py: edit that one.
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

R = TypeVar("R")

def changed(request: R, **fields: object) -> R: ...
"""


def generated() -> str:
    """The text of the target, formatted."""
    by_name = {block.name: block for block in blocks(SOURCE)}
    calls = [(service, call) for service, found in services(SOURCE) for call in found]
    requests = {request for _, (_, request, _) in calls}
    answers = {answer for service, (_, _, answer) in calls if service == PEER_SERVICE}
    wanted: set[str] = set()
    for name in requests | answers:
        wanted |= _reachable(name, by_name)
    text = [_HEADER]
    text += [_class_of(block, by_name, block.name in requests) for name, block in by_name.items() if name in wanted]
    return _formatted("\n\n".join(text))


def _reachable(name: str, by_name: dict[str, Block]) -> set[str]:
    """The struct and those of its fields."""
    found = {name}
    for one in by_name[name].fields:
        for inner in re.findall(r"\w+", one.type):
            if inner in by_name and by_name[inner].kind == "struct":
                found |= _reachable(inner, by_name)
    return found


def _class_of(block: Block, by_name: dict[str, Block], is_request: bool) -> str:
    lines = ["@dataclass", f"class {block.name}:", *_doc(block.meaning)]
    for one in block.fields:
        lines += [f"    {one.name}: {_type_of(one, by_name, is_request)} = ...", *_doc(one.meaning)]
    return "\n".join(lines if len(lines) > 2 else [*lines, "    pass"])


def _type_of(one: Field, by_name: dict[str, Block], is_request: bool) -> str:
    is_given = is_request and (one.need.startswith("required") or "default" in one.need)
    return _python(one.type, by_name) + ("" if is_given else " | None")


def _python(kind: str, by_name: dict[str, Block]) -> str:
    if inner := re.fullmatch(r"list<(.+)>", kind):
        return f"Sequence[{_python(inner[1], by_name)}]"
    if kind in by_name:
        return "int" if by_name[kind].kind == "enum" else kind
    return _PLAIN[kind]


def _doc(meaning: str) -> Iterator[str]:
    if meaning:
        yield from textwrap.wrap(f'"""{meaning}"""', 116, initial_indent="    ", subsequent_indent="    ")


def _formatted(text: str) -> str:
    arguments = [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(TARGET), "-"]
    done = subprocess.run(arguments, input=text, capture_output=True, text=True, cwd=ROOT, check=True)
    return done.stdout


def main(arguments: list[str]) -> int:
    text = generated()
    if TARGET.exists() and TARGET.read_text() == text:
        return 0
    if "--check" not in arguments:
        TARGET.write_text(text)
    print(f"{TARGET.relative_to(ROOT)}: {'out of date' if '--check' in arguments else 'written'}")
    return 1 if "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

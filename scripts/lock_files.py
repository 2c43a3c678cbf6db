"""The locks of what foqs is installed with: `requirements/*.lock` has each package with its version and its hashes.

python -m scripts.lock_files    makes them anew by uv, the newest versions that pyproject.toml allows (`make locks`)
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
EXTRAS: dict[str, tuple[str, ...]] = {
    "client": (),
    "host": ("host", "zookeeper", "console"),
    "spark": ("spark",),
    "dev": ("dev", "loadtest", "testing"),
}
"""The extras of each lock."""
_UV = "build/tools/bin/uv"
_PIN = re.compile(r"([A-Za-z0-9._-]+)==([^ ;\\]+)(?: ; ([^\\]+?))?(?: \\)?$")
_HASH = re.compile(r"    --hash=(sha256:[0-9a-f]{64})(?: \\)?$")


class Pin(NamedTuple):
    """One version of a package in a lock."""

    name: str
    version: str
    marker: str
    """Where it is installed; empty if everywhere."""
    hashes: tuple[str, ...]


def lock_path(name: str, root: Path = ROOT) -> Path:
    return root / "requirements" / f"{name}.lock"


def pins(text: str) -> list[Pin]:
    """Return what a lock has. Raises ValueError for a line that is neither a pin, a hash nor a comment."""
    found: list[Pin] = []
    for line in text.splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if (hashed := _HASH.match(line)) and found:
            found[-1] = found[-1]._replace(hashes=(*found[-1].hashes, hashed[1]))
        elif pinned := _PIN.match(line):
            found.append(Pin(pinned[1].lower(), pinned[2], (pinned[3] or "").strip(), ()))
        else:
            raise ValueError(f"a lock has the line {line!r}, which is no version and no hash: make locks")
    return found


def digest(path: Path) -> str:
    return "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()


def requirements(name: str, root: Path = ROOT) -> Iterator[str]:
    """The requirements of pyproject.toml that a lock must have, those of extras of foqs in extras included."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    waiting, seen = list(EXTRAS[name]), set[str]()
    yield from project["dependencies"]
    while waiting:
        extra = waiting.pop()
        if extra in seen:
            continue
        seen.add(extra)
        for one in project["optional-dependencies"][extra]:
            inner = re.fullmatch(r"foqs\[([a-z,]+)\]", one)
            if inner:
                waiting += inner[1].split(",")
            else:
                yield one


def command(name: str) -> list[str]:
    """The command that makes a lock for all platforms and for each Python from 3.11 on."""
    extras = [word for extra in EXTRAS[name] for word in ("--extra", extra)]
    return [
        _UV, "pip", "compile", "pyproject.toml", *extras, "--generate-hashes", "--universal",
        "--python-version", "3.11", "--no-header", "--no-emit-index-url", "--no-emit-find-links",
        "--upgrade", "--quiet", "--output-file", str(lock_path(name).relative_to(ROOT)),
    ]  # fmt: skip


def main() -> int:
    """Make all locks."""
    lock_path("client").parent.mkdir(exist_ok=True)
    for name in EXTRAS:
        subprocess.run(command(name), cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        print(f"{lock_path(name).relative_to(ROOT)}: {len(pins(lock_path(name).read_text()))} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main())

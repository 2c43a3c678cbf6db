"""Writes the bill of materials of each lock into dist/sbom, as CycloneDX 1.6 in JSON (`make sbom`).

The tool cyclonedx-py makes it from the lock. What it says is made to be the same for the same locks: without the time
and without the text of each line, which has nothing but the hashes again.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from scripts.lock_files import EXTRAS, ROOT, lock_path, pins

_TOOL = "build/tools/bin/cyclonedx-py"
_TOOL_S_MAX = 120


def tidied(bill: dict[str, Any]) -> dict[str, Any]:
    """Return the bill without the text of each line of the lock."""
    for component in bill["components"]:
        component.pop("description", None)
    return bill


def check(bill: dict[str, Any], lock: str) -> None:
    """Raise ValueError unless the bill has exactly the packages of the lock, each with all of its hashes."""
    wanted = {(pin.name, pin.version): {one.removeprefix("sha256:") for one in pin.hashes} for pin in pins(lock)}
    found = {
        (one["name"].lower(), one["version"]): {
            hashed["content"] for place in one.get("externalReferences", []) for hashed in place.get("hashes", [])
        }
        for one in bill["components"]
    }
    if wanted != found:
        differs = sorted(key for key in wanted.keys() | found.keys() if wanted.get(key) != found.get(key))
        raise ValueError(f"the bill of materials differs from its lock in {differs}")


def main() -> int:
    """Write a bill for each lock."""
    directory = ROOT / "dist/sbom"
    directory.mkdir(parents=True, exist_ok=True)
    for name in EXTRAS:
        words = [
            _TOOL, "requirements", str(lock_path(name)), "--pyproject", "pyproject.toml",
            "--output-reproducible", "--output-format", "JSON", "--spec-version", "1.6",
        ]  # fmt: skip
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=_TOOL_S_MAX, check=False)
        if done.returncode:
            print(done.stderr[-2_000:], file=sys.stderr)
            return 1
        bill = tidied(json.loads(done.stdout))
        check(bill, lock_path(name).read_text())
        path: Path = directory / f"foqs-{name}.cdx.json"
        path.write_text(json.dumps(bill, indent=2) + "\n")
        print(f"{path.relative_to(ROOT)}: {len(bill['components'])} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main())

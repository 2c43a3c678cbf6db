"""Tells how many tests `make test` and `make test-deep` ran and what came of them: a line each.

python -m scripts.test_counts    fails if a test failed, or if not all of both was run
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

RESULTS = Path("build/tests")
COMMANDS = {"make test": ["test.xml"], "make test-deep": ["test-deep.xml", "test-deep-alone.xml"]}
_TOLD = ("passed", "failed", "skipped")


def outcomes(path: Path) -> Counter[str]:
    """How many tests of a JUnit file passed, failed and were skipped. Raises OSError if there is none."""
    found: Counter[str] = Counter()
    for suite in ElementTree.parse(path).iter("testsuite"):
        failed, skipped = int(suite.get("failures", 0)) + int(suite.get("errors", 0)), int(suite.get("skipped", 0))
        found += Counter(passed=int(suite.get("tests", 0)) - failed - skipped, failed=failed, skipped=skipped)
    return found


def main(results: Path = RESULTS) -> int:
    status = 0
    for command, files in COMMANDS.items():
        total, missing = Counter[str](), []
        for name in files:
            try:
                total += outcomes(results / name)
            except OSError:
                missing.append(name)
        counts = ", ".join(f"{total[what]:,} {what}" for what in _TOLD)
        print(f"{command}: {counts}" + "".join(f", {name} is missing" for name in missing))
        if total["failed"] or missing:
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())

"""The bits that jobs need, as the documents say."""

from __future__ import annotations

import re
from pathlib import Path

from foqs.contract.permissions import Permission

_DOCS = Path(__file__).parents[2] / "docs/spark.md"
_TABLE = re.compile(r"^\| what \| bits \| role \|\n\| --- \| --- \| --- \|\n((?:\|.*\n)+)", re.MULTILINE)


def documented_roles() -> dict[str, tuple[Permission, str | None]]:
    """What each job needs: its bits, and the role that has them; by the names in the table."""
    table = re.search(
        r"^\| what \| bits \| role \|\n\| --- \| --- \| --- \|\n((?:\|.*\n)+)", _DOCS.read_text(), re.MULTILINE
    )
    assert table is not None, "the documents have the table"
    found: dict[str, tuple[Permission, str | None]] = {}
    for line in table[1].splitlines():
        names, bits, role = (cell.strip() for cell in line.strip("|").split(" | "))
        needed = Permission(0)
        for bit in re.findall("[A-Z]{2,}", bits):
            needed |= Permission[bit]
        for name in names.split(", "):
            found[name.strip()] = needed, role.strip("`") if role.startswith("`") else None
    return found


def documented_bits() -> dict[str, Permission]:
    return {name: bits for name, (bits, _) in documented_roles().items()}

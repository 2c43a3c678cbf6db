"""Writes the parts of docs/ that repeat the code: between `<!-- generated: NAME -->` and `<!-- end -->`.

python -m scripts.generate_docs          brings them up to date
python -m scripts.generate_docs --check  says which are not, and fails
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

from scripts import code_tables, idl_tables, scale_tables

ROOT = Path(__file__).parents[1]
_SECTION = re.compile(r"(<!-- generated: (?P<name>[a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)

SECTIONS: dict[str, Callable[[], str]] = {
    "host-config": code_tables.host_config,
    "namespace-settings": code_tables.namespace_settings,
    "limits": lambda: code_tables.limits_met(ROOT / "foqs/model/limits.py"),
    "limits-beside": code_tables.limits_beside,
    "limits-internal": lambda: code_tables.limits_inside(ROOT / "foqs/model/limits.py"),
    "metrics": lambda: code_tables.metrics(ROOT / "foqs/host", ROOT / "foqs/cluster", ROOT / "foqs/transport"),
    "errors": code_tables.errors,
    "scale": scale_tables.scale,
    "spark-columns": code_tables.spark_columns,
    "spark-json-types": code_tables.spark_json_types,
    "spark-options": code_tables.spark_options,
    "spark-read-columns": code_tables.spark_read_columns,
    "spark-read-options": code_tables.spark_read_options,
    "calls": lambda: idl_tables.calls(ROOT / "idl/foqs.thrift"),
    "structs": lambda: idl_tables.structs(ROOT / "idl/foqs.thrift"),
}


def documents() -> list[Path]:
    return [path for path in sorted((ROOT / "docs").rglob("*.md")) if _SECTION.search(path.read_text())]


def up_to_date(text: str) -> str:
    """The document with its generated parts made anew. Raises KeyError for a section that nobody makes."""
    return _SECTION.sub(lambda found: f"{found[1]}\n{SECTIONS[found['name']]()}\n{found[3]}", text)


def main(arguments: list[str]) -> int:
    stale = []
    for path in documents():
        text = path.read_text()
        current = up_to_date(text)
        if current != text:
            stale.append(path.relative_to(ROOT))
            if "--check" not in arguments:
                path.write_text(current)
    for name in stale:
        print(f"{name}: {'out of date' if '--check' in arguments else 'written'}")
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The event log as plain Python reads it: an oracle for what hosts write and for what Spark makes of it."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from foqs.model import ids
from foqs.model.event_log import BOUNDS_MS, LIFE_COLUMNS, LIVES, ROLLUPS


def closed_files(directory: Path, kind: str) -> list[Path]:
    return sorted(directory.glob(f"{kind}/date=*/hour=*/[!_]*.jsonl.gz"))


def open_files(directory: Path) -> list[Path]:
    return sorted(directory.glob("*/date=*/hour=*/_*"))


def lines(directory: Path, kind: str) -> Iterator[dict[str, Any]]:
    for path in closed_files(directory, kind):
        for line in gzip.decompress(path.read_bytes()).splitlines():
            yield json.loads(line)


def lives_of(line: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The events of one line."""
    for position in range(line["count"]):
        values = {name: line[name][position if len(line[name]) > 1 else 0] for name in LIFE_COLUMNS}
        yield {
            "id": ids.item_id(line["shard"], values.pop("key")),
            **{name: line[name] for name in ("namespace", "topic", "outcome")},
            **values,
        }


def lives(directory: Path) -> list[dict[str, Any]]:
    return [life for line in lines(directory, LIVES) for life in lives_of(line)]


def rollups(directory: Path) -> list[dict[str, Any]]:
    return list(lines(directory, ROLLUPS))


def counts(directory: Path) -> Counter[tuple[str | None, str | None, int | None, str]]:
    """Items by namespace, topic, priority and outcome."""
    found: Counter[tuple[str | None, str | None, int | None, str]] = Counter()
    for row in rollups(directory):
        found[row["namespace"], row["topic"], row["priority"], row["outcome"]] += row["count"]
    return found


def bucket_of(elapsed_ms: int) -> int:
    return next((number for number, bound in enumerate(BOUNDS_MS) if elapsed_ms <= bound), len(BOUNDS_MS))

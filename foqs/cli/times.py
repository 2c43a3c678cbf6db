"""Times of the command line: a duration before now, or a date and time in UTC."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import click

_AGO = re.compile(r"(\d{1,6})([smhd])", re.ASCII)
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


class PastTime(click.ParamType):  # type: ignore[type-arg]  # it is generic from click 8.2 on
    """A time as milliseconds since the epoch: `90s`, `15m`, `6h` or `7d` ago, or a time in UTC."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        if ago := _AGO.fullmatch(value):
            at = datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        else:
            try:
                at = datetime.fromisoformat(value)
            except ValueError:
                self.fail(f"{value!r} is no time; give 15m, 6h or 7d for so long ago, or 2030-01-31T12:00 in UTC")
            at = at.replace(tzinfo=UTC) if at.tzinfo is None else at
        return max(0, round(at.timestamp() * 1000))

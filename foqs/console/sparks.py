"""Small charts as points of SVG, and the series of large ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from foqs.console.texts import number
from foqs.model.topic_rates import UNKNOWN

SPARK_WIDTH: Final = 96
SPARK_HEIGHT: Final = 22
_POINTS_MAX: Final = 45


class Spark(NamedTuple):
    """A line with its last point, in a box of SPARK_WIDTH by SPARK_HEIGHT, and its text for those who do not see it."""

    line: str
    area: str
    last_x: str
    last_y: str
    label: str


def spark_of(series: Sequence[int] | None, what: str = "ready") -> Spark | None:
    """Return the spark of a series; None without two known values."""
    if series is None:
        return None
    values = [value for value in series if value != UNKNOWN]
    if len(values) < 2:
        return None
    label = f"{what} in 15 minutes: {number(values[0])} to {number(values[-1])}"
    if len(values) > _POINTS_MAX:
        step = len(values) / _POINTS_MAX
        values = [values[min(len(values) - 1, int((at + 1) * step) - 1)] for at in range(_POINTS_MAX)]
    most = max(*values, 1)
    least = min(*values, int(most * 0.6))
    width, span = SPARK_WIDTH / (len(values) - 1), most - least or 1
    points = [
        f"{at * width:.1f},{SPARK_HEIGHT - 2 - (value - least) / span * (SPARK_HEIGHT - 4):.1f}"
        for at, value in enumerate(values)
    ]
    line = " ".join(points)
    x, _, y = points[-1].partition(",")
    return Spark(line, f"0,{SPARK_HEIGHT} {line} {SPARK_WIDTH},{SPARK_HEIGHT}", x, y, label)

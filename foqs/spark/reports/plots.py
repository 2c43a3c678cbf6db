"""Plots as inline SVG: lines and stacked bars over time, with axes, units and a legend. Colors come from the page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape
from typing import NamedTuple

WIDTH, HEIGHT = 860, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 78, 14, 12, 44
_TICKS = 5
POINTS_MAX = 800
"""Most points of a plot, because more cannot be distinguished."""


class PlotSeries(NamedTuple):
    """One line, or one part of each bar. A None is a gap."""

    name: str
    values: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot over at most POINTS_MAX moments."""

    title: str
    unit: str
    moments: Sequence[datetime]
    series: Sequence[PlotSeries]
    is_bars: bool = False
    """True for stacked bars, False for lines."""
    is_log: bool = False
    """True for a logarithmic vertical axis, for times that differ by factors."""


def svg_of(plot: Plot) -> str:
    """The plot as an SVG element for a page."""
    scale = _Scale(plot)
    parts = [_vertical_axis(plot, scale), _horizontal_axis(plot, scale)]
    draw = _bars if plot.is_bars else _line
    stacked = [0.0] * len(plot.moments)
    for number, series in enumerate(plot.series):
        parts.append(draw(plot, scale, number, series, stacked))
    label = escape(f"{plot.title}, {plot.unit}", quote=True)
    legend = "".join(
        f'<span class="key c{number % 6}"><i></i>{escape(series.name)}</span>'
        for number, series in enumerate(plot.series)
    )
    return (
        f'<figure><figcaption>{escape(plot.title)} <small>{escape(plot.unit)}</small></figcaption><div class="keys">'
        f'{legend}</div><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}</svg>'
        "</figure>"
    )


class _Scale:
    """The positions of values and moments in the picture."""

    def __init__(self, plot: Plot) -> None:
        count = len(plot.moments)
        if plot.is_bars:
            tops = [sum(series.values[at] or 0 for series in plot.series) for at in range(count)]
        else:
            tops = [value for series in plot.series for value in series.values if value is not None]
        top = max(tops, default=0) or 1
        self.is_log = plot.is_log
        if plot.is_log:
            least = min([value for value in tops if value > 0], default=1)
            self.low = 10 ** math.floor(math.log10(least))
            self.high = max(10 ** math.ceil(math.log10(top)), self.low * 10)
            powers = range(round(math.log10(self.low)), round(math.log10(self.high)) + 1)
            self.ticks = [10.0**power for power in powers]
        else:
            step = _step(top / _TICKS)
            self.low, self.high = 0.0, step * math.ceil(top / step)
            self.ticks = [step * number for number in range(round(self.high / step) + 1)]
        self.slot = (WIDTH - _LEFT - _RIGHT) / max(1, count)

    def x(self, at: int) -> float:
        """The middle of the moment's slot."""
        return _LEFT + self.slot * (at + 0.5)

    def y(self, value: float) -> float:
        if self.is_log:
            value = max(value, self.low)
            share = math.log10(value / self.low) / math.log10(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return HEIGHT - _BOTTOM - share * (HEIGHT - _TOP - _BOTTOM)


def _step(rough: float) -> float:
    """The next round number, at least `rough`."""
    power = 10 ** math.floor(math.log10(rough))
    return float(next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999999))


def _vertical_axis(plot: Plot, scale: _Scale) -> str:
    parts = []
    for tick in scale.ticks:
        y = scale.y(tick)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{short(tick)}</text>')
    middle = (HEIGHT - _BOTTOM + _TOP) / 2
    parts.append(
        f'<text transform="translate(14 {middle}) rotate(-90)" text-anchor="middle">{escape(plot.unit)}</text>'
    )
    return "".join(parts)


def _horizontal_axis(plot: Plot, scale: _Scale) -> str:
    count = len(plot.moments)
    parts = []
    every = max(1, math.ceil(count / 8))
    is_daily = all(moment.hour == moment.minute == 0 for moment in plot.moments)
    for at in range(0, count, every):
        text = plot.moments[at].strftime("%d %b" if is_daily else "%d %b %H:%M")
        y = HEIGHT - _BOTTOM + 18
        parts.append(f'<text x="{scale.x(at):.1f}" y="{y}" text-anchor="middle">{text}</text>')
    parts.append(f'<text x="{(WIDTH + _LEFT) / 2}" y="{HEIGHT - 6}" text-anchor="middle">time (UTC)</text>')
    return "".join(parts)


def _bars(plot: Plot, scale: _Scale, number: int, series: PlotSeries, stacked: list[float]) -> str:
    parts = []
    width = max(1.0, scale.slot * 0.8)
    for at, value in enumerate(series.values):
        if value:
            low, high = scale.y(stacked[at]), scale.y(stacked[at] + value)
            stacked[at] += value
            parts.append(
                f'<rect class="c{number % 6}" x="{scale.x(at) - width / 2:.1f}" width="{width:.1f}" y="{high:.1f}" '
                f'height="{max(0.0, low - high):.1f}">{_hint(plot, series, at, value)}</rect>'
            )
    return "".join(parts)


def _line(plot: Plot, scale: _Scale, number: int, series: PlotSeries, stacked: list[float]) -> str:
    """One path for each run of values, and a dot for each value."""
    path, dots, pen = [], [], "M"
    for at, value in enumerate(series.values):
        if value is None:
            pen = "M"
            continue
        x, y = scale.x(at), scale.y(value)
        path.append(f"{pen}{x:.1f} {y:.1f}")
        pen = "L"
        dots.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5">{_hint(plot, series, at, value)}</circle>')
    return f'<g class="c{number % 6}"><path d="{"".join(path)}"/>{"".join(dots)}</g>'


def _hint(plot: Plot, series: PlotSeries, at: int, value: float) -> str:
    when = plot.moments[at].strftime("%Y-%m-%d %H:%M")
    return f"<title>{escape(series.name)}, {when}: {value:,.6g} {escape(plot.unit)}</title>"


def short(value: float) -> str:
    """A number with the unit prefix of an axis."""
    for size, mark in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= size:
            return f"{value / size:g}{mark}"
    return f"{value:g}"

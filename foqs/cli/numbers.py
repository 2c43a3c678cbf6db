"""Numbers as arguments and options of commands."""

from __future__ import annotations

from typing import Any

import click


class WholeNumber(click.IntRange):
    """A whole number within bounds. The error names the value, the bounds and, if given, a hint."""

    def __init__(self, least: int | None = None, most: int | None = None, *, hint: str = "") -> None:
        super().__init__(least, most)
        self._hint = f": {hint}" if hint else ""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            number: int = super().convert(value, param, ctx)
        except click.BadParameter:
            self.fail(f"{value!r} is not a whole number{self._bounds()}{self._hint}", param, ctx)
        return number

    def _bounds(self) -> str:
        if self.min is None:
            return ""
        return f" from {self.min} on" if self.max is None else f" within {self.min}..{self.max}"

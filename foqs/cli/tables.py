"""Tables as lines of text, made as the rows arrive: as wide as the terminal, or separated by tabs for programs.

At a terminal the first rows decide how wide the columns are. Where they do not fit, each row becomes a record of
several lines, `column value`. The last column is never padded, so that the terminal wraps a long text in it.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice

from foqs.model.shown_text import one_line

_GAP = "  "
_ROWS_SEEN = 1_000
"""Rows that decide the widths of the columns. A later, wider cell sticks out."""
_LAST_COLUMN_CHARS_MIN = 12


def table_lines(
    columns: Sequence[str], rows: Iterable[Sequence[object]], terminal_columns: int | None, *, is_last_cut: bool = False
) -> Iterator[str]:
    """The lines of a table with its head. Without a terminal, programs get complete cells separated by tabs.

    `is_last_cut`: cut the last cell of a row at the edge of the terminal.
    """
    if terminal_columns is None:
        yield from map("\t".join, chain([columns], ([text_of(value) for value in row] for row in rows)))
        return
    cells = ([cell_of(value) for value in row] for row in rows)
    first = list(islice(cells, _ROWS_SEEN))
    widths = [max(map(width_of, column)) for column in zip(columns, *first, strict=True)]
    room = terminal_columns - sum(widths[:-1]) - len(_GAP) * (len(widths) - 1)
    if room < min(widths[-1], _LAST_COLUMN_CHARS_MIN):
        yield from _records(columns, chain(first, cells))
        return
    for row in chain([columns], first, cells):
        *padded, last = row
        parts = [text + " " * (width - width_of(text)) for text, width in zip(padded, widths, strict=False)]
        yield _GAP.join([*parts, _cut(last, room) if is_last_cut else last]).rstrip()


def _records(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    width = max(map(width_of, columns))
    for number, row in enumerate(rows):
        if number:
            yield ""
        for column, text in zip(columns, row, strict=True):
            yield f"{column}{' ' * (width - width_of(column))}{_GAP}{text}"


def cell_of(value: object) -> str:
    """One line of printable characters. The others are replaced, because some are control sequences of terminals."""
    text = text_of(value)
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def text_of(value: object) -> str:
    """One line for a program. Control characters are replaced, and those that turn the direction of writing.

    JSON has a text as it is.
    """
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    return one_line(str(value))


def width_of(text: str) -> int:
    """The width in columns of a terminal."""
    return len(text) if text.isascii() else sum(map(_char_width, text))


def _char_width(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def _cut(text: str, room: int) -> str:
    if len(text) * 2 <= room or width_of(text) <= room:
        return text
    end, width = 0, 0
    while width + _char_width(text[end]) < room:
        width += _char_width(text[end])
        end += 1
    return text[:end] + "…"

"""Texts of others at a terminal: the characters that steer it, or turn the order of what it shows, do not get there."""

from __future__ import annotations

import re
from typing import Final

_CONTROLS: Final = "\x00-\x1f\x7f-\x9f"
"""C0 and C1: a terminal takes U+009B as it takes ESC and a bracket."""
_BIDI: Final = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
"""Marks, embeddings, overrides and isolates of writing directions, which show a name as another one."""
_LINE_ENDS: Final = "\u2028\u2029"
_UNSAFE: Final = re.compile(f"[{_CONTROLS}{_BIDI}{_LINE_ENDS}]")
_UNSAFE_IN_LINES: Final = re.compile(f"(?!\n)[{_CONTROLS}{_BIDI}{_LINE_ENDS}]")
_BEYOND_ASCII: Final = re.compile(f"[\x7f-\x9f{_BIDI}{_LINE_ENDS}]")


def one_line(text: str) -> str:
    """Return the text with a replacement character in the place of each unsafe one, line ends included."""
    return text if text.isprintable() else _UNSAFE.sub("\N{REPLACEMENT CHARACTER}", text)


def some_lines(text: str) -> str:
    """Return the text as `one_line` does, but with its line ends."""
    return text if text.isprintable() else _UNSAFE_IN_LINES.sub("\N{REPLACEMENT CHARACTER}", text)


def escaped(text: str) -> str:
    r"""Return the text with unsafe characters as `\x1b` or `\u202e`, but with its line ends."""
    return text if text.isprintable() else _UNSAFE_IN_LINES.sub(_escape, text)


def escaped_json(text: str) -> str:
    r"""Return a JSON document whose unsafe characters beyond ASCII are `\u009b`. JSON has escaped the others."""
    return _BEYOND_ASCII.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
